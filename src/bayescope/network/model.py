"""A network as a model f(x, θ): at its weights and at others, at many of them at once, and its Jacobian."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.models import LinearizedModel, Model, among_pairs
from bayescope.module_copies import module_copy
from bayescope.network.draws import ROWS, outputs_at, outputs_under, parameters_and_constants, values_at
from bayescope.network.forward import owned, reading
from bayescope.network.guard import private
from bayescope.network.inputs import (
    Inputs,
    as_batch,
    call,
    count_rows,
    described,
    explained,
    map_arrays,
    map_tensors,
    placed,
    require_rows,
    take_rows,
    tensors,
)
from bayescope.network.network import Network
from bayescope.network.positions import Question
from bayescope.network.recording import Recording
from bayescope.network.rewrites import NESTED
from bayescope.network.substitution import substituted
from bayescope.network.vectorising import vectorising
from bayescope.network.weights import Weights
from bayescope.precision import DiagonalPrecision, Precision
from bayescope.storage import stored
from bayescope.tape.tape import row_blocks


def _one_row(f: Callable[..., Tensor], values: Sequence[Tensor], row: Inputs) -> list[Tensor]:
    """The Jacobians (*positions, C, *shape) of one row, by one backward pass for each output."""
    leaves = [value.detach().requires_grad_() for value in values]
    outputs = f(leaves, row)
    options: Any = {"create_graph": True, "materialize_grads": True}
    each = [torch.autograd.grad(output, leaves, **options) for output in outputs.flatten()]
    return [torch.stack(of_one).unflatten(0, outputs.shape) for of_one in zip(*each, strict=True)]


# Rows that a module is traced on where it has not been before.
TRACED_ROWS = 8

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def _privately(
    question: Callable[Concatenate[NetworkModel, _Arguments], _Answer],
) -> Callable[Concatenate[NetworkModel, _Arguments], _Answer]:
    """Lets a question be answered by a copy of the module that no other thread runs meanwhile."""

    @wraps(question)
    def answer(model: NetworkModel, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Answer:
        if model.private:
            return question(model, *arguments, **options)
        with private(model.module) as module:
            return question(model.over(module), *arguments, **options)

    return answer


@stored("network_model", without=("network", "recordings", "private", "graph"))
@final
@dataclass(frozen=True, eq=False)
class NetworkModel(Model):
    """f(x, θ) of a module with some of its weights random, read in eval mode.

    The module is the model's own: nothing outside holds it, and nothing here writes to it, so that what has been
    computed at its weights stays true.

    Attributes:
        module: the network, with the weights at which it is linearised.
        weights: which of its parameters θ are.
        outputs: C; 0 where the network has not been run yet.
        network: how the module is read where J is asked for; ``None`` where it has not been found out. It then is when
            J is first asked for, on those inputs, and again for rows of another shape.
        recordings: of an opened model, the network run on its inputs; else ``None``.
        private: whether the module is a thread's own, which may be written to while a question is answered.
        graph: whether values, J A⁻¹ Jᵀ and J v keep the graph of x, and of nothing else. The Jacobian of all rows is
            then written out, N C P numbers and as many again for each use of it, and its graph is kept until the
            answers are let go: for the few points of an acquisition, not for a data set.
    """

    module: nn.Module
    weights: Weights
    outputs: int
    network: Network | None = None
    recordings: Sequence[Recording] | None = None
    private: bool = False
    graph: bool = False

    @classmethod
    def of(cls, network: Network, inputs: Inputs) -> NetworkModel:
        """The model of a traced network whose module is nobody else's.

        Args:
            network: as it was traced.
            inputs: a row or more, which tell C.
        """
        with reading(network.module), torch.no_grad():
            row = owned(take_rows(placed(inputs, network.module), slice(0, 1)), copy=True)
            f = call(network.module, row)
        return cls(network.module, network.weights, f.shape[-1], network)

    @property
    def dim(self) -> int:
        """P, the number of random weights."""
        return self.weights.dim

    @property
    def space(self) -> Hashable:
        """The names, shapes and masks of the random parameters."""
        return self.weights.space

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Each weight's parameter and its place there, such as "0.weight[2, 1]"."""
        return self.weights.entries

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """The ``state_dict`` of the module with the random weights θ, detached copies in the module's own dtypes."""
        moved = self.at(theta).module
        return {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in moved.state_dict().items()
        }

    @cached_property
    def source(self) -> nn.Module:
        """A copy of the module that is the user's to change."""
        return module_copy(self.module)

    @property
    def differentiable(self) -> NetworkModel:
        """The same function, whose answers can be differentiated in x."""
        return replace(self, graph=True, recordings=None)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the random parameters."""
        return next(iter(self.weights.parameters(self.module).values())).dtype

    @cached_property
    def flat(self) -> Tensor:
        """The random weights of the module, shape (P,), float64."""
        return self.weights.flat(self.module).to(torch.float64)

    @cached_property
    def _found(self) -> dict[Hashable, Network]:
        """The network as it was traced last, by the shapes of the rows."""
        return {}

    def over(self, module: nn.Module) -> NetworkModel:
        """The same model over a copy of its module that is a thread's own."""
        network = None if self.network is None else replace(self.network, module=module)
        model = replace(self, module=module, network=network, private=True)
        vars(model).update(flat=self.flat, _found=self._found)  # what has been found out holds for the copy
        return model

    def at(self, theta: Tensor) -> NetworkModel:
        """The model whose module has other weights, shape (P,); itself where they are its own."""
        if self._is_own(theta):
            return self
        copied = module_copy(self.module)
        moved = copy.deepcopy(replace(self, recordings=None), {id(self.module): copied})
        values = self.weights.unflat(theta.detach(), self.module)
        with torch.no_grad():
            for name, parameter in self.weights.parameters(moved.module).items():
                parameter.copy_(values[name])
        return moved

    def inputs(self, x: Inputs) -> Inputs:
        """Arrays as tensors, on the device of the module and with its floating-point type.

        Raises:
            InputError: if there are no rows, or tensors differ in their number.
        """
        return require_rows(placed(x if self.graph else map_arrays(x), self.module))

    @_privately
    def forward(self, x: Inputs, theta: Tensor) -> Tensor:
        """f(x, θ), shape (..., N, *positions, C), float64, for θ of shape (..., P).

        Raises:
            InputError: if the network cannot be run on the inputs, or gives no f of that shape.
        """
        if self.graph:
            return self._forward_with_graph(x, theta)
        recordings = self._recordings(theta)
        if recordings is not None:
            return self._checked(torch.cat([some.outputs.to(torch.float64) for some in recordings]), x, 0)
        with reading(self.module), torch.no_grad(), explained(self.module, x):
            if self._is_own(theta):
                rows = (owned(some, copy=self._copied) for some in self._rows(x))
                return self._checked(torch.cat([call(self.module, some).to(torch.float64) for some in rows]), x, 0)
            f = outputs_at(self.module, self.weights, x, theta.reshape(-1, self.dim), copy=self._copied)
        return self._checked(f.reshape(*theta.shape[:-1], *f.shape[1:]), x, theta.ndim - 1)

    @_privately
    def sampled(self, x: Inputs, theta: Tensor, precision: Precision, n: int, generator: torch.Generator) -> Tensor:
        """f at n draws of the weights from N(θ, A⁻¹), shape (n, N, *positions, C), float64.

        Where A is diagonal, a matrix that meets the inputs is not drawn, but its outputs are: for all draws at once.

        Raises:
            InputError: if the network cannot be run on the inputs, or gives no f of that shape.
        """
        if isinstance(precision, DiagonalPrecision) and not self.graph:
            sd = precision.marginal_variance().sqrt()
            with reading(self.module), explained(self.module, x):
                f = outputs_under(self.module, self.weights, x, theta, sd, n, generator, copy=self._copied)
            return self._checked(f, x, 1)
        return Model.sampled(self, x, theta, precision, n, generator)

    @_privately
    def covariance(
        self,
        x: Inputs,
        theta: Tensor,
        precision: Precision,
        classes: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """J A⁻¹ Jᵀ per row and position, shape (N, *positions, C, C), float64, with J at θ of shape (P,).

        At the T positions whose flat indices are in ``places``, the shape is (N, T, C, C).
        """
        if self.graph:
            jacobian, solved = self._solved(x, theta, precision)
            return among_pairs(torch.einsum("...cp,...dp->...cd", jacobian, solved), classes)
        with torch.no_grad():
            return self._traced(x, theta).latent_covariance(x, precision, classes, self._recordings(theta), places)

    @_privately
    def variance(self, x: Inputs, theta: Tensor, precision: Precision, places: Tensor | None = None) -> Tensor:
        """The diagonal of `covariance`, shape (N, *positions, C), without the rest of it."""
        if self.graph:
            jacobian, solved = self._solved(x, theta, precision)
            return (jacobian * solved).sum(-1)
        with torch.no_grad():
            return self._traced(x, theta).latent_variance(x, precision, self._recordings(theta), places)

    @_privately
    def jacobian(self, x: Inputs, theta: Tensor) -> Tensor:
        """J at θ of shape (P,), shape (N, *positions, C, P), float64."""
        if self.graph:
            return self._jacobian(x, theta)
        with torch.no_grad():
            return self._traced(x, theta).jacobian(x)

    @_privately
    def jacobian_product(self, x: Inputs, theta: Tensor, v: Tensor) -> Tensor:
        """J v, shape (R, N, *positions, C), float64, for v of shape (R, P), with J at θ of shape (P,)."""
        if self.graph:
            return torch.einsum("...p,rp->r...", self._jacobian(x, theta), v)
        with torch.no_grad():
            return self._traced(x, theta).jacobian_product(x, v)

    @_privately
    def is_last_layer(self, x: Inputs, theta: Tensor) -> bool:
        """Whether the random weights are those of one linear layer or convolution whose output is f."""
        return not self.graph and self._traced(x, theta).head

    def answers(self, x: Inputs, theta: Tensor, question: Question) -> Tensor:
        """What is asked of the tapes of J at θ of shape (P,), for each row and position, shape (N, *positions, ...)."""
        return self._traced(x, theta).answers(x, question)

    def opened(self, x: Inputs, theta: Tensor) -> NetworkModel:
        """Where a last layer is asked about at its own weights, a model that has run the body on the inputs.

        Of other layers nothing is kept between questions but f: their recordings hold the activations of all rows.
        """
        if self.graph or self.network is None or not self.network.head or not self._is_own(theta):
            return self
        with torch.no_grad(), private(self.module) as module:
            return replace(self, recordings=replace(self.network, module=module).recordings(x))

    def _forward_with_graph(self, x: Inputs, theta: Tensor) -> Tensor:
        with reading(self.module), torch.enable_grad(), explained(self.module, x):
            parameters, constants = parameters_and_constants(self.module, self.weights)
            values = values_at(self.module, self.weights, theta.detach().reshape(-1, self.dim))
            answers = []
            for of_draw in zip(*values, strict=True):
                with substituted(self.module, parameters, [*of_draw, *constants]):
                    answers.append(call(self.module, x).to(torch.float64))
        f = torch.stack(answers)
        return f.reshape(*theta.shape[:-1], *f.shape[1:])

    def _solved(self, x: Inputs, theta: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
        """J and J A⁻¹, shape (N, *positions, C, P), with the graph of x."""
        jacobian = self._jacobian(x, theta)
        return jacobian, precision.solve(jacobian.flatten(0, -2).mT).mT.reshape(jacobian.shape)

    def _jacobian(self, x: Inputs, theta: Tensor) -> Tensor:
        with reading(self.module), torch.enable_grad():
            parameters, constants = parameters_and_constants(self.module, self.weights)
            values = values_at(self.module, self.weights, theta.detach())

            def f(random: Sequence[Tensor], one: Inputs) -> Tensor:
                with substituted(self.module, parameters, [*random, *constants], NESTED):
                    return call(self.module, as_batch(one))[0]

            try:
                with vectorising():
                    found = torch.func.vmap(torch.func.jacrev(f), in_dims=(None, 0))(tuple(values), x)
            except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
                each = [_one_row(f, values, map_tensors(itemgetter(n), x)) for n in range(count_rows(x))]
                found = tuple(torch.stack(of_one) for of_one in zip(*each, strict=True))
            named = dict(zip(self.weights.names, found, strict=True))
            return self.weights.flatten(named).to(torch.float64)

    def _recordings(self, theta: Tensor) -> Sequence[Recording] | None:
        """Those of an opened model, where it is asked about the weights that it was opened at."""
        return self.recordings if self.recordings is not None and self._is_own(theta) else None

    def _check_stored(self) -> None:
        """Checks that the weights of a file are those of its module.

        Raises:
            InputError: if they are not.
        """
        found = [(name, parameter.shape) for name, parameter in self.weights.parameters(self.module).items()]
        shapes = dict(zip(self.weights.names, self.weights.shapes, strict=True))
        masks = self.weights.masks.items()
        if found != list(shapes.items()) or not all(mask.shape == shapes[name] for name, mask in masks):
            raise InputError("weights: expected those of the module, got others.")

    @property
    def _copied(self) -> bool:
        """Whether the network may write over its inputs."""
        return self.network is None or self.network.treatment.overwrites_inputs

    def _checked(self, f: Tensor, x: Inputs, leading: int) -> Tensor:
        """f as it is, if it has a row for each of x and C columns."""
        shape, rows = f.shape[leading:], count_rows(x)
        if len(shape) > 1 and shape[0] == rows and self.outputs in (0, shape[-1]):
            return f
        raise InputError(
            f"x: expected a row for each output, shape (N, …), got {described(x)}, which the network makes outputs of "
            f"shape {tuple(shape)} from. Give rows on the first axis: one row is X[:1]."
        )

    def _traced(self, x: Inputs, theta: Tensor) -> Network:
        """The network at some weights; of a module that was never traced it is found out on some rows, each time."""
        moved = self.at(theta)
        if moved.network is not None:
            return moved.network
        shapes = tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors(x))
        found = moved._found.get(shapes)
        if found is None:
            few = owned(take_rows(x, slice(0, TRACED_ROWS)), copy=True)
            found = Network.trace(moved.module, few, self.weights)
            moved._found.clear()  # one at a time: lengths of texts may be many
            moved._found[shapes] = found
        return replace(found, module=moved.module)

    def _is_own(self, theta: Tensor) -> bool:
        """Whether θ is the module's, up to the rounding of its parameters."""
        if theta.ndim > 1:
            return False
        return torch.equal(theta.detach().to(self.flat.device, self.dtype), self.flat.to(self.dtype))

    def _rows(self, x: Inputs) -> Iterator[Inputs]:
        count = count_rows(x)
        return (take_rows(x, rows) for rows in row_blocks(count, 1, min(ROWS, count)))


def network_of(model: Model) -> NetworkModel | None:
    """The network that a model, or the model whose tangent it is, computes; ``None`` where it computes none."""
    inner = model.model if isinstance(model, LinearizedModel) else model
    return inner if isinstance(inner, NetworkModel) else None
