"""A network run with other values in the place of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, Self, final

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from bayescope.recomputation import OwnWeights

Rewrites = Mapping[Callable[..., Any], Callable[..., Any]]


@final
class Substituted(TorchFunctionMode):
    """Puts values in the place of parameters in every call to torch, whoever holds the parameter.

    ``torch.func.functional_call`` swaps the attributes of modules, which an alias elsewhere does not see. A
    ``torch.autograd.Function`` is no call to torch: what it takes from the layers is swapped there as well.

    Args:
        module: the network, whose layers hold the values for as long.
        parameters: those to be replaced.
        values: what takes the place of each.
        rewrites: functions that are run instead of some of torch's; they may return ``NotImplemented``.

    Raises:
        RecomputedWeightsError: from inside, if a part of the network is run by torch.utils.checkpoint with gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[Tensor],
        values: Sequence[Tensor],
        rewrites: Rewrites = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._module, self._held, self._depth = module, ExitStack(), 0
        self._values = {id(parameter): value for parameter, value in zip(parameters, values, strict=True)}
        self._met = self._values | {id(value): value for value in values}
        self._rewrites, self._own = rewrites, OwnWeights()

    def __enter__(self) -> Self:
        if not self._depth:  # a rewrite enters it again
            self._held.enter_context(held_by_layers(self._module, self._values))
        self._depth += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if not self._depth:
            self._held.close()

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
        replacement = self._met.get(id(value))
        if replacement is None:
            return value
        self._own.check()
        return replacement


@contextmanager
def held_by_layers(module: nn.Module, values: Mapping[int, Any]) -> Iterator[None]:
    """Has the layers of a network hold tensors in the place of parameters.

    Args:
        module: the network, which no other thread uses meanwhile.
        values: by the id of a parameter; what is no tensor leaves it in its place.
    """
    tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (layer._parameters, dict(layer._parameters)) for layer in module.modules()
    ]
    try:
        for held, found in before:
            held.update({name: tensors[id(p)] for name, p in found.items() if id(p) in tensors})
        yield
    finally:
        for held, found in before:
            held.update(found)
