"""What a file says of itself: enough to know it without reading a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from bayescope.errors import InputError, InputTypeError

# Whole numbers that any reader of JSON has.
LARGEST = 2**63


@final
@dataclass(frozen=True)
class Manifest:
    """What a file says of itself.

    Attributes:
        format_version: of the file format.
        bayescope_version: of the version that saved it.
        kind: what the file holds, such as "gaussian_posterior" or "BayesianLogisticRegression".
        summary: how it was made, a few lines.
        metadata: what the user has put beside it.
        packages: the versions of torch, numpy and scikit-learn that it was saved with.
        sizes: bytes of each member.
        tensors: type and shape of each, by name.
        file_size: bytes of the file.
    """

    format_version: int
    bayescope_version: str
    kind: str
    summary: str
    metadata: Mapping[str, Any]
    packages: Mapping[str, str]
    sizes: Mapping[str, int]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    file_size: int


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as JSON has it.

    Raises:
        InputTypeError: if it is no mapping of texts to texts, finite numbers, truth values, ``None``, and lists and
            mappings of these.
        InputError: if a number is not finite.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata: expected a mapping, got {type(metadata).__name__}.")
    try:
        return {_key("metadata", key): _plain(f"metadata[{key!r}]", value) for key, value in metadata.items()}
    except RecursionError:
        raise InputError("metadata: expected values that do not hold themselves, got one that does.") from None


def _key(path: str, key: Any) -> str:
    if not isinstance(key, str):
        raise InputTypeError(f"{path}: expected names that are text, got {key!r}. Write str({key!r}).")
    return key


def _plain(path: str, value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{path}: expected a number of at most 64 bits, got a larger one. Write it as text.")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{path}: expected a finite number, got {value}. Write it as text.")
        return value
    if isinstance(value, list | tuple):
        return [_plain(f"{path}[{place}]", each) for place, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(path, key): _plain(f"{path}[{key!r}]", each) for key, each in value.items()}
    raise InputTypeError(
        f"{path}: expected text, a number, a truth value, None, or a list or mapping of these, got "
        f"{type(value).__name__}."
    )
