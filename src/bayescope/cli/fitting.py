"""`bayescope fit`: from a table to a model in one file, judged on rows that were not used for training."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from bayescope.cli.arrow_source import large, several
from bayescope.cli.checkpoints import Checkpoints, fitted_copy, named_fit
from bayescope.cli.fit_answer import FitResult, finish, score
from bayescope.cli.models import build
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.streamed_table import StreamedTable, read_streamed_table
from bayescope.cli.training_table import Roles, TrainingTable, read_training_table
from bayescope.cli.writing import check_file
from bayescope.errors import InputError, recorded_warnings
from bayescope.files import only_writer
from bayescope.processes import Processes, present, timeout
from bayescope.progress import no_bars
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
        with named_fit(estimator, options):
            checkpoints = Checkpoints.beside(out, estimator, resume=options.resume)
            notes = [*checkpoints.remarks(options.model, resume=options.resume), *notes]
            begun = time.perf_counter()
            with recorded_warnings(passed_on=False) as warned:
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
    path, roles = options.table, Roles.of(options, options.weight)
    if several(path) or large(path) if options.stream is None else options.stream:
        return read_streamed_table(path, roles, options.missing or (), options.task, processes)
    source = open_source(path, missing=options.missing or (), again=True)
    return read_training_table(source, roles, task=options.task)


def _fit(estimator: object, table: TrainingTable | StreamedTable, checkpoint: Path | None) -> Any:
    X, y, weights = table.data
    return fitted_copy(estimator, checkpoint, X, y, **({} if weights is None else {"sample_weight": weights}))


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
