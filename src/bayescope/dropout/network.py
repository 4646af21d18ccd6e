"""The network that dropout is read from: which dropout it has, dropout put into it, and its random passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import CodeType, FunctionType
from typing import Any, TypeVar, final

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bayescope import checks
from bayescope.dropout.concrete import ConcreteDropout
from bayescope.errors import ConvergenceError, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.network import Weights, row_totals, unwrapped
from bayescope.network.dropout import random_outputs, recurrent_refused, switched_on, switches_of
from bayescope.network.forward import owned, reading
from bayescope.network.guard import private
from bayescope.network.inputs import Inputs, call, count_rows, described, explained
from bayescope.storage import stored, stored_hook
from bayescope.training.minibatches import Minibatches

WeightLayer = (
    nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)

Made = TypeVar("Made", bound=nn.Module)

# What an inserted dropout is called in the layer that it stands before.
NAME = "input_dropout"

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# By layer: dropout of its inputs that drops columns of its weight, the same ones at all positions of a convolution.
_BEFORE: dict[type[WeightLayer], type[nn.Module]] = {
    nn.Linear: nn.Dropout,
    nn.Conv1d: nn.Dropout1d,
    nn.Conv2d: nn.Dropout2d,
    nn.Conv3d: nn.Dropout3d,
    nn.ConvTranspose1d: nn.Dropout1d,
    nn.ConvTranspose2d: nn.Dropout2d,
    nn.ConvTranspose3d: nn.Dropout3d,
}


def own_dropout(module: nn.Module) -> dict[str, float]:
    """The rates of the dropout layers that a network has, by name, those of attention among them.

    Raises:
        UnsupportedError: if a recurrent network has dropout between its layers.
    """
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1:
            raise recurrent_refused(name or type(layer).__name__)
        if isinstance(layer, _DROPOUT):
            found[name] = float(layer.p)
        elif isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
            found[name] = float(layer.dropout)
    return found


def calls_dropout(module: nn.Module) -> bool:
    """Whether the code of a module in it names dropout, as one that calls ``torch.nn.functional.dropout`` does."""
    kinds = {kind for layer in module.modules() for kind in type(layer).__mro__ if issubclass(kind, nn.Module)}
    custom = [kind for kind in kinds if not kind.__module__.startswith("torch.nn.")]
    functions = [value for kind in custom for value in vars(kind).values() if isinstance(value, FunctionType)]
    return any("dropout" in name.lower() for function in functions for name in _names(function.__code__))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, tuple):  # the names of keyword arguments among them
            yield from (name for name in constant if isinstance(name, str))
        if isinstance(constant, CodeType):
            yield from _names(constant)


def insert(
    module: nn.Module,
    before: object,
    make: Callable[[WeightLayer, type[nn.Module]], Made],
    called: Sequence[str] | None = None,
) -> dict[str, Made]:
    """Puts dropout before layers of a network; the names of its parameters stay.

    Args:
        module: the network, which is changed.
        before: "all" weight layers; "hidden" for all but the first that is called, whose inputs are the network's; or
            names and globs of layers.
        make: from a layer, and the kind of dropout that drops columns of its weight, to what is put before it.
        called: the names of the layers in the order in which a pass calls them (`calling_order`); ``None`` where there
            are no rows to see it on. Then "hidden" takes an ``nn.Sequential``, whose layers are called in their order.

    Returns:
        What was put before each layer, by the name of the layer.

    Raises:
        UnsupportedError: if there is no layer that dropout can be put before, if one that is named is never called, so
            that nothing before it would be, or if nobody knows which layer is the first.
        OptionError: if a name or glob stands for none.
        InputTypeError: if ``before`` is not one of these.
    """
    layers = _weight_layers(module)
    if not layers:
        raise UnsupportedError(
            "rate: expected a network with linear or convolutional layers to put dropout before, got none. Put "
            "nn.Dropout layers where they belong, and leave rate out."
        )
    made = {}
    first = _first(module, list(layers), called) if before == "hidden" else None
    chosen = [name for name in _chosen(before, list(layers)) if name != first]
    if called is not None:
        refuse_uncalled([name for name in chosen if name not in called])
    for name in chosen:
        layer = layers[name]
        made[name] = make(layer, next(kind for of, kind in _BEFORE.items() if isinstance(layer, of)))
        layer.add_module(NAME, made[name].train(layer.training))
        layer.register_forward_pre_hook(_drop_inputs, with_kwargs=True)
    return made


def calling_order(module: nn.Module, inputs: Inputs) -> list[str]:
    """The names of the weight layers that a pass calls, by their first call.

    Args:
        module: the network; it is left unchanged.
        inputs: a few rows.
    """
    layers, order = _weight_layers(module), []
    with reading(module), torch.no_grad(), ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(lambda *_, name=name: order.append(name)).remove)
        call(module, owned(inputs, copy=True))
    return list(dict.fromkeys(order))


@contextmanager
def all_called(module: nn.Module) -> Iterator[None]:
    """A stretch in which each dropout that was put into a network is to be called.

    Raises:
        UnsupportedError: if one is not.
    """
    inserted = {name.removesuffix(f".{NAME}"): part for name, part in module.named_modules() if name.endswith(NAME)}
    called: set[str] = set()
    with ExitStack() as stack:
        for name, part in inserted.items():
            stack.callback(part.register_forward_pre_hook(lambda *_, name=name: called.add(name)).remove)
        yield
    refuse_uncalled([name for name in inserted if name not in called])


def refuse_uncalled(names: Sequence[str]) -> None:
    """Refuses dropout before layers whose weights may be in use, but that are not called themselves.

    Raises:
        UnsupportedError: if there is one.
    """
    if names:
        raise UnsupportedError(
            f"before: expected layers that the network calls, got {', '.join(map(repr, names))}, which a pass does not "
            "call: dropout before them would do nothing. Leave them out of before=, or call the layer where its "
            "weight is used."
        )


def _first(module: nn.Module, names: Sequence[str], called: Sequence[str] | None) -> str | None:
    """The layer that is called first."""
    if called is not None:
        return next(iter(called), None)
    parts = dict(module.named_modules())
    owners = {owner for name in names for owner in _owners(name)}
    if not all(type(parts[owner]) is nn.Sequential for owner in owners):
        raise UnsupportedError(
            "before: expected names of layers, as 'hidden' leaves out the one that a pass calls first, which is "
            f"unknown without data unless the network is an nn.Sequential, got 'hidden' for a {type(module).__name__}. "
            f"Name the layers ({', '.join(names)}), or give data= with epochs=0."
        )
    return names[0]


def _owners(name: str) -> Iterator[str]:
    """The names of all modules around one, that of the network, "", among them."""
    parts = name.split(".") if name else []
    yield from (".".join(parts[:k]) for k in range(len(parts)))


def _drop_inputs(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    dropout = getattr(layer, NAME)
    if args:
        return (dropout(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "input": dropout(kwargs["input"])}


stored_hook(NAME, _drop_inputs)


def _weight_layers(module: nn.Module) -> dict[str, WeightLayer]:
    """The layers that multiply their inputs by a matrix, in the order in which the network registers them."""
    inside = {
        id(part) for layer in module.modules() if isinstance(layer, nn.MultiheadAttention) for part in layer.modules()
    }
    named = (
        (name, layer) for name, layer in module.named_modules() if id(layer) not in inside
    )  # which is never called
    return {name: layer for name, layer in named if isinstance(layer, WeightLayer)}


def _chosen(before: object, names: list[str]) -> list[str]:
    if isinstance(before, str) and before in ("all", "hidden"):
        return names
    patterns = [before] if isinstance(before, str) else before
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns) or not patterns:
        raise InputTypeError(f"before: expected 'all', 'hidden', or names and globs of layers, got {before!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError.unknown("before", pattern, ["all", "hidden", *names])
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


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
    def of(cls, model: nn.Module, rate: float | str | None, before: object, *, seen: bool) -> Stochastic:
        """A copy of a network, with dropout put into it where a rate is given.

        Args:
            model: the caller's.
            rate: a number in [0, 1), "concrete" or ``None``.
            before: which layers it is put before.
            seen: whether there are rows to run the network on, which show dropout that no layer has, and in which order
                layers are called: then dropout is put in by `inserted`.

        Raises:
            InputError: if there is neither dropout nor a rate, or the rate is not one.
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

    def inserted(self, rate: float | str, before: object, inputs: Inputs | None) -> Stochastic:
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


def _rate(value: object) -> float:
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


# Points of log σ² that are looked at before the best of them is refined.
GRID = 64


@stored("dropout_passes")
@final
@dataclass(frozen=True, eq=False)
class DropoutPasses:
    """f with masks drawn once a pass, the same for all rows.

    Attributes:
        module: the network; nobody else's.
    """

    module: nn.Module

    def __call__(self, x: Any, n: int, generator: torch.Generator) -> Tensor:
        """f in n passes, shape (n, N, *positions, C), float64.

        Raises:
            InputError: if the network calls no dropout, or does not give a row for each of x.
        """
        with private(self.module) as module, explained(module, x):
            switches = switches_of(module, x)
            with reading(module), switched_on(switches.modules), all_called(module):
                f, sites = random_outputs(module, x, n, generator, switches.off)
        if not sites and not own_dropout(self.module):
            raise InputError(
                "model: expected a network that calls dropout in eval mode, got none of its calls. Call "
                "F.dropout(x, p, training=self.training), use nn.Dropout layers, or give rate=."
            )
        if f.ndim < 3 or f.shape[1] != count_rows(x):
            raise InputError(
                f"x: expected a row for each output, shape (N, …), got {described(x)}, which the network makes outputs "
                f"of shape {tuple(f.shape[1:])} from. Give rows on the first axis: one row is X[:1]."
            )
        return f


def outputs_and_targets(
    passes: DropoutPasses, rows: Minibatches, n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Outputs (n, N, C), positions counted as rows, in the same n passes for all rows, and canonical targets.

    Several processes have their own rows of them each.
    """
    state, outputs, targets = generator.get_state(), [], []
    for inputs, y in rows.in_order():
        generator.set_state(state)
        outputs.append(passes(inputs, n, generator).flatten(1, -2))
        targets.append(y.flatten(0, 1))
    if not outputs:
        return torch.zeros(n, 0, rows.outputs, dtype=torch.float64), torch.zeros(0, rows.outputs, dtype=torch.float64)
    return torch.cat(outputs, 1), torch.cat(targets).to(outputs[0].device)


def squared_residuals(passes: DropoutPasses, rows: Minibatches, n: int, generator: torch.Generator) -> Tensor:
    """Σ_d (y_d − f_d)², shape (n, N), for `outputs_and_targets`."""
    f, y = outputs_and_targets(passes, rows, n, generator)
    return (f - y.to(f)).square().sum(-1)


def best_noise(squares: Tensor, outputs: int) -> tuple[float, float]:
    """The noise variance under which rows are most probable, and their mean log probability under it.

    It maximises Σ_n log S⁻¹ Σ_s N(y_n; f_ns, σ² I) over S passes. Where the derivative is zero σ² is a weighted mean of
    the squares, so that it lies between the mean of their least and the mean of their largest over the passes.

    Args:
        squares: Σ_d (y_d − f_d)², shape (S, N); of several processes each has its own rows.
        outputs: D.

    Raises:
        ConvergenceError: if the best pass fits each row without an error.
    """
    total, most, rows = row_totals(float(squares.amin(0).sum()), float(squares.amax(0).sum()), squares.shape[1])
    low, high = total / rows / outputs, most / rows / outputs
    if not 0 < low <= high < math.inf:
        raise ConvergenceError(
            f"noise_variance: expected residuals to learn it from, got a mean square between {low:g} and {high:g}. "
            "Give the likelihood its noise, or rows that were not trained on: validation=."
        )

    def loss(log_variance: float) -> float:
        each = torch.logsumexp(-0.5 * squares / math.exp(log_variance), 0) - math.log(len(squares))
        (total,) = row_totals(float(each.sum()))
        return 0.5 * outputs * (math.log(2 * math.pi) + log_variance) - total / rows

    ends = math.log(low), math.log(high)
    step = (ends[1] - ends[0]) / GRID
    best = min((ends[0] + step * k for k in range(GRID + 1)), key=loss)
    if step > 0:
        bounds = max(ends[0], best - step), min(ends[1], best + step)
        refined = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)
        best = min(best, refined, key=loss)
    return math.exp(best), -loss(best)
