"""Which part of what a module returns is f: an entry by its name or its place, or several of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TypedDict, cast, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.storage import stored, stored_attribute

# The entry that is f where the caller names none: what Hugging Face's models call it.
LOGITS = "logits"
Entry = str | int


class OutputKeywords(TypedDict, total=False):
    """The keywords of `OutputChoice`, for the signatures of functions."""

    output: Entry | Sequence[Entry] | None
    classes_dim: int


@stored("output_choice")
@final
@dataclass(frozen=True)
class OutputChoice:
    """Which part of what a module returns is f, (N, …, C). Functions take its fields as keywords of the same names.

    A module that returns one number a row without an axis of its own, (N,), needs no choice: its f is (N, 1).

    Args:
        output: the name of an entry of a dict, a data class or a named tuple, at whatever depth; the place of an entry
            in a tuple; or several such, the heads of a network. ``None`` for the tensor that the module returns, or
            the entry ``logits`` of what it returns. K heads (N, …, C) of several numbers become (N, K, …, C), each a
            position of its own: ("start_logits", "end_logits") of a network that answers questions is f for two
            categorical variables over the tokens. K heads of one number, (N,) or (N, …, 1), become (N, …, K).
        classes_dim: the axis of the entry that its C classes are on: 1 for images (N, C, H, W), whose f is (N, H, W,
            C). It is the last one by default.

    Raises:
        InputTypeError: if ``output`` is something else.
        InputError: if ``output`` is empty, or ``classes_dim`` is 0, the axis of the rows, or no whole number.
    """

    output: Entry | tuple[Entry, ...] | None = None
    classes_dim: int = -1

    def __post_init__(self) -> None:
        several = isinstance(self.output, Sequence) and not isinstance(self.output, str)
        entries = tuple(cast(Sequence[Entry], self.output)) if several else (self.output,)
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, str | int | None) or (several and entry is None):
                raise InputTypeError(
                    "output: expected the name of an entry of what the model returns, its place in a tuple, or a tuple "
                    f"of such, got {self.output!r}."
                )
        if several:
            if not entries:
                raise InputError(f"output: expected at least one name or place, got {self.output!r}.")
            object.__setattr__(self, "output", entries)
        if isinstance(self.classes_dim, bool) or not isinstance(self.classes_dim, int) or self.classes_dim == 0:
            raise InputError(
                "classes_dim: expected the axis of the output that the classes are on, 1 for (N, C, H, W), got "
                f"{self.classes_dim!r}."
            )

    def of(self, returned: object) -> Tensor:
        """f, shape (N, …, C), from what a module has returned.

        Raises:
            InputTypeError: if there is no such entry.
            InputError: if heads have different shapes, or ``classes_dim`` is no axis after that of the rows.
        """
        if not isinstance(self.output, tuple):
            return self._classes_last(_entry(returned, self.output))
        heads = [self._classes_last(_entry(returned, entry)) for entry in self.output]
        shapes = [tuple(head.shape) for head in heads]
        if len(set(shapes)) > 1:
            raise InputError(
                f"output: expected heads of one shape for {self.output}, got {shapes}. Join them in a module of your "
                "own by torch.cat, for a likelihood such as bs.Joint."
            )
        return torch.cat(heads, -1) if shapes[0][-1] == 1 else torch.stack(heads, 1)

    def _classes_last(self, f: Tensor) -> Tensor:
        if f.ndim < 2:  # squeezed: one number a row, and of a single row nothing but the number
            return f.reshape(-1, 1)
        dim = self.classes_dim + f.ndim if self.classes_dim < 0 else self.classes_dim
        if not 0 < dim < f.ndim:
            raise InputError(
                f"classes_dim: expected an axis of the output after that of the rows, whose shape is {tuple(f.shape)}, "
                f"got {self.classes_dim}."
            )
        return f if dim == f.ndim - 1 else f.movedim(dim, -1)


# The attribute of a module that has its choice. Copies of the module have it too, and so do files.
ATTRIBUTE = "_bayescope_output"
stored_attribute(ATTRIBUTE, OutputChoice)
_DEFAULT = OutputChoice()


def output_choice(module: nn.Module) -> OutputChoice:
    """Return what is f of what a module returns."""
    return cast(OutputChoice, getattr(module, ATTRIBUTE, _DEFAULT))


def _entry(returned: object, entry: Entry | None) -> Tensor:
    """The tensor of this name or place; by default what was returned, or its ``logits``.

    Raises:
        InputTypeError: if there is none, or more than one at the same depth.
    """
    if entry is None and isinstance(returned, Tensor):
        return returned
    wanted = LOGITS if entry is None else entry
    found = _at_place(returned, wanted) if isinstance(wanted, int) else _by_name([returned], wanted)
    if len(found) == 1:
        return found[0]
    expected = f"is a tensor or has `{LOGITS}`" if entry is None else f"has a tensor {entry!r}"
    kind, there = type(returned).__name__, [f"{name!r} of shape {tuple(each.shape)}" for name, each in _all(returned)]
    held = f" with {', '.join(there)}" if there else ""
    several = f" with {len(found)} of them" if found else held
    advice = "Name the entry that is f, output=…." if there else "Wrap the model in a module that returns the tensor."
    raise InputTypeError(f"model: expected an output that {expected}, got {kind}{several}. {advice}")


def _at_place(returned: object, place: int) -> list[Tensor]:
    """The tensor at a place of a tuple, a list or a dict; none where there is none."""
    values = list(returned.values()) if isinstance(returned, Mapping) else returned
    if not isinstance(values, tuple | list) or not -len(values) <= place < len(values):
        return []
    return [values[place]] if isinstance(values[place], Tensor) else []


def _by_name(level: Sequence[object], name: str) -> list[Tensor]:
    """The different tensors of this name, at the least depth at which there are some."""
    if not level:
        return []
    level = [each for each in level if not isinstance(each, Tensor)]  # which has attributes that are tensors
    values = [each.get(name) if isinstance(each, Mapping) else getattr(each, name, None) for each in level]
    found = {id(value): value for value in values if isinstance(value, Tensor)}
    return list(found.values()) or _by_name([part for each in level for _, part in _parts(each)], name)


def _parts(value: object) -> Iterable[tuple[Entry, object]]:
    """The names or places of what a container holds, with what is there; a tensor is none."""
    if isinstance(value, Mapping):
        return value.items()
    if hasattr(value, "_asdict"):  # a named tuple
        return cast(Mapping[str, object], value._asdict()).items()
    if isinstance(value, tuple | list):
        return enumerate(value)
    return vars(value).items() if is_dataclass(value) else ()


def _all(returned: object) -> Iterator[tuple[Entry, Tensor]]:
    """The names or places of the tensors that were returned, at whatever depth."""
    for name, part in _parts(returned):
        if isinstance(part, Tensor):
            yield name, part
        else:
            yield from _all(part)
