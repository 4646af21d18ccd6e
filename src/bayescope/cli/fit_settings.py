"""What was asked of `bayescope fit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from bayescope.cli.models import ModelOptions
from bayescope.cli.training_table import Roles


@final
@dataclass(frozen=True)
class FitSettings:
    """The options of the command, as typed.

    Attributes:
        roles: of the columns.
        task: "auto", "classification" or "regression".
        options: of the model.
        missing: further spellings of a missing value.
        test_size: the share of the rows that are held out for scores; 0 for none.
        refit: whether the model that is saved is fitted to all rows, those held out among them.
        resume: whether to go on from the checkpoint of an interrupted fit.
        as_json: whether to answer in JSON.
        stream: whether to read the table a block of rows at a time; ``None`` for what its size asks for.
    """

    roles: Roles
    task: str
    options: ModelOptions
    missing: Sequence[str]
    test_size: float
    refit: bool
    resume: bool
    as_json: bool
    stream: bool | None = None
