"""Two processes that do not fit together, or of which one stops, dies or sends what it should not."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed, multiprocessing, nn

import bayescope as bs
from bayescope import processes
from bayescope.errors import BayescopeError
from bench.attacks import Outcome

# Seconds: what a process waits for the other, by the option; and what the whole may take with the start of both.
WAIT, WHOLE = 2, 40.0


class Code:
    """What leaves a file where it is unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (self.file, "w")


class Written(nn.Module):
    """A network whose calls to torch are in its code."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.tanh, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.activation, self.factor = activation, factor

    def forward(self, x: Tensor) -> Tensor:
        """Scores of three classes."""
        out: Tensor = self.last(self.activation(self.first(x))) * self.factor
        return out


class Failing(Written):
    """One that does something to its process after some passes, on rank 1."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self.action, self.passes = action, 0

    def forward(self, x: Tensor) -> Tensor:
        """Scores of three classes."""
        self.passes += torch.is_grad_enabled()
        if self.passes == 4 and distributed.get_rank() == 1:
            self.action()
        return super().forward(x)


def layers(*widths: int) -> nn.Module:
    """Linear layers with Tanh between them."""
    found: list[nn.Module] = [each for pair in pairwise([4, *widths]) for each in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*found, nn.Linear(widths[-1], 3))


def rows(columns: int = 4, count: int = 30) -> tuple[Tensor, Tensor]:
    """Random inputs and labels."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(count, columns, generator=source), torch.randint(3, (count,), generator=source)


def laplace(module: nn.Module, data: Any = None, **options: Any) -> Any:
    """An approximation of the network as it is."""
    return bs.laplace(module, rows() if data is None else data, **{"likelihood": "categorical", **options})


def training(module: nn.Module, data: Any = None, **options: Any) -> Any:
    """A short training."""
    chosen = {"likelihood": "categorical", "epochs": 9, "batch_size": 10, "generator": 1, "progress": False, **options}
    return bs.fit_map(module, rows() if data is None else data, **chosen)


def options(fit: Callable[..., Any], name: str, *values: Any) -> Callable[[int, str], Any]:
    """The fit with one of the values for an option, by rank."""
    return lambda rank, _: fit(layers(6), **{name: values[rank]})


def networks(*values: Callable[[], nn.Module], fit: Callable[..., Any] = laplace) -> Callable[[int, str], Any]:
    """The fit of one of the networks, by rank."""
    return lambda rank, _: fit(values[rank]())


def signals(name: str) -> Callable[[int, str], Any]:
    """A training in which rank 1 gets a signal."""
    return lambda *_: training(Failing(lambda: os.kill(os.getpid(), getattr(signal, name))))


def raising() -> None:
    """An error that is not the library's."""
    raise ValueError("the sensor is off")


def other_version(rank: int, _: str) -> Any:
    """Rank 1 says that it is another bayescope."""
    found = {"version of bayescope": f"{rank}.0"}
    with patch.object(processes, "VERSIONS", found, create=True):
        return laplace(layers(6))


def other_bytes(content: bytes) -> Callable[[int, str], Any]:
    """Rank 1 sends these in the place of its message."""

    def attack(rank: int, _: str) -> Any:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if rank == 1:
            with patch.object(processes, "to_message", lambda _: sent):
                return laplace(layers(6))
        return laplace(layers(6))

    return attack


def sent_code(rank: int, folder: str) -> Any:
    """Rank 1 sends an object that runs code where it is unpickled."""
    return processes.present().gather(Code(f"{folder}/code") if rank == 1 else None)


RELU_TANH: tuple[Callable[[], nn.Module], ...] = (lambda: Written(torch.relu), lambda: Written(torch.tanh))
JSON = b'[{"object":["os.system",1,{},{}]},[],[]]'
ATTACKS: dict[str, Callable[[int, str], Any]] = {
    "ReLU and Tanh, laplace": networks(*RELU_TANH),
    "other widths, laplace": networks(lambda: layers(6), lambda: layers(7)),
    "a stopped rank": signals("SIGSTOP"),
    "ReLU and Tanh, fit_map": networks(*RELU_TANH, fit=training),
    "another constant": networks(Written, lambda: Written(factor=1.5)),
    "other widths, fit_map": networks(lambda: layers(6), lambda: layers(7), fit=training),
    "other depths, fit_map": networks(lambda: layers(6), lambda: layers(6, 6), fit=training),
    "other types, fit_map": networks(lambda: layers(6), lambda: layers(6).double(), fit=training),
    "another lr": options(training, "lr", 0.1, 0.2),
    "another schedule": options(training, "schedule", lambda share: 1.0 - share, lambda share: 1.0),
    "another prior": options(laplace, "prior_precision", 1.0, 2.0),
    "another likelihood": options(training, "likelihood", "categorical", "gaussian"),
    "another structure": options(laplace, "structure", "kfac", "diagonal"),
    "other columns": lambda rank, _: laplace(layers(6), rows(4 + rank)),
    "other columns, fit_map": lambda rank, _: training(layers(6), rows(4 + rank)),
    "no labels on a rank": lambda rank, _: training(layers(6), rows() if rank == 0 else rows()[0]),
    "a killed rank": signals("SIGKILL"),
    "a rank that raises": lambda *_: training(Failing(raising)),
    "another version": other_version,
    "bytes that are no message": other_bytes(b"\xff" * 64),
    "JSON without end": other_bytes(b"\x40" + b"\0" * 7 + b"[" * 64),
    "JSON of a class that is none": other_bytes(len(JSON).to_bytes(8, "little") + JSON),
    "an object with code": sent_code,
}  # fmt: skip
RIGHT: dict[str, Callable[[int, str], Any]] = {
    "the same on both, laplace": networks(lambda: layers(6), lambda: layers(6)),
    "other numbers of rows": lambda rank, _: training(layers(6), rows(count=30 - 9 * rank)),
}
# Ranks that cannot say how they ended.
GONE = ("a stopped rank", "a killed rank")


def begin(name: str, rank: int, folder: str) -> None:
    """One of the processes: its words go to a file, and its group has torch's own timeout."""
    os.environ |= {"BAYESCOPE_TIMEOUT": str(WAIT), "GLOO_SOCKET_IFNAME": "lo"}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)  # noqa: TID251 — this process's own
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    said = "fitted"
    try:
        {**ATTACKS, **RIGHT}[name](rank, folder)
    except BayescopeError as error:
        said = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 — another's, which is what is counted
        said = f"another's {type(error).__name__}: {error}"
    Path(folder, f"{rank}.txt").write_text(said)
    distributed.destroy_process_group()


def tried(name: str) -> Outcome:
    """Both processes, until they have ended or time is up."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bayescope", "torch._dynamo", "bench.attacks.ranks"])
    with tempfile.TemporaryDirectory() as folder:
        both = [context.Process(target=begin, args=(name, rank, folder), daemon=True) for rank in range(2)]
        for process in both:
            process.start()
        start = time.monotonic()
        awaited = both[:1] if name in GONE else both
        for process in awaited:
            process.join(max(0.1, WHOLE - (time.monotonic() - start)))
        ended = all(process.exitcode == 0 for process in awaited)
        for process in both:
            process.kill()
            process.join()
        files = [Path(folder, f"{rank}.txt") for rank in range(len(awaited))]
        said = [file.read_text() if file.exists() else "nothing" for file in files]
        ran = Path(folder, "code").exists()
    if name in RIGHT:
        right = ended and said == ["fitted"] * 2
        return Outcome(name, 0, int(right), int(not right), said[0][:160])
    refused = ended and not ran and all("Error: " in each and "\n" not in each for each in said)
    refused = refused and not any(each.startswith("another's") for each in said)
    return Outcome(name, int(refused), 0, int(not refused), " / ".join(each[:80] for each in said))


def attacks(quick: bool) -> Iterator[Outcome]:
    """Each once; two in a quick run."""
    for name in list(ATTACKS)[: 2 if quick else None]:
        yield tried(name)
    for name in () if quick else RIGHT:
        yield tried(name)
