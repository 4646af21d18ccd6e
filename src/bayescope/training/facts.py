"""What identifies a training run, in words: a run that goes on from a checkpoint must agree with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from bayescope.likelihoods import Likelihood
from bayescope.network.weights import Weights
from bayescope.priors import Prior

# Up to this many numbers are written out; more are compared by a hash.
WRITTEN = 4
# What of an optimiser's options depends on the machine and leaves the steps as they are.
_ON_THE_MACHINE = ("params", "fused", "foreach", "capturable", "differentiable", "initial_lr")


def of_seed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The seed among a function's arguments; of a generator, the state that it is in."""
    name = next((name for name in ("generator", "random_state") if name in options), None)
    seed: Any = options.get(name or "")
    if isinstance(seed, torch.Generator):
        seed = f"in the state {digest([seed.get_state()])}"
    elif hasattr(seed, "get_state"):  # NumPy's
        state = json.dumps(seed.get_state(legacy=False), default=lambda numbers: numbers.tolist())
        seed = f"in the state {hashlib.sha256(state.encode()).hexdigest()[:16]}"
    elif hasattr(seed, "__index__"):
        seed = int(seed)
    return {} if name is None else {name: seed}


def of_start(options: Mapping[str, Any]) -> dict[str, str]:
    """The first weights of the networks among a function's arguments.

    They are left out where there is no seed, so that no two runs are the same, and where the caller's own network is
    trained, which a run that was interrupted has changed.
    """
    if options.get("inplace") or options.get("generator") is None:
        return {}
    given = options.get("model", options.get("make_model"))
    modules = [each for each in (given if isinstance(given, list | tuple) else [given]) if isinstance(each, nn.Module)]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    known = [tensor for tensor in tensors if not (is_lazy(tensor) or tensor.is_meta)]
    return {"first weights": digest(known)} if known else {}


def digest(tensors: Iterable[Tensor]) -> str:
    """What tells tensors from others, by their shapes, types and every bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().reshape(-1)
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def of_module(module: nn.Module) -> dict[str, str]:
    """The shapes and types of its parameters, and the modules that it is made of."""
    shapes = [f"{name} {tuple(p.shape)}{'' if p.requires_grad else ' frozen'}" for name, p in module.named_parameters()]
    types = sorted({str(parameter.dtype) for parameter in module.parameters()})
    made_of = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    return {"parameters": ", ".join(shapes), "dtype": ", ".join(types), "model": made_of}


def of_weights(weights: Weights) -> str:
    """A line that says which weights are random."""
    masks = {name: _numbers(weights.masks[name]) for name in weights.masks}
    return ", ".join(f"{name} where {masks[name]}" if name in masks else name for name in weights.names)


def of_likelihood(likelihood: Likelihood) -> str:
    """Its name and its options; of a class that is no dataclass, the name."""
    options: dict[str, Any] = {}
    if dataclasses.is_dataclass(likelihood):
        options = {field.name: getattr(likelihood, field.name) for field in dataclasses.fields(likelihood)}
    plain = {name: _numbers(value) if isinstance(value, Tensor) else value for name, value in options.items()}
    return likelihood.name + _listed({name: value for name, value in plain.items() if _is_plain(value)})


def of_prior(prior: Prior) -> str:
    """Its precision and its mean; a structured precision by its diagonal and its determinant."""
    precision = prior.precision
    if isinstance(precision, Tensor):
        text = _numbers(precision)
    else:  # rounded: a posterior that became the prior may have been fitted again
        text = f"full, log determinant {float(precision.logdet()):.6g}, trace {float(precision.diagonal().sum()):.6g}"
    return f"precision {text}, mean {_numbers(prior.mean)}"


def describe(prior: Prior) -> str:
    """A prior in a few words."""
    precision = prior.precision
    if not isinstance(precision, Tensor):
        return "a Gaussian with a full precision"
    low, high = float(precision.min()), float(precision.max())
    return f"precision {low:g}" if low == high else f"precisions from {low:g} to {high:g}"


def of_optimizer(optimizer: Optimizer) -> dict[str, str]:
    """Its kind and its options, the step size apart, of each group of parameters."""
    groups = [{k: v for k, v in group.items() if k not in _ON_THE_MACHINE} for group in optimizer.param_groups]
    sizes = [float(group.pop("lr")) for group in groups if "lr" in group]
    options = dict.fromkeys(_listed({name: v for name, v in group.items() if _is_plain(v)}) for group in groups)
    return {"optimizer": type(optimizer).__name__ + " ".join(options), "lr": ", ".join(map(repr, sizes))}


def _listed(options: dict[str, Any]) -> str:
    return f"({', '.join(f'{name}={value}' for name, value in options.items())})" if options else ""


def _is_plain(value: object) -> bool:
    """Whether the words for a value are the same in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _numbers(tensor: Tensor) -> str:
    values = tensor.detach().to("cpu", torch.float64).flatten()
    if bool((values == values[:1]).all()):
        return repr(float(values[0])) if values.numel() else "none"
    if values.numel() <= WRITTEN:
        return ", ".join(map(repr, values.tolist()))
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()[:8]
    return f"from {float(values.min())!r} to {float(values.max())!r} ({values.numel()} of them, {digest})"
