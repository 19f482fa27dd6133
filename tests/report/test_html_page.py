"""The HTML page: well-formed, self-contained, escaped, complete."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.report import Curve, Finding, Report, Severity, Stage, Verdict
from migrate.report.command import report as report_command
from migrate.report.html import render

EVIL = "<script>alert('x')</script> & \"quoted\""
VOID = {"meta", "input", "br", "hr", "img", "link"}
SVG_LEAVES = {"line", "polyline", "circle"}  # written as self-closing


class Checker(HTMLParser):
    """Collects text and tags, and fails on tags that do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in <{tag} {attrs}>"
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_LEAVES
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def all_text(self) -> str:
        return " ".join(" ".join(self.text).split())


def parse(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    return checker


def finding(code: str, number: int = 0, severity: Severity = Severity.WARNING, **place: object) -> Finding:
    return Finding(code, severity, f"message {number}", "why it matters", "what to do", **place)  # type: ignore[arg-type]


def full_report() -> Report:
    return Report(
        "parity model",
        "models/demo",
        findings=[finding("P201", severity=Severity.ERROR, tensor="model.layers.0.mlp")],
        stages=[
            Stage("W weights", Verdict.PASS, "50 tensors equal", 50, {"elements": 1001600, "worst relative": 0.0}),
            Stage("F activations", Verdict.FAIL, "3 of 51 differ", 51, {"worst relative": 8.19106e-07}),
            Stage("G gradients", Verdict.SKIPPED, "F did not pass"),
            Stage("C curve", Verdict.COULD_NOT_RUN, "no torch"),
        ],
        curves=[
            Curve("PyTorch", [1.0, 2.0, 3.0], [7.5, 6.25, 5.125]),
            Curve("tp=2", [1.0, 2.0, 3.0], [7.5, 6.250001, 5.12501]),
        ],
        facts={
            "versions": {"torch": "2.13.0"},
            "steps": [1, 2, 3],
            "tensors": [
                {
                    "stage": "F",
                    "name": "logits",
                    "elements": 2048,
                    "relative": 8.2e-7,
                    "differs": False,
                    "worst": [0, 3],
                },
                {"stage": "F", "name": "bad", "elements": 8, "relative": "inf", "differs": True, "worst": []},
            ],
        },
    )


def test_the_page_is_well_formed_and_complete(tmp_path: Path) -> None:
    page = parse(render([full_report()], tmp_path / "deep" / "page.html", title="Demo"))
    text = page.all_text()
    for expected in (
        "Demo",
        "models/demo",
        "1,001,600",
        "8.19106e-07",
        "could not run",
        "F did not pass",
        "P201",
        "model.layers.0.mlp",
        "versions.torch 2.13.0",
        "1, 2, 3",
        "logits",
        "8.20e-07",
        "inf",
        "why it matters",
        "what to do",
    ):
        assert expected in text, expected


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    path = render([full_report()], tmp_path / "page.html")
    page = parse(path)
    assert "script" not in {tag for tag, _ in page.tags}
    links = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "xlink:href")]
    assert links and all(link is not None and link.startswith("#") for link in links)
    assert {link[1:] for link in links if link} <= set(page.ids)
    text = path.read_text()
    assert "@import" not in text and "url(" not in text and "http" not in text


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    report = Report(
        EVIL,
        EVIL,
        findings=[Finding(EVIL, Severity.ERROR, EVIL, EVIL, EVIL, file=EVIL, tensor=EVIL, field=EVIL)],
        stages=[Stage(EVIL, Verdict.FAIL, EVIL, 1, {EVIL: EVIL})],
        curves=[Curve(EVIL, [1.0, 2.0], [1.0, 2.0], EVIL), Curve(EVIL + "2", [1.0, 2.0], [1.0, 2.1], EVIL)],
        facts={EVIL: EVIL, "tensors": [{"name": EVIL, "stage": EVIL, "relative": 1.0, "worst": [EVIL]}]},
    )
    page = parse(render([report], tmp_path / "page.html", title=EVIL))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.all_text().count("alert('x')") >= 12


def test_curves_of_a_group_share_a_plot_and_repeats_are_drawn_once(tmp_path: Path) -> None:
    curves = full_report().curves
    other = Curve("dp=2", [1.0, 2.0, 3.0], [7.5, 6.25, 5.2])
    alone = Curve("one", [1.0, 2.0], [3.0, 2.0], "loss of qwen2")
    reports = [Report("a", "a", curves=curves), Report("b", "b", curves=[curves[0], other, alone])]
    page = parse(render(reports, tmp_path / "page.html"))
    charts = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and "aria-label" in attrs]
    difference = "relative difference to PyTorch by step"
    assert charts == ["loss by step", difference, difference, "loss of qwen2 by step"]
    text = page.all_text()
    assert "PyTorch 3 7.5 5.125 reference" in text
    assert "tp=2 3 7.5 5.12501 1.95e-06" in text  # |5.12501 - 5.125| / 5.125
    assert "dp=2 3 7.5 5.2 1.46e-02" in text


def test_named_curves_come_first_and_are_not_repeated_by_comparisons(tmp_path: Path) -> None:
    one, two = losses(tmp_path / "one" / "metrics.jsonl", [2.0, 1.0]), losses(tmp_path / "b" / "l.jsonl", [2.0, 1.5])
    compared = [Curve("reference", [1.0, 2.0], [2.0, 1.0]), Curve("candidate", [1.0, 2.0], [2.0, 1.5])]
    (tmp_path / "curve.json").write_text(Report("parity curve", "x", curves=compared).to_json())
    inputs = [tmp_path / "curve.json", f"runs:one={one}", f"runs:two={two}"]
    text = parse(report_command(inputs, tmp_path / "page.html")).all_text()
    assert "Runs loss" not in text and "one 2 2 1 reference" in text and "two 2 2 1.5" in text
    assert "candidate" not in text


def test_equal_curves_are_said_to_be_equal(tmp_path: Path) -> None:
    curves = [Curve("a", [1.0, 2.0], [2.0, 1.0]), Curve("b", [1.0, 2.0], [2.0, 1.0])]
    page = parse(render([Report("x", "x", curves=curves)], tmp_path / "page.html"))
    assert "All curves equal a in every digit." in page.all_text()


def test_many_findings_are_grouped_folded_and_all_there(tmp_path: Path) -> None:
    many = [finding("MS204", number, file=f"src/f{number % 7}.py", line=number + 1) for number in range(3000)]
    report = Report("code", "repo", findings=[*many, finding("MS101", 9999, Severity.ERROR, file="a.py", line=5)])
    path = render([report], tmp_path / "page.html")
    page = parse(path)
    groups = [attrs for tag, attrs in page.tags if tag == "details" and attrs.get("class") == "findings"]
    assert ["open" in attrs for attrs in groups] == [True, False]  # the single error first and open, 3000 folded
    text = page.all_text()
    assert "3000 findings" in text and "a.py:5" in text
    assert all(f"message {number}" in text for number in (0, 1499, 2999))
    assert text.count("what to do") == 2  # once per code
    assert path.stat().st_size < 1_500_000


def test_of_many_stages_those_that_pass_are_folded(tmp_path: Path) -> None:
    stages = [Stage(f"m{number}: W weights", Verdict.PASS, "equal", 1) for number in range(40)]
    stages[7] = Stage("m7: W weights", Verdict.FAIL, "differ", 1)
    text = render([Report("parity code", "out", stages=stages)], tmp_path / "page.html").read_text(encoding="utf-8")
    before, _, folded = text.partition("<details><summary>39 more stages (39 passed, 1 failed in all)</summary>")
    assert "m7: W weights" in before and "m8: W weights" not in before
    assert "m7: W weights" not in folded and "m8: W weights" in folded


def test_the_worst_outcome_heads_the_page(tmp_path: Path) -> None:
    clean = Report("a", "a", stages=[Stage("s", Verdict.PASS, "fine", 1)])
    broken = Report("b", "b", stages=[Stage("s", Verdict.COULD_NOT_RUN, "no")])
    for reports, outcome in (([clean], "clean"), ([clean, broken], "could not run")):
        page = parse(render(reports, tmp_path / "page.html"))
        assert page.all_text().startswith(f"msmigrate msmigrate {outcome} Summary")


def test_nothing_to_show_and_no_place_to_write_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no reports"):
        render([], tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        render([full_report()], tmp_path / "file" / "page.html")


def losses(path: Path, values: list[float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(values, 1)))
    return path


def test_the_command_takes_reports_runs_and_named_curves(tmp_path: Path) -> None:
    (tmp_path / "parity.json").write_text(full_report().to_json())
    run = losses(tmp_path / "runs" / "dp2" / "metrics.jsonl", [7.5, 6.2, 5.1]).parent
    plain = losses(tmp_path / "torch" / "losses.jsonl", [7.5, 6.1, 5.0])
    inputs = [tmp_path / "parity.json", run, f"threads=2={plain}", f"other plot:alone={plain}"]
    page = parse(report_command(inputs, tmp_path / "page.html", title="All"))
    text = page.all_text()
    for row in ("PyTorch 3", "dp2 3 7.5 5.1", "threads=2 3 7.5 5", "alone 3 7.5 5 reference", "Other plot"):
        assert row in text, row


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: [p / "nothing.json"], r"nothing\.json: no such file"),
        (lambda p: [f"name={p / 'nothing.jsonl'}"], r"nothing\.jsonl: no such file"),
        (lambda p: [p], "no metrics.jsonl"),
        (
            lambda p: [losses(p / "a" / "x.jsonl", [1.0]), losses(p / "a" / "y.jsonl", [1.0])],
            "two curves are named 'a'",
        ),
        (lambda p: [f"name={p / 'report.json'}"], "only curves are named"),
        (lambda p: [p / "other.json"], "no msmigrate report"),
        (lambda p: [losses(p / "a" / "x.jsonl", [1.0, float("nan")])], "NaN or infinite"),
    ],
)
def test_bad_inputs_are_user_errors(make, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "report.json").write_text(full_report().to_json())
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match=message):
        report_command(make(tmp_path), tmp_path / "page.html")


def test_every_number_of_a_chart_lies_inside_it(tmp_path: Path) -> None:
    values = [10.0 ** -(k % 9) * (1 + k) for k in range(60)]
    curves = [Curve("a", list(map(float, range(60))), values), Curve("b", list(map(float, range(60))), values[::-1])]
    text = render([Report("x", "x", curves=curves)], tmp_path / "page.html").read_text()
    points = [
        tuple(map(float, pair.split(","))) for group in re.findall(r'points="([^"]+)"', text) for pair in group.split()
    ]
    assert len(points) == 2 * 60 + 2 * 60  # two curves, and their difference on two scales
    assert all(0 <= x <= 760 and 0 <= y <= 300 for x, y in points)


def test_what_was_skipped_is_not_missing(tmp_path: Path) -> None:
    stages = [Stage(f"s{n}", Verdict.PASS if n < 7 else Verdict.SKIPPED, "") for n in range(12)]
    page = parse(render([Report("demo", "run", stages=stages)], tmp_path / "page.html"))
    assert "7 passed, 5 skipped" in page.all_text()
    assert "7 of 12" not in page.all_text()
