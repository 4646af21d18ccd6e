"""A pretended GPU: tensors lie in the machine's own memory, and torch's rules for devices are held over them.

Without a GPU this finds what would fail on one, or copy without a word: a tensor made without a device beside one that
has one, an index on the CPU, a generator of the CPU for numbers of the GPU, NumPy. Values are computed as ever.

Known of a tensor, by its storage: made on the GPU, made on the CPU, or neither (torch makes tensors inside of its own
functions, whose device this cannot see: they go with the first that they meet).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

LIBRARY = "/src/bayescope/"
HOST, GPU = torch.device("cpu"), torch.device("cuda", 0)
# Functions that take tensors of two devices, and those in which a number on the CPU is no number but an entry.
MOVERS = ("copy_", "_to_copy", "_copy_from")
JOINERS = ("cat", "stack", "linalg", "mm", "bmm", "addmm", "index", "gather", "scatter")
WAITS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "cpu")


def _stored(tensor: Tensor) -> Any:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()


@final
class Places:
    """Which storages are on which device, and what has been moved or waited for.

    Attributes:
        waits: how often each function that hands a number of the GPU to Python has been called.
        copies: how many numbers each function of the library has moved between the devices, or made on the CPU: by its
            file and name, and "to gpu", "to cpu", "made on cpu".
    """

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()

    def note(self, way: str, tensor: Tensor) -> None:
        """Counts a copy for the function of the library that asked for it."""
        frame = sys._getframe(1)
        while frame is not None:
            _, _, inside = frame.f_code.co_filename.partition(LIBRARY)
            if inside:
                self.copies[f"{inside.removesuffix('.py')}:{frame.f_code.co_qualname}", way] += tensor.numel()
                return
            frame = frame.f_back  # type: ignore[assignment]

    def of(self, tensor: Tensor) -> torch.device | None:
        """Where a tensor is, if that is known."""
        return self._known.get(_stored(tensor))

    def put(self, tensor: Tensor, device: torch.device | None) -> Tensor:
        """Says where a tensor is."""
        if device is None:
            self._known.pop(_stored(tensor), None)
        else:
            self._known[_stored(tensor)] = device
        return tensor

    def common(self, name: str, tensors: Sequence[Tensor], written: Sequence[Tensor]) -> torch.device | None:
        """The device of a call.

        Raises:
            RuntimeError: if torch would refuse the call on a GPU, or copy a whole tensor for it.
        """
        found = [(tensor, place) for tensor in tensors if (place := self.of(tensor)) is not None]
        if not any(place == GPU for _, place in found):
            return HOST if found else None
        strict = any(joiner in name for joiner in JOINERS)
        for tensor, place in found:
            if place == HOST and (tensor.ndim or strict or any(tensor is other for other in written)):
                shapes = [(tuple(other.shape), str(at)) for other, at in found]
                raise RuntimeError(f"Expected all tensors to be on the same device, got {shapes} in {name}")
        return GPU


@final
class _Ops(TorchDispatchMode):
    """Holds every operation to one device, and puts its results there."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        given = [*args, *(kwargs.get(argument.name) for argument in func._schema.arguments[len(args) :])]
        pairs = zip(func._schema.arguments, given, strict=False)
        written = [
            value
            for argument, value in pairs
            if isinstance(value, Tensor) and argument.alias_info is not None and argument.alias_info.is_write
        ]
        place = self._places.of(tensors[0]) if name in MOVERS else self._places.common(name, tensors, written)
        if name == "_local_scalar_dense" and place == GPU:
            self._places.waits["scalar"] += 1
        result = func(*args, **kwargs)
        if name not in MOVERS and place is not None:
            tree_map_only(Tensor, lambda tensor: self._places.put(tensor, place), result)
        return result


@final
class _Calls(TorchFunctionMode):
    """Answers for devices: those that are asked for in a call, and those that a tensor tells."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and owner in ("device", "is_cuda"):
            place = self._places.of(args[0]) or HOST
            return place if owner == "device" else place == GPU
        if name == "_parse_to":  # the arguments of `nn.Module.to`
            return func(*args, **kwargs)
        if func in (Tensor.cuda, Tensor.cpu, Tensor.to):
            return self._moved(func, args, kwargs)
        if name in ("numpy", "__array__") and self._places.of(args[0]) == GPU:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        if name in WAITS and args and isinstance(args[0], Tensor) and self._places.of(args[0]) == GPU:
            self._places.waits[name] += 1
        device = kwargs.pop("device", None)
        device = None if device is None else torch.device(device)
        self._check_generator(kwargs.get("generator"), device, args, name)
        if device is not None and device.type == "meta":
            return func(*args, **kwargs, device=device)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and device is not None:
            if device.type != "cuda":
                self._places.note("made on cpu", result)
            return self._places.put(result, GPU if device.type == "cuda" else HOST)
        made = isinstance(result, Tensor) and not any(isinstance(leaf, Tensor) for leaf in tree_flatten(args)[0])
        if made and self._places.of(result) is None:
            self._places.note("made on cpu", result)
            return self._places.put(result, HOST)
        return result

    def _check_generator(self, generator: Any, device: torch.device | None, args: Any, name: str) -> None:
        if generator is None or getattr(generator, "place", "cpu") != "cpu":
            return
        beside = any(isinstance(value, Tensor) and self._places.of(value) == GPU for value in args)
        if beside or (device is not None and device.type == "cuda"):
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu', in {name}")

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """x.to(...), x.cuda() and x.cpu(): a copy where the device changes."""
        x, rest = args[0], list(args[1:])
        device = GPU if func is Tensor.cuda else HOST if func is Tensor.cpu else kwargs.pop("device", None)
        if rest and isinstance(rest[0], str | torch.device):
            device = rest.pop(0)
        elif rest and isinstance(rest[0], Tensor):
            other = rest.pop(0)
            device, kwargs["dtype"] = self._places.of(other), other.dtype
        if func is not Tensor.to:
            rest, kwargs = [], {}
        if rest and rest[0] is None:  # no dtype
            rest = []
        place = self._places.of(x) or HOST
        wanted = place if device is None else torch.device(device)
        if wanted.type == "meta":
            return Tensor.to(x, wanted, *rest, **kwargs)
        wanted = GPU if wanted.type == "cuda" else HOST
        if wanted == HOST and place == GPU:
            self._places.waits["to cpu"] += 1
        changed = wanted != place
        if changed:
            self._places.note("to cpu" if wanted == HOST else "to gpu", x)
        moved = Tensor.to(x, *rest, **kwargs) if rest or kwargs else x
        moved = moved.clone() if changed and moved is x else moved
        return self._places.put(moved, wanted) if moved is not x or changed else x


@final
class Generator(torch.Generator):
    """A generator that says on which device it is; its numbers are the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls)
        made.place = torch.device(device).type
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """Like torch's."""


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """A GPU to pretend with: `torch.device("cuda")` works inside."""
    places = Places()
    pretences = {
        "mem_get_info": lambda device=None: (2**33, 2**34),
        "get_rng_state": lambda device=None: torch.zeros(1, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
        "default_generators": (Generator("cuda"),),
        "device_count": lambda: 1,
    }
    for name, pretence in pretences.items():
        monkeypatch.setattr(torch.cuda, name, pretence)
    monkeypatch.setattr(torch, "Generator", Generator)
    from_numpy = torch.from_numpy

    def of_array(array: Any) -> Tensor:  # no mode sees it
        made = places.put(from_numpy(array), HOST)
        places.note("made on cpu", made)
        return made

    monkeypatch.setattr(torch, "from_numpy", of_array)
    with _Calls(places), _Ops(places):
        yield places
