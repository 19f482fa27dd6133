"""`msmigrate weights` on the command line: bad options are one line and exit 2, a dry run prints its plan."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path

import pytest
from hf_checkpoints import config, write_model

from migrate import cli, progress
from migrate.weights.command import convert
from migrate.weights.destinations import Destination

CONVERT = ["weights", "convert"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of each kind; `bare_*` have no config.json."""
    root = tmp_path_factory.mktemp("cli")
    write_model(root / "hf", config("llama"))
    write_model(root / "moe", config("qwen3_moe", num_experts=3, moe_intermediate_size=8, num_key_value_heads=2))
    for container in ("sharded", "mindspore", "strategy", "iteration", "ckpt"):
        convert(root / "hf", root / container, destination=Destination(container))
        if container != "sharded":
            convert(root / "hf", root / f"bare_{container}", destination=Destination(container))
            (root / f"bare_{container}/config.json").unlink()
    convert(root / "hf", root / "unclear", destination=Destination("ckpt", spelling="mindformers"))
    (root / "unclear/conversion_manifest.json").unlink()
    (root / "full").mkdir()
    (root / "full/notes.txt").write_text("precious")
    (root / "wrong.json").write_text('{"version": 1,')
    (root / "text").write_text("no checkpoint")
    (root / "empty").mkdir()
    return root


BAD = [
    # containers and layouts
    ([*CONVERT, "hf", "-o", "out", "--to", "zip"], "no container 'zip'; known are hf"),
    ([*CONVERT, "hf", "-o", "out", "--from", "zip"], "no container 'zip'"),
    ([*CONVERT, "hf", "-o", "out", "--to", "hf", "--tp", "2"], "a parallel layout is for"),
    ([*CONVERT, "hf", "-o", "out", "--to", "ckpt", "--pp", "2"], "a parallel layout is for"),
    ([*CONVERT, "hf", "-o", "out", "--to", "mindspore", "--zero", "1"], "a parallel layout is for"),
    ([*CONVERT, "hf", "-o", "out", "--to", "strategy", "--to-strategy", "strategy", "--tp", "2"], "leave out the par"),
    ([*CONVERT, "hf", "-o", "out", "--to-strategy", "strategy"], "--to-strategy is for strategy, not for sharded"),
    ([*CONVERT, "hf", "-o", "out", "--to", "strategy", "--to-strategy", "nowhere"], "nowhere"),
    ([*CONVERT, "hf", "-o", "out", "--to", "strategy", "--to-strategy", "empty"], "no ckpt_strategy_rank_N.ckpt"),
    ([*CONVERT, "hf", "-o", "out", "--to", "strategy", "--to-strategy", "text"], "text"),
    ([*CONVERT, "hf", "-o", "out", "--tp", "3"], "tp"),
    ([*CONVERT, "hf", "-o", "out", "--to", "strategy", "--tp", "3"], "tp"),
    ([*CONVERT, "hf", "-o", "out", "--pp", "3"], "3"),
    ([*CONVERT, "hf", "-o", "out", "--vpp", "2"], "vpp=2 needs pp"),
    ([*CONVERT, "hf", "-o", "out", "--ep", "2"], "ep=2 does not divide dp=1"),
    ([*CONVERT, "moe", "-o", "out", "--ep", "2", "--dp", "2"], "ep"),
    ([*CONVERT, "moe", "-o", "out", "--to", "strategy", "--ep", "3", "--dp", "3"], "choose a spelling that fuses"),
    ([*CONVERT, "hf", "-o", "out", "--zero", "4"], "--zero"),
    (["weights", "reshard", "hf", "-o", "out", "--tp", "2"], "no sharded checkpoint; use convert"),
    (["weights", "reshard", "sharded", "-o", "out", "--tp", "3"], "tp"),
    # spellings, dtypes, sizes
    ([*CONVERT, "hf", "-o", "out", "--to", "hf", "--spelling", "esperanto"], "esperanto"),
    ([*CONVERT, "hf", "-o", "out", "--spelling", "mindformers"], "names of Hugging Face"),
    ([*CONVERT, "mindspore", "-o", "out", "--from-spelling", "esperanto"], "esperanto"),
    ([*CONVERT, "hf", "-o", "out", "--from-spelling", "esperanto"], "esperanto"),
    ([*CONVERT, "hf", "-o", "out", "--dtype", "F8"], "dtype 'F8' is none of"),
    (["weights", "export", "sharded", "-o", "out", "--dtype", "bf17"], "dtype 'bf17' is none of"),
    (["weights", "export", "sharded", "-o", "out", "--max-shard-size", "0"], "--max-shard-size"),
    ([*CONVERT, "hf", "-o", "out", "--max-shard-size", "9"], "--max-shard-size is for hf and mindspore"),
    ([*CONVERT, "hf", "-o", "out", "--crc"], "--crc is for"),
    ([*CONVERT, "hf", "-o", "out", "--as-ckpt"], "--as-ckpt is for"),
    ([*CONVERT, "hf", "-o", "out", "--remove-redundancy"], "--remove-redundancy is for"),
    ([*CONVERT, "hf", "-o", "out", "--step", "5"], "--step is for"),
    ([*CONVERT, "hf", "-o", "out", "--memory-budget", "0"], "--memory-budget"),
    ([*CONVERT, "hf", "-o", "out", "--threads", "0"], "--threads"),
    # any state dict
    ([*CONVERT, "hf", "-o", "out", "--family", "none"], "--family none needs --table"),
    ([*CONVERT, "hf", "-o", "out", "--table", "wrong.json"], "are for --family none"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json"], "wrong.json"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "nowhere.json"], "nowhere.json"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json", "--arguments", "{"], "--arguments"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json", "--arguments", "[1]"], "JSON object"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json", "--tp", "2"], "a parallel layout"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json", "--to", "ckpt"], "another cont"),
    ([*CONVERT, "hf", "-o", "out", "--family", "none", "--table", "wrong.json", "--dtype", "F16"], "--dtype"),
    ([*CONVERT, "hf", "-o", "out", "--family", "llama"], "has its own config.json"),
    ([*CONVERT, "mindspore", "-o", "out", "--family", "nobody"], "nobody"),
    # outputs
    ([*CONVERT, "hf", "-o", "hf/out"], "inside each other"),
    (["weights", "export", "sharded", "-o", "sharded"], "inside each other"),
    ([*CONVERT, "hf", "-o", "full"], "not empty"),
    ([*CONVERT, "hf", "-o", "full", "--force"], "--force does not replace it"),
    ([*CONVERT, "hf", "-o", "text"], "no directory"),
    ([*CONVERT, "hf", "-o", "sharded"], "not empty"),
    # sources
    ([*CONVERT, "text", "-o", "out"], "is a file"),
    ([*CONVERT, "empty", "-o", "out"], "config.json: no such file"),
    ([*CONVERT, "bare_mindspore", "-o", "out"], "no config.json in it"),
    ([*CONVERT, "bare_ckpt/model.ckpt", "-o", "out"], "no config.json in it"),
    ([*CONVERT, "bare_strategy", "-o", "out"], "no config.json in it"),
    ([*CONVERT, "bare_iteration", "-o", "out"], "no config.json in it"),
    (["weights", "inspect", "empty"], "empty"),
    (["weights", "diff", "bare_ckpt/model.ckpt", "hf"], "no config.json in it"),
    ([*CONVERT, "bare_mindspore", "-o", "out", "--config", "empty"], "empty"),
    ([*CONVERT, "hf", "-o", "out", "--config", "hf"], "has its own config.json"),
    ([*CONVERT, "hf", "-o", "out", "--key", "model"], "--key"),
    ([*CONVERT, "mindspore", "-o", "out", "--key", "model"], "--key is for pickled weights"),
    ([*CONVERT, "hf", "-o", "out", "--strategy", "strategy"], "are for rank_N folders"),
    ([*CONVERT, "hf", "-o", "out", "--redundancy-removed"], "are for rank_N folders"),
    ([*CONVERT, "hf", "-o", "out", "--from", "strategy"], "no rank_0"),
    ([*CONVERT, "hf", "-o", "out", "--from", "sharded"], "manifest.json"),
    ([*CONVERT, "hf", "-o", "out", "--from", "ckpt"], "hf"),
    ([*CONVERT, "sharded", "-o", "out", "--from", "hf"], "sharded"),
    ([*CONVERT, "unclear/model.ckpt", "-o", "out"], "nothing tells which; say so (--from-spelling)"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=[" ".join(arguments[1:]) for arguments, _ in BAD])
def test_bad_options_are_one_line_and_exit_2(
    arguments: list[str],
    named: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    code = cli.main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("msmigrate: error: ") and captured.err.count("\n") == 1
    assert named in captured.err
    assert sorted(place.rglob("*")) == before, "nothing is written"


def test_what_is_unclear_can_be_said(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(place / "unclear/model.ckpt"), str(tmp_path / "out")
    assert cli.main([*CONVERT, source, "-o", out, "--to", "hf", "--from-spelling", "mindformers"]) == 0
    assert cli.main(["weights", "diff", out, str(place / "hf")]) == 0


def test_a_dry_run_prints_the_plan(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*CONVERT, str(place / "hf"), "-o", str(tmp_path / "out"), "--to", "strategy", "--tp", "2", "--dtype"]
    assert cli.main([*arguments, "F16", "--dry-run"]) == 0
    text = capsys.readouterr().out
    facts = {name: re.search(rf"\b{name} ([\d,]+)", text) for name in ("bytes_minimum", "bytes_to_read", "units")}
    assert all(facts.values()), text
    assert re.search(r"^copies: cast \d+$", text, re.M) and "lossy: F32 rounded to F16" in text
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*arguments, "F16", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["facts"]
    for name, found in facts.items():
        assert found is not None and int(found[1].replace(",", "")) == done[name], name
    assert done["bytes_moved"] == done["bytes_to_read"]


def test_help_has_its_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONVERT, "--help"]) == 0
    text = capsys.readouterr().out
    headings = re.findall(r"^(\S.*):$", text, re.M)
    assert headings == ["Arguments", "Target", "Source", "Any state dict (--family none)", "How", "Options"]
    parts = dict(zip(headings, re.split(r"^\S.*:$", text, flags=re.M)[1:], strict=True))
    options = {name: re.findall(r"^  (?:-\w, )?(--[\w-]+)", part, re.M) for name, part in parts.items()}
    assert options["Options"] == ["--json", "--report", "--help"]
    assert {"--from", "--allow"} <= {*options["Source"]} and {"--to", "--tp"} <= {*options["Target"]}
    assert {"--resume", "--force"} <= {*options["How"]} and max(map(len, options.values())) < 25
    for command in ("reshard", "export", "verify", "diff", "inspect"):
        assert cli.main(["weights", command, "--help"]) == 0
        assert "\nOptions:\n  --json" in capsys.readouterr().out


def test_a_command_leaves_the_collector_of_cycles_on(place: Path) -> None:
    assert gc.isenabled() and cli.main(["weights", "diff", str(place / "hf"), str(place / "sharded")]) == 0
    assert gc.isenabled()


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_progress_shows_bandwidth_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with progress.shown("copying", progress.ByteCount(4 * 10**9)) as advance:
        for clock.now in (2.0, 5.0, 9.0, 10.0):
            advance(10**9 // 2)
    with progress.shown("comparing", 30) as advance:
        clock.now += 600
        advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "copying: 1.00 of 4.00 GB (25%), 200 MB/s, 15 s left",
        "copying: 2.00 of 4.00 GB (50%), 200 MB/s, 10 s left",
        "comparing: 1/30 (3%), 5 h left",
    ]


def test_progress_on_a_terminal_names_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.shown("copying", progress.ByteCount(10**9)) as advance:
        advance(10**8)
    assert "0.1/1.0 GB" in (text := capsys.readouterr().err) and "copying" in text, text
