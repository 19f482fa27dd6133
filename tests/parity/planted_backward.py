"""ms_models with two faults that only the backward pass has, as the programs that `parity` starts.

`python -m planted_backward JOB OUT` captures, `python -m planted_backward JOB REFERENCE OUT` is the backward pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from planting import planted

NORM = "model.layers.1.post_attention_layernorm"
"""Its gradients are doubled."""
LAYER = "model.layers.0"
"""Its first residual is cut off."""
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parent.parent / "shared"), os.environ.get("PYTHONPATH", "")]
    )
}
"""Where these programs are found."""


def main(arguments: list[Path]) -> None:
    """Either program, with the faults."""
    from mindspore import ops

    from migrate.parity.backward.mindspore_side import main as backward
    from migrate.parity.capture_mindspore import main as capture
    from ms_models.families.llama.model import LlamaDecoderLayer
    from ms_models.layers.norm import RMSNorm

    norm, layer = RMSNorm.construct, LlamaDecoderLayer.construct

    def doubled(self: Any, x: Any) -> Any:
        y = norm(self, x)
        return y * 2 - ops.stop_gradient(y) if self.weight.name == f"{NORM}.weight" else y

    def cut(self: Any, x: Any, *rest: Any) -> Any:
        if not self.input_layernorm.weight.name.startswith(f"{LAYER}."):
            return layer(self, x, *rest)
        y, present = layer(self, x, *rest)
        return y - x + ops.stop_gradient(x), present

    with planted(RMSNorm, "construct", doubled), planted(LlamaDecoderLayer, "construct", cut):
        if len(arguments) == 2:
            capture(*arguments)
        else:
            backward(*arguments)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
