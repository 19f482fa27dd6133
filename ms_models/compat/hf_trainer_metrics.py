"""The part of a trainer that prints metrics and writes them to files; on rank 0 only."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from .hf_trainer_checkpoints import STATE


class TrainerMetrics:
    """Metrics of `train`, `evaluate` and `predict`."""

    args: Any
    state: Any

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print a table of metrics."""
        if not self.args.should_save:
            return
        shown = metrics_format(metrics)
        names, values = (max(len(str(item)) for item in side) for side in (shown, shown.values()))
        print(f"***** {split} metrics *****")
        for name in sorted(shown):
            print(f"  {name: <{names}} = {shown[name]:>{values}}")

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write `<split>_results.json` and, with `combined`, add the metrics to `all_results.json`."""
        if not self.args.should_save:
            return
        together = Path(self.args.output_dir) / "all_results.json"
        _write(Path(self.args.output_dir) / f"{split}_results.json", metrics)
        if combined:
            before = json.loads(together.read_text(encoding="utf-8")) if together.exists() else {}
            _write(together, {**before, **metrics})

    def save_state(self) -> None:
        """Write `trainer_state.json` to the output directory."""
        if self.args.should_save:
            self.state.save_to_json(Path(self.args.output_dir) / STATE)


def metrics_format(metrics: dict[str, float]) -> dict[str, Any]:
    """Metrics as a person reads them: times in hours, minutes and seconds, other numbers with four digits."""
    shown: dict[str, Any] = {}
    for name, value in metrics.items():
        if "_runtime" in name:
            hundredths = int(abs(value - int(value)) * 100)
            shown[name] = f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
        elif name == "total_flos":
            shown[name] = f"{int(value) >> 30}GF"
        else:
            shown[name] = round(value, 4) if isinstance(value, float) else value
    return shown


def _write(path: Path, metrics: dict[str, float]) -> None:
    path.write_text(json.dumps(metrics, indent=4, sort_keys=True), encoding="utf-8")
