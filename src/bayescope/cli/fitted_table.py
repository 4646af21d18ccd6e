"""What a model's file says of the table that it was fitted to, so that other tables can be read alike."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, final, get_type_hints

import numpy as np
import pandas as pd

from bayescope.cli.dates import dated
from bayescope.cli.header import LISTED, find, hint, listed
from bayescope.cli.source import Source, place_of
from bayescope.cli.target import BINOMIAL, Target, Task, check_domain, check_trials
from bayescope.cli.training_table import Roles, TrainingTable, read_columns
from bayescope.errors import InputError
from bayescope.storage import fits
from bayescope.tables.columns import Kind

# Of a file's metadata, where this is kept.
KEY = "command line"
# A score's name, value, and both ends of its interval.
_SCORE = tuple[str, float, float, float]


@final
@dataclass(frozen=True)
class FittedTable:
    """A table after a fit.

    Attributes:
        kinds: of the features by name, in order.
        labels: of the features that have some, all that occurred.
        target: the column that is predicted; empty where nobody tells.
        task: "classification" or "regression".
        classes: of a classification.
        missing: what stood for a missing value beside the usual spellings.
        file: the table's name.
        rows: that were fitted.
        digest: of these rows, so that they are known again.
        dropped: columns that were left out.
        weight: the column with the rows' weights.
        trials: the column with the trials of which the target is the successes.
        test_size: the share of the table that was held out for scores.
        seed: of that.
        scores: of the held-out rows: name, value, low, high.
        dates: of columns that are dates the format and the parts that are features.
        values: labels that are no text, by how they are written: those of models that Python fitted.
    """

    kinds: dict[str, Kind]
    labels: dict[str, list[str]]
    target: str
    task: Task
    classes: list[str | int | float] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    file: str = ""
    rows: int = 0
    digest: str = ""
    dropped: list[str] = field(default_factory=list)
    weight: str | None = None
    trials: str | None = None
    test_size: float = 0.0
    seed: int = 0
    scores: list[list[Any]] = field(default_factory=list)
    dates: dict[str, list[str]] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, model: str, metadata: Mapping[str, Any]) -> FittedTable | None:
        """As it stands in a file's metadata; ``None`` where the file was saved in Python, and says nothing of a table.

        Raises:
            InputError: if what stands there is something else.
        """
        given = metadata.get(KEY)
        if given is None:
            return None
        with suppress(TypeError, ValueError, OverflowError):  # other parts, and whole numbers beyond all floats
            table = cls(**given)
            if table._whole():
                return table
        raise InputError(
            f"{model}: expected the description of a table in its metadata, got {reprlib.repr(given)}. Fit the model "
            "again."
        )

    def _whole(self) -> bool:
        """Whether each part is what it has to be."""
        if not all(fits(getattr(self, name), hint) for name, hint in get_type_hints(type(self)).items()):
            return False
        scores = [(name, *map(float, numbers)) for name, *numbers in self.scores]
        return fits(scores, list[_SCORE]) and self.kinds.keys() >= self.labels.keys() | self.values.keys()

    def metadata(self) -> dict[str, Any]:
        """The description of the table, as it is saved with the model."""
        return {KEY: asdict(self)}

    def check(self, source: Source) -> None:
        """Refuses a table that lacks columns.

        Raises:
            InputError: if one of the features is not there.
        """
        there = set(source.header)
        lacking = [name for name in self.kinds if name not in there]
        if lacking:
            raise InputError(
                f"{source.name}: expected the {len(self.kinds)} columns that the model was fitted to, got none named "
                f"{listed(lacking)}; {hint(lacking[0], source.header)}"
            )

    def frame(self, columns: Mapping[str, np.ndarray]) -> pd.DataFrame:
        """Columns as the estimator takes them, with labels of the types that were fitted."""
        frame = pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in columns.items()})
        for name, known in self.values.items():
            frame[name] = pd.Series([known.get(cell, cell) for cell in frame[name]], dtype=object)
        return frame

    def unseen(self, frame: pd.DataFrame) -> dict[str, dict[str, int]]:
        """Labels that the model never saw, by column, each with how many rows have it."""
        found: dict[str, dict[str, int]] = {}
        for name, known in self.labels.items():
            new = set(frame[name]).difference(known, self.values.get(name, {}).values(), [None])
            if new:
                counts = frame[name][frame[name].isin(new)].value_counts()
                found[name] = {str(label): int(count) for label, count in counts.items()}
        return found


def read_known_table(source: Source, fitted: FittedTable) -> TrainingTable:
    """Reads a table that has the target beside the features of a model.

    Args:
        source: to be read more than once.
        fitted: the table that the model was fitted to.

    Raises:
        InputError: if a column is missing, a cell cannot be used, or a class was not fitted; the message has the place.
    """
    source = dated(source, fitted.dates)
    fitted.check(source)
    beside = [fitted.target, *([] if fitted.trials is None else [fitted.trials])]
    for name in beside:
        find("TABLE", source.name, name, source.header)
    text = any(isinstance(label, str) for label in fitted.classes)
    kinds: dict[str, Kind] = {**fitted.kinds, **dict.fromkeys(beside, "categorical" if text else "numeric")}
    weighted = fitted.weight is not None and fitted.weight in source.header
    kinds |= {str(fitted.weight): "numeric"} if weighted else {}
    frame = fitted.frame(read_columns(source, kinds))
    known = frame[fitted.target].notna().to_numpy()
    if not known.any():
        raise InputError(f"{source.name}: expected rows with a target {fitted.target!r}, got none of {len(frame)}.")
    places = np.flatnonzero(known)
    values = frame[fitted.target].to_numpy()[places]
    if fitted.task == "classification":
        values = _classes(source, fitted, values, places)
    trials = None if fitted.trials is None else frame[fitted.trials].to_numpy()[places]
    if trials is not None:
        check_trials(source.name, str(fitted.trials), trials, lambda row: place_of(source, int(places[row])))
        check_domain(source, fitted.target, values, places, BINOMIAL, trials)
    weights = frame[fitted.weight].to_numpy()[places] if weighted else None
    target = Target(fitted.target, values, fitted.task, "")
    features = frame.loc[places, list(fitted.kinds)].reset_index(drop=True)
    gone = len(frame) - len(places)
    roles = Roles(fitted.target, trials=fitted.trials)
    return TrainingTable(source.name, roles, features, fitted.kinds, target, places, weights, trials, gone)


def _classes(source: Source, fitted: FittedTable, values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The target's labels, of the type that they were fitted with."""
    strange = ~np.isin(values.astype(str) if values.dtype == object else values, fitted.classes)
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{source.name}: {place_of(source, int(places[row]))}, column {fitted.target!r}: expected one of the "
            f"fitted classes {listed(fitted.classes)}, got {values[row]!r}. Leave the row out."
        )
    return values.astype(np.asarray(fitted.classes).dtype)


def notes_on_unseen(unseen: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Notes on labels that the model never saw."""
    return [
        f"column {name!r}: labels that the model never saw, such as {listed(list(counts)[:LISTED])}, in "
        f"{sum(counts.values())} of the rows: their effect is not known, and the intervals are wider for it"
        for name, counts in unseen.items()
    ]
