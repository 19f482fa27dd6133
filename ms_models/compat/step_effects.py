"""What a recorded function does besides computing: it writes into tensors, and reads values for its results.

MindSpore's recording loses both. Here a write into a tensor that the function found gives the tensor the node of the
new value, so that what follows reads it; the graph returns the new values, and they are written when it has run. A
value that is read and only handed on is read from the graph's results.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mindspore import Parameter, Tensor, ops
from mindspore._c_expression import TraceRecorder

from .step_watch import is_program, program_line

READS = ("item", "tolist", "asnumpy")
"""Methods whose result may be handed on."""
_WHOLE = ((), Ellipsis, slice(None))
_USES = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs "
    "invert and rand or ror xor rxor eq ne lt le gt ge bool int float complex index iter len getitem contains array "
    "format str repr hash round trunc divmod"
)


class Unrecordable(Exception):
    """The function does something that no graph can repeat; the text says where and what."""


class Deferred:
    """A value that is read back to Python once the graph has run; it may be handed on, and nothing else."""

    def __init__(self, tensor: Tensor, reads: tuple[str, ...]) -> None:
        self.tensor, self.reads = tensor, reads

    def tolist(self) -> Deferred:
        """Of the array that `asnumpy` will give."""
        return Deferred(self.tensor, (*self.reads, "tolist"))

    def item(self) -> Deferred:
        """Of the array that `asnumpy` will give."""
        return Deferred(self.tensor, (*self.reads, "item"))

    def __getattr__(self, name: str) -> Any:
        raise _read_back()


def _read_back() -> Unrecordable:
    return Unrecordable(f"{program_line()}: a value is read back to Python")


def _used(self: Deferred, *args: Any) -> Any:
    raise _read_back()


for _use in _USES.split():
    setattr(Deferred, f"__{_use}__", _used)


class Writes:
    """The tensors of a function's state that the recorded run wrote into."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._places = {id(tensor): number for number, tensor in enumerate(tensors)}
        self.numbers: dict[int, None] = {}
        """Of the tensors that were written, in the order of their first writes."""
        self.reads: list[str] = []
        """Lines that read a value."""

    def write(self, tensor: Tensor, value: Any) -> bool:
        """Whether the tensor belongs to the state; then what is recorded from now on reads the new value."""
        number = self._places.get(id(tensor))
        if number is None:
            return False
        if isinstance(tensor, Parameter) and tensor.requires_grad:
            raise Unrecordable(f"{program_line()}: a trainable parameter is written into")
        value = value if isinstance(value, Tensor) else Tensor(value, tensor.dtype)
        value = ops.broadcast_to(value.astype(tensor.dtype), tensor.shape).copy()  # a constant has no node of its own
        TraceRecorder.get_instance().pass_node(value, tensor)
        self.numbers[number] = None
        return True

    def write_part(self, tensor: Tensor, key: Any, value: Any, set_item: Callable[..., Any]) -> bool:
        """The same for `tensor[key] = value`."""
        if id(tensor) not in self._places:
            return False
        if any(key is whole or (isinstance(key, type(whole)) and key == whole) for whole in _WHOLE):
            return self.write(tensor, value)
        whole = tensor.copy()
        set_item(whole, key, value)
        return self.write(tensor, whole)


@contextlib.contextmanager
def effects(tensors: Iterable[Tensor]) -> Iterator[Writes]:
    """Around a function that is recorded.

    Args:
        tensors: its state; writes into other tensors are MindSpore's.
    """
    writes = Writes(tensors)
    put_back: list[Callable[[], None]] = []

    def replace(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        own, held = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, made(getattr(owner, name)))
        put_back.append(lambda: setattr(owner, name, held) if own else delattr(owner, name))

    def writer(original: Any) -> Any:
        def write(tensor: Tensor, value: Any, *args: Any, **kwargs: Any) -> Any:
            return tensor if writes.write(tensor, value) else original(tensor, value, *args, **kwargs)

        return write

    def item_writer(original: Any) -> Any:
        def write(tensor: Tensor, key: Any, value: Any) -> Any:
            return tensor if writes.write_part(tensor, key, value, original) else original(tensor, key, value)

        return write

    for owner, name in ((Tensor, "copy_"), (Tensor, "assign_value"), (Parameter, "set_data"), (ops, "assign")):
        replace(owner, name, writer)
    replace(Tensor, "__setitem__", item_writer)
    for name in READS:
        replace(Tensor, name, lambda _, name=name: _reader(writes, name))  # type: ignore[misc]
    try:
        yield writes
    except Exception as error:
        if writes.reads and not isinstance(error, Unrecordable):  # MindSpore's own code got a `Deferred`
            raise Unrecordable(writes.reads[0]) from error
        raise
    finally:
        for undo in reversed(put_back):
            undo()


def _reader(writes: Writes, name: str) -> Any:
    def read(tensor: Tensor, *args: Any) -> Any:
        if args or not is_program(sys._getframe(1)):
            raise _read_back()
        writes.reads.append(str(_read_back()))
        # A node of its own: a later write must not change what was read.
        return Deferred(ops.stop_gradient(tensor.copy()), (name,))

    return read
