"""The nets of an additive model as a plain PyTorch module, for training loops of one's own."""

from __future__ import annotations

import math
from functools import reduce
from inspect import signature
from operator import add
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayescope import checks
from bayescope.additive.families import SLOPES
from bayescope.errors import InputError
from bayescope.tape.tape import row_blocks

# The slopes of the hidden units are computed for a part of a batch at a time: as much as a core's cache holds.
PIECE_BYTES = 2**19


@final
class AdditiveNetwork(nn.Module):
    """f(x) = b + Σ_j f_j(x_j) with f_j(x_j) = V_j tanh(W_j x_j + c_j), and √(H/2) m_j where x_j is missing.

    The functions are those of `HiddenNets`, one for each column of a table of shape (N, d), NaN where a value is
    missing. All are one computation, with no loop over features. Columns are taken as they are: standardise them.

    In training mode the gradient is written out: what it needs of the N d H hidden units are three sums, not four
    arrays of their size. It can be taken once; second derivatives need eval mode, where f is a chain of plain
    functions, as are the readings of `bayescope.laplace`. The values are the same in both modes.

    Args:
        features: d.
        outputs: C.
        hidden: H, the hidden units of each net.
        generator: of the first weights: a ``torch.Generator`` or a whole number.

    Attributes:
        inner_weight: W, shape (d, H).
        inner_bias: c, shape (d, H).
        outer_weight: V, shape (C, d, H).
        missing: m, shape (C, d).
        bias: b, shape (C,).
    """

    def __init__(
        self, features: int, outputs: int = 1, *, hidden: int = 32, generator: torch.Generator | int | None = None
    ) -> None:
        super().__init__()
        checks.count("features", features)
        checks.count("outputs", outputs)
        checks.count("hidden", hidden)
        drawn = checks.generator(generator)
        low, high = (math.log(slope) for slope in SLOPES)
        slopes = torch.exp(low + (high - low) * torch.rand(features, hidden, generator=drawn))
        signs = 2.0 * torch.randint(2, (features, hidden), generator=drawn) - 1.0
        # Kinks, where W x + c = 0, are spread as standardised numbers are.
        kinks = torch.randn(features, hidden, generator=drawn)
        outer = torch.randn(outputs, features, hidden, generator=drawn) / math.sqrt(features * hidden)
        self.inner_weight = nn.Parameter(slopes * signs)
        self.inner_bias = nn.Parameter(-slopes * signs * kinks)
        self.outer_weight = nn.Parameter(outer)
        self.missing = nn.Parameter(torch.zeros(outputs, features))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """f(x), shape (N, C), for x of shape (N, d)."""
        inputs, absent = self._read(x)
        if not self.training:
            hidden = self._hidden(inputs, absent).flatten(1)
            gone = _scale(self.inner_weight) * functional.linear(absent.to(inputs), self.missing)
            return functional.linear(hidden, self.outer_weight.flatten(1), self.bias) + gone
        parts = (self.inner_weight, self.inner_bias, self.outer_weight, self.missing, self.bias)
        return _summed(inputs, absent.to(inputs), *parts)

    def effects(self, x: Tensor) -> Tensor:
        """f_j(x_j), shape (N, d, C): with the bias they add up to f(x). They are not centred."""
        inputs, absent = self._read(x)
        effects = torch.einsum("ndh,cdh->ndc", self._hidden(inputs, absent), self.outer_weight)
        return effects + absent[..., None] * (_scale(self.inner_weight) * self.missing.T)

    def extra_repr(self) -> str:
        outputs, features, hidden = self.outer_weight.shape
        return f"features={features}, outputs={outputs}, hidden={hidden}"

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers, 0 where missing, and which are."""
        features = self.inner_weight.shape[0]
        if x.ndim != 2 or x.shape[1] != features:
            raise InputError(f"x: expected shape (N, {features}), got {tuple(x.shape)}.")
        absent = torch.isnan(x)
        return x.masked_fill(absent, 0.0), absent

    def _hidden(self, inputs: Tensor, absent: Tensor) -> Tensor:
        """tanh(W x + c), 0 where x is missing, shape (N, d, H)."""
        hidden = torch.tanh(torch.addcmul(self.inner_bias, inputs[..., None], self.inner_weight))
        return hidden * ~absent[..., None]


@final
class _Summed(torch.autograd.Function):
    """b + Σ_j V_j tanh(W_j x_j + c_j), and √(H/2) m_j where x_j is missing, shape (N, C), for x of shape (N, d).

    With s = σ(2 (W x + c)), which PyTorch computes several times as fast as a tanh, tanh = 2 s − 1 and tanh′ =
    4 s (1 − s). For the gradient g of f, shape (N, C), all that the weights need of s are Σ_n g s, Σ_n g s (1 − s) and
    Σ_n g x s (1 − s). Missing values are read as x = 0: what a net answers there, V tanh(c), is taken back.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, absent: Tensor, weight: Tensor, bias: Tensor, outer: Tensor, missing: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        units = torch.addcmul(2.0 * bias, x[..., None], 2.0 * weight).sigmoid_()
        f = functional.linear(units.flatten(1), 2.0 * outer.flatten(1), shift - outer.sum((1, 2)))
        taken_back = (outer * torch.tanh(bias)).sum(2)
        return torch.addmm(f, absent, (_scale(weight) * missing - taken_back).mT), units

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:5], output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, by_units: Tensor | None) -> tuple[Tensor | None, ...]:
        x, absent, weight, bias, outer, units = ctx.saved_tensors
        gradient = x.new_zeros(len(x), len(outer)) if gradient is None else gradient
        by_output = gradient.mT
        total, gone = by_output.sum(1), by_output @ absent
        of_constant = torch.addcmul(total[:, None, None], gone[..., None], torch.tanh(bias))
        to_outer = 2.0 * (by_output @ units.flatten(1)).view_as(outer) - of_constant
        both = torch.cat([by_output * x.mT[:, None], by_output * (1.0 - absent).mT[:, None]], 1)  # (d, 2 C, N)
        pieces = row_blocks(len(x), weight.numel() * weight.element_size(), PIECE_BYTES)
        sums = reduce(add, [torch.bmm(both[..., rows], _slopes(units[rows]).transpose(0, 1)) for rows in pieces])
        by_layer = (4.0 * sums.unflatten(1, (2, len(outer))) * outer.transpose(0, 1)[:, None]).sum(2)
        to_weight, to_bias = by_layer.unbind(1)
        to_x = None
        if ctx.needs_input_grad[0]:
            pulled = torch.bmm(_slopes(units).transpose(0, 1), (outer * weight).permute(1, 2, 0))  # (d, N, C)
            to_x = 4.0 * (pulled * gradient).sum(2).mT
        if by_units is not None:  # a second derivative: f is linear in the units, whose own slope it asks for
            chained = 2.0 * _slopes(units) * by_units
            to_weight, to_bias = to_weight + (chained * x[..., None]).sum(0), to_bias + chained.sum(0)
            to_x = None if to_x is None else to_x + (chained * weight).sum(2)
        return to_x, None, to_weight, to_bias, to_outer, _scale(weight) * gone, total


# `apply` asks for the arguments' names at each call: they are looked up once.
_Summed.forward.__signature__ = signature(_Summed.forward)  # type: ignore[attr-defined]


def _scale(weight: Tensor) -> float:
    return math.sqrt(weight.shape[1] / 2.0)


def _slopes(units: Tensor) -> Tensor:
    """The derivative of the logistic function, s (1 − s), from its value s."""
    return torch.addcmul(units, units, units, value=-1.0)


def _summed(x: Tensor, absent: Tensor, *weights: Tensor) -> Tensor:
    f, _ = _Summed.apply(x, absent, *weights)
    return f
