"""`bayescope fit`: from a table to a model in one file, judged on rows that it has not seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from bayescope.cli.checkpoints import Checkpoints, fitted_copy, named_fit
from bayescope.cli.dataset import large, several
from bayescope.cli.fit_answer import FitResult, finish
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.fitting_blocks import fit_blocks
from bayescope.cli.held_out import held_out_rows, score
from bayescope.cli.models import FitSettings, build
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.training_table import TrainingTable, read_training_table
from bayescope.cli.writing import check_file
from bayescope.errors import InputError, recorded_warnings
from bayescope.files import only_writer
from bayescope.processes import Processes, present, timeout
from bayescope.progress import no_bars


def fit_table(path: Path, out: Path, settings: FitSettings) -> None:
    """Fits a model to a table, prints how well it predicts held-out rows, and saves it.

    Args:
        path: the table, or "-"; a directory, a glob or a large Parquet file is read a block of rows at a time.
        out: the model's file.
        settings: all else.

    Raises:
        InputError: if the table, an option or the file cannot be used; before any fit, and before anything is written.
    """
    with _ranks() as processes, ExitStack() as held:
        with processes.agreed():
            check_file(out, path)
            if processes.first:
                held.enter_context(only_writer("--out", out))
            if str(path) == STANDARD and processes.count > 1:
                raise InputError(
                    "TABLE: expected a file for several processes, got the standard input, which none has whole. Save "
                    "the table and name the file."
                )
        in_blocks = several(path) or large(path) if settings.stream is None else settings.stream
        (fit_blocks if in_blocks else _fit_whole)(path, out, settings, processes)


def _fit_whole(path: Path, out: Path, settings: FitSettings, processes: Processes) -> None:
    """The same with all rows in memory, of each process."""
    with processes.agreed():
        source = open_source(path, missing=settings.missing, again=True)
        roles = settings.roles.within(source)
        table = read_training_table(source, roles, task=settings.task)
        estimator = build(settings.options, table.target.task)
        split = held_out_rows(table.target, settings.test_size, settings.options.seed)
    with named_fit(out, estimator, settings):
        with processes.agreed():
            checkpoints = Checkpoints.beside(out, estimator, resume=settings.resume)
        outcome = _fitted(estimator, table, split, checkpoints, settings)
    if processes.first:
        fitted = FittedTable.of(table, roles, settings.missing, outcome.rows)
        described = replace(fitted, test_size=settings.test_size, seed=settings.options.seed)
        finish(outcome, described, table, out, checkpoints, settings)


def _fitted(
    estimator: Any,
    table: TrainingTable,
    split: tuple[np.ndarray, np.ndarray],
    checkpoints: Checkpoints,
    settings: FitSettings,
) -> FitResult:
    begun, (train, test) = time.perf_counter(), split
    everything = np.arange(len(table))
    again = settings.refit or not len(test)
    remarks = checkpoints.remarks(settings.options.model, resume=settings.resume)
    with recorded_warnings(passed_on=False) as warned:
        held_out, model = None, None
        if len(test):
            model = _fit(estimator, table, train, checkpoints.first)
            held_out = score(model, table.features.iloc[test], table.target.series().iloc[test], settings.options.seed)
        if again:
            model = _fit(estimator, table, everything, checkpoints.last)
    seconds = time.perf_counter() - begun
    rows = everything if again else train
    return FitResult(model, rows, held_out, seconds, (*remarks, *warned), refitted=again and held_out is not None)


def _fit(estimator: Any, table: TrainingTable, rows: np.ndarray, checkpoint: Path | None) -> Any:
    weights = {} if table.weights is None else {"sample_weight": table.weights[rows]}
    data = table.features.iloc[rows], table.target.series().iloc[rows]
    return fitted_copy(estimator, checkpoint, *data, **weights)


@contextmanager
def _ranks() -> Iterator[Processes]:
    """The processes of this command: those that `torchrun` started, as its environment tells, else this one alone.

    They are a group while the block runs: of gloo, and where there are GPUs of NCCL too, one GPU a process.
    """
    with ExitStack() as stack:
        started = distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if started and not distributed.is_initialized():
            stack.enter_context(_group())
        processes = present()
        if not processes.first:
            stack.enter_context(no_bars())
        yield processes


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
