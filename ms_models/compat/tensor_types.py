"""torch's types of tensors that join a device and a data type: `torch.HalfTensor`, `torch.cuda.FloatTensor`."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np

from .device import accelerator_available


class TensorType(type):
    """Type of the classes below: what is an instance is decided by data type and device."""

    dtype: Any
    on_accelerator: bool

    def __instancecheck__(cls, value: object) -> bool:
        here = cls.on_accelerator == accelerator_available()
        return isinstance(value, ms.Tensor) and value.dtype == cls.dtype and here

    def __call__(cls, *data: Any) -> ms.Tensor:
        """A tensor of the values of one sequence, or one of the given sizes whose values mean nothing (here zeros).

        Raises:
            TypeError: a type of the accelerator, without one.
        """
        if cls.on_accelerator and not accelerator_available():
            raise TypeError(f"type torch.cuda.{cls.__name__} not available: there is no accelerator")
        if len(data) == 1 and not isinstance(data[0], int):
            values = data[0].asnumpy() if isinstance(data[0], ms.Tensor) else np.asarray(data[0])
            return ms.Tensor(values).astype(cls.dtype)
        return ms.ops.zeros(data or (0,), cls.dtype)


def _type(name: str, dtype: Any, on_accelerator: bool = False) -> Any:
    return TensorType(name, (), {"dtype": dtype, "on_accelerator": on_accelerator, "__doc__": f"Tensors of {dtype}."})


HalfTensor = _type("HalfTensor", ms.float16)
FloatTensor = _type("FloatTensor", ms.float32)
DoubleTensor = _type("DoubleTensor", ms.float64)
BFloat16Tensor = _type("BFloat16Tensor", ms.bfloat16)
ByteTensor = _type("ByteTensor", ms.uint8)
CharTensor = _type("CharTensor", ms.int8)
ShortTensor = _type("ShortTensor", ms.int16)
IntTensor = _type("IntTensor", ms.int32)
LongTensor = _type("LongTensor", ms.int64)
BoolTensor = _type("BoolTensor", ms.bool_)

CudaHalfTensor = _type("HalfTensor", ms.float16, on_accelerator=True)
CudaFloatTensor = _type("FloatTensor", ms.float32, on_accelerator=True)
CudaDoubleTensor = _type("DoubleTensor", ms.float64, on_accelerator=True)
CudaBFloat16Tensor = _type("BFloat16Tensor", ms.bfloat16, on_accelerator=True)
CudaByteTensor = _type("ByteTensor", ms.uint8, on_accelerator=True)
CudaIntTensor = _type("IntTensor", ms.int32, on_accelerator=True)
CudaLongTensor = _type("LongTensor", ms.int64, on_accelerator=True)
CudaBoolTensor = _type("BoolTensor", ms.bool_, on_accelerator=True)


def set_default_tensor_type(t: Any) -> None:
    """Accept float32, MindSpore's type for tensors made without one.

    Args:
        t: a type of this file, its name such as "torch.HalfTensor", or MindSpore's Tensor, which stands for float32.

    Raises:
        TypeError: a type of the accelerator without one, or another data type, which MindSpore cannot make the default.
    """
    kind = t
    if isinstance(t, str):
        name = t.removeprefix("torch.")
        kind = globals().get(name.replace("cuda.", "Cuda"))
        if kind is None:
            raise TypeError(f"invalid type name: {t}")
    if kind is ms.Tensor:
        return
    if not isinstance(kind, TensorType):
        raise TypeError(f"invalid type object: {t}")
    if kind.on_accelerator and not accelerator_available():
        raise TypeError(f"type torch.cuda.{kind.__name__} not available: there is no accelerator")
    if kind.dtype != ms.float32:
        raise TypeError(f"the default data type is float32 and cannot become {kind.dtype}; pass dtype= or .to(dtype)")
