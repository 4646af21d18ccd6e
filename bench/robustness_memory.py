"""The plan of a run's memory against the growth of the process at its highest, each network in a process of its own.

`bs.plan` counts tensors before anything is read; `bs.laplace` then runs with what was planned. The growth is what the
process takes beyond its network and its data, after a small fit that loads what torch loads once.

    python -m bench.robustness_memory NAME      # one, in this process
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayescope as bs
from bench import record
from bench.large_outputs import Pixels
from bench.linear import peak_growth

Record = dict[str, Any]
# The plan is to be right to so much of the measured peak.
WITHIN = 0.3


class Text(nn.Module):
    """A small transformer, tokens to four classes."""

    def __init__(self, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.embedding = nn.Embedding(1000, width)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T) tokens to (N, 4)."""
        return self.head(self.body(self.embedding(x)).mean(1))


def perceptron(width: int, layers: int = 2, classes: int = 10) -> nn.Module:
    """So many hidden layers of so many units."""
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def pictures() -> nn.Module:
    """A small convolutional network, (N, 3, 32, 32) to ten classes."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(2048, 10),
    )  # fmt: skip


class Case(NamedTuple):
    """A network, its data and how it is fitted.

    Attributes:
        make: the network, X and y.
        options: of `bs.laplace`.
    """

    make: Callable[[], tuple[nn.Module, Tensor, Tensor]]
    options: Mapping[str, Any]


def dense(width: int, layers: int = 2, classes: int = 10, rows: int = 2048) -> tuple[nn.Module, Tensor, Tensor]:
    """A perceptron and as many rows."""
    return perceptron(width, layers, classes), torch.randn(rows, width), torch.arange(rows) % classes


def images(rows: int = 512) -> tuple[nn.Module, Tensor, Tensor]:
    """Pictures of ten classes."""
    return pictures(), torch.randn(rows, 3, 32, 32), torch.arange(rows) % 10


def texts(rows: int = 256) -> tuple[nn.Module, Tensor, Tensor]:
    """Sequences of 32 tokens."""
    return Text(), torch.randint(1000, (rows, 32)), torch.arange(rows) % 4


def pixels(rows: int = 4) -> tuple[nn.Module, Tensor, Tensor]:
    """Pictures of 96 × 96 pixels, each pixel in one of 21 classes."""
    return Pixels(), torch.randn(rows, 3, 96, 96), torch.randint(21, (rows, 96, 96))


CASES = {
    "a perceptron of width 1,024, kfac": Case(lambda: dense(1024), {"structure": "kfac"}),
    "a perceptron of width 1,024, diagonal": Case(lambda: dense(1024), {"structure": "diagonal"}),
    "a perceptron of width 768, ekfac": Case(lambda: dense(768, rows=512), {"structure": "ekfac"}),
    "a perceptron of 2,170 weights, full": Case(lambda: dense(30, rows=512), {"structure": "full"}),
    "a perceptron of width 128, low rank 40": Case(lambda: dense(128, rows=256), {"structure": "low_rank", "rank": 40}),
    "1,000 classes, last layer, kfac": Case(
        lambda: dense(512, 1, 1000, 512), {"structure": "kfac", "weights": "last_layer"}
    ),
    "pictures, convolutions, kfac": Case(images, {"structure": "kfac", "batch_size": 128}),
    "pictures, convolutions, diagonal": Case(images, {"structure": "diagonal", "batch_size": 128}),
    "texts, a transformer, kfac": Case(texts, {"structure": "kfac", "batch_size": 64}),
    "21 classes of each pixel, last layer, kfac": Case(
        pixels, {"structure": "kfac", "weights": "last_layer", "batch_size": 1}
    ),
}
QUICK = ("a perceptron of 2,170 weights, full",)


def measure(case: Case) -> Record:
    """One case, in this process."""
    torch.default_generator.manual_seed(0)
    small = perceptron(16)
    bs.laplace(small, (torch.randn(64, 16), torch.arange(64) % 10), likelihood="categorical", **_small(case.options))
    model, x, y = case.make()
    options = {"likelihood": "categorical", **case.options}
    planned = bs.plan(model, (x, y), **options)
    ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of freed memory would hide the growth
    held: list[Any] = []
    grown = peak_growth(lambda: held.append(bs.laplace(model, (x, y), generator=0, **options)))
    return {"weights": planned.weights, "planned_mb": planned.bytes / 1e6, "measured_mb": grown / 1e6}


def _small(options: Mapping[str, Any]) -> Record:
    """The same structure for the network that comes before."""
    return {name: value for name, value in options.items() if name in ("structure", "rank")}


def run(*, quick: bool) -> list[Record]:
    """All cases, each in a process of its own."""
    found = []
    for name in QUICK if quick else CASES:
        command = [sys.executable, "-m", "bench.robustness_memory", name]
        # Blocks of over 64 kB go back to the system when they are freed, so that the growth is that of tensors.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        answer = subprocess.run(command, check=False, capture_output=True, text=True, cwd=record.ROOT, env=environment)
        if answer.returncode:
            found.append({"case": name, "failure": answer.stderr.strip().splitlines()[-1]})
            continue
        numbers = json.loads(answer.stdout)
        ratio = numbers["measured_mb"] / numbers["planned_mb"]
        found.append({"case": name, **numbers, "ratio": ratio, "within": abs(ratio - 1.0) <= WITHIN})
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps(measure(CASES[sys.argv[1]])))
