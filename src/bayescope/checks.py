"""Checks of what callers pass in: each returns the value in its canonical form or says what is wrong with it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import InputError, InputTypeError, MissingDependencyError, OptionError
from bayescope.process_state import ignoring

S = TypeVar("S", bound=str)

# The square of this, over many rows, still has a sum.
FARTHEST = 1e150
# How far the two halves of a symmetric matrix may differ, in units of its rows' and columns' scales.
SYMMETRIC = 1e-8


def float64(name: str, value: Any) -> Tensor:
    """Turns an array, tensor, DataFrame or nested sequence of numbers into a finite float64 tensor.

    A float64 array or tensor is not copied.

    Raises:
        InputTypeError: if the value does not hold real numbers.
        InputError: if an entry is NaN or infinite.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputTypeError(f"{name}: expected real numbers, got {value.dtype}.")
        tensor = value.detach().to(torch.float64)
    else:
        array = np.asarray(value)
        if array.dtype.kind == "O":  # a DataFrame of mixed columns
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                raise InputTypeError(f"{name}: expected real numbers ({error}).") from None
        elif array.dtype.kind not in "biuf":
            raise InputTypeError(f"{name}: expected real numbers, got dtype {array.dtype}.")
        array = np.asarray(array, dtype=np.float64, order="C")
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    # A sum is finite unless an entry is not, or the sum overflows; only then is each entry looked at.
    if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
        first = torch.nonzero(~torch.isfinite(tensor))[0].tolist()
        where = f" at index {first}" if first else ""
        raise InputError(f"{name}: expected finite numbers, got {tensor[tuple(first)].item()}{where}.")
    return tensor


def positive(name: str, value: Any) -> Tensor:
    """Turns a positive number or an array of positive numbers into a float64 tensor.

    Raises:
        InputTypeError: if the value does not hold real numbers.
        InputError: if an entry is not finite or not above 0.
    """
    tensor = float64(name, value)
    if tensor.numel() == 0 or (tensor <= 0).any():
        raise InputError(f"{name}: expected positive numbers, got {value!r}.")
    return tensor


def covariance(name: str, value: Any) -> Tensor:
    """Turns a symmetric positive definite matrix into a float64 tensor.

    Raises:
        InputTypeError: if the value does not hold real numbers.
        InputError: if it has another shape, is not symmetric to 1e-8, or is not positive definite.
    """
    matrix = float64(name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"{name}: expected a square matrix of shape (D, D), got {tuple(matrix.shape)}.")
    size = matrix.diagonal().abs().sqrt()
    apart = (matrix - matrix.mT).abs() > SYMMETRIC * size * size[:, None]
    if apart.any():
        row, column = torch.nonzero(apart)[0].tolist()
        raise InputError(
            f"{name}: expected a symmetric matrix, got {matrix[row, column].item():g} in row {row}, column {column} "
            f"and {matrix[column, row].item():g} across. Give (S + S.T) / 2."
        )
    if torch.linalg.cholesky_ex(matrix).info:
        least = float(torch.linalg.eigvalsh(matrix)[0])
        raise InputError(
            f"{name}: expected a positive definite matrix, got the smallest eigenvalue {least:.3g}. One of these "
            "variables follows from the others: leave it out."
        )
    return matrix


def positive_number(name: str, value: Any) -> float:
    """Returns a single positive number, also of a scalar array or tensor.

    Raises:
        InputError: if the value is no real number, not finite or not above 0.
    """
    number = value.item() if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= sys.float_info.max:
        raise InputError(f"{name}: expected a positive number, got {value!r}.")
    return float(number)


def count(name: str, value: Any, *, least: int = 1) -> int:
    """Returns a whole number of at least ``least``.

    Raises:
        InputError: if the value is not a whole number or is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Returns a truth value.

    Raises:
        InputTypeError: if it is anything but True or False: ``"no"`` would count as true.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputTypeError(f"{name}: expected True or False, got {value!r}.")
    return bool(value)


def columns(name: str, value: Any) -> None:
    """Checks that columns are given as a list of names or positions.

    Raises:
        InputTypeError: if it is one name or one position.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        advice = "Name them, such as ['colour']" if isinstance(value, bool) else f"Write [{value!r}]"
        raise InputTypeError(f"{name}: expected a list of columns, got {value!r}. {advice}.")


def choice(name: str, value: Any, supported: Iterable[S]) -> S:
    """Returns ``value`` if it is one of the supported names.

    Raises:
        OptionError: if it is not; the message lists them.
    """
    names = list(supported)
    if not isinstance(value, str) or value not in names:
        raise OptionError.unknown(name, value, names)
    return value


def fraction(name: str, value: Any) -> float:
    """Returns a number strictly between 0 and 1.

    Raises:
        InputError: if the value is outside the open interval or no number.
    """
    number = not isinstance(value, bool) and isinstance(value, int | float | np.number)
    if not number or not 0 < value < 1:
        percent = f" Write {value / 100:g} for {value:g} %." if number and 1 < value < 100 else ""
        raise InputError(f"{name}: expected a number strictly between 0 and 1, got {value!r}.{percent}")
    return float(value)


def generator(value: torch.Generator | int | None) -> torch.Generator:
    """Returns a generator on the CPU: the caller's own, one seeded by an integer, or a freshly seeded one.

    The global generators of torch and NumPy are neither read nor written.

    Raises:
        InputTypeError: if the value is not one of the three.
        InputError: if the integer is too large for a seed, or the generator is a GPU's.
    """
    if isinstance(value, torch.Generator):
        if value.device.type != "cpu":
            raise InputError(
                f"generator: expected a generator on the CPU, got one on {value.device}. Pass torch.Generator() or a "
                "seed: what is drawn is moved to the model's device."
            )
        return value
    fresh = torch.Generator()
    if value is None:
        fresh.seed()
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise InputError(f"generator: expected a seed of at most 63 bits, got {value}.")
        fresh.manual_seed(int(value))
    else:
        raise InputTypeError(f"generator: expected a torch.Generator, an int or None, got {type(value).__name__}.")
    return fresh


def seed_from(source: torch.Generator) -> int:
    """Draws a seed for a library that takes an integer, so that one generator governs everything."""
    return int(torch.randint(2**31 - 1, (1,), generator=source).item())


def optional_package(package: str, *, extra: str) -> ModuleType:
    """Imports an optional package at its first use.

    Raises:
        MissingDependencyError: if it is not installed; the message names the extra that brings it.
    """
    try:
        # What a package announces about itself is not for our callers to act on.
        with nullcontext() if package in sys.modules else ignoring("", Warning).inside():
            return importlib.import_module(package)
    except ImportError as error:
        message = f"{package} is needed here and is not installed: pip install 'bayescope[{extra}]' ({error})."
        raise MissingDependencyError(message) from error
