"""Prints the errors for the cards of GPT-2 and GPT-NeoX: `python tests/ms_models/measure_gpts.py`.

They are against transformers on the tiny models of the tests, see `measure.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tiny_gpts import CONFIGS, make_gpt_case
from tiny_models import gradient_errors, load, logits_error, run


def main(folder: Path) -> None:
    """Largest errors of every model, in PyNative and compiled."""
    for name in CONFIGS:
        case = make_gpt_case(name, folder / name)
        for jit in (False, True):
            answer = run(load(case), case, jit=jit)
            print(
                f"{name} {'jit' if jit else 'pynative'}: logits {logits_error(answer, case):.1e}, "
                f"gradient {max(gradient_errors(answer, case).values()):.1e}, "
                f"loss {abs(answer.loss / case.loss - 1):.1e}",
                flush=True,
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
