"""J v without cotangents: the directional derivatives of a network's outputs, many directions at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.network.draws import blocks, parameters_and_constants, together, widest
from bayescope.network.forward import owned
from bayescope.network.inputs import call, take_rows
from bayescope.network.rewrites.attention import multi_head_attention, scaled_dot_product_attention
from bayescope.network.substitution import Rewrites, Substituted
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.tape import row_blocks

# Of the ways to compute attention, the plain one alone has a forward-mode derivative.
_REWRITES: Rewrites = {
    F.multi_head_attention_forward: multi_head_attention,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
}


def push_forward(module: nn.Module, weights: Weights, x: Any, v: Tensor, *, copy: bool) -> Tensor:
    """J v at the module's own weights, shape (R, N, ..., C), float64, for v of shape (R, P), by forward-mode AD.

    It takes as many passes as there are directions, where a tape takes as many as there are outputs.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters are random.
        x: N rows, on the device of the module.
        v: the directions.
        copy: whether the network gets copies of the rows, since it may write over them.

    Raises:
        RuntimeError: if torch has no forward-mode derivative of an operation, or cannot vectorise it.
    """
    parameters, constants = parameters_and_constants(module, weights)
    own = tuple(parameter.detach() for parameter in parameters[: len(weights.names)])
    ways = weights.unflat(v)  # zero where a mask fixes an entry
    size = own[0].element_size()

    def moved(rows: Any, chosen: slice) -> Tensor:
        def f(*values: Tensor) -> Tensor:
            with Substituted(module, parameters, [*values, *constants], _REWRITES):
                return call(module, owned(rows, copy=copy))

        def along(*way: Tensor) -> Tensor:
            return torch.func.jvp(f, own, way)[1]

        tangents = [ways[name][chosen].to(value) for name, value in zip(weights.names, own, strict=True)]
        with vectorising():
            return torch.func.vmap(along)(*tangents).to(torch.float64)

    wide = widest(module, owned(take_rows(x, slice(0, 1)), copy=True))
    answers = []
    for chosen in row_blocks(len(v), 1, together(x, size * weights.dim, size * wide)):
        rows = blocks(x, size * wide * (chosen.stop - chosen.start))
        answers.append(torch.cat([moved(block, chosen) for block in rows], 1))
    return torch.cat(answers)
