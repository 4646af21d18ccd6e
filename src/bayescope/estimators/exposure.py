"""What is added to f in each row: an offset, or the logarithm of an exposure, as values or as a column by its name."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import torch

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators.frames import columns_by_name
from bayescope.likelihoods import Likelihood
from bayescope.tables.frames import frame_of
from bayescope.transforms import parameter_at


class Added(NamedTuple):
    """What is added to f.

    Attributes:
        role: "offset", or "exposure", whose logarithm it is.
        given: values, the name of a column, or ``None`` for nothing.
    """

    role: str
    given: object

    @classmethod
    def of(cls, offset: object, exposure: object) -> Added:
        """From the arguments of a fit or a prediction.

        Raises:
            OptionError: if both are given.
        """
        if offset is not None and exposure is not None:
            raise OptionError("exposure: expected an offset or an exposure, got both. Give offset + log(exposure).")
        return cls("offset", offset) if exposure is None else cls("exposure", exposure)

    @property
    def column(self) -> tuple[str, str] | None:
        """The role and the name of the column, where there is one."""
        return (self.role, self.given) if isinstance(self.given, str) else None

    def numbers(self, values: object) -> np.ndarray:
        """What is added to f, of the values of the role.

        Raises:
            InputError: if a number is not finite, or an exposure is not positive; it names the row.
        """
        found = np.asarray(values)
        if found.dtype.kind != "f":
            found = checks.float64(self.role, values).numpy()
        least = -math.inf if self.role == "offset" else 0.0
        wrong = ~((found > least) & (found < math.inf))
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0]) if found.ndim else 0
            expected = "finite" if self.role == "offset" else "positive"
            of_column = f" of column {self.given!r}" if self.column else ""
            raise InputError(
                f"{self.role}: expected {expected} numbers, got {found[wrong][0]:g} in row {row}{of_column}. Leave out "
                f"rows {'without one' if self.role == 'offset' else 'that were not watched'}."
            )
        found = checks.float64(self.role, values).numpy()
        return found if self.role == "offset" else np.log(found)

    def apart(self, X: object, fitted: tuple[str, str] | None) -> tuple[object, object]:
        """A table to predict without the column of its offset or exposure, and the values of that.

        Args:
            X: the table.
            fitted: the role and the name of the column that the model was fitted with, ``None`` if it had no name.

        Raises:
            InputError: if nothing is given and the table has no such column.
        """
        named = self.column
        if named is None:
            frame = None if fitted is None else frame_of("X", X)
            if frame is not None and fitted is not None and fitted[1] in frame.columns and len(frame.columns) > 1:
                X = frame.drop([fitted[1]]).to_native()
            return X, self.given
        frame = frame_of("X", X)
        if fitted == named and (frame is None or named[1] not in frame.columns):
            raise InputError(
                f"{self.role}: expected the column {named[1]!r}, which the model was fitted with, got a table without "
                f"it. Add the column, or give {self.role}= a number or N of them."
            )
        return cast(tuple[object, object], columns_by_name(X, **{self.role: named[1]}))


def on_disk(added: Added) -> list[str]:
    """The name of the column of a table on disk that is read beside the features, if there is one.

    Raises:
        InputTypeError: if values are given.
    """
    if added.given is not None and not isinstance(added.given, str):
        raise InputTypeError(
            f"{added.role}: expected the name of a column for a table on disk, got {type(added.given).__name__}. Write "
            "its name in the table."
        )
    return [] if added.given is None else [added.given]


def refuse_exposure(likelihood: Likelihood, outputs: int) -> None:
    """Refuses an exposure where the mean is not proportional to eᶠ.

    Raises:
        UnsupportedError: then.
    """
    kinds = {name: likelihood.hyperparameters[name] for name in likelihood.learnable}
    if not {"ordered", "covariance"} & set(kinds.values()):
        middle = {name: parameter_at(kind, torch.zeros(1).double(), torch.Size(())) for name, kind in kinds.items()}
        known = likelihood.with_hyperparameters(**middle)
        f = torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None].expand(2, outputs)
        low, high = known.conditional(f)[0]
        if torch.allclose(high, math.e * low):
            return
    raise UnsupportedError(
        f"exposure: expected a likelihood with a log link, whose mean is exposure · exp(f), got {likelihood.name!r}. "
        "Use offset=, which is added to f."
    )
