"""`bayescope fit`: from a table to a model in one file, judged on rows that were not used for training."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import distributed

from bayescope import metrics
from bayescope.cli.answer import answer, verbatim
from bayescope.cli.arrow_source import ArrowSource, large, several
from bayescope.cli.checkpoints import Checkpoints, fitted_copy, named_fit
from bayescope.cli.findings import flag, shell_word
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.header import listed
from bayescope.cli.model_files import table_of
from bayescope.cli.models import build, task_of
from bayescope.cli.opening import STANDARD
from bayescope.cli.source import Source
from bayescope.cli.streamed_table import StreamedTable, read_streamed_table
from bayescope.cli.text_format import TextFormat
from bayescope.cli.training_table import Roles, TrainingTable, opened_table, read_training_table
from bayescope.cli.writing import check_file
from bayescope.errors import InputError, recorded_warnings
from bayescope.estimators.additive_reading import MOST_FEATURES
from bayescope.estimators.exposure import Added
from bayescope.files import only_writer
from bayescope.processes import Processes, present, timeout
from bayescope.progress import no_bars
from bayescope.report.judged import Judged, predictions
from bayescope.report.statistics import Score, class_scores, number_scores
from bayescope_command.app import FitOptions


def fit_table(options: FitOptions) -> None:
    """Fits a model to a table, prints how well it predicts held-out rows, and saves it.

    A directory, a glob or a large Parquet file is read a block of rows at a time.

    Raises:
        InputError: if the table, an option or the file cannot be used; before any fit, and before anything is written.
    """
    path, out = options.table, options.out
    with _ranks() as processes, ExitStack() as stack:
        check_file(out, path)
        if processes.first:
            stack.enter_context(only_writer("--out", out))
        if str(path) == STANDARD and processes.count > 1:
            raise InputError(
                "TABLE: expected a file for several processes, got the standard input, which none has whole. Save "
                "the table and name the file."
            )
        table = _read(options, processes)
        estimator = build(options, table.target.task, table.roles.categorical)
        train, judges, notes = table.split(options.test_size, options.seed)
        notes = [*table.notes, *notes]
        if options.likelihood is None and table.target.remark:
            notes.append(table.target.remark)
        with named_fit(estimator, options):
            checkpoints = Checkpoints.beside(out, estimator, resume=options.resume)
            notes = [*checkpoints.remarks(options.model, resume=options.resume), *notes]
            begun = time.perf_counter()
            with checkpoints.kept(), recorded_warnings(passed_on=False) as warned:
                held_out, model = None, None
                if judges is not None:
                    model = _fit(estimator, train, checkpoints.first)
                    if processes.first:
                        held_out = score(model, *judges.judged(model), options.seed)
                if options.refit or judges is None:
                    train, model = table, _fit(estimator, table, checkpoints.last)
            seconds = time.perf_counter() - begun
        if processes.first:
            refitted = train is table and judges is not None
            outcome = FitResult(model, train, held_out, seconds, (*notes, *warned), refitted)
            finish(outcome, checkpoints, options)


def _read(options: FitOptions, processes: Processes) -> TrainingTable | StreamedTable:
    """The table in memory, of each process, or on disk."""
    added = Added.of(options.offset, options.exposure).column
    path, task = options.table, task_of(options)
    roles = Roles.of(options, options.target, options.weight, added, options.trials)
    in_blocks = options.stream
    if in_blocks is None:
        in_blocks = not options.dates and (several(path) or large(path))
    if in_blocks:
        if options.dates:
            raise InputError(
                f"--dates: expected none with --stream, got {options.dates[0]!r}. Leave out --stream, or write the "
                "parts of the dates into the files."
            )
        files = ArrowSource(path, options.missing or (), TextFormat.of(options))
        _refuse_wide(files, roles, options)
        return read_streamed_table(files, roles, task, processes, options.likelihood)
    source, dates = opened_table(path, options)
    _refuse_wide(source, roles, options)
    table = read_training_table(source, roles, task=task, likelihood=options.likelihood)
    return replace(table, dates=dates)


def _refuse_wide(source: Source, roles: Roles, options: FitOptions) -> None:
    """Refuse more features than an additive model takes, by the header alone: reading them all takes a while.

    Raises:
        InputError: if there are too many.
    """
    count = len(roles.within(source).features(source))
    if options.model != "additive" or count <= MOST_FEATURES:
        return
    given = {name: getattr(options, name) for name in TAKEN_BY_LINEAR}
    flags = [
        flag(f"--{name}", *([value] if isinstance(value, str) else value)) for name, value in given.items() if value
    ]
    task = [] if options.task == "auto" else [flag("--task", options.task)]
    words = [shell_word(str(options.table)), flag("--target", options.target), "--model linear", *task, *flags]
    asked = {
        f"--seed {options.seed}": options.seed != type(options).seed,
        f"--test-size {options.test_size:g}": options.test_size != type(options).test_size,
        "--no-refit": not options.refit,
        "--stream": options.stream is True,
    }
    words += [word for word, told in asked.items() if told]
    words.append(f"--out {shell_word(str(options.out))}")
    raise InputError(
        f"{source.name}: expected at most {MOST_FEATURES:,} features for --model additive, got {count:,}. Leave "
        f"columns out with --drop, or fit a linear model: bayescope fit {' '.join(words)}"
    )


def _fit(estimator: object, table: TrainingTable | StreamedTable, checkpoint: Path | None) -> Any:
    X, y, weights = table.data
    others: dict[str, Any] = dict([] if table.roles.added is None else [table.roles.added])
    return fitted_copy(estimator, checkpoint, X, y, **others, **({} if weights is None else {"sample_weight": weights}))


@contextmanager
def _ranks() -> Iterator[Processes]:
    """The processes of this command: those that `torchrun` started, as its environment says, else this one alone.

    They are a group while the block runs: of gloo, and where there are GPUs of NCCL too, one GPU a process.
    """
    with ExitStack() as stack:
        started = distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if started and not distributed.is_initialized():
            stack.enter_context(_group())
        processes = present()
        if not processes.first:
            stack.enter_context(no_bars())
        with processes.agreed():
            yield processes
        processes.agree(None)


@contextmanager
def _group() -> Iterator[None]:
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, timeout=timedelta(seconds=timeout()))
    try:
        yield
    finally:
        distributed.destroy_process_group()


Facts = dict[str, Any]

# Options that say the same to an additive and to a linear model.
TAKEN_BY_LINEAR = (
    "likelihood", "categorical", "drop", "weight", "offset", "exposure", "trials", "missing", "dates",
    "sep", "decimal", "encoding", "sheet",
)  # fmt: skip
SCORES = {
    "accuracy": "accuracy", "auroc": "AUROC", "nll": "NLL", "brier": "Brier",
    "ece": f"calibration error, {metrics.BINS} bins", "rmse": "RMSE", "crps": "CRPS",
    "coverage": "coverage of 95 % intervals",
}  # fmt: skip
TERMS = 5
# Terms that move a prediction by less than this share of what the first one does are switched off.
NEGLIGIBLE = 0.01


@final
@dataclass(frozen=True)
class HeldOut:
    """What held-out rows say of a model.

    Attributes:
        rows: how many they are.
        scores: with their intervals.
    """

    rows: int
    scores: tuple[Score, ...]

    def finite(self) -> list[list[Any]]:
        """Name, value, low and high of each score that is finite, for the model's file."""
        scores = [each for each in self.scores if np.isfinite([each.value, each.low, each.high]).all()]
        return [[each.name, each.value, each.low, each.high] for each in scores]


def score(model: Any, features: pd.DataFrame, target: pd.Series | pd.DataFrame, seed: int) -> HeldOut:
    """Scores of a model on rows with their target.

    Args:
        model: fitted to others.
        features: of the rows.
        target: theirs, under its name.
        seed: of the scores' intervals.
    """
    judged = Judged.of(model, features, target, seed)
    scored = class_scores if judged.classes else number_scores
    return HeldOut(len(features), scored(judged, predictions(model, judged), seed))


@final
@dataclass(frozen=True, eq=False)
class FitResult:
    """What a fit left behind.

    Attributes:
        estimator: that was saved.
        table: the rows that it was fitted to.
        held_out: what the held-out rows say, if there were some.
        seconds: that it took.
        notes: remarks and warnings.
        refitted: whether the held-out rows were fitted too, after they had judged another fit.
    """

    estimator: Any
    table: TrainingTable | StreamedTable
    held_out: HeldOut | None
    seconds: float
    notes: tuple[str, ...]
    refitted: bool


def finish(outcome: FitResult, checkpoints: Checkpoints, options: FitOptions) -> None:
    """Saves the model with what its file says of the table, removes the checkpoints, and reports what was fitted.

    Args:
        outcome: of the fit.
        checkpoints: of the fit.
        options: of the command.
    """
    described, out = _described(outcome, options), options.out
    outcome.estimator.save(out, metadata=described.metadata())
    checkpoints.remove()
    facts = _facts(outcome, described, out)
    answer(facts, *lines_of_fit(facts), as_json=options.as_json)


def _described(outcome: FitResult, options: FitOptions) -> FittedTable:
    """What the model's file says of the table."""
    table, roles, digest = outcome.table, outcome.table.roles, outcome.table.digest()
    return replace(
        table_of(table.source, outcome.estimator),
        target=roles.target,
        classes=outcome.estimator.classes_.tolist() if table.target.task == "classification" else [],
        missing=options.missing or [],
        dates=table.dates,
        file=Path(table.source).name,
        rows=len(table),
        digest=digest,
        dropped=list(roles.drop),
        weight=roles.weight,
        trials=roles.trials,
        test_size=options.test_size if digest else 0.0,
        seed=options.seed,
        scores=[] if outcome.held_out is None else outcome.held_out.finite(),
    )


def _facts(outcome: FitResult, described: FittedTable, out: Path) -> Facts:
    """All that is reported, for programs."""
    model, target, kinds = outcome.estimator, outcome.table.target, list(described.kinds.values())
    if model._added_by is not None:
        kinds.remove("numeric")
    facts: Facts = {
        "model": str(out),
        "bytes": out.stat().st_size,
        "estimator": type(model).__name__,
        "table": outcome.table.source,
        "target": target.name,
        "task": target.task,
        "task_because": target.reason or None,
        "rows": described.rows,
        "rows_without_target": outcome.table.without_target,
        "features": len(kinds),
        "numeric": kinds.count("numeric"),
        "labels": kinds.count("categorical"),
        "seconds": round(outcome.seconds, 3),
        "log_evidence": getattr(model, "log_evidence_", None),
        "elbo": getattr(model, "elbo_", None),
        "held_out": _facts_of_scores(outcome),
        "notes": list(outcome.notes),
    }
    if target.task == "classification":
        facts["classes"] = described.classes
    if hasattr(model, "importance"):
        found = model.importance()
        most = found.mean if found.mean.ndim == 1 else found.mean.max(1)
        facts["terms"] = [found.names[term] for term in found.order if most[term] >= NEGLIGIBLE * most.max()]
        facts["pairs"] = [list(pair) for pair in model.pairs_]
    return facts


def lines_of_fit(facts: Facts) -> list[RenderableType]:
    """The same in a few lines, for people."""
    classes = facts.get("classes", [])
    what = f"{facts['task']}, {len(classes)} classes: {listed(classes)}" if classes else str(facts["task"])
    otherwise = "--task, or --likelihood for counts," if len(classes) > 2 else "--task"
    because = f" (since {facts['task_because']}; {otherwise} decides otherwise)" if facts["task_because"] else ""
    columns = f"{facts['features']} features: {facts['numeric']} of numbers, {facts['labels']} of labels"
    lines: list[RenderableType] = [
        verbatim(f"{facts['estimator']} of {facts['target']}", "bold"),
        f"  {what}{because}",
        f"  {facts['rows']} rows, {columns}",
    ]
    if facts["rows_without_target"]:
        lines.append(f"  {facts['rows_without_target']} rows without a target were left out")
    if facts["held_out"]:
        lines += _lines_of_scores(facts["held_out"])
    if facts["log_evidence"] is not None:
        lines.append(f"  log evidence {facts['log_evidence']:.2f}")
    elif facts["elbo"] is not None:
        lines.append(f"  evidence lower bound {facts['elbo']:.2f}")
    if "terms" in facts:
        lines.append(f"  what matters most: {', '.join(facts['terms'][:TERMS])}")
    lines += [verbatim(f"  note: {note}", "yellow") for note in facts["notes"]]
    return [*lines, f"wrote {facts['model']} ({facts['bytes'] / 1e3:.0f} kB, {facts['seconds']:.1f} s)", *_next(facts)]


def _facts_of_scores(outcome: FitResult) -> Facts | None:
    held_out = outcome.held_out
    if held_out is None:
        return None
    scores = {
        score.name: {"value": score.value, "low": score.low, "high": score.high, "baseline": score.baseline}
        for score in held_out.scores
    }
    return {"rows": held_out.rows, "then_fitted_to_all_rows": outcome.refitted, "scores": scores}


def _lines_of_scores(held_out: Facts) -> list[RenderableType]:
    """The scores as a table, and which model they are of."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text("  held out", style="dim"), no_wrap=True)
    for heading in ("value", "95 % interval", "without features"):
        table.add_column(Text(heading, style="dim"), justify="right", no_wrap=True)
    for name, score in held_out["scores"].items():
        baseline = "" if score["baseline"] is None or np.isnan(score["baseline"]) else f"{score['baseline']:.4g}"
        ends = f"{score['low']:.4g} to {score['high']:.4g}"
        table.add_row(f"  {SCORES[name]}", f"{score['value']:.4g}", ends, baseline)
    whose = (
        "a model that has not seen them; the one in the file was then fitted to all rows"
        if held_out["then_fitted_to_all_rows"]
        else "the model in the file, which has not seen them"
    )
    return [f"  judged on {held_out['rows']} held-out rows: the scores of {whose}", table]


def _next(facts: Facts) -> list[RenderableType]:
    """The commands that a user is likely to want next."""
    model = quote(facts["model"])
    lines = ["next:", f"  bayescope predict {model} NEW.csv --out predictions.csv"]
    if "terms" in facts:
        lines.append(f"  bayescope effects {model} --out effects")
    judged = quote(facts["table"]) if facts["held_out"] and not facts["held_out"]["then_fitted_to_all_rows"] else None
    return [*lines, f"  bayescope report {model} {judged or 'OTHER_ROWS.csv'} --out report.html"]
