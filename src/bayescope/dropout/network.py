"""The network that dropout is read from: a copy of the caller's, with dropout of its own or put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from bayescope import checks
from bayescope.dropout.concrete import ConcreteDropout
from bayescope.dropout.insertion import NAME, WeightLayer, calling_order, calls_dropout, insert, own_dropout
from bayescope.errors import InputError, UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.network.guard import unwrapped
from bayescope.network.weights import Weights

# This many names are written out.
SHOWN = 6


@final
@dataclass(frozen=True, eq=False)
class Stochastic:
    """A network with dropout that nobody else holds.

    Attributes:
        module: the network.
        weights: its weights, those that require a gradient, or all where none does.
        learnt: the dropout whose rates are learnt, by the name of the layer that it stands before.
    """

    module: nn.Module
    weights: Weights
    learnt: Mapping[str, ConcreteDropout]

    @classmethod
    def of(cls, model: nn.Module, rate: Any, before: Any, *, seen: bool) -> Stochastic:
        """A copy of a network, with dropout put into it where a rate is given.

        Args:
            model: the caller's.
            rate: a number in [0, 1), "concrete" or ``None``.
            before: which layers it is put before.
            seen: whether there are rows to run the network on, which show dropout that no layer has, and in which order
                layers are called: then dropout is put in by `inserted`.

        Raises:
            InputError: if there is neither dropout nor a rate, or the rate is none.
            UnsupportedError: if there are both.
        """
        module = module_copy(unwrapped(model))
        found, weights = own_dropout(module), _all_weights(module)
        if rate is None:
            if not isinstance(before, str) or before != "all":
                raise UnsupportedError(f"before: expected rate= to go with it, got before={before!r} alone.")
            if not found and not seen and not calls_dropout(module):
                raise InputError(
                    "model: expected a network with dropout, got none of its layers. Give rate=, which puts it in, or "
                    "data= with epochs=0 where the network calls dropout in a way that is unknown without rows."
                )
            return cls(module, weights, {})
        found = {name: r for name, r in found.items() if r > 0}
        if found:
            raise UnsupportedError(
                f"rate: expected None for a network with dropout of its own ({_listed(found)}), got {rate!r}. Set the "
                "rates of its layers (layer.p = ...), or take them out."
            )
        rate = checks.choice("rate", rate, ["concrete"]) if isinstance(rate, str) else _rate(rate)
        plain = cls(module, weights, {})
        return plain if seen else plain.inserted(rate, before, None)

    def inserted(self, rate: float | str, before: Any, inputs: Any) -> Stochastic:
        """The same network with dropout put into it.

        Args:
            rate: a number in [0, 1) or "concrete".
            before: which layers it is put before.
            inputs: a few rows, which show the order of the layers, or ``None``.

        Raises:
            UnsupportedError: if it has no such layers, or one of them is never called.
        """
        called = None if inputs is None else calling_order(self.module, inputs)
        if isinstance(rate, str):
            return Stochastic(self.module, self.weights, insert(self.module, before, _learnable, called))
        insert(self.module, before, lambda _, kind: kind(float(rate)), called)
        return self

    def settle(self) -> None:
        """Puts ordinary dropout at the rates that were learnt in the place of what learnt them."""
        for name, dropout in self.learnt.items():
            setattr(self.module.get_submodule(name), NAME, dropout.settled().train(dropout.training))

    def rates(self) -> list[float]:
        """Those of its layers that are above 0, or all where none is."""
        found = list(own_dropout(self.module).values())
        return [rate for rate in found if rate > 0] or found

    def summary(self) -> str:
        """The rates, by layer where they differ."""
        found = own_dropout(self.module)
        found = {name: rate for name, rate in found.items() if rate > 0} or found
        return _listed(found) if found else "as the network's code calls it"


def _learnable(layer: WeightLayer, kind: type[nn.Module]) -> ConcreteDropout:
    """For the inputs of a linear layer, or the channels of a convolution's."""
    units = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    return ConcreteDropout(kind, units, layer.weight)


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"rate: expected a number in [0, 1), or 'concrete', got {value!r}.")
    return float(value)


def _all_weights(module: nn.Module) -> Weights:
    if any(parameter.requires_grad for parameter in module.parameters()):
        return Weights.select(module, "all")
    named = dict(module.named_parameters())
    return Weights(tuple(named), tuple(parameter.shape for parameter in named.values()), {})


def shortened(parts: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join([*parts[:SHOWN], *[f"and {len(parts) - SHOWN} more"] * (len(parts) > SHOWN)])


def _listed(rates: Mapping[str, float]) -> str:
    names = [name.removesuffix(f".{NAME}") for name in rates]
    if len(set(rates.values())) == 1:
        return f"rate {next(iter(rates.values())):g} at {shortened(names)}"
    return shortened([f"{name}: {rate:.3g}" for name, rate in zip(names, rates.values(), strict=True)])
