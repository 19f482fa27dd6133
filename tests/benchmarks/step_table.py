"""Which steps of the test projects and of the sample run as graphs, and the line that keeps the others eager.

    python tests/benchmarks/step_table.py [PROJECT ...]

Converts each project, runs its `train.py` as a program of the recipes, and prints the rows of the table in
`docs/compiled-steps.md`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from migrate.code.command import convert

ROOT = Path(__file__).parents[2]
PROJECTS = ROOT / "tests" / "code" / "projects"
ARGUMENTS = {"torch_gpt": ["train.max_steps=6"]}


def rows(name: str, folder: Path) -> list[str]:
    """The rows of one project."""
    source = ROOT / "samples" / name if name == "torch_gpt" else PROJECTS / name
    recipes = folder / f"{name}.yaml"
    arguments = ", ".join(f'"{argument}"' for argument in ARGUMENTS.get(name, []))
    recipes.write_text(f"programs:\n  - {{run: train.py, arguments: [{arguments}]}}\n", encoding="utf-8")
    steps = convert(source, folder / name, modules=recipes).facts.get("execution", [])
    found = []
    for step in steps:
        reason = f": {step['reason']}" if step["reason"] else ""
        found.append(f"| {name} | {step['kind']} `{step['file']}:{step['line']}` | {step['mode']}{reason} |")
    return found or [f"| {name} | none of its own | a trainer of `ms_compat` takes its steps, eagerly |"]


def main(names: list[str]) -> None:
    """Prints the table."""
    print("| project | step | mode |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or ["torch_gpt", *sorted(path.name for path in PROJECTS.iterdir() if path.is_dir())]:
            print("\n".join(rows(name, Path(folder))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
