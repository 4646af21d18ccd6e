"""Two processes that run the same function, for what sums over processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing


def in_two(work: Callable[[int, str], None], folder: Path) -> list[Any]:
    """What ``work(rank, folder)`` saves as folder/rank.pt in each of two processes."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
