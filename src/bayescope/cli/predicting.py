"""`bayescope predict`: rows stream in, predictions stream out, and the memory stays that of some rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from bayescope import checks
from bayescope.cli.answer import answer
from bayescope.cli.fitted_table import FittedTable, told_unseen
from bayescope.cli.header import find, split_names
from bayescope.cli.loading import load_model
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.source import Block, Source
from bayescope.cli.writing import check_out, sink
from bayescope.errors import InputError, UnsupportedError
from bayescope.progress import progress_bar
from bayescope.storage import answering

# Rows that are predicted at once, counted from the first one of the table: sums of floating-point numbers depend on how
# many are taken together, and so predictions would depend, in their last digits, on how many rows are read at a time.
TOGETHER = 4096


@final
@dataclass(frozen=True)
class PredictSettings:
    """The options of the command, as typed.

    Attributes:
        level: the probability of the intervals; 0 for none.
        abstain: rows whose most probable class is less probable get none; ``None`` for a class in every row.
        keep: columns to copy.
        chunk_rows: rows that are read at a time.
        as_json: whether to answer in JSON.
        formulas: whether text that spreadsheets take for formulas stays as it is.
    """

    level: float
    abstain: float | None
    keep: Sequence[str]
    chunk_rows: int
    as_json: bool
    formulas: bool = False


@final
@dataclass
class Count:
    """What was met on the way.

    Attributes:
        rows: that were predicted.
        abstained: that got no class.
        unseen: labels that the model never saw, by column, with their rows.
        imputed: missing values, and unseen labels, that a stand-in was put for.
        imputed_rows: rows with such values.
    """

    rows: int = 0
    abstained: int = 0
    unseen: dict[str, dict[str, int]] = field(default_factory=dict)
    imputed: int = 0
    imputed_rows: int = 0

    def add_imputed(self, values: np.ndarray) -> None:
        """Adds how many values of each row a stand-in was put for."""
        self.imputed += int(values.sum())
        self.imputed_rows += int((values > 0).sum())

    def add_unseen(self, found: Mapping[str, Mapping[str, int]]) -> None:
        """Adds labels of some rows."""
        for name, counts in found.items():
            known = self.unseen.setdefault(name, {})
            for label, count in counts.items():
                known[label] = known.get(label, 0) + count


def predict_table(model: Path, path: Path, out: Path, settings: PredictSettings) -> None:
    """Predicts every row of a table, and writes a row for each.

    Args:
        model: the model's file.
        path: the table, or "-".
        out: where to, or "-".
        settings: all else.

    Raises:
        InputError: if the model, the table, an option or the place cannot be used; no file is then written.
    """
    aside = str(out) == STANDARD
    if aside and settings.as_json:
        raise InputError("--json: expected predictions in a file, got --out -, which takes the standard output itself.")
    if settings.abstain is not None:
        checks.fraction("--abstain", settings.abstain)
    if settings.level != 0:
        checks.fraction("--level", settings.level)
    chunk = TOGETHER * -(-checks.count("--chunk-rows", settings.chunk_rows) // TOGETHER)
    check_out(out, model, path)
    estimator, table = load_model(model)
    if settings.abstain is not None and not is_classifier(estimator):
        raise UnsupportedError("--abstain: expected a model of classes, got a regression. Leave it out.")
    source = open_source(path, missing=table.missing)
    table.check(source)
    keep = _kept(settings.keep, source)
    begun, count = time.perf_counter(), Count()
    with sink(out, formulas=settings.formulas) as written, progress_bar("predicting") as report:
        for block in source.blocks(chunk, list(dict.fromkeys([*table.kinds, *keep]))):
            for rows in _predicted(estimator, table, block, keep, settings, count):
                written.write(rows)
            report(count.rows // TOGETHER, None, f"{count.rows:,} rows")
        if not count.rows:
            raise InputError(f"{source.name}: expected rows below the header, got none. Give a table with data.")
    _tell(count, out, time.perf_counter() - begun, settings)


def _predicted(
    estimator: Any, table: FittedTable, block: Block, keep: Sequence[str], settings: PredictSettings, count: Count
) -> Iterator[pd.DataFrame]:
    """A block's predictions, piece by piece, beside the columns that are copied."""
    frame = table.frame(block)
    count.add_unseen(table.unseen(frame))
    copied = block.copied(keep) if keep else None
    with answering(estimator):
        classes = estimator.classes_ if is_classifier(estimator) else None
    generator = 0 if estimator.random_state is None else None
    for start in range(0, len(frame), TOGETHER):
        some = frame.iloc[start : start + TOGETHER]
        with answering(estimator):
            predictive = estimator.predict_distribution(some, generator=generator)
            rows = predictive.to_frame(classes=classes, level=settings.level or None)
        if predictive.imputed is not None:  # in all pieces: they have one header
            rows["imputed"] = predictive.imputed
            count.add_imputed(predictive.imputed)
        if settings.abstain is not None:
            unsure = predictive.abstains(probability=settings.abstain)
            rows["predicted"] = _without(rows["predicted"], unsure)
            count.abstained += int(unsure.sum())
        count.rows += len(rows)
        yield rows if copied is None else _beside(copied.iloc[start : start + TOGETHER], rows)


def _without(labels: pd.Series, unsure: np.ndarray) -> pd.Series:
    """Labels with none where the model is unsure, of a type that knows of gaps."""
    return labels.convert_dtypes().mask(unsure)


def _beside(copied: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    both = [name for name in copied.columns if name in rows.columns]
    if both:
        raise InputError(
            f"--keep: expected columns named otherwise than the predictions, got {both[0]!r}. Rename it in the table."
        )
    return pd.concat([copied.reset_index(drop=True), rows], axis=1)


def _kept(given: Sequence[str], source: Source) -> list[str]:
    """The columns of the table that are copied into the output."""
    return [find("--keep", source.name, name, source.header) for name in split_names(given, source.header)]


def _tell(count: Count, out: Path, seconds: float, settings: PredictSettings) -> None:
    notes = told_unseen(count.unseen)
    if count.imputed:
        notes.append(
            f"{count.imputed:,} values in {count.imputed_rows:,} rows are missing or were never seen: what the "
            "training rows have there is part of the epistemic variance; the column 'imputed' counts them"
        )
    facts = {
        "predictions": str(out),
        "rows": count.rows,
        "abstained": count.abstained if settings.abstain is not None else None,
        "unseen_labels": count.unseen,
        "imputed_values": count.imputed,
        "imputed_rows": count.imputed_rows,
        "seconds": round(seconds, 3),
        "notes": notes,
    }
    lines = [f"note: {note}" for note in notes]
    if settings.abstain is not None:
        share = f"{100 * count.abstained / count.rows:.1f} %"
        lines.append(
            f"{count.abstained:,} rows ({share}) get no class: their most probable one is below {settings.abstain:g}"
        )
    if str(out) != STANDARD:
        lines.append(f"wrote {out} ({count.rows:,} rows, {seconds:.1f} s)")
    answer(facts, *lines, as_json=settings.as_json, aside=str(out) == STANDARD)
