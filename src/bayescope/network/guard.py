"""A network is read in eval mode and left as it was found, and threads never run the same module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.keywords import picked
from bayescope.layers.output_choice import ATTRIBUTE, OutputChoice
from bayescope.layers.variational import is_variational
from bayescope.module_copies import initialised, twin
from bayescope.private_draws import RandomSource

# The modules being read at this moment: what a reading inside a reading finds is the outer one's to restore.
_guarded: ContextVar[frozenset[int]] = ContextVar("guarded modules", default=frozenset())


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Puts a module into eval mode for the time of a reading and leaves no trace of it, exceptions included.

    Restored are the training flags of every submodule, the buffers, of which the reading gets copies, and the ``grad``
    and ``requires_grad`` of every parameter. What the module draws comes from generators of its own. The flags are set
    one by one: ``module.eval()`` may be overridden to do more than that.

    Args:
        module: the network, which no other thread uses meanwhile. Entering again for the same module costs nothing.
    """
    outer = _guarded.get()
    if id(module) in outer:
        yield
        return
    submodules = list(module.modules())
    training = [submodule.training for submodule in submodules]
    registered = [dict(submodule._buffers) for submodule in submodules]
    copies = {id(buffer): buffer.clone() for buffer in module.buffers()}
    parameters = [(parameter, parameter.grad, parameter.requires_grad) for parameter in module.parameters()]
    token = _guarded.set(outer | {id(module)})
    try:
        for submodule, found in zip(submodules, registered, strict=True):
            submodule.training = False
            submodule._buffers.update({name: copies.get(id(buffer)) for name, buffer in found.items()})
        with RandomSource(0).inside():
            yield
    finally:
        _guarded.reset(token)
        for submodule, mode in zip(submodules, training, strict=True):  # before anything that may fail
            submodule.training = mode
        for parameter, gradient, required in parameters:
            parameter.requires_grad_(required)
            parameter.grad = gradient
        for submodule, found in zip(submodules, registered, strict=True):
            submodule._buffers.clear()
            submodule._buffers.update(found)


def check_readable(module: object) -> None:
    """Checks that a network is one that can be read.

    Raises:
        InputTypeError: if it is no module.
        InputError: if a lazy layer in it has not seen any rows yet.
        UnsupportedError: if it, or a module in it, is TorchScript, or draws its weights.
    """
    if not isinstance(module, nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(module).__name__}.")
    if any(map(is_variational, module.modules())):
        raise UnsupportedError(
            "model: expected a network whose weights are numbers, got one with variational layers, whose forward pass "
            "draws them. Take bs.variational(model, …), with epochs=0 if it is trained already, or the plain network "
            "at its means, bs.layers.deterministic(model)[0]."
        )
    if any(isinstance(submodule, torch.jit.ScriptModule) for submodule in module.modules()):
        raise UnsupportedError(
            "model: expected a module whose calls to torch can be seen, got TorchScript. "
            "Give the Python module that it was made from, with its state_dict."
        )
    initialised(module)


# The copies that queries read, and whether what has been compiled may be in them: torch's own layers are not.
_LENT: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def lent(module: nn.Module) -> bool | None:
    """Whether code that is not torch's is in a copy that a query reads; ``None`` for any other module."""
    return _LENT.get(module)


@final
@dataclass(frozen=True, eq=False)
class _Twin:
    """A copy of a module that shares its weights, and what it is a copy of, which it does not keep alive."""

    module: nn.Module
    pairs: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]]

    @classmethod
    def of(cls, module: nn.Module) -> _Twin:
        check_readable(module)
        made = twin(module)
        _LENT[made] = not all(type(part).__module__.startswith("torch.nn.") for part in made.modules())
        parts = zip(made.modules(), module.modules(), strict=True)
        return cls(made, [(part, original._parameters, original._buffers) for part, original in parts])

    def follows(self) -> bool:
        """Whether it shares the weights that the module has by now; its buffers are then those of now."""
        for part, weights, buffers in self.pairs:
            for name, weight in weights.items():
                if weight is not None and weight.data_ptr() != part._parameters[name].data_ptr():  # type: ignore[union-attr]
                    return False
            part._buffers.update(buffers)
        return True


_IDLE: WeakKeyDictionary[nn.Module, list[_Twin]] = WeakKeyDictionary()


@contextmanager
def private(module: nn.Module) -> Iterator[nn.Module]:
    """A copy of a module that shares its weights, and that nobody else runs meanwhile: what a query reads.

    Copies are kept for the next query; there are as many as queries have been answered at once. Inside a transform of
    ``torch.func`` it is the module itself.

    Args:
        module: a network that belongs to a posterior: nobody changes it but for its weights and buffers.
    """
    if torch._C._functorch.maybe_current_level() is not None:  # a copy made inside a transform holds its tensors
        yield module
        return
    idle = _IDLE.setdefault(module, [])
    try:
        one = idle.pop()
    except IndexError:
        one = _Twin.of(module)
    if not one.follows():
        one = _Twin.of(module)
    yield one.module
    idle.append(one)  # after an error it may be in any state, and is given up


def with_output(model: object, options: Mapping[str, object], *, inplace: bool = False) -> Any:
    """Return the network with f as ``output`` and ``classes_dim`` choose it; the model unchanged without a choice.

    Its parameters have the same names and share their values with the model's. ``q.model``, copies and files keep the
    choice, so that it is made once.

    Args:
        model: a module, or whatever the caller may give in its place.
        options: the keywords of `OutputChoice`, among others.
        inplace: whether the choice is made for the caller's own module, whose answers stay what they are.

    Raises:
        InputTypeError: if there is a choice and no module.
    """
    choice = picked(OutputChoice, options)
    if choice == OutputChoice():
        return model
    network = unwrapped(model)
    if not isinstance(network, nn.Module):
        raise InputTypeError(
            f"output: expected output= and classes_dim= with a torch.nn.Module, got {type(model).__name__}. A "
            "posterior keeps the choice that its module was read with: leave them out."
        )
    network = network if inplace else twin(network)
    setattr(network, ATTRIBUTE, choice)
    return network


def unwrapped(model: object) -> Any:
    """The network inside of `DistributedDataParallel`, `DataParallel` or a fitted net of skorch, or what was given.

    Raises:
        InputTypeError: if it is a net of skorch that was not fitted.
        UnsupportedError: if its parameters are themselves spread over processes (FSDP).
    """
    inner = getattr(model, "_orig_mod", model)  # of a wrapper that has been compiled
    if isinstance(inner, DistributedDataParallel | DataParallel):
        return unwrapped(inner.module)
    if not isinstance(model, nn.Module) and isinstance(of_skorch := getattr(model, "module_", None), nn.Module):
        return unwrapped(of_skorch)
    if any(base.__module__.partition(".")[0] == "skorch" for base in type(model).__mro__):
        raise InputTypeError(
            f"model: expected a torch.nn.Module or a fitted net of skorch, got a {type(model).__name__} that was not "
            "fitted. Fit it first: net.fit(X, y)."
        )
    if isinstance(model, nn.Module) and any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise UnsupportedError(
            "model: expected a network that each process holds as a whole, got one whose parameters are spread over "
            "processes. Gather its full state_dict, and load that into the plain network."
        )
    return model
