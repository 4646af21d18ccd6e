"""A network run with other values in the place of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from bayescope.recomputation import OwnWeights

Rewrites = Mapping[Callable[..., Any], Callable[..., Any]]


@final
class Substituted(TorchFunctionMode):
    """Puts values in the place of parameters in every call to torch, whoever holds the parameter.

    ``torch.func.functional_call`` swaps the attributes of modules, which an alias elsewhere does not see.

    Args:
        parameters: those to be replaced.
        values: what takes the place of each.
        rewrites: functions that are run instead of some of torch's; they may return ``NotImplemented``.

    Raises:
        RecomputedWeightsError: from inside, if a part of the network is run by torch.utils.checkpoint with gradients.
    """

    def __init__(
        self, parameters: Sequence[Tensor], values: Sequence[Tensor], rewrites: Rewrites = MappingProxyType({})
    ) -> None:
        super().__init__()
        self._values = {id(parameter): value for parameter, value in zip(parameters, values, strict=True)}
        self._rewrites, self._own = rewrites, OwnWeights()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(map(self._replaced, args))
        kwargs = {name: self._replaced(value) for name, value in kwargs.items()} if kwargs else {}
        if func in self._rewrites:
            with self:  # what a rewrite calls may have one too
                result = self._rewrites[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, tuple | list | dict):
            return tree_map(self._replaced, value)
        replacement = self._values.get(id(value))
        if replacement is None:
            return value
        self._own.check()
        return replacement
