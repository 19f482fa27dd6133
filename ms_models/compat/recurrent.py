"""LSTM, GRU and RNN in plain operations, with torch's parameter names, gate order and initial values."""

from __future__ import annotations

import math
from typing import Any

from mindspore import Parameter, Tensor, ops

from . import init
from .activations import tanh
from .layers import dropout
from .module import Module


class _Recurrent(Module):
    """Layers over time, each with weights `[gates hidden, in]` and `[gates hidden, hidden]`.

    All are drawn from U(-b, b) with b = 1 / sqrt(hidden).
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        self._suffixes = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * len(self._suffixes)
            for suffix in self._suffixes:
                rows = self.gates * hidden_size
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, size), "weight_hh": (rows, hidden_size)}
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
                for name, shape in shapes.items():
                    setattr(self, f"{name}_l{layer}{suffix}", Parameter(init.empty(shape, dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing to do: it tidies memory for a CUDA library."""

    def construct(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Outputs of every step, `[time, batch, hidden]` or as `batch_first` says, and the last states."""
        batched = input.ndim == 3
        x = input if batched else input.expand_dims(1)
        x = x.swapaxes(0, 1) if self.batch_first and batched else x
        start = self._start(hx, x.shape[1], x.dtype, batched)
        finals: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for number, suffix in enumerate(self._suffixes):
                state = tuple(part[layer * len(self._suffixes) + number] for part in start)
                steps, state = self._run(x, state, f"l{layer}{suffix}", backwards=number == 1)
                outputs.append(steps)
                finals.append(state)
            x = outputs[0] if len(outputs) == 1 else ops.cat(tuple(outputs), -1)
            if layer + 1 < self.num_layers:
                x = dropout(x, self.dropout, self.training)
        stacked = [ops.stack(parts, 0) for parts in zip(*finals, strict=True)]
        if not batched:
            x, stacked = x.squeeze(1), [part.squeeze(1) for part in stacked]
        elif self.batch_first:
            x = x.swapaxes(0, 1)
        return x, stacked[0] if len(stacked) == 1 else tuple(stacked)

    def _start(self, hx: Any, batch: int, dtype: Any, batched: bool) -> tuple[Tensor, ...]:
        if hx is None:
            shape = (self.num_layers * len(self._suffixes), batch, self.hidden_size)
            return (ops.zeros(shape, dtype=dtype),) * (2 if self.gates == 4 else 1)
        parts = tuple(hx) if self.gates == 4 else (hx,)
        return parts if batched else tuple(part.expand_dims(1) for part in parts)

    def _run(self, x: Tensor, state: tuple[Tensor, ...], name: str, backwards: bool) -> Any:
        w_ih, w_hh = getattr(self, f"weight_ih_{name}"), getattr(self, f"weight_hh_{name}")
        b_ih = getattr(self, f"bias_ih_{name}") if self.bias else None
        b_hh = getattr(self, f"bias_hh_{name}") if self.bias else None
        from_input = ops.dense(x, w_ih, b_ih)
        outputs: list[Tensor] = []
        order = range(x.shape[0])
        for t in reversed(order) if backwards else order:
            state = self._step(from_input[t], ops.dense(state[0], w_hh, b_hh), state)
            outputs.append(state[0])
        return ops.stack(outputs[::-1] if backwards else outputs, 0), state

    def _step(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); gates in the order input, forget, cell, output."""

    gates = 4

    def _step(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _lstm_step(from_input + from_hidden, state[1])


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = ops.chunk(gates, 4, -1)
    cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * tanh(g)
    return ops.sigmoid(o) * tanh(cell), cell


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al., 2014); gates in the order reset, update, new."""

    gates = 3

    def _step(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_gru_step(from_input, from_hidden, state[0]),)


def _gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    ir, iz, inew = ops.chunk(from_input, 3, -1)
    hr, hz, hnew = ops.chunk(from_hidden, 3, -1)
    update = ops.sigmoid(iz + hz)
    new = tanh(inew + ops.sigmoid(ir + hr) * hnew)
    return (1 - update) * new + update * hidden


class RNN(_Recurrent):
    """Elman's network with tanh or ReLU."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be tanh or relu, not {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype)
        self.nonlinearity = nonlinearity

    def _step(self, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_rnn_step(from_input + from_hidden, self.nonlinearity),)


def _rnn_step(total: Tensor, nonlinearity: str) -> Tensor:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity must be tanh or relu, not {nonlinearity!r}")
    return tanh(total) if nonlinearity == "tanh" else ops.relu(total)


class _Cell(Module):
    """One step: weights as of `_Recurrent`, without the number of the layer in their names."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        self.weight_ih = Parameter(init.empty((rows, input_size), dtype))
        self.weight_hh = Parameter(init.empty((rows, hidden_size), dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(init.empty((rows,), dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _products(self, input: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return ops.dense(input, self.weight_ih, self.bias_ih), ops.dense(hidden, self.weight_hh, self.bias_hh)

    def _zeros(self, input: Tensor) -> Tensor:
        return ops.zeros((*input.shape[:-1], self.hidden_size), dtype=input.dtype)


class LSTMCell(_Cell):
    """One step of an LSTM."""

    gates = 4

    def construct(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Hidden state and cell after the step."""
        hidden, cell = (self._zeros(input), self._zeros(input)) if hx is None else hx
        from_input, from_hidden = self._products(input, hidden)
        return _lstm_step(from_input + from_hidden, cell)


class GRUCell(_Cell):
    """One step of a gated recurrent unit."""

    gates = 3

    def construct(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The hidden state after the step."""
        hidden = self._zeros(input) if hx is None else hx
        return _gru_step(*self._products(input, hidden), hidden)


class RNNCell(_Cell):
    """One step of Elman's network."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def construct(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The hidden state after the step."""
        from_input, from_hidden = self._products(input, self._zeros(input) if hx is None else hx)
        return _rnn_step(from_input + from_hidden, self.nonlinearity)
