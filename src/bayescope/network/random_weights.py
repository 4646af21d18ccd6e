"""Networks run with Gaussian weights: outputs that are drawn, with a graph to the means and sds of the weights.

Where a weight meets the data is found on a row beforehand. A matrix, a kernel or a table that one call takes once, with
the observations on an axis of their own, is a *site*: the call draws its output as the estimator says, for each row.
Every other weight (used twice, tied, a norm's scale, inside attention or an LSTM) is drawn once a pass for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.network.forward import eager, owned, reading
from bayescope.network.inputs import Inputs, call, count_rows, explained, map_tensors
from bayescope.network.interception import KERNELS, TRANSPOSED_KERNELS, Args, Function, Kwargs, bound, observed
from bayescope.network.substitution import OwnWeights, substituted
from bayescope.network.vectorising import vectorising
from bayescope.private_draws import present_source
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, linear


@final
@dataclass(frozen=True, eq=False)
class RandomWeights:
    """Some parameters of a network, and where each of them meets the data.

    Attributes:
        module: the network; it is run in the mode it is in, and may be trained.
        names: of the parameters.
        uses: the calls of those that are met once, by name.
    """

    module: nn.Module
    names: tuple[str, ...]
    uses: Mapping[str, OnlyUse]

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[str, Any] | tuple[str, ...], inputs: Inputs) -> RandomWeights:
        """Runs the network in eval mode on the first row, alone and twice, to see where its weights are used.

        Args:
            module: the network, which is left as found.
            names: of the parameters.
            inputs: a batch as the network takes it.

        Raises:
            InputError: if the network cannot be run on the row.
        """
        parameters = {name: module.get_parameter(name) for name in names}
        return cls(module, tuple(names), find_uses(module, parameters, inputs))

    def passes(
        self, gaussians: Mapping[str, GaussianTensor], inputs: Any, *, estimator: str, samples: int = 1
    ) -> Tensor:
        """f at draws of the weights, (S, N, *positions, C), with its graph to the means and sds.

        Several samples go through the network together, or one by one where torch cannot.

        Args:
            gaussians: for each of the names, its distribution in the dtype of the parameter.
            inputs: a batch as the network takes it.
            estimator: one of `reparameterization.ESTIMATORS`.
            samples: S.

        Raises:
            OptionError: if the estimator is unknown.
            UnsupportedError: if a weight is used in another way than when it was looked for.
        """
        checks.choice("estimator", estimator, ESTIMATORS)
        by_row = estimator in ("local_reparameterization", "flipout")
        parameters = {name: self.module.get_parameter(name) for name in self.names}
        axes = {id(parameters[name]): use.axis for name, use in self.uses.items()} if by_row else {}
        at_use = {id(parameters[name]): gaussians[name] for name in self.names if id(parameters[name]) in axes}
        drawn = {name: parameter for name, parameter in parameters.items() if id(parameter) not in axes}
        rows = count_rows(inputs)

        def one(of_pass: Inputs) -> Tensor:
            values = [gaussians[name].draw() for name in drawn]
            met = at_uses(at_use, axes, rows, partial(_drawn, estimator))
            with substituted(self.module, list(drawn.values()), values, answer=met):
                return call(self.module, of_pass)

        with eager():
            if samples == 1:
                return one(inputs)[None]
            return _each(self.module, lambda _: one(owned(inputs, copy=True)), torch.empty(samples))


class GaussianCall(NamedTuple):
    """A call of torch that takes a Gaussian for its weight or its bias.

    Attributes:
        function: torch's.
        key: the id of the parameter that is the weight, or the bias if the weight is no Gaussian.
        input: the data.
        weight: a Gaussian or a tensor.
        bias: likewise, or ``None``.
        axis: of the input, where the observations are, if there is one.
        options: the other arguments.
    """

    function: Function
    key: int
    input: Tensor
    weight: Any
    bias: Any
    axis: int | None
    options: Kwargs


def _drawn(estimator: str, one: GaussianCall) -> Tensor:
    """Outputs drawn as an estimator says."""
    if one.function is F.linear:
        return linear(one.input, one.weight, one.bias, estimator, rows=one.axis)
    if one.function is F.embedding:
        return embedding(one.input, one.weight, estimator, rows=one.axis, **one.options)
    return convolution(one.function, one.input, one.weight, one.bias, estimator, rows=one.axis, **one.options)


def at_uses(
    gaussians: Mapping[int, GaussianTensor],
    axes: Mapping[int, int],
    rows: int,
    answer: Callable[[GaussianCall], Tensor],
) -> Callable[[Function, Args, Kwargs], object]:
    """What the calls of a network are answered with that take a Gaussian weight, and torch's answers to all others.

    Args:
        gaussians: by the id of a parameter.
        axes: likewise, the axis of the observations.
        rows: N. A call whose input has another number on that axis draws its weights once.
        answer: to a call that takes a Gaussian for its weight or bias.
    """
    left, original = set(gaussians), OwnWeights()

    def answered(func: Function, args: Args, kwargs: Kwargs) -> object:
        if not any(id(leaf) in gaussians for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        original.check()
        given = bound(func, args, kwargs) if func in _USES else {}
        met = [id(given[name]) for name in ("weight", "bias") if id(given.get(name)) in gaussians]
        if not met:
            result = func(*args, **kwargs)
            if _returns_tensors(result):
                raise _elsewhere()
            return result
        if not left.issuperset(met):
            raise _elsewhere()
        left.difference_update(met)
        each = [given.pop(name, None) for name in ("input", "weight", "bias")]
        x, weight, bias = (gaussians.get(id(value), value) for value in each)
        axis = axes[met[0]]
        along = axis if axis < x.ndim and x.shape[axis] == rows else None
        return answer(GaussianCall(func, met[0], x, weight, bias, along, given))

    return answered


def _elsewhere() -> UnsupportedError:
    return UnsupportedError(
        "estimator: expected weights to be used as they are on one row in eval mode, got one that is used again. "
        "Take estimator='reparameterization', which draws each weight once."
    )


def _returns_tensors(result: object) -> bool:
    """Whether a call returned tensors, and not a shape or a dtype."""
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))


@final
@dataclass(frozen=True)
class OnlyUse:
    """The one call that takes a parameter.

    Attributes:
        function: torch's.
        axis: of the call's input, where the observations are.
        ndim: that of the input.
        first: whether the input depends on none of the parameters that were asked for.
    """

    function: Function
    axis: int
    ndim: int
    first: bool


_USES = frozenset((F.linear, *KERNELS, *TRANSPOSED_KERNELS, F.embedding))


def find_uses(module: nn.Module, parameters: Mapping[str, nn.Parameter], inputs: Inputs) -> dict[str, OnlyUse]:
    """The parameters, by name, that one call takes once and whose input has the observations on one axis.

    The first row is read alone and twice: the axis is the one that is 1 long and then 2.

    Raises:
        InputError: if the network cannot be run on that row.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}

    def calls(rows: list[int]) -> dict[str, list[tuple[Function, torch.Size, bool] | None]]:
        """For each parameter the calls that take it, ``None`` for one in which it is neither a matrix nor a bias."""
        found: dict[str, list[tuple[Function, torch.Size, bool] | None]] = {name: [] for name in parameters}

        def note(func: Function, args: Args, kwargs: Kwargs, result: object) -> None:
            taken = [id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in names]
            if taken and _returns_tensors(result):
                given = bound(func, args, kwargs) if func in _USES else {}
                may = bool(given) and given["weight"].ndim >= 2 and given.get("max_norm") is None
                slots = {id(given.get(name)) for name in ("weight", "bias")} if may else set()
                for key in taken:
                    x = given.get("input")
                    found[names[key]].append(
                        (func, x.shape, not x.requires_grad) if x is not None and key in slots else None
                    )

        with observed(note):
            call(module, map_tensors(lambda tensor: tensor.detach()[rows], inputs))
        return found

    with reading(module), torch.enable_grad(), explained(module, inputs):
        for parameter in module.parameters():  # a graph shows which activations depend on the random ones
            if parameter.is_floating_point():
                parameter.requires_grad_(id(parameter) in names)
        once, twice = calls([0]), calls([0, 0])
    uses = {}
    for name in parameters:
        one, two = (found[name][0] if len(found[name]) == 1 else None for found in (once, twice))
        axis = None if one is None or two is None else _axis_of_rows(one[1], two[1])
        if one is not None and axis is not None:
            uses[name] = OnlyUse(one[0], axis, len(one[1]), one[2])
    return uses


def _axis_of_rows(one: torch.Size, two: torch.Size) -> int | None:
    """The axis that is 1 long for one row and 2 for two, if that is the only one that differs."""
    if len(one) != len(two):
        return None
    differing = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and (one[differing[0]], two[differing[0]]) == (1, 2) else None


def passes_at(module: nn.Module, values: Mapping[str, Tensor], inputs: Any) -> Tensor:
    """f at given weights, (S, N, *positions, C), with its graph to them.

    Args:
        module: the network, run in the mode it is in.
        values: by the name of a parameter, (S, *shape) in its dtype. Parameters without an entry keep their values.
        inputs: a batch as the network takes it.
    """
    parameters = [module.get_parameter(name) for name in values]

    def one(*of_draw: Tensor) -> Tensor:
        with substituted(module, parameters, of_draw):
            return call(module, owned(inputs, copy=True))

    stacked = list(values.values())
    if len(stacked[0]) == 1:
        with eager(), substituted(module, parameters, [value[0] for value in stacked]):
            return call(module, inputs)[None]
    with eager():
        return _each(module, one, *stacked)


def _each(module: nn.Module, one: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """What one pass gives for each entry of a leading axis: together, or one by one where torch cannot.

    A pass that breaks off halfway has counted a batch and drawn numbers: it is undone, and tried no more in this mode.
    """
    modes = _ONE_BY_ONE.setdefault(module, set())
    if module.training not in modes:
        before = _Changeable(module)
        try:
            with vectorising():
                return torch.func.vmap(one, randomness="different")(*stacked)
        except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
            before.restore()
    f = torch.stack([one(*of_pass) for of_pass in zip(*stacked, strict=True)])
    modes.add(module.training)
    return f


# The modes, training or not, in which a network has turned out to run one by one only: batch norm in training does.
_ONE_BY_ONE: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()


@final
class _Changeable:
    """What a pass may change: a network's buffers and the states of the fit's generators."""

    def __init__(self, module: nn.Module) -> None:
        self._registered = [(owner, dict(owner._buffers)) for owner in module.modules()]
        self._values = [(buffer, buffer.clone()) for buffer in module.buffers()]
        self._draws = present_source()
        self._states = {} if self._draws is None else self._draws.states()

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the buffers back that a pass may have changed."""
        for owner, buffers in self._registered:
            owner._buffers.update(buffers)
        for buffer, value in self._values:
            buffer.copy_(value)
        if self._draws is not None:
            self._draws.restore(self._states)
