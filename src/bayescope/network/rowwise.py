"""The exact reading that works for any use of a weight: one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.network.forward import owned
from bayescope.network.guard import untouched
from bayescope.network.inputs import as_batch, call, count_rows, take_rows
from bayescope.network.pullback import pull_back
from bayescope.network.rewrites import NESTED
from bayescope.network.substitution import Substituted
from bayescope.network.vectorising import vectorising
from bayescope.tape import row_blocks


def rowwise(module: nn.Module, names: Sequence[str], inputs: Any, seeds: Tensor) -> Tensor:
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


def _vectorised(module: nn.Module, parameters: Sequence[Tensor], inputs: Any, seeds: Tensor) -> Tensor:
    def row(one: Any, cotangents: Tensor) -> Tensor:
        def f(*values: Tensor) -> Tensor:
            with Substituted(module, parameters, values, NESTED):
                return call(module, as_batch(one))[0]

        pullback: Any = torch.func.vjp(f, *[parameter.detach() for parameter in parameters])[1]
        gradients = torch.func.vmap(pullback)(cotangents)
        return _side_by_side(gradients, parameters)

    with vectorising():
        return torch.func.vmap(row, in_dims=(0, 1))(inputs, seeds)


def _looped(module: nn.Module, parameters: Sequence[Tensor], inputs: Any, seeds: Tensor) -> Tensor:
    """A row after another with the parameters themselves, as plain automatic differentiation has it."""
    for parameter in parameters:
        parameter.requires_grad_()
    result = []
    for n in range(count_rows(inputs)):
        with torch.enable_grad():
            f = call(module, take_rows(inputs, slice(n, n + 1)))
        result.append(_one_row(f, parameters, seeds[:, n : n + 1]))
    return torch.stack(result)


def _one_row(f: Tensor, leaves: Sequence[Tensor], seeds: Tensor) -> Tensor:
    """(K, p) from the graph of one row."""
    if not f.requires_grad:
        return _side_by_side([leaf.new_zeros(len(seeds), *leaf.shape) for leaf in leaves], leaves)
    try:
        gradients = pull_back(f, leaves, seeds)
    except RuntimeError:  # a custom backward pass that takes one cotangent at a time
        options = {"retain_graph": True, "materialize_grads": True}
        each = [map(dense, torch.autograd.grad(f, leaves, s, **options)) for s in seeds]
        gradients = [torch.stack(of_one) for of_one in zip(*each, strict=True)]
    filled = [
        leaf.new_zeros(len(seeds), *leaf.shape) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]
    return _side_by_side(filled, leaves)


def dense(gradient: Tensor) -> Tensor:
    """A gradient with all its zeros: that of an embedding may come without them."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def _side_by_side(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """(K, p) from the gradients (K, *shape) of each parameter, whose shape may be that of a number."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([gradient.reshape(len(gradient), parameter.numel()) for gradient, parameter in pairs], 1)
