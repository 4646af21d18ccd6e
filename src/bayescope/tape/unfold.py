"""Convolutions as linear maps at each position: which inputs meet which weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn import functional

from bayescope.tape.streamed import StreamedTape


@final
@dataclass(frozen=True)
class Convolution:
    """The geometry of a convolution in one, two or three dimensions, or of a transposed one.

    Attributes:
        kernel, stride, dilation: one number an axis.
        padding: what the input is padded with before and after, one pair an axis.
        groups: G, the number of groups of channels that are convolved apart.
        transposed: whether inputs and outputs have changed places.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        transposed: bool = False,
    ) -> Convolution:
        """The geometry from the arguments of ``conv1d``, …, ``conv_transpose3d``, but for the output padding."""
        kernel = tuple(weight.shape[2:])
        axes = len(kernel)
        steps, spread = _per_axis(stride, axes), _per_axis(dilation, axes)
        if padding == "same":  # an odd total puts the one more at the end
            totals = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
            margins = tuple((total // 2, total - total // 2) for total in totals)
        else:
            margins = tuple((p, p) for p in _per_axis(0 if isinstance(padding, str) else padding, axes))
        return cls(kernel, steps, margins, spread, groups, transposed)

    def canonical(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape (the weight, or its entries' flat positions) in canonical order (G, O, D).

        A convolution's weight (G O, C/G, kernel) has D = C/G × kernel. A transposed one's (C, C'/G, kernel) has
        D = C/G, and O = C'/G × kernel: there the outputs are unfolded.
        """
        if self.transposed:
            return weight.reshape(self.groups, weight.shape[0] // self.groups, -1).mT
        return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)

    def tape(self, inputs: Tensor, cotangents: Tensor, *, bias: bool = False) -> StreamedTape:
        """The tape of the weight.

        Args:
            inputs: shape (N, C, ...).
            cotangents: of the outputs, shape (K, N, C', ...), or (K, 1, C', ...) where all rows share them.
            bias: whether the bias is joined; never for a transposed convolution, whose bias has other positions.
        """
        outputs, rows = cotangents.shape[0], inputs.shape[0]
        cotangents = cotangents.expand(-1, rows, *cotangents.shape[2:])
        size = math.prod(self.kernel)
        counts = tuple(inputs.shape[2:] if self.transposed else cotangents.shape[3:])
        grown = (cotangents.shape[2] // self.groups) * (size if self.transposed else 1)
        width = (inputs.shape[1] // self.groups) * (1 if self.transposed else size) + bias
        numbers = math.prod(counts) * self.groups * (width + outputs * grown)
        return StreamedTape(
            rows=rows,
            outputs=outputs,
            shape=(self.groups, grown, width),
            positions=math.prod(counts),
            activations=lambda block: self._activations(inputs[block], counts, bias),
            cotangents=lambda block: self._cotangents(cotangents[:, block], counts),
            row_bytes=numbers * inputs.element_size(),
            device=inputs.device,
        )

    def _activations(self, inputs: Tensor, counts: tuple[int, ...], bias: bool) -> Tensor:
        if not self.transposed:
            return self._unfolded(inputs[None], counts, bias)[0]
        return inputs.flatten(2).unflatten(1, (self.groups, -1)).permute(0, 3, 1, 2)

    def _cotangents(self, cotangents: Tensor, counts: tuple[int, ...]) -> Tensor:
        if self.transposed:
            return self._unfolded(cotangents, counts, bias=False)
        return cotangents.flatten(3).unflatten(2, (self.groups, -1)).permute(0, 1, 4, 2, 3)

    def _unfolded(self, x: Tensor, counts: tuple[int, ...], bias: bool) -> Tensor:
        """The windows of x (K, N, G C, ...) under the kernel, shape (K, N, T, G, C × kernel (+ 1)).

        They lie in memory as (K, G, C × kernel, N, T): rows that are runs of the input, and a matrix whose Gram product
        and whose products by position both go without another copy.
        """
        padded = functional.pad(x, [margin for pair in reversed(self.padding) for margin in pair])
        (outer, rows, channels), strides = padded.shape[:3], padded.stride()
        width, axes = channels // self.groups, range(len(counts))
        windows = padded.as_strided(
            (outer, self.groups, width, *self.kernel, rows, *counts),
            (
                strides[0],
                width * strides[2],
                strides[2],
                *(self.dilation[i] * strides[3 + i] for i in axes),
                strides[1],
                *(self.stride[i] * strides[3 + i] for i in axes),
            ),
        )
        size = width * math.prod(self.kernel)
        unfolded = x.new_empty(outer, self.groups, size + bias, rows, math.prod(counts))
        unfolded[:, :, :size].view(windows.shape).copy_(windows)
        if bias:
            unfolded[:, :, size] = 1
        return unfolded.permute(0, 3, 4, 1, 2)


def _per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values
