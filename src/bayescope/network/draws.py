"""A network at weights that are not its own: many values of them at once, without writing any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescope.network.forward import owned
from bayescope.network.inputs import call, count_rows, take_rows
from bayescope.network.substitution import Substituted
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.tape.tape import row_blocks

# What the weights of some draws take, and what the widest activation of some rows takes at them.
DRAW_BYTES = 64 * 2**20
# Rows that go through the network together, and those that should at least, so that products are not of vectors.
ROWS, FEW_ROWS = 1024, 64


def outputs_at(module: nn.Module, weights: Weights, x: Any, draws: Tensor, *, copy: bool) -> Tensor:
    """f(x, θ) for draws θ (S, P), shape (S, N, ..., C), float64: vectorised over draws, or one by one.

    Draws and rows are taken in blocks that stay within `DRAW_BYTES`; which ones changes nothing but rounding.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters θ are.
        x: N rows, on the device of the module.
        draws: float64.
        copy: whether the network gets copies of the rows, since it may write over them.
    """
    size = next(iter(weights.parameters(module).values())).element_size()
    with torch.no_grad():
        wide = widest(module, owned(take_rows(x, slice(0, 1)), copy=True))
        answers = []
        for chosen in draws.split(together(x, size * weights.dim, size * wide)):
            rows = blocks(x, size * wide * len(chosen))
            answers.append(torch.cat([_at(module, weights, block, chosen, copy=copy) for block in rows], 1))
    return torch.cat(answers)


def together(x: Any, draw_bytes: int, row_bytes: int) -> int:
    """How many draws go through the network at once, beside at least `FEW_ROWS` rows."""
    return max(1, DRAW_BYTES // (draw_bytes + row_bytes * min(count_rows(x), FEW_ROWS)))


def blocks(x: Any, row_bytes: int) -> Iterator[Any]:
    """The rows in blocks of which the widest activation stays within `DRAW_BYTES`."""
    rows = count_rows(x)
    return (take_rows(x, block) for block in row_blocks(rows, max(row_bytes, DRAW_BYTES // ROWS), DRAW_BYTES))


def parameters_and_constants(module: nn.Module, weights: Weights) -> tuple[list[nn.Parameter], list[Tensor]]:
    """All parameters of a module, the random ones first, and the values of the others, which are in no graph."""
    random = list(weights.parameters(module).values())
    known = set(map(id, random))
    others = [parameter for parameter in module.parameters() if id(parameter) not in known]
    return [*random, *others], [other.detach() for other in others]


def values_at(module: nn.Module, weights: Weights, draws: Tensor) -> list[Tensor]:
    """The values of each random parameter at draws (..., P), shape (..., *shape), in its own dtype."""
    values = weights.unflat(draws, module)
    return [values[name].to(parameter) for name, parameter in weights.parameters(module).items()]


def _at(module: nn.Module, weights: Weights, x: Any, draws: Tensor, *, copy: bool) -> Tensor:
    parameters, constants = parameters_and_constants(module, weights)
    values = values_at(module, weights, draws)

    def f(*of_draw: Tensor) -> Tensor:
        with Substituted(module, parameters, [*of_draw, *constants]):
            return call(module, owned(x, copy=copy))

    try:
        with vectorising():
            outputs = torch.func.vmap(f)(*values)
    except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
        outputs = torch.stack([f(*of_draw) for of_draw in zip(*values, strict=True)])
    return outputs.to(torch.float64)


def widest(module: nn.Module, row: Any) -> int:
    """How many numbers the largest activation of one row has."""
    with _Widest(module) as seen:
        call(module, row)
    return seen.numbers


@final
class _Widest(TorchDispatchMode):
    """Sees every tensor that is made inside, parameters and views of them left aside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.numbers = 1
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in self._parameters:
                self.numbers = max(self.numbers, value.numel())
        return result
