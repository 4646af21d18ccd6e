"""Where random weights meet the data, and what is answered there in the place of torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bayescope.errors import UnsupportedError
from bayescope.network.forward import reading
from bayescope.network.inputs import call, explained, map_tensors
from bayescope.recomputation import OwnWeights
from bayescope.reparameterization import GaussianTensor

# The arguments of each function that may be a site, in order.
LINEAR = ("input", "weight", "bias")
KERNEL = (*LINEAR, "stride", "padding", "dilation", "groups")
TRANSPOSED = (*LINEAR, "stride", "padding", "output_padding", "groups", "dilation")
TABLE = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
ARGUMENTS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    F.linear: LINEAR,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), KERNEL),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), TRANSPOSED),
    F.embedding: TABLE,
}


@final
@dataclass(frozen=True)
class Site:
    """The one call that takes a parameter.

    Attributes:
        function: torch's.
        axis: of the call's input, where the observations are.
        ndim: that of the input.
        first: whether the input depends on none of the parameters that were asked for.
    """

    function: Callable[..., Any]
    axis: int
    ndim: int
    first: bool


class Answer(Protocol):
    """What a call is answered with whose weights are Gaussian; axis is that of the observations, if there is one."""

    def linear(self, key: int, x: Tensor, weight: Any, bias: Any, axis: int | None) -> Tensor:
        """x Wᵀ + b; the key is that of the first of both that is random."""

    def convolution(
        self, function: Callable[..., Tensor], x: Tensor, weight: Any, bias: Any, axis: int | None, options: Any
    ) -> Tensor:
        """The outputs of one of torch's convolutions whose weight is random."""

    def embedding(self, indices: Tensor, weight: GaussianTensor, axis: int | None, options: Any) -> Tensor:
        """The rows of a random table at some indices."""


@final
class Meeting(TorchFunctionMode):
    """Runs a network with values in the place of its parameters, and answers the calls that are sites itself.

    Args:
        values: by the id of a parameter, a tensor, or a Gaussian if it is a site.
        sites: by the id of a parameter, the axis of the observations.
        rows: N. A call whose input has another number on that axis draws its weights once.
        answer: what the sites are answered with.
    """

    def __init__(
        self, values: Mapping[int, GaussianTensor | Tensor], sites: Mapping[int, int], rows: int, answer: Answer
    ) -> None:
        super().__init__()
        self._values, self._sites, self._rows, self._answer = values, sites, rows, answer
        self._left, self._own = set(sites), OwnWeights()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = ARGUMENTS.get(func)
        if names is not None:
            given = dict(zip(names, args, strict=False)) | kwargs
            met = [id(given[name]) for name in ("weight", "bias") if id(given.get(name)) in self._sites]
            if met:
                return self._met(func, given, met)
        passed: list[int] = []

        def value(argument: Any) -> Any:
            found = self._values.get(id(argument), argument)
            if found is not argument:
                self._own.check()
            if not isinstance(found, GaussianTensor):
                return found
            passed.append(id(argument))
            return argument

        args, kwargs = tree_map(value, (args, kwargs))
        result = func(*args, **kwargs)
        if passed and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):  # not its shape, or its dtype
            raise self._elsewhere()
        return result

    def _met(self, func: Any, given: dict[str, Any], met: list[int]) -> Tensor:
        self._own.check()
        if not self._left.issuperset(met):
            raise self._elsewhere()
        self._left.difference_update(met)
        x, weight, bias = (self._value(given.pop(name, None)) for name in ("input", "weight", "bias"))
        axis: int | None = self._sites[met[0]]
        if axis is not None and (axis >= x.ndim or x.shape[axis] != self._rows):
            axis = None
        if func is F.linear:
            return self._answer.linear(met[0], x, weight, bias, axis)
        if func is F.embedding:
            return self._answer.embedding(x, weight, axis, given)
        return self._answer.convolution(func, x, weight, bias, axis, given)

    def _value(self, argument: Any) -> Any:
        return self._values.get(id(argument), argument)

    @staticmethod
    def _elsewhere() -> UnsupportedError:
        return UnsupportedError(
            "estimator: expected weights to be used as they are on one row in eval mode, got one that is used again. "
            "Take estimator='reparameterization', which draws each weight once."
        )


def find_sites(module: nn.Module, parameters: Mapping[str, nn.Parameter], inputs: Any) -> dict[str, Site]:
    """The parameters, by name, that one call takes once with the observations on an axis of their own.

    The first row is read alone and twice: the axis is the one that is 1 long and then 2.

    Raises:
        InputError: if the network cannot be run on that row.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = []
    with reading(module), torch.enable_grad(), explained(module, inputs):
        for parameter in module.parameters():  # a graph is what tells which activations depend on the random ones
            if parameter.is_floating_point():
                parameter.requires_grad_(id(parameter) in names)
        for rows in ([0], [0, 0]):
            few = map_tensors(partial(_rows_of, rows=rows), inputs)
            with _Uses(names) as seen:
                call(module, few)
            found.append(seen.uses)
    sites = {}
    for name in parameters:
        once, twice = (uses.get(name, []) for uses in found)
        if len(once) == len(twice) == 1 and once[0] is not None and twice[0] is not None:
            axis = _axis_of_rows(once[0].shape, twice[0].shape)
            if axis is not None:
                sites[name] = Site(once[0].function, axis, len(once[0].shape), once[0].first)
    return sites


def _rows_of(tensor: Tensor, rows: list[int]) -> Tensor:
    return tensor.detach()[rows]


def _axis_of_rows(one: torch.Size, two: torch.Size) -> int | None:
    """The axis that is 1 long for one row and 2 for two, if that is the only one that differs."""
    if len(one) != len(two):
        return None
    differing = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and (one[differing[0]], two[differing[0]]) == (1, 2) else None


@final
@dataclass(frozen=True)
class _Use:
    function: Callable[..., Any]
    shape: torch.Size
    first: bool


@final
class _Uses(TorchFunctionMode):
    """Notes every call that takes one of some parameters, or ``None`` for one that is no site."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names
        self.uses: dict[str, list[_Use | None]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        taken = [id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._names]
        if taken and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):  # not its shape, or its dtype
            given = dict(zip(ARGUMENTS.get(func, ()), args, strict=False)) | kwargs
            may = func in ARGUMENTS and given["weight"].ndim >= 2 and given.get("max_norm") is None
            slots = {id(given[name]) for name in ("weight", "bias") if name in given} if may else set()
            for key in taken:
                use = _Use(func, given["input"].shape, not given["input"].requires_grad) if key in slots else None
                self.uses.setdefault(self._names[key], []).append(use)
        return result
