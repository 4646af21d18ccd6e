"""Named parameters of any shape, as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.storage import stored


@stored("parameters")
@final
@dataclass(frozen=True)
class Parameters:
    """Named parameters, one after another in a flat vector of P numbers, each row-major.

    Attributes:
        shapes: of the parameters, by name; () for a number.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, shapes: Mapping[Any, Any]) -> Parameters:
        """Parameters of these shapes: tuples of whole numbers, or one whole number n for (n,).

        Raises:
            InputTypeError: if a name is no text, or a shape is no tuple.
            InputError: if there is no parameter, or a shape has a length below 1.
        """
        if not shapes:
            raise InputError("parameters: expected at least one, got none.")
        return cls({_name(name): _shape(name, shape) for name, shape in shapes.items()})

    @property
    def dim(self) -> int:
        """P, the numbers of all parameters."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """One a coordinate: "scale" for a number, "weights[0]" or "matrix[0, 1]" for one of an array."""
        return tuple(
            f"{name}[{', '.join(map(str, index))}]" if shape else name
            for name, shape in self.shapes.items()
            for index in np.ndindex(shape)
        )

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters of flat vectors (..., P), each of shape (..., *its own)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), theta.split(sizes, dim=-1), strict=True)
        return {name: part.reshape(theta.shape[:-1] + shape) for (name, shape), part in parts}

    def join(self, what: str, values: Mapping[Any, Any]) -> Tensor:
        """The flat vector (P,), float64, of a value for each parameter.

        Args:
            what: the values are, for messages.
            values: numbers and arrays, by name.

        Raises:
            InputError: if a parameter is missing, unknown or of another shape.
        """
        if unknown := [name for name in values if name not in self.shapes]:
            raise OptionError.unknown(what, unknown[0], self.shapes)
        if missing := [name for name in self.shapes if name not in values]:
            raise InputError(
                f"{what}: expected a value for each of {', '.join(self.shapes)}, got none for {missing[0]}."
            )
        parts = []
        for name, shape in self.shapes.items():
            part = checks.float64(f"{what}[{name!r}]", values[name])
            if tuple(part.shape) != shape:
                raise InputError(f"{what}[{name!r}]: expected shape {shape}, got {tuple(part.shape)}.")
            parts.append(part.reshape(-1))
        return torch.cat(parts)

    def _check_stored(self) -> None:
        self.of(self.shapes)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InputTypeError(f"parameters: expected names as text, got {name!r}.")
    return name


def _shape(name: object, shape: Any) -> tuple[int, ...]:
    if isinstance(shape, tuple | list | torch.Size):
        return tuple(checks.count(f"the shape of {name!r}", length) for length in shape)
    return (checks.count(f"the shape of {name!r}", shape),)
