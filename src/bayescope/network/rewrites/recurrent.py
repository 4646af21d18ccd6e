"""Recurrent networks step by step: the inputs of all steps go through one linear map, the states through one a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# A step: (W_ih x + b_ih, the state, W_hh, b_hh, W_hr) ↦ the next state, whose first entry is the output h.
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, Tensor | None, Tensor | None], State]


def lstm(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool | None = None,
) -> Any:
    """As ``torch.lstm``: output, last h, last c. Packed sequences and dropout are not implemented."""
    if batch_first is None or isinstance(hx, Tensor) or (train and dropout > 0):
        return NotImplemented
    return _layers(_lstm_step, input, tuple(hx), params, has_biases, num_layers, bidirectional, batch_first)


def _recurrent(step: Step) -> Callable[..., Any]:
    def unrolled(
        input: Tensor,
        hx: Tensor,
        params: Any,
        has_biases: Any,
        num_layers: Any,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool | None = None,
    ) -> Any:
        """As ``torch.gru`` and its like: output, last h. Packed sequences and dropout are not implemented."""
        if batch_first is None or isinstance(params, Tensor) or (train and dropout > 0):
            return NotImplemented
        return _layers(step, input, (hx,), params, has_biases, num_layers, bidirectional, batch_first)

    return unrolled


def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Any = None
) -> tuple[Tensor, ...]:
    """One step of an LSTM, as ``torch.lstm_cell`` gives it: h and c."""
    return _lstm_step(F.linear(input, w_ih, b_ih), tuple(hx), w_hh, b_hh, None)


def _cell(step: Step) -> Callable[..., Tensor]:
    def stepped(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Any = None
    ) -> Tensor:
        """As ``torch.gru_cell`` and its like: h."""
        return step(F.linear(input, w_ih, b_ih), (hx,), w_hh, b_hh, None)[0]

    return stepped


def _lstm_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:
    h, c = state
    input_gate, forget_gate, candidate, output_gate = (gates + F.linear(h, w_hh, b_hh)).chunk(4, -1)
    c = torch.sigmoid(forget_gate) * c + torch.sigmoid(input_gate) * torch.tanh(candidate)
    h = torch.sigmoid(output_gate) * torch.tanh(c)
    return (h if w_hr is None else F.linear(h, w_hr)), c


def _gru_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    (h,) = state
    reset_x, update_x, candidate_x = gates.chunk(3, -1)
    reset_h, update_h, candidate_h = F.linear(h, w_hh, b_hh).chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    candidate = torch.tanh(candidate_x + torch.sigmoid(reset_x + reset_h) * candidate_h)
    return (candidate + update * (h - candidate),)


def _tanh_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    return (torch.tanh(gates + F.linear(state[0], w_hh, b_hh)),)


def _relu_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> State:  # noqa: ARG001
    return (F.relu(gates + F.linear(state[0], w_hh, b_hh)),)


def _layers(
    step: Step,
    x: Tensor,
    start: State,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Runs the stack. The flat list holds, per layer and direction, W_ih, W_hh (, b_ih, b_hh) (, W_hr)."""
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (num_layers * directions)
    time = x.ndim - 2 if batch_first else 0
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w_ih, w_hh, *rest = params[cell * per_cell : (cell + 1) * per_cell]
            b_ih, b_hh = rest[:2] if has_biases else (None, None)
            w_hr = rest[-1] if len(rest) % 2 else None
            steps = F.linear(x, w_ih, b_ih).unbind(time)
            state, found = tuple(part[cell] for part in start), []
            for gates in reversed(steps) if direction else steps:
                state = step(gates, state, w_hh, b_hh, w_hr)
                found.append(state[0])
            outputs.append(torch.stack(found[::-1] if direction else found, time))
            last.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return x, *(torch.stack(part) for part in zip(*last, strict=True))


gru = _recurrent(_gru_step)
rnn_tanh = _recurrent(_tanh_step)
rnn_relu = _recurrent(_relu_step)
gru_cell = _cell(_gru_step)
rnn_tanh_cell = _cell(_tanh_step)
rnn_relu_cell = _cell(_relu_step)
