"""The logs of all ranks as one."""

from __future__ import annotations

import re
from pathlib import Path

from ms_models.train.launch.merged_log import LogMerger, merge, rank_of, write_merged
from ms_models.train.launch.place import NodePlace


def texts(path: Path) -> list[tuple[str, str]]:
    found = [re.fullmatch(r"(\S+) (.{8,}?) +\| (.*)", line) for line in path.read_text().splitlines()]
    return [(match[2].strip(), match[3]) for match in found if match]


def test_lines_of_ranks_are_taken_over_whole_and_in_order(tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"worker_{rank}.log" for rank in range(2)}
    merger = LogMerger(tmp_path, NodePlace(0, 1, 2), {path: f"rank {rank}" for rank, path in logs.items()})
    merger.note("attempt 1")
    merger.follow()  # neither log is there yet
    logs[1].write_bytes(b"first\nhal")
    merger.follow()
    logs[0].write_bytes(b"other\n")
    merger.follow()
    with logs[1].open("ab") as file:
        file.write(b"f\nno end \xff")
    merger.close()
    assert texts(tmp_path / "merged.log") == [
        ("launcher", "attempt 1"), ("rank 1", "first"), ("rank 0", "other"), ("rank 1", "half"),
        ("rank 1", "no end \ufffd"),
    ]  # fmt: skip
    lines = (tmp_path / "merged.log").read_text().splitlines()
    assert [rank_of(line) for line in lines] == [None, 1, 0, 1, 1]
    stamps = [line.split()[0] for line in lines]
    assert stamps == sorted(stamps)
    write_merged(tmp_path)  # nothing to merge
    assert list(merge(tmp_path)) == lines


def test_machines_are_merged_by_time(tmp_path: Path) -> None:
    def line(second: int, who: str, text: str) -> str:
        return f"2026-01-01T00:00:{second:02}.000+00:00 {who:<8} | {text}\n"

    (tmp_path / "merged_node_0.log").write_text(line(1, "rank 0", "a") + line(5, "rank 0", "c"))
    (tmp_path / "merged_node_1.log").write_text(line(3, "rank 2", "b") + "a line of no form\n" + line(7, "rank 2", "d"))
    write_merged(tmp_path)
    lines = (tmp_path / "merged.log").read_text().splitlines()
    assert [text.split("| ")[-1] for text in lines] == ["a", "b", "a line of no form", "c", "d"]


def test_a_run_that_goes_on_with_more_machines_keeps_what_it_has(tmp_path: Path) -> None:
    for nodes in (1, 2, 1):
        merger = LogMerger(tmp_path, NodePlace(0, nodes, 2), {})
        merger.note(f"{nodes} machines")
        merger.close()
        write_merged(tmp_path)
    assert [text for _, text in texts(tmp_path / "merged.log")] == ["1 machines", "2 machines", "1 machines"]
