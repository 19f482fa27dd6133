"""Limits of data types: finfo and iinfo."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np


class finfo:
    """Limits of a floating point type as Python floats: `max`, `min`, `eps`, `tiny`, `smallest_normal`, `bits`."""

    def __init__(self, type: Any = None) -> None:
        type = ms.float32 if type is None else type
        if type == ms.bfloat16:
            # 8 exponent and 7 fraction bits
            self.bits, self.eps, self.tiny = 16, 2.0**-7, 2.0**-126
            self.max = (2.0 - 2.0**-7) * 2.0**127
        else:
            info = np.finfo(ms.dtype_to_nptype(type))
            self.bits, self.eps, self.tiny = info.bits, float(info.eps), float(info.tiny)
            self.max = float(info.max)
        self.min = -self.max
        self.smallest_normal = self.tiny


class iinfo:
    """Limits of an integer type: `max`, `min`, `bits`."""

    def __init__(self, type: Any) -> None:
        info = np.iinfo(ms.dtype_to_nptype(type))
        self.bits, self.max, self.min = info.bits, int(info.max), int(info.min)


def set_default_dtype(d: Any) -> None:
    """Accept float32, MindSpore's type for tensors made without one.

    Raises:
        TypeError: any other type, which MindSpore cannot make the default.
    """
    if d != ms.float32:
        raise TypeError(f"the default data type is float32 and cannot become {d}; pass dtype= or call .to(dtype)")
