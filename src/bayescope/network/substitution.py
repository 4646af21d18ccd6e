"""A network run with other values in the place of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayescope.errors import UnsupportedError
from bayescope.network.interception import Args, Function, Interception, Kwargs, Rewrites, plainly
from bayescope.private_draws import in_checkpoint


class RecomputedWeightsError(UnsupportedError):
    """A network that computes activations again was given other weights than its own."""


class OwnWeights:
    """Refuses recomputation where weights are replaced: made where the replacing begins, asked at each weight met.

    A reentrant checkpoint runs its forward pass without a graph, so that whether a backward pass may follow is known
    at the beginning alone.
    """

    def __init__(self) -> None:
        self._graph = torch.is_grad_enabled()

    def check(self) -> None:
        """Passes outside of a checkpoint, and where no backward pass can follow.

        Raises:
            RecomputedWeightsError: inside of one.
        """
        if self._graph and in_checkpoint():
            raise RecomputedWeightsError(
                "network: expected activations to be kept for the backward pass, got some that torch.utils.checkpoint "
                "computes again, with the module's own weights in place of those drawn here. Take the checkpoint out."
            )


@contextmanager
def substituted(
    module: nn.Module,
    parameters: Sequence[Tensor],
    values: Sequence[Tensor],
    rewrites: Rewrites = MappingProxyType({}),
    answer: Callable[[Function, Args, Kwargs], object] = plainly,
) -> Iterator[None]:
    """Puts values in the place of parameters in every call to torch, whoever holds the parameter.

    ``torch.func.functional_call`` swaps the attributes of modules, which an alias elsewhere does not see. A
    ``torch.autograd.Function`` is no call to torch: what it takes from the layers is swapped there as well.

    Args:
        module: the network, whose layers hold the values meanwhile. No other thread uses it meanwhile.
        parameters: those to be replaced.
        values: what takes the place of each.
        rewrites: functions that are run instead of some of torch's; they may return ``NotImplemented``.
        answer: from a call with the values to what it returns.

    Raises:
        RecomputedWeightsError: from inside, if a part of the network is run by torch.utils.checkpoint with gradients.
    """
    by_id = {id(parameter): value for parameter, value in zip(parameters, values, strict=True)}
    met, original = by_id | {id(value): value for value in values}, OwnWeights()

    def value(argument: object) -> object:
        if isinstance(argument, tuple | list | dict):
            return tree_map(value, argument)
        found = met.get(id(argument))
        if found is None:
            return argument
        original.check()
        return found

    layers: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (layer._parameters, dict(layer._parameters)) for layer in module.modules()
    ]
    try:
        for held, before in layers:
            held.update({name: by_id[id(each)] for name, each in before.items() if id(each) in by_id})
        with Interception(answer, rewrites, value=value):
            yield
    finally:
        for held, before in layers:
            held.update(before)
