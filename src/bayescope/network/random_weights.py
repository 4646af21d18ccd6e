"""Networks run with Gaussian weights: outputs that are drawn, with a graph to the means and sds of the weights.

Where a weight meets the data is found on a row beforehand. A matrix, a kernel or a table that one call takes once, with
the observations on an axis of their own, is a *site*: the call draws its output as the estimator says, for each row.
Every other weight (used twice, tied, a norm's scale, inside attention or an LSTM) is drawn once a pass for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.network.forward import eager, owned
from bayescope.network.inputs import call, count_rows
from bayescope.network.meeting import Meeting, Site, find_sites
from bayescope.network.substitution import Substituted, held_by_layers
from bayescope.network.vectorising import vectorising
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, linear


@final
@dataclass(frozen=True, eq=False)
class RandomWeights:
    """Some parameters of a network, and where each of them meets the data.

    Attributes:
        module: the network; it is run in the mode it is in, and may be trained.
        names: of the parameters.
        sites: the calls of those that are met once, by name.
    """

    module: nn.Module
    names: tuple[str, ...]
    sites: Mapping[str, Site]

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[str, Any] | tuple[str, ...], inputs: Any) -> RandomWeights:
        """Runs the network in eval mode on the first row, alone and twice, to see where its weights are used.

        Args:
            module: the network, which is left as found.
            names: of the parameters.
            inputs: a batch as the network takes it.

        Raises:
            InputError: if the network cannot be run on the row.
        """
        parameters = {name: module.get_parameter(name) for name in names}
        return cls(module, tuple(names), find_sites(module, parameters, inputs))

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
        sites = {id(parameters[name]): site.axis for name, site in self.sites.items()} if by_row else {}
        rows = count_rows(inputs)

        def one(of_pass: Any) -> Tensor:
            values: dict[int, GaussianTensor | Tensor] = {}
            for name, parameter in parameters.items():
                gaussian = gaussians[name]
                values[id(parameter)] = gaussian if id(parameter) in sites else gaussian.draw()
            with held_by_layers(self.module, values), Meeting(values, sites, rows, _Drawn(estimator)):
                return call(self.module, of_pass)

        with eager():
            if samples == 1:
                return one(inputs)[None]
            return _each(self.module, lambda _: one(owned(inputs, copy=True)), torch.empty(samples))


def passes_at(module: nn.Module, values: Mapping[str, Tensor], inputs: Any) -> Tensor:
    """f at given weights, (S, N, *positions, C), with its graph to them.

    Args:
        module: the network, run in the mode it is in.
        values: by the name of a parameter, (S, *shape) in its dtype. Parameters without an entry keep their values.
        inputs: a batch as the network takes it.
    """
    parameters = [module.get_parameter(name) for name in values]

    def one(*of_draw: Tensor) -> Tensor:
        with Substituted(module, parameters, of_draw):
            return call(module, owned(inputs, copy=True))

    stacked = list(values.values())
    if len(stacked[0]) == 1:
        with eager(), Substituted(module, parameters, [value[0] for value in stacked]):
            return call(module, inputs)[None]
    with eager():
        return _each(module, one, *stacked)


@final
@dataclass(frozen=True)
class _Drawn:
    """What a site answers: outputs drawn as an estimator says."""

    estimator: str

    def linear(self, _: int, x: Tensor, weight: Any, bias: Any, axis: int | None) -> Tensor:
        return linear(x, weight, bias, self.estimator, rows=axis)

    def convolution(
        self, function: Callable[..., Tensor], x: Tensor, weight: Any, bias: Any, axis: int | None, options: Any
    ) -> Tensor:
        return convolution(function, x, weight, bias, self.estimator, rows=axis, **options)

    def embedding(self, indices: Tensor, weight: GaussianTensor, axis: int | None, options: Any) -> Tensor:
        return embedding(indices, weight, self.estimator, rows=axis, **options)


def _each(module: nn.Module, one: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """What one pass gives for each entry of a leading axis: together, or one by one where torch cannot.

    A pass that breaks off halfway has counted a batch and drawn numbers: it is undone, and tried no more in this mode.
    """
    modes = _ONE_BY_ONE.setdefault(module, set())
    if module.training not in modes:
        before = _Changeable(module)
        try:
            return _vmap(one)(*stacked)
        except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
            before.restore()
    f = torch.stack([one(*of_pass) for of_pass in zip(*stacked, strict=True)])
    modes.add(module.training)
    return f


# The modes, training or not, in which a network has turned out to run one by one only: batch norm in training does.
_ONE_BY_ONE: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()


@final
class _Changeable:
    """What a pass may change: a network's buffers and torch's random states."""

    def __init__(self, module: nn.Module) -> None:
        self._registered = [(owner, dict(owner._buffers)) for owner in module.modules()]
        self._values = [(buffer, buffer.clone()) for buffer in module.buffers()]
        self._gpus = sorted({p.device.index for p in module.parameters() if p.device.type == "cuda"})
        self._random = torch.get_rng_state(), [torch.cuda.get_rng_state(index) for index in self._gpus]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the buffers back that a pass may have changed."""
        for owner, buffers in self._registered:
            owner._buffers.update(buffers)
        for buffer, value in self._values:
            buffer.copy_(value)
        torch.set_rng_state(self._random[0])
        for index, state in zip(self._gpus, self._random[1], strict=True):
            torch.cuda.set_rng_state(state, index)


def _vmap(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mapped(*stacked: Tensor) -> Tensor:
        with vectorising():
            return torch.func.vmap(function, randomness="different")(*stacked)

    return mapped
