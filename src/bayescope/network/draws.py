"""A network at weights other than its own: at given draws, at draws of independent Gaussians, and along directions.

Several values of the weights go through the network at once, and none of them is written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescope.errors import UnsupportedError
from bayescope.network.forward import owned
from bayescope.network.inputs import Inputs, call, count_rows, take_rows
from bayescope.network.interception import Args, Function, Kwargs, Rewrites
from bayescope.network.random_weights import GaussianCall, at_uses, find_uses
from bayescope.network.rewrites import multi_head_attention, scaled_dot_product_attention
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import mapped, vectorising
from bayescope.network.weights import Weights
from bayescope.reparameterization import GaussianTensor, local_sd
from bayescope.tape import block_bytes, row_blocks

# What the weights of some draws take, and what the widest activation of some rows takes at them.
DRAW_BYTES = 64 * 2**20
# Rows that go through the network together, and those that should at least, so that products are not of vectors.
ROWS, FEW_ROWS = 1024, 64
# What the weights and the widest activations take of draws that share products of the inputs: more of them fall out of
# the processor's cache, fewer repeat these products too often.
SHARED_BYTES = 16 * 2**20


def outputs_at(
    module: nn.Module, weights: Weights, x: Inputs, draws: Tensor, *, copy: bool, memory: int | None = None
) -> Tensor:
    """f(x, θ) for draws θ (S, P), shape (S, N, ..., C), float64.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters θ are.
        x: N rows, on the device of the module.
        draws: float64.
        copy: whether the network gets copies of the rows, since it may write over them.
        memory: bytes within which draws and rows are taken in blocks, `DRAW_BYTES` by default; which ones changes
            nothing but rounding.
    """
    parameters, constants = parameters_and_constants(module, weights)

    def at(chosen: slice) -> Callable[[Inputs], Tensor]:
        values = values_at(module, weights, draws[chosen])

        def outputs(rows: Inputs) -> Tensor:
            def f(*of_draw: Tensor) -> Tensor:
                with substituted(module, parameters, [*of_draw, *constants]):
                    return call(module, owned(rows, copy=copy))

            return mapped(f, *values).to(torch.float64)

        return outputs

    with torch.no_grad():
        return in_blocks(module, x, len(draws), at, numbers=weights.dim, memory=memory)


def in_blocks(
    module: nn.Module,
    x: Inputs,
    n: int,
    at: Callable[[slice], Callable[[Inputs], Tensor]],
    *,
    numbers: int,
    memory: int | None = None,
    beside: int = FEW_ROWS,
) -> Tensor:
    """What n draws say of all rows, shape (n, N, ...), for some draws and some rows at a time.

    Args:
        module: the network.
        x: N rows.
        n: how many draws.
        at: from the places of some draws to the function of some rows, which returns (n, N, ...) of these.
        numbers: how many numbers each draw is, in the type of the network's parameters.
        memory: bytes that the draws and the widest activations at them may take.
        beside: how many rows the draws are to have room for.
    """
    memory = block_bytes(DRAW_BYTES) if memory is None else memory
    size = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0)).element_size()
    row = size * widest(module, owned(take_rows(x, slice(0, 1)), copy=True))
    together = max(1, memory // (size * numbers + row * min(count_rows(x), beside)))
    answers = []
    for chosen in row_blocks(n, 1, together):
        outputs = at(chosen)
        rows = blocks(x, row * (chosen.stop - chosen.start), memory)
        answers.append(torch.cat([outputs(some) for some in rows], 1))
    return torch.cat(answers)


def blocks(x: Inputs, row_bytes: int, memory: int) -> Iterator[Inputs]:
    """The rows in blocks of at most `ROWS`, of which the widest activation stays within some memory."""
    each = row_blocks(count_rows(x), max(row_bytes, memory // ROWS), memory)
    return (take_rows(x, block) for block in each)


def outputs_under(
    module: nn.Module,
    weights: Weights,
    x: Inputs,
    mean: Tensor,
    sd: Tensor,
    n: int,
    generator: torch.Generator,
    *,
    copy: bool,
    memory: int = SHARED_BYTES,
) -> Tensor:
    """f at n draws of independent weights N(mean, sd²), shape (n, N, ..., C), float64: right for each row by itself.

    Rows share each draw, but not all weights are drawn. The output for a row of a matrix that meets the inputs
    themselves is N(x μᵀ, x² (σ²)ᵀ), independent over the units, so that y = x μᵀ + √(x² (σ²)ᵀ) ∘ ε with one ε for each
    unit and draw has, for each row by itself, the distribution that drawn weights give (Kingma, Salimans & Welling
    2015, Eq. 6). Both products serve all draws, rows share ε, and the answer for one does not depend on the others. All
    other weights are drawn: further in, activations differ from draw to draw, so that a second product for their
    variance costs more than the noise of a matrix.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters θ are.
        x: N rows, on the device of the module.
        mean: of θ, shape (P,).
        sd: likewise.
        n: how many draws.
        generator: on the CPU, so that the draws are the same on every device.
        copy: whether the network gets copies of the rows, since it may write over them.
        memory: bytes within which draws and rows are taken in blocks.
    """
    parameters = weights.parameters(module)
    uses = find_uses(module, parameters, x)
    local = [name for name, use in uses.items() if use.first and use.function is F.linear and use.ndim == 2]
    means, sds = weights.unflat(mean, module), weights.unflat(sd)
    gaussians = {
        id(parameters[name]): GaussianTensor(means[name].to(parameters[name]), sds[name].to(parameters[name]))
        for name in local
    }
    units = {id(parameters[name]): len(parameters[name]) for name in local}
    rest = weights.without(local)
    like = next(iter(parameters.values()))
    slices = [place for name, place in zip(weights.names, weights.slices, strict=True) if name not in local]
    drawn_mean, drawn_sd = (torch.cat([v[:0], *(v[place] for place in slices)]).to(like) for v in (mean, sd))
    drawn, constants = parameters_and_constants(module, rest, apart=gaussians)

    def at(chosen: slice) -> Callable[[Inputs], Tensor]:
        size = sum(units.values()) + rest.dim
        each = [torch.randn(size, dtype=like.dtype, generator=generator) for _ in range(chosen.stop - chosen.start)]
        outside, inside = torch.stack(each).to(like.device).split([sum(units.values()), rest.dim], 1)
        values = rest.unflat(torch.addcmul(drawn_mean, drawn_sd, inside), module)
        noise = outside.split(list(units.values()), 1)

        def outputs(rows: Inputs) -> Tensor:
            def f(*of_draw: Tensor) -> Tensor:
                answer = partial(_with_noise, dict(zip(units, of_draw, strict=False)))
                met = at_uses(gaussians, dict.fromkeys(gaussians, 0), count_rows(rows), answer)
                with substituted(module, drawn, [*of_draw[len(units) :], *constants], answer=met):
                    return call(module, owned(rows, copy=copy))

            return mapped(f, *noise, *values.values()).to(torch.float64)

        return outputs

    with torch.no_grad():
        numbers = sum(units.values()) + rest.dim
        return in_blocks(module, x, n, at, numbers=numbers, memory=memory, beside=ROWS)


def _with_noise(noise: Mapping[int, Tensor], one: GaussianCall) -> Tensor:
    """The output of a matrix that is not drawn, with the noise of its units by the id of the parameter."""
    if one.axis is None:
        raise UnsupportedError("x: expected rows that the network reads alike, whether there are many or one.")
    x, weight, bias = one.input, one.weight, one.bias
    shift, spread = (bias.mean, bias.sd) if isinstance(bias, GaussianTensor) else (bias, None)
    if isinstance(weight, GaussianTensor):
        return torch.addcmul(F.linear(x, weight.mean, shift), local_sd(x, weight.sd, spread), noise[one.key])
    return F.linear(x, weight, bias.mean) + bias.sd * noise[one.key]


# Of the ways to compute attention, the plain one alone has a forward-mode derivative.
_FORWARD_MODE: Rewrites = {
    F.multi_head_attention_forward: multi_head_attention,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
}


def push_forward(
    module: nn.Module, weights: Weights, x: Inputs, v: Tensor, *, copy: bool, memory: int | None = None
) -> Tensor:
    """J v at the module's own weights, shape (R, N, ..., C), float64, for v of shape (R, P), by forward-mode AD.

    It takes as many passes as there are directions, where a tape takes as many as there are outputs.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters are random.
        x: N rows, on the device of the module.
        v: the directions.
        copy: whether the network gets copies of the rows, since it may write over them.
        memory: bytes within which directions and rows are taken in blocks.

    Raises:
        RuntimeError: if torch has no forward-mode derivative of an operation, or cannot vectorise it.
    """
    parameters, constants = parameters_and_constants(module, weights)
    point = tuple(parameter.detach() for parameter in parameters[: len(weights.names)])
    ways = weights.unflat(v)  # zero where a mask fixes an entry

    def at(chosen: slice) -> Callable[[Inputs], Tensor]:
        tangents = [ways[name][chosen].to(value) for name, value in zip(weights.names, point, strict=True)]

        def moved(rows: Inputs) -> Tensor:
            def f(*values: Tensor) -> Tensor:
                with substituted(module, parameters, [*values, *constants], _FORWARD_MODE):
                    return call(module, owned(rows, copy=copy))

            def along(*way: Tensor) -> Tensor:
                return torch.func.jvp(f, point, way)[1]

            with vectorising():
                return torch.func.vmap(along)(*tangents).to(torch.float64)

        return moved

    return in_blocks(module, x, len(v), at, numbers=weights.dim, memory=memory)


def parameters_and_constants(
    module: nn.Module, weights: Weights, apart: Container[int] = ()
) -> tuple[list[nn.Parameter], list[Tensor]]:
    """All parameters of a module, the random ones first, and the values of the others, which are in no graph.

    Args:
        module: the network.
        weights: the random ones.
        apart: the ids of parameters that are left out.
    """
    random = list(weights.parameters(module).values())
    known = set(map(id, random))
    others = [each for each in module.parameters() if id(each) not in known and id(each) not in apart]
    return [*random, *others], [other.detach() for other in others]


def values_at(module: nn.Module, weights: Weights, draws: Tensor) -> list[Tensor]:
    """The values of each random parameter at draws (..., P), shape (..., *shape), in the parameter's dtype."""
    values = weights.unflat(draws, module)
    return [values[name].to(parameter) for name, parameter in weights.parameters(module).items()]


def widest(module: nn.Module, row: Inputs) -> int:
    """How many numbers the largest activation of one row has."""
    with _Widest(module) as seen:
        call(module, row)
    return seen.numbers


@final
class _Widest(TorchDispatchMode):
    """Sees every tensor that is made inside, except parameters and views of them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.numbers = 1
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def __torch_dispatch__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in self._parameters:
                self.numbers = max(self.numbers, value.numel())
        return result
