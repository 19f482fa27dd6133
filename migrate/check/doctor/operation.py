"""A minimal computation, in a process of its own."""

from __future__ import annotations

import json

from migrate.check.codes import finding
from migrate.check.doctor.machine import Machine
from migrate.report import Finding

TIMEOUT_S = 120.0  # importing MindSpore takes about 4 s; the rest is reserve for slow disks
# A scalar argument and a bfloat16 cast are what breaks first under numpy 2; the matmul needs a working kernel library.
PROGRAM = """
import json, numpy as np, mindspore as ms
ms.runtime.launch_blocking()
x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
print(json.dumps({
    "scalar": (x * 2.0 + 1.0).asnumpy().sum().item(),
    "matmul": ms.ops.matmul(x, x.T).asnumpy().tolist(),
    "bfloat16": x.astype(ms.bfloat16).astype(ms.float32).asnumpy().sum().item(),
}))
"""
EXPECTED = {"scalar": 36.0, "matmul": [[5.0, 14.0], [14.0, 50.0]], "bfloat16": 15.0}


def operation(machine: Machine) -> list[Finding]:
    """Runs it and judges every value."""
    outcome = machine.run([str(machine.python), "-c", PROGRAM], TIMEOUT_S)
    if outcome.returncode != 0:
        return [finding("C106", f"a scalar operation, a matmul and a bfloat16 cast: {outcome.reason()}")]
    try:
        result = json.loads(outcome.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return [finding("C106", f"the computation gave no result: {outcome.reason()}")]
    wrong = [name for name, value in EXPECTED.items() if result.get(name) != value]
    return [finding("C106", f"{name} gave {result.get(name)}, expected {EXPECTED[name]}") for name in wrong]
