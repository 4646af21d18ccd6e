"""The exact reading that works for any use of a weight: one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.network.forward import owned
from bayescope.network.guard import untouched
from bayescope.network.inputs import Inputs, as_batch, call, count_rows, take_rows
from bayescope.network.rewrites import NESTED
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import pull_back, vectorising
from bayescope.tape import row_blocks


def rowwise(module: nn.Module, names: Sequence[str], inputs: Inputs, seeds: Tensor) -> Tensor:
    """The rows u_nk = ∂(s_nkᵀ f_n)/∂θ for the given parameters, whatever the network does with them.

    A backward pass per row, vectorised over rows and cotangents where torch can, in a loop over rows where it cannot.
    Of what that takes, no more than a block of rows is there at a time; the result is there in full.

    Args:
        module: the network; it is read in eval mode and left as found.
        names: the parameters, as in ``module.named_parameters()``.
        inputs: N rows; the network gets copies of them, which it may write over.
        seeds: the cotangents s_nk, shape (K, N, ..., C).

    Returns:
        Shape (N, K, p): each parameter row-major, in the order of the names.
    """
    parameters = [module.get_parameter(name) for name in names]
    rows = count_rows(inputs)
    width = sum(parameter.numel() for parameter in parameters)
    result = seeds.new_empty(rows, seeds.shape[0], width)
    read = _vectorised
    with untouched(module):
        for block in row_blocks(rows, seeds.shape[0] * width * seeds.element_size()):
            some, cotangents = take_rows(inputs, block), seeds[:, block]
            try:
                result[block] = read(module, parameters, owned(some, copy=True), cotangents)
            except (RuntimeError, ValueError):  # a loop over values, what vmap does not know, recomputation
                if read is _looped:
                    raise
                read = _looped
                result[block] = read(module, parameters, owned(some, copy=True), cotangents)
    return result


def _vectorised(module: nn.Module, parameters: Sequence[Tensor], inputs: Inputs, seeds: Tensor) -> Tensor:
    def row(one: Inputs, cotangents: Tensor) -> Tensor:
        def f(*values: Tensor) -> Tensor:
            with substituted(module, parameters, values, NESTED):
                return call(module, as_batch(one))[0]

        pullback: Any = torch.func.vjp(f, *[parameter.detach() for parameter in parameters])[1]
        gradients = torch.func.vmap(pullback)(cotangents)
        return _side_by_side(gradients, parameters)

    with vectorising():
        return torch.func.vmap(row, in_dims=(0, 1))(inputs, seeds)


def _looped(module: nn.Module, parameters: Sequence[Tensor], inputs: Inputs, seeds: Tensor) -> Tensor:
    """A row after another with the parameters themselves, as plain automatic differentiation has it."""
    for parameter in parameters:
        parameter.requires_grad_()
    result = []
    for n in range(count_rows(inputs)):
        with torch.enable_grad():
            f = call(module, take_rows(inputs, slice(n, n + 1)))
        cotangents = seeds[:, n : n + 1]
        found = pull_back(f, parameters, cotangents) if f.requires_grad else [None] * len(parameters)
        filled = [
            parameter.new_zeros(len(seeds), *parameter.shape) if gradient is None else gradient
            for parameter, gradient in zip(parameters, found, strict=True)
        ]
        result.append(_side_by_side(filled, parameters))
    return torch.stack(result)


def _side_by_side(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """(K, p) from the gradients (K, *shape) of each parameter, whose shape may be that of a number."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([gradient.reshape(len(gradient), parameter.numel()) for gradient, parameter in pairs], 1)
