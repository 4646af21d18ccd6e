"""Networks: those of torch's own layers as a description, others as named tensors that need the caller's module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.module_copies import module_copy
from bayescope.storage.codec import MalformedError, Reader, StoredForm, add_form, of

M = TypeVar("M", bound=type[nn.Module])

# The layers of torch that files describe: by the arguments of the constructor that are attributes of the layer too.
_DESCRIBED = """
Linear Bilinear Embedding EmbeddingBag Identity Flatten Unflatten Sequential ModuleList ModuleDict RNN LSTM GRU
Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Unfold Fold
BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm RMSNorm GroupNorm
LocalResponseNorm Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
ReLU ReLU6 SELU SiLU Mish Hardsigmoid Hardswish LeakyReLU ELU CELU GELU Softplus Softshrink Hardshrink Hardtanh
Threshold PReLU Softmax LogSoftmax Softmin GLU Sigmoid Tanh LogSigmoid Tanhshrink Softsign Softmax2d
MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
ConstantPad1d ConstantPad2d ConstantPad3d ZeroPad1d ZeroPad2d ZeroPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d
ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d CircularPad2d CircularPad3d
Upsample PixelShuffle PixelUnshuffle ChannelShuffle CosineSimilarity
"""
# Arguments that recurrent layers take and do not name, and those of each that the others lack.
_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_ALONE = {"RNN": ("nonlinearity",), "LSTM": ("proj_size",)}

# Recurrent layers make their layers one by one: a file is not to keep a machine busy with them.
MOST_INSIDE = 500
# Options that no tensor of the layer bears out, and that memory or time grows with: how large each number may be, and
# the numbers of one option multiplied.
GEOMETRY = ("kernel_size", "stride", "padding", "output_padding", "dilation", "output_size", "size", "scale_factor")
MOST, MOST_TOGETHER = 2**20, 2**26
# Layers that run one after another, for a row of 8 positions along each of 3 axes: how many positions a layer may
# answer at, which is 1 GiB a channel, and how many values all of them together may read, which takes minutes.
AXES, FEW_POSITIONS, MOST_POSITIONS, MOST_READ = 3, 8, 2**28, 2**34


@final
@dataclass(frozen=True)
class StoredLayer:
    """How layers of a class are described.

    Attributes:
        type: the class.
        options: from a layer to the arguments that make another one like it.
        children: arguments that are layers themselves.
    """

    type: type[nn.Module]
    options: Callable[[Any], dict[str, Any]]
    children: tuple[str, ...] = ()

    def made(self, options: dict[str, Any]) -> nn.Module:
        """A layer whose tensors have shapes and no memory; nothing is drawn from torch's generator.

        Raises:
            ValueError: if it has more layers inside than any has, or takes more memory or time than any does.
        """
        if options.get("num_layers", 0) > MOST_INSIDE:
            raise ValueError(f"{options['num_layers']} layers in one")
        for name in GEOMETRY:
            _check_geometry(name, options.get(name))
        if "device" in options:
            raise ValueError("a layer that takes memory of its own")
        with torch.device("meta"):
            return self.type(**options, **{name: nn.Identity() for name in self.children})


def _check_geometry(name: str, option: object) -> None:
    """Refuses numbers under which a small input takes all memory, or keeps a machine busy for hours."""
    numbers = option if isinstance(option, list | tuple) else [option]
    sizes = [abs(number) for number in numbers if isinstance(number, int | float)]
    if len(sizes) > 3:  # what is added on both sides of each axis
        sizes = [before + after for before, after in zip(sizes[::2], sizes[1::2], strict=True)]
    if not (all(size <= MOST for size in sizes) and math.prod(sizes) <= MOST_TOGETHER):
        raise ValueError(f"a layer with a {name} of {str(option)[:40]}")


def check_together(network: nn.Module) -> None:
    """Refuses a network whose layers together take more memory or time than one has, although each takes little.

    Raises:
        ValueError: if one of its layers answers at too many positions, or all of them read too many values.
        TypeError: if an option is not of the type that its layer takes.
        ArithmeticError: if a stride is 0, or a number is infinite.
    """
    _, read = _passed(network, [FEW_POSITIONS] * AXES)
    if read > MOST_READ:
        raise ValueError("layers that together take more time than any network does")


def _passed(module: nn.Module, lengths: list[int]) -> tuple[list[int], int]:
    """The lengths of the axes after a module, and how many values its layers read."""
    children = [child for child in module._modules.values() if child is not None]
    if not children:
        after, read = _lengths_after(module, lengths)
        if math.prod(after) > MOST_POSITIONS:
            raise ValueError("layers that together take more memory than any network does")
        return after, read * math.prod(after)
    together, longest = 0, lengths
    for child in children:
        after, read = _passed(child, lengths)
        together, longest = together + read, list(map(max, longest, after))
        if isinstance(module, nn.Sequential):
            lengths = longest = after
    return longest, together


def _lengths_after(layer: Any, lengths: list[int]) -> tuple[list[int], int]:
    """The lengths after one layer, and how many values it reads for each position of its answer."""
    kind = type(layer).__name__
    axes = {"linear": 1, "trilinear": 3, "Fold": 2, "Unfold": 2}.get(getattr(layer, "mode", kind), 2)
    axes = int(kind[-2]) if kind[-2:] in ("1d", "2d", "3d") else axes
    kept, changed = lengths[: AXES - axes], lengths[AXES - axes :]

    def each(name: str, default: object = 1) -> list[Any]:
        """An option's number for each axis."""
        option = getattr(layer, name, None)
        option = default if option is None or isinstance(option, str) else option
        return list(option) if isinstance(option, list | tuple) else [option] * axes

    if "Pad" in kind:
        sides = layer.padding[::-1]  # those of the last axis come first
        after = [length + first + last for length, first, last in zip(changed, sides[::2], sides[1::2], strict=True)]
        return kept + after, 1
    for name in ("size", "output_size"):
        if kind != "LocalResponseNorm" and getattr(layer, name, None) is not None:
            return kept + [
                length if size is None else size for length, size in zip(changed, each(name), strict=True)
            ], 1
    if getattr(layer, "scale_factor", None) is not None:
        return kept + [
            math.ceil(length * scale) for length, scale in zip(changed, each("scale_factor"), strict=True)
        ], 1
    if not hasattr(layer, "kernel_size"):
        return lengths, layer.size if kind == "LocalResponseNorm" else 1
    kernel, padding, dilation = each("kernel_size"), each("padding", 0), each("dilation")
    stride, more = each("stride", kernel), each("output_padding", 0)
    after = []
    for length, size, step, rim, gap, rest in zip(changed, kernel, stride, padding, dilation, more, strict=True):
        reach = gap * (size - 1)
        transposed = kind.startswith("ConvTranspose")
        found = (length - 1) * step - 2 * rim + reach + rest if transposed else (length + 2 * rim - reach - 1) // step
        after.append(max(1, found + 1))
    return kept + after, 1 if hasattr(layer, "weight") else math.prod(kernel)


def _options(names: tuple[str, ...], layer: nn.Module) -> dict[str, Any]:
    held = {**vars(layer), **layer._parameters}
    return {name: _option(name, held[name]) for name in names if name in held}


def _option(name: str, value: object) -> Any:
    """What makes a layer with this attribute: `bias` is whether there is one."""
    return value is not None if name == "bias" and not isinstance(value, bool) else value


def _arguments(name: str, kind: type[nn.Module]) -> tuple[str, ...]:
    if issubclass(kind, nn.RNNBase):
        return (*_RECURRENT, *_ALONE.get(name, ()))
    return tuple(each for each in inspect.signature(kind).parameters if each not in ("device", "dtype"))


class ModelError(InputError):
    """A file's network needs the caller's module, and there is none, or it has other tensors."""


# How layers of a class are described, by the name of the class in files.
LAYERS: dict[str, StoredLayer] = {}
_NAMES: dict[type[nn.Module], str] = {}
# Hooks that a file may ask for, by the names that it has for them.
_HOOKS: dict[str, Callable[..., Any]] = {}
# Attributes of networks that files hold beside the tensors, and what they are.
_ATTRIBUTES: dict[str, type] = {}


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
        _add(name, StoredLayer(kind, options, children))
        return kind

    return register


def stored_hook(name: str, hook: Callable[..., Any]) -> None:
    """Lets files ask for a hook of the house before a layer's forward pass, which takes named arguments too."""
    _HOOKS[name] = hook


def stored_attribute(name: str, kind: type) -> None:
    """Lets files hold an attribute of a network: an object of a stored class, which networks may have or not."""
    _ATTRIBUTES[name] = kind


def _add(name: str, layer: StoredLayer) -> None:
    LAYERS[name], _NAMES[layer.type] = layer, name
    add_form(StoredForm(name, layer.type, partial(_parts, name), partial(_made, name), instead=_by_tensors))


# A description, layer by layer -----------------------------------------------------------------------------------


def _by_tensors(network: nn.Module) -> StoredForm | None:
    """The form of a network by its tensors, if no description makes one that does the same."""
    return None if all(map(_is_known, network.modules())) and _is_bounded(network) else _CUSTOM


def _parts(name: str, layer: nn.Module, _path: str) -> dict[str, Any]:
    hooks = [hook for hook, function in _HOOKS.items() if function in layer._forward_pre_hooks.values()]
    setting = [LAYERS[name].options(layer), layer.training, hooks]
    return {"": setting, **_attached(layer), **layer._parameters, **layer._buffers, **layer._modules}


def _made(name: str, parts: Any, _reader: Reader) -> nn.Module:
    options, training, hooks = of(parts.pop(""), list)
    made = LAYERS[name].made(of(options, dict))
    _attach(made, parts)
    names = {**made._parameters, **made._buffers}.keys()
    for key, child in parts.items():
        if key in names:
            continue
        if child is not None and not isinstance(child, nn.Module):
            raise MalformedError("a layer in a layer is malformed")
        if key in made._modules and key not in LAYERS[name].children:
            raise MalformedError("a layer stands in the place of another")
        made.add_module(key, child)
    _place(made, {key: tensor for key, tensor in parts.items() if key in names})
    for hook in of(hooks, list):
        if hook not in _HOOKS or hook not in made._modules:
            raise MalformedError("a hook is not known")
        made.register_forward_pre_hook(_HOOKS[hook], with_kwargs=True)
    made.training = of(training, bool)
    check_together(made)
    return made


def _parameter(parts: Any, _reader: Reader) -> nn.Parameter:
    return nn.Parameter(of(parts["values"], Tensor), requires_grad=of(parts["trained"], bool))


def _parameter_parts(value: nn.Parameter, _path: str) -> dict[str, Any]:
    return {"values": value.detach(), "trained": value.requires_grad}


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
    if type(module) not in _NAMES or not _is_plain(module):
        return False
    layer = LAYERS[_NAMES[type(module)]]
    try:
        made = layer.made(layer.options(module))
    except ValueError:  # sizes that no file may ask for
        return False
    same = _attributes(made) == _attributes(module)
    tensors, present = {**made._parameters, **made._buffers}, {**module._parameters, **module._buffers}
    shapes = [(name, None if each is None else each.shape) for name, each in tensors.items()]
    return same and shapes == [(name, None if each is None else each.shape) for name, each in present.items()]


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


def _custom_parts(value: nn.Module, _path: str) -> dict[str, Any]:
    training = {name: part.training for name, part in value.named_modules()}
    return {"": [type(value).__qualname__, training], **_attached(value), **_named(value), **_dropped(value)}


def _custom(parts: Any, reader: Reader) -> nn.Module:
    name, training = of(parts.pop(""), list)
    if reader.model is None:
        raise ModelError(
            f"model: expected a module of the architecture of {_readable(name)}, whose code is not in the file, got "
            "none. Call bs.load(path, model=module): its weights do not matter, and it stays unchanged."
        )
    made = _copied(reader.model)
    _attach(made, parts)
    held = {key: part for key, part in parts.items() if isinstance(part, Tensor)}
    inserted = {key: part for key, part in parts.items() if key not in held}
    _refuse_unlike(held, _named(made), inserted)
    _fill(made, held)
    layers = dict(made.named_modules())
    for place, part in inserted.items():
        owner, _, hook = place.rpartition(".")
        if hook not in _HOOKS or owner not in layers or not isinstance(part, nn.Module):
            raise MalformedError("a layer was put into a network where there is malformed")
        layers[owner].add_module(hook, part)
        layers[owner].register_forward_pre_hook(_HOOKS[hook], with_kwargs=True)
    for place, flag in of(training, dict).items():
        if place in layers:
            layers[place].training = of(flag, bool)
    return made


def _attached(network: nn.Module) -> dict[str, Any]:
    """The attributes that files hold, under names that no layer and no tensor can have."""
    found = {name: getattr(network, name, None) for name in _ATTRIBUTES}
    return {f".{name}": value for name, value in found.items() if value is not None}


def _attach(network: nn.Module, parts: dict[str, Any]) -> None:
    """Takes the attributes out of the parts of a file, and gives a network these and no others."""
    for name, kind in _ATTRIBUTES.items():
        value = parts.pop(f".{name}", None)
        if not isinstance(value, kind | None):
            raise MalformedError(f"the {name} of a network is malformed")
        if value is not None:
            setattr(network, name, value)
        elif hasattr(network, name):
            delattr(network, name)


def check_model(model: object) -> None:
    """Refuses anything but a module in the place of one.

    Raises:
        InputTypeError: if it is something else.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")


def check_networks(objects: Iterable[Any], model: nn.Module | None) -> None:
    """Checks that the caller's module, where one was given, has the tensors of each network of a file.

    Raises:
        ModelError: if the file has no network, or the tensors differ.
    """
    if model is None:
        return
    modules = [each for each in objects if isinstance(each, nn.Module)]
    inside = {id(part) for each in modules for part in each.modules() if part is not each}
    networks = [each for each in modules if id(each) not in inside]
    if not networks:
        raise ModelError("model: expected a file with a network in it, got one that has none. Leave model out.")
    for network in networks:
        _refuse_unlike(_named(network), _named(model), _dropped(network))


def _copied(model: nn.Module) -> nn.Module:
    try:
        return module_copy(model)
    except InputError as error:  # the caller's module is to blame, not the file
        raise ModelError(str(error)) from error


def _readable(name: object) -> str:
    return name[:80] if isinstance(name, str) and name.isprintable() else "another class"


def _fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in _named(module).items():
            parameter.data = tensors[name].data
            if isinstance(parameter, nn.Parameter):
                parameter.requires_grad_(tensors[name].requires_grad)


def _named(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, under all their names."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def _dropped(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that the house has put into a network, by their names."""
    named = module.named_modules(remove_duplicate=False)
    return {name: part for name, part in named if name.rpartition(".")[2] in _HOOKS}


def _refuse_unlike(held: Mapping[str, Tensor], present: Mapping[str, Tensor], inserted: Mapping[str, Any]) -> None:
    """Checks that the caller's module has the tensors of the file, tied where they are.

    Raises:
        ModelError: if names, shapes, types or ties differ.
    """
    held = {name: tensor for name, tensor in held.items() if not name.startswith(tuple(f"{at}." for at in inserted))}
    # In order, not as a set, whose order changes from process to process: the same mistake has the same message.
    for name in [*(name for name in held if name not in present), *(name for name in present if name not in held)]:
        side = "the file has and the module has not" if name in held else "the module has and the file has not"
        raise ModelError(f"model: expected a module with the same parameters and buffers, got {name!r}, which {side}.")
    for name, tensor in held.items():
        expected, got = ((tuple(each.shape), each.dtype) for each in (tensor, present[name]))
        if expected != got:
            raise ModelError(
                f"model: expected {name!r} of shape {expected[0]} and type {expected[1]}, got {got[0]} and {got[1]}. "
                "Give a module of the architecture and the type that were saved."
            )
    if _ties(held) != _ties(present):
        raise ModelError("model: expected a module whose parameters are shared as they were saved, got another.")


def _ties(tensors: Mapping[str, Tensor]) -> set[tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(id(tensor), []).append(name)
    return {tuple(sorted(names)) for names in groups.values()}


_CUSTOM = StoredForm("custom_network", nn.Module, _custom_parts, _custom, subclasses=True)
add_form(_CUSTOM)
add_form(StoredForm("parameter", nn.Parameter, _parameter_parts, _parameter))
for _name in _DESCRIBED.split():
    if hasattr(nn, _name):  # the oldest torch lacks some
        _kind = getattr(nn, _name)
        _add(_name, StoredLayer(_kind, partial(_options, _arguments(_name, _kind))))
