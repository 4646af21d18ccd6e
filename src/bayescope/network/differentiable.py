"""A network as a model whose answers can be differentiated in its inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.models import among, among_pairs
from bayescope.module_copies import module_copy
from bayescope.network.draws import parameters_and_constants, values_at
from bayescope.network.forward import reading
from bayescope.network.guard import private
from bayescope.network.inputs import as_batch, call, count_rows, explained, map_tensors, placed, require_rows
from bayescope.network.rewrites import NESTED
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.precision import Precision
from bayescope.precision.draws import weight_draws


@final
@dataclass(frozen=True, eq=False)
class DifferentiableNetwork:
    """f(x, θ) of a module whose values, J A⁻¹ Jᵀ and J v keep the graph of x, and of nothing else.

    The Jacobian of all rows is written out, N C P numbers and as many again for each use of it, and its graph is kept
    until the answers are let go: for the few points of an acquisition, not for a data set.

    Attributes:
        module: the network. It is read in eval mode and left as found.
        weights: which of its parameters θ are.
        outputs: C.
    """

    module: nn.Module
    weights: Weights
    outputs: int

    @property
    def dim(self) -> int:
        """P, the number of random weights."""
        return self.weights.dim

    @property
    def source(self) -> nn.Module:
        """A copy of the module that is the user's to change."""
        return module_copy(self.module)

    @property
    def space(self) -> Hashable:
        """The names, shapes and masks of the random parameters."""
        return self.weights.space

    @property
    def differentiable(self) -> DifferentiableNetwork:
        return self

    def inputs(self, x: Any) -> Any:
        """Tensors on the device of the module and with its floating-point type, in their graph.

        Raises:
            InputError: if there are no rows, or tensors differ in their number.
        """
        return require_rows(placed(x, self.module))

    def forward(self, x: Any, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, *positions, C), float64, for θ of shape (..., P)."""
        draws = theta.detach().reshape(-1, self.dim)
        with private(self.module) as module, reading(module), torch.enable_grad(), explained(module, x):
            parameters, constants = parameters_and_constants(module, self.weights)
            values = values_at(module, self.weights, draws)
            answers = []
            for of_draw in zip(*values, strict=True):
                with substituted(module, parameters, [*of_draw, *constants]):
                    answers.append(call(module, x).to(torch.float64))
        f = torch.stack(answers)
        return f.reshape(*theta.shape[:-1], *f.shape[1:])

    def sampled(self, x: Any, theta: Tensor, precision: Precision, n: int, generator: torch.Generator) -> Tensor:
        """f at n draws of the weights from N(θ, A⁻¹), shape (n, N, *positions, C), float64."""
        return torch.cat([self.forward(x, some) for some in weight_draws(theta, precision, n, generator)])

    def covariance(self, x: Any, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, shape (N, *positions, C, C), float64, with J at θ of shape (P,)."""
        jacobian, solved = self._solved(x, theta, precision)
        return among_pairs(torch.einsum("...cp,...dp->...cd", jacobian, solved), classes)

    def variance(self, x: Any, theta: Tensor, precision: Precision, classes: Tensor | None = None) -> Tensor:
        """The diagonal of `covariance`, shape (N, *positions, C)."""
        jacobian, solved = self._solved(x, theta, precision)
        return among((jacobian * solved).sum(-1), classes)

    def jacobian_product(self, x: Any, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, *positions, C), float64, for v of shape (R, P), with J at θ of shape (P,)."""
        return torch.einsum("...p,rp->r...", self._jacobian(x, theta), v)

    def is_last_layer(self, x: Any, theta: Tensor) -> bool:
        """No: J is written out whatever the layer."""
        return False

    def opened(self, x: Any, theta: Tensor) -> DifferentiableNetwork:
        """Itself: each answer has a graph of its own."""
        return self

    def _solved(self, x: Any, theta: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
        """J and J A⁻¹, shape (N, *positions, C, P)."""
        jacobian = self._jacobian(x, theta)
        return jacobian, precision.solve(jacobian.flatten(0, -2).mT).mT.reshape(jacobian.shape)

    def _jacobian(self, x: Any, theta: Tensor) -> Tensor:
        with private(self.module) as module, reading(module), torch.enable_grad():
            parameters, constants = parameters_and_constants(module, self.weights)
            values = values_at(module, self.weights, theta.detach())

            def f(random: Sequence[Tensor], one: Any) -> Tensor:
                with substituted(module, parameters, [*random, *constants], NESTED):
                    return call(module, as_batch(one))[0]

            try:
                with vectorising():
                    found = torch.func.vmap(torch.func.jacrev(f), in_dims=(None, 0))(tuple(values), x)
            except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
                each = [_one_row(f, values, map_tensors(itemgetter(n), x)) for n in range(count_rows(x))]
                found = tuple(torch.stack(of_one) for of_one in zip(*each, strict=True))
            named = dict(zip(self.weights.names, found, strict=True))
            return self.weights.flatten(named).to(torch.float64)


def _one_row(f: Any, values: Sequence[Tensor], row: Any) -> list[Tensor]:
    """The Jacobians (*positions, C, *shape) of one row, by one backward pass for each output."""
    leaves = [value.detach().requires_grad_() for value in values]
    outputs = f(leaves, row)
    options: Any = {"create_graph": True, "materialize_grads": True}
    each = [torch.autograd.grad(output, leaves, **options) for output in outputs.flatten()]
    return [torch.stack(of_one).unflatten(0, outputs.shape) for of_one in zip(*each, strict=True)]
