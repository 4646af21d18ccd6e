"""Networks: those of torch's own layers as a description, others as named tensors that need the caller's module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.module_copies import module_copy
from bayescope.storage.codec import (
    OBJECT_BYTES,
    MalformedError,
    Node,
    Reader,
    Writer,
    exactly,
    in_order,
    node_of,
    of,
    stored_tensor,
    tag,
)
from bayescope.storage.layers import LAYERS, Layer, check_together

M = TypeVar("M", bound=type[nn.Module])

# Hooks that a file may ask for, by the names that it has for them.
_HOOKS: dict[str, Callable[..., Any]] = {}
_BY_TYPE = {layer.type: (name, layer) for name, layer in LAYERS.items()}


class ModelError(InputError):
    """A file's network needs the caller's module, and there is none, or it has other tensors."""


def stored_layer(
    name: str, options: Callable[[Any], dict[str, Any]], *, children: tuple[str, ...] = ()
) -> Callable[[M], M]:
    """A class decorator: layers of the class are described in files.

    Args:
        name: in files.
        options: from a layer to the arguments that make another one like it, its children apart.
        children: arguments that are layers themselves, and attributes of the same name.
    """

    def register(kind: M) -> M:
        LAYERS[name] = Layer(kind, options, children)
        _BY_TYPE[kind] = name, LAYERS[name]
        return kind

    return register


def stored_hook(name: str, hook: Callable[..., Any]) -> None:
    """Lets files ask for a hook of the house before a layer's forward pass, which takes named arguments too."""
    _HOOKS[name] = hook


@final
@dataclass
class Replacements:
    """The caller's module, for the networks in a file.

    Attributes:
        model: as it was given.
        networks: how many networks have been read.
    """

    model: nn.Module | None = None
    networks: int = 0

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise InputTypeError(f"model: expected a torch.nn.Module, got {type(self.model).__name__}.")

    def refuse_unused(self) -> None:
        """Checks that there is a network where a module was given.

        Raises:
            ModelError: if there is none.
        """
        if self.model is not None and self.networks == 0:
            raise ModelError("model: expected a file with a network in it, got one that has none. Leave model out.")


@node_of.register(nn.Parameter)
def _parameter(value: nn.Parameter, writer: Writer, path: str) -> Node:
    exactly(value, nn.Parameter, path)
    return writer.shared(value, path, lambda: {"parameter": [*stored_tensor(value, writer, path), value.requires_grad]})


@tag("parameter", shared=True)
def _read_parameter(reader: Reader, content: Any) -> nn.Parameter:
    name, order, trained = of(content, list)
    tensor = in_order(reader.tensor(name), order)
    return nn.Parameter(tensor, requires_grad=of(trained, bool))


@node_of.register(nn.Module)
def _network(value: nn.Module, writer: Writer, path: str) -> Node:
    if all(map(_is_known, value.modules())) and _is_bounded(value):
        return writer.shared(value, path, lambda: {"network": _module(value, writer, path)})
    return writer.shared(value, path, lambda: {"custom_network": _custom(value, writer, path)})


@tag("network", shared=True)
def _read_network(reader: Reader, content: Any) -> nn.Module:
    reader.modules.networks += 1
    made = reader.value(content)
    if not isinstance(made, nn.Module):
        raise MalformedError("a network is none")
    check_together(made)
    if reader.modules.model is not None:
        _refuse_unlike(_named(made), _named(reader.modules.model), _dropped(made))
    return made


# A description of a module, layer by layer -----------------------------------------------------------------------


def _module(value: nn.Module, writer: Writer, path: str) -> Node:
    return writer.shared(value, path, lambda: {"layer": _layer(value, writer, path)}, role="layer")


def _layer(value: nn.Module, writer: Writer, path: str) -> Node:
    name, known = _BY_TYPE[type(value)]
    tensors = {**value._parameters, **value._buffers}
    held = {key: writer.value(each, f"{path}.{key}") for key, each in tensors.items()}
    children = {
        key: None if each is None else _module(each, writer, f"{path}.{key}") for key, each in value._modules.items()
    }
    hooks = [hook for hook, function in _HOOKS.items() if function in value._forward_pre_hooks.values()]
    return [name, writer.value(known.options(value), path), value.training, held, children, hooks]


@tag("layer", shared=True)
def _read_layer(reader: Reader, content: Any) -> nn.Module:
    name, options, training, tensors, children, hooks = of(content, list)
    if not isinstance(name, str) or name not in LAYERS:
        raise MalformedError(f"the layer {str(name)[:40]!r} is not known; a newer bayescope may have it")
    reader.meet(OBJECT_BYTES)
    inside = {key: reader.value(node) for key, node in of(children, dict).items()}
    made = LAYERS[name].made(reader.value(options))
    for key, child in inside.items():
        if child is not None and not isinstance(child, nn.Module):
            raise MalformedError("a layer in a layer is none")
        if key in made._modules and key not in LAYERS[name].children:
            raise MalformedError("a layer stands in the place of another")
        made.add_module(key, child)
    _place(made, {key: reader.value(node) for key, node in of(tensors, dict).items()})
    for hook in of(hooks, list):
        if hook not in _HOOKS or hook not in made._modules:
            raise MalformedError("a hook is not known")
        made.register_forward_pre_hook(_HOOKS[hook], with_kwargs=True)
    made.training = of(training, bool)
    return made


def _place(layer: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Gives a layer, whose tensors have shapes and no memory, those of the file."""
    if tensors.keys() != {**layer._parameters, **layer._buffers}.keys():
        raise MalformedError("a layer has other tensors")
    for name, tensor in tensors.items():
        before = layer._parameters[name] if name in layer._parameters else layer._buffers[name]
        if (tensor is None) != (before is None):
            raise MalformedError("a tensor of a layer is missing")
        if tensor is None:
            continue
        kind = nn.Parameter if name in layer._parameters else Tensor
        if type(tensor) is not kind or before is None or tensor.shape != before.shape:
            raise MalformedError("a tensor of a layer has another shape")
        setattr(layer, name, tensor)


def _is_known(module: nn.Module) -> bool:
    """Whether a file's description makes a module that does the same."""
    if type(module) not in _BY_TYPE or not _is_plain(module):
        return False
    _, layer = _BY_TYPE[type(module)]
    try:
        made = layer.made(layer.options(module))
    except ValueError:  # sizes that no file may ask for
        return False
    same = _attributes(made) == _attributes(module)
    tensors, own = {**made._parameters, **made._buffers}, {**module._parameters, **module._buffers}
    shapes = [(name, None if each is None else each.shape) for name, each in tensors.items()]
    return same and shapes == [(name, None if each is None else each.shape) for name, each in own.items()]


def _is_bounded(network: nn.Module) -> bool:
    """Whether a file may hold these layers together."""
    try:
        check_together(network)
    except (ValueError, TypeError, ArithmeticError):
        return False
    return True


def _is_plain(module: nn.Module) -> bool:
    """Whether a module has no hooks but those of the house."""
    before = list(module._forward_pre_hooks.values())
    others = (module._forward_hooks, module._backward_hooks, module._backward_pre_hooks)
    return all(hook in _HOOKS.values() for hook in before) and not any(others)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"
    }  # fmt: skip


# A network of the caller's own classes ---------------------------------------------------------------------------


def _custom(value: nn.Module, writer: Writer, path: str) -> Node:
    dropped = _dropped(value)
    named = _named(value)
    held = {name: writer.value(each, f"{path}.{name}") for name, each in named.items()}
    training = {name: part.training for name, part in value.named_modules()}
    inserted = {name: _module(part, writer, f"{path}.{name}") for name, part in dropped.items()}
    return [type(value).__qualname__, held, training, inserted]


@tag("custom_network", shared=True)
def _read_custom(reader: Reader, content: Any) -> nn.Module:
    name, tensors, training, inserted = of(content, list)
    reader.modules.networks += 1
    if reader.modules.model is None:
        raise ModelError(
            f"model: expected a module of the architecture of {_readable(name)}, whose code is not in the file, got "
            "none. Call bs.load(path, model=module): its weights do not matter, and it stays as it is."
        )
    held = {key: reader.value(node) for key, node in of(tensors, dict).items()}
    if not all(isinstance(each, Tensor) for each in held.values()):
        raise MalformedError("a tensor of a network is none")
    made = _copied(reader.modules.model)
    extra = {key: reader.value(node) for key, node in of(inserted, dict).items()}
    _refuse_unlike(held, _named(made), extra)
    _fill(made, held)
    parts = dict(made.named_modules())
    for place, part in extra.items():
        owner, _, hook = place.rpartition(".")
        if hook not in _HOOKS or owner not in parts or not isinstance(part, nn.Module):
            raise MalformedError("a layer was put into a network where there is none")
        parts[owner].add_module(hook, part)
        parts[owner].register_forward_pre_hook(_HOOKS[hook], with_kwargs=True)
    for place, flag in of(training, dict).items():
        if place in parts:
            parts[place].training = of(flag, bool)
    return made


def _copied(model: nn.Module) -> nn.Module:
    try:
        return module_copy(model)
    except InputError as error:  # the caller's module is to blame, not the file
        raise ModelError(str(error)) from error


def _readable(name: Any) -> str:
    return name[:80] if isinstance(name, str) and name.isprintable() else "another class"


def _fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, own in _named(module).items():
            own.data = tensors[name].data
            if isinstance(own, nn.Parameter):
                own.requires_grad_(tensors[name].requires_grad)


def _named(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, under all their names."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def _dropped(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that the house has put into a network, by their names."""
    named = module.named_modules(remove_duplicate=False)
    return {name: part for name, part in named if name.rpartition(".")[2] in _HOOKS}


def _refuse_unlike(held: Mapping[str, Tensor], own: Mapping[str, Tensor], inserted: Mapping[str, Any]) -> None:
    """Checks that the caller's module has the tensors of the file, tied where they are.

    Raises:
        ModelError: if names, shapes, types or ties differ.
    """
    held = {name: tensor for name, tensor in held.items() if not name.startswith(tuple(f"{at}." for at in inserted))}
    # In order, not as a set, whose order changes from process to process: the same mistake has the same message.
    for name in [*(name for name in held if name not in own), *(name for name in own if name not in held)]:
        side = "the file has and the module has not" if name in held else "the module has and the file has not"
        raise ModelError(f"model: expected a module with the same parameters and buffers, got {name!r}, which {side}.")
    for name, tensor in held.items():
        expected, got = ((tuple(each.shape), each.dtype) for each in (tensor, own[name]))
        if expected != got:
            raise ModelError(
                f"model: expected {name!r} of shape {expected[0]} and type {expected[1]}, got {got[0]} and {got[1]}. "
                "Give a module of the architecture and the type that were saved."
            )
    if _ties(held) != _ties(own):
        raise ModelError("model: expected a module whose parameters are shared as they were saved, got another.")


def _ties(tensors: Mapping[str, Tensor]) -> set[tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(id(tensor), []).append(name)
    return {tuple(sorted(names)) for names in groups.values()}
