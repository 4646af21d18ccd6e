"""A network at draws of independent Gaussian weights, each draw the same for all rows, without drawing all of them.

A matrix that meets the inputs themselves is not drawn: its output for a row is N(x μᵀ, x² (σ²)ᵀ), independent over the
units, so that y = x μᵀ + √(x² (σ²)ᵀ) ∘ ε with one ε for each unit and draw has, for each row by itself, the
distribution that drawn weights give (Kingma, Salimans & Welling 2015, Eq. 6). Both products serve all draws, rows share
ε, and the answer for one does not depend on the others. All other weights are drawn: further in, activations differ
from draw to draw, so that a second product for their variance costs more than the noise of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network.draws import ROWS, blocks, widest
from bayescope.network.forward import owned
from bayescope.network.inputs import call, count_rows, take_rows
from bayescope.network.meeting import Meeting, find_sites
from bayescope.network.substitution import held_by_layers
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.reparameterization import GaussianTensor, local_sd

# What the weights and the widest activations of the draws take that go through the network together: more of them fall
# out of the processor's cache, fewer repeat the products of the inputs too often.
TOGETHER_BYTES = 16 * 2**20


def outputs_under(
    module: nn.Module,
    weights: Weights,
    x: Any,
    mean: Tensor,
    sd: Tensor,
    n: int,
    generator: torch.Generator,
    *,
    copy: bool,
) -> Tensor:
    """f at n draws of independent weights N(mean, sd²), shape (n, N, ..., C), float64: right for each row by itself.

    Args:
        module: the network, in the state in which it is to be read.
        weights: which of its parameters θ are.
        x: N rows, on the device of the module.
        mean: of θ, shape (P,).
        sd: likewise.
        n: how many draws.
        generator: on the CPU, so that the draws are the same on every device.
        copy: whether the network gets copies of the rows, since it may write over them.
    """
    sampler = _Sampler.of(module, weights, x, mean, sd, copy=copy)
    with torch.no_grad():
        size = next(iter(weights.parameters(module).values())).element_size()
        wide = widest(module, owned(take_rows(x, slice(0, 1)), copy=True))
        draw_bytes = size * (sampler.numbers + wide * min(count_rows(x), ROWS))
        answers = []
        for first in range(0, n, together := max(1, TOGETHER_BYTES // draw_bytes)):
            noise = sampler.noise(min(together, n - first), generator)
            rows = blocks(x, size * wide * together)
            answers.append(torch.cat([sampler.outputs(some, noise) for some in rows], 1))
    return torch.cat(answers)


@final
@dataclass(frozen=True, eq=False)
class _Sampler:
    """Which weights are drawn, and which outputs are drawn in place of weights.

    Attributes:
        module: the network.
        gaussians: the weights that are not drawn, by the id of their parameter.
        units: how many outputs each of those makes.
        rest: the weights that are drawn.
        mean: of those, shape (Q,).
        sd: likewise.
        copy: whether the network gets copies of the rows.
    """

    module: nn.Module
    gaussians: Mapping[int, GaussianTensor]
    units: Mapping[int, int]
    rest: Weights
    mean: Tensor
    sd: Tensor
    copy: bool

    @classmethod
    def of(cls, module: nn.Module, weights: Weights, x: Any, mean: Tensor, sd: Tensor, *, copy: bool) -> _Sampler:
        parameters = weights.parameters(module)
        sites = find_sites(module, parameters, x)
        local = [name for name, site in sites.items() if site.first and site.function is F.linear and site.ndim == 2]
        means, sds = weights.unflat(mean, module), weights.unflat(sd)
        gaussians = {
            id(parameters[name]): GaussianTensor(means[name].to(parameters[name]), sds[name].to(parameters[name]))
            for name in local
        }
        units = {id(parameters[name]): len(parameters[name]) for name in local}
        kept = [place for place, name in enumerate(weights.names) if name not in local]
        names = tuple(weights.names[place] for place in kept)
        rest = Weights(
            names,
            tuple(weights.shapes[place] for place in kept),
            {name: mask for name, mask in weights.masks.items() if name in names},
        )
        like = next(iter(parameters.values()))
        slices = weights.slices
        drawn = [torch.cat([v[slices[place]] for place in kept]) if kept else v[:0] for v in (mean, sd)]
        return cls(module, gaussians, units, rest, drawn[0].to(like), drawn[1].to(like), copy)

    @property
    def numbers(self) -> int:
        """How much noise a draw takes."""
        return self.rest.dim + sum(self.units.values())

    def noise(self, n: int, generator: torch.Generator) -> Tensor:
        """White noise (n, numbers). Each draw's is made by itself, so that it is the same however many there are."""
        each = [torch.randn(self.numbers, dtype=self.mean.dtype, generator=generator) for _ in range(n)]
        return torch.stack(each).to(self.mean.device)

    def outputs(self, x: Any, noise: Tensor) -> Tensor:
        """f at some rows for the noise of some draws, float64."""
        outside, inside = noise.split([sum(self.units.values()), self.rest.dim], 1)
        units = dict(zip(self.units, outside.split(list(self.units.values()), 1), strict=True))
        parameters = self.rest.parameters(self.module)
        values = self.rest.unflat(torch.addcmul(self.mean, self.sd, inside), self.module) if parameters else {}
        drawn = {id(parameter): values[name] for name, parameter in parameters.items()}
        constant = {id(p): p.detach() for p in self.module.parameters()}

        def f(of_units: dict[int, Tensor], of_weights: dict[int, Tensor]) -> Tensor:
            known: dict[int, Any] = {**constant, **self.gaussians, **of_weights}
            meeting = Meeting(known, dict.fromkeys(self.gaussians, 0), count_rows(x), _Shared(of_units))
            with held_by_layers(self.module, known), meeting:
                return call(self.module, owned(x, copy=self.copy))

        try:
            with vectorising():
                found = torch.func.vmap(f)(units, drawn)
        except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
            each = [
                f({k: v[s] for k, v in units.items()}, {k: v[s] for k, v in drawn.items()}) for s in range(len(noise))
            ]
            found = torch.stack(each)
        return found.to(torch.float64)


@final
@dataclass(frozen=True, eq=False)
class _Shared:
    """What a site answers: outputs with the noise of its units."""

    noise: Mapping[int, Tensor]

    def linear(self, key: int, x: Tensor, weight: Any, bias: Any, axis: int | None) -> Tensor:
        if axis is None:
            raise UnsupportedError("x: expected rows that the network reads alike, whether there are many or one.")
        shift = bias.mean if isinstance(bias, GaussianTensor) else bias
        if not isinstance(weight, GaussianTensor):
            return F.linear(x, weight, shift) + bias.sd * self.noise[key]
        deviation = local_sd(x, weight.sd, bias.sd if isinstance(bias, GaussianTensor) else None)
        return torch.addcmul(F.linear(x, weight.mean, shift), deviation, self.noise[key])

    def convolution(
        self, function: Callable[..., Tensor], x: Tensor, weight: Any, bias: Any, axis: int | None, options: Any
    ) -> Tensor:
        raise AssertionError("no kernel stays undrawn")

    def embedding(self, indices: Tensor, weight: GaussianTensor, axis: int | None, options: Any) -> Tensor:
        raise AssertionError("no table stays undrawn")
