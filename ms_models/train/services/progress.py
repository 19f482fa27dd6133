"""Lines for the person who watches: written to a file that the launcher follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.train.config import RunConfig
from ms_models.train.launch.eta import Eta
from ms_models.train.services.service import Service

STOPPED = "stopped after step"
"""How the line begins that says how to go on with a run that was to stop early."""

SHOWN = 60
"""Characters of a sample on its line; metrics.jsonl has all of it."""


class Progress(Service):
    """Appends to the progress file.

    Args:
        path: the file.
        config: says how many steps there are and which get a line.
    """

    def __init__(self, path: Path, config: RunConfig) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._steps, self._every = config.train.steps, config.train.log_every
        self._eta = Eta(self._steps)

    def after_step(self, record: Mapping[str, Any]) -> None:
        """A line where one is due; a step that was left out has had one of its own."""
        step, eta = record["step"], self._eta.after(record["step"])
        if record["loss"] is None or (step % self._every and step != self._steps):
            return
        self.tell(
            f"step {step:>{len(str(self._steps))}}/{self._steps}  loss {record['loss']:.4f}  "
            f"grad norm {record['grad_norm']:.3f}  lr {record['lr']:.2e}  {record['tokens_per_s']:,.0f} tokens/s"
            + (f"  eta {eta}" if eta and step != self._steps else "")
        )

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        """One line."""
        step, loss, tokens = record["step"], record["eval_loss"], record["eval_tokens"]
        further = "".join(
            f", {title} {record[name]:{form}}"
            for name, title, form in (("eval_perplexity", "perplexity", ".2f"), ("eval_accuracy", "accuracy", ".1%"))
            if record.get(name) is not None
        )
        self.tell(f"step {step}: validation loss {loss:.4f}{further} over {tokens:,} tokens")
        for sample in record.get("samples", ()):
            self.tell(f"step {step}: {sample['prompt'][-SHOWN:]!r} goes on {sample['text'][:SHOWN]!r}")

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """One line."""
        size, seconds, waited = (record[f"checkpoint_{name}"] for name in ("bytes", "s", "blocked_s"))
        self.tell(
            f"step {step}: saved {directory} ({size / 1e6:,.1f} MB in {seconds:.1f} s, training waited {waited:.1f} s)"
        )

    def tell(self, line: str) -> None:
        """One line, at once visible."""
        self._file.write(f"{line}\n")
        self._file.flush()

    def close(self, error: BaseException | None) -> None:
        """Nothing follows."""
        self._file.close()
