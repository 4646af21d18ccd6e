"""`bayescope predict`: rows stream in, predictions stream out, and the memory stays that of some rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from bayescope import checks
from bayescope.cli.answer import answer
from bayescope.cli.dates import dated
from bayescope.cli.fitted_table import notes_on_unseen
from bayescope.cli.header import find, split_names
from bayescope.cli.model_files import load_model
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.rounding import rounded
from bayescope.cli.target import check_trials
from bayescope.cli.text_format import TextFormat
from bayescope.cli.training_table import read_block
from bayescope.cli.writing import check_out, sink
from bayescope.errors import InputError, UnsupportedError
from bayescope.predictive import by_trials
from bayescope.progress import progress_bar
from bayescope.storage import answering
from bayescope.tables.columns import Kind
from bayescope_command.app import PredictOptions

# Rows that are predicted at once, counted from the first one of the table: sums of floating-point numbers depend on how
# many are taken together, and so predictions would depend, in their last digits, on how many rows are read at a time.
TOGETHER = 4096
DIGITS = ("known", "full")


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

    def add_unseen(self, found: Mapping[str, Mapping[str, int]]) -> None:
        """Adds labels of some rows."""
        for name, counts in found.items():
            known = self.unseen.setdefault(name, {})
            for label, count in counts.items():
                known[label] = known.get(label, 0) + count


def predict_table(options: PredictOptions) -> None:
    """Predicts every row of a table, and writes a row for each.

    Raises:
        InputError: if the model, the table, an option or the place cannot be used; no file is then written.
    """
    out, level, abstain = options.out, options.level, options.abstain
    if str(out) == STANDARD and options.as_json:
        raise InputError("--json: expected predictions in a file, got --out -, which takes the standard output itself.")
    if abstain is not None:
        checks.fraction("--abstain", abstain)
    if level != 0:
        checks.fraction("--level", level)
    checks.choice("--digits", options.digits, DIGITS)
    chunk = TOGETHER * -(-checks.count("--chunk-rows", options.chunk_rows) // TOGETHER)
    check_out(out, options.model, options.table)
    estimator, table = load_model(options.model)
    if abstain is not None and not is_classifier(estimator):
        raise UnsupportedError("--abstain: expected a model of classes, got a regression. Leave it out.")
    opened = open_source(options.table, missing=table.missing, form=TextFormat.of(options))
    source = dated(opened, table.dates)
    table.check(source)
    kept = [find("--keep", opened.name, name, opened.header) for name in split_names(options.keep, opened.header)]
    trials = table.trials if table.trials in source.header else None
    kinds: dict[str, Kind] = table.kinds if trials is None else {**table.kinds, trials: "numeric"}
    begun, count = time.perf_counter(), Count()
    with sink(out, formulas=options.formulas) as write, progress_bar("predicting") as report:
        for block in source.blocks(chunk, list(dict.fromkeys([*kinds, *kept]))):
            columns = read_block(block, kinds)
            copied = block.copied(kept) if kept else None
            given = None if trials is None else columns.pop(trials)
            if given is not None:
                check_trials(source.name, str(trials), given, block.place)
            frame = table.frame(columns)
            count.add_unseen(table.unseen(frame))
            for start in range(0, len(frame), TOGETHER):
                some = slice(start, start + TOGETHER)
                of_rows = None if given is None else given[some]
                rows = _predicted(estimator, frame.iloc[some], of_rows, level, abstain, count)
                rows = rounded(rows, is_classifier(estimator)) if options.digits == "known" else rows
                write(rows if copied is None else _beside(copied.iloc[start : start + TOGETHER], rows))
            report(count.rows // TOGETHER, None, f"{count.rows:,} rows")
        if not count.rows:
            raise InputError(f"{source.name}: expected rows below the header, got none. Give a table with data.")
    notes = [f"no column {table.trials!r}: predictions are of one trial, whose mean is the probability of a success"]
    notes = [*source.notes, *(notes if trials is None and table.trials is not None else [])]
    _tell(count, out, time.perf_counter() - begun, abstain, notes, as_json=options.as_json)


def _predicted(
    estimator: Any, frame: pd.DataFrame, trials: np.ndarray | None, level: float, abstain: float | None, count: Count
) -> pd.DataFrame:
    """The predictions of some rows."""
    with answering(estimator):
        classes = estimator.classes_ if is_classifier(estimator) else None
        predictive = estimator.predict_distribution(frame, generator=0 if estimator.random_state is None else None)
        parts = [
            each.to_frame(classes=classes, level=level or None).set_index(places)
            for places, each in by_trials(predictive, trials)
        ]
    rows = pd.concat(parts).sort_index()
    if predictive.imputed is not None:  # in all pieces: they have one header
        rows["imputed"] = predictive.imputed
        count.imputed += int(predictive.imputed.sum())
        count.imputed_rows += int((predictive.imputed > 0).sum())
    if abstain is not None:
        unsure = predictive.abstains(probability=abstain)
        rows["predicted"] = rows["predicted"].convert_dtypes().mask(unsure)  # of a type that knows of gaps
        count.abstained += int(unsure.sum())
    count.rows += len(rows)
    return rows


def _beside(copied: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    both = [name for name in copied.columns if name in rows.columns]
    if both:
        raise InputError(
            f"--keep: expected columns named otherwise than the predictions, got {both[0]!r}. Rename it in the table."
        )
    return pd.concat([copied.reset_index(drop=True), rows], axis=1)


def _tell(count: Count, out: Path, seconds: float, abstain: float | None, notes: list[str], *, as_json: bool) -> None:
    notes = [*notes, *notes_on_unseen(count.unseen)]
    if count.imputed:
        notes.append(
            f"{count.imputed:,} values in {count.imputed_rows:,} rows are missing or were never seen: what the "
            "training rows have there is part of the epistemic variance; the column 'imputed' counts them"
        )
    facts = {
        "predictions": str(out),
        "rows": count.rows,
        "abstained": count.abstained if abstain is not None else None,
        "unseen_labels": count.unseen,
        "imputed_values": count.imputed,
        "imputed_rows": count.imputed_rows,
        "seconds": round(seconds, 3),
        "notes": notes,
    }
    lines = [f"note: {note}" for note in notes]
    if abstain is not None:
        share = f"{100 * count.abstained / count.rows:.1f} %"
        lines.append(f"{count.abstained:,} rows ({share}) get no class: their most probable one is below {abstain:g}")
    if str(out) != STANDARD:
        lines.append(f"wrote {out} ({count.rows:,} rows, {seconds:.1f} s)")
    answer(facts, *lines, as_json=as_json, aside=str(out) == STANDARD)
