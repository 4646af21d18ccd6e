"""Commands under `torchrun`: its processes work on one fit, and the first one alone speaks and writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch
from torch import distributed

from bayescope.processes import Processes, present, timeout
from bayescope.progress import no_bars


@contextmanager
def ranks() -> Iterator[Processes]:
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
