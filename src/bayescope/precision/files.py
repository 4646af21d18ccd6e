"""Precisions in safetensors files: tensors by name, and a header that tells the structure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bayescope.errors import InputError
from bayescope.files import staged
from bayescope.precision.precision import Precision
from bayescope.precision.restore import restore
from bayescope.precision.state import State

FORMAT = "bayescope precision 1"


def save_precision(path: str | Path, precision: Precision) -> None:
    """Writes a precision into a safetensors file, which replaces one of that name in a single step.

    Args:
        path: the file; folders above it are made if they are missing.
        precision: of any structure, blocks in blocks included.

    Raises:
        InputError: if the file cannot be written.
    """
    place, tensors = Path(path), dict[str, Tensor]()
    header = _pack(precision.state(), "", tensors)
    with staged(place.parent) as stage:
        save_file(tensors, stage / place.name, {"format": FORMAT, "structure": json.dumps(header)})


def load_precision(path: str | Path) -> Precision:
    """Reads what `save_precision` wrote, onto the CPU.

    Args:
        path: the file.

    Raises:
        InputError: if there is no such file, it is damaged, or it holds something else.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - the file is no mapping
    except (OSError, SafetensorError) as error:
        raise InputError(f"path: expected a precision saved by bayescope at {path}, got: {error}.") from None
    if metadata.get("format") != FORMAT:
        got = metadata.get("format", "a file without that header")
        raise InputError(f"path: expected the format {FORMAT!r} in {path}, got {got!r}. Save the precision again.")
    try:
        return restore(_unpack(json.loads(metadata["structure"]), "", tensors))
    except (LookupError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise InputError(f"path: expected a whole precision in {path}, got one that does not fit: {error}.") from error


def _pack(state: State, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Puts the tensors under names of their own, and returns what else there is to know."""
    groups: dict[str, Mapping[str, Tensor]] = {"sums": state.sums, "shared": state.shared, "stacked": state.stacked}
    if state.diagonal is not None:
        groups["added"] = {"diagonal": state.diagonal}
    for group, members in groups.items():
        for key, tensor in members.items():
            tensors[f"{prefix}{group}/{key}"] = tensor.detach().cpu().contiguous().clone()  # files hold no views
    parts = [_pack(part, f"{prefix}{i}/", tensors) for i, part in enumerate(state.parts)]
    own = {"structure": state.structure, "name": state.name, "definite": state.definite}
    return {**own, "tensors": {group: list(members) for group, members in groups.items()}, "parts": parts}


def _unpack(header: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> State:
    groups = {
        group: {key: tensors[f"{prefix}{group}/{key}"] for key in keys} for group, keys in header["tensors"].items()
    }
    return State(
        header["structure"],
        header["name"],
        groups["sums"],
        groups["shared"],
        groups["stacked"],
        groups.get("added", {}).get("diagonal"),
        header["definite"],
        tuple(_unpack(part, f"{prefix}{i}/", tensors) for i, part in enumerate(header["parts"])),
    )
