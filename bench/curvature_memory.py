"""How much memory predictions and fits take at their highest, each measured in a process of its own.

python -m bench.curvature_memory [NAME]      # all of them, or one in this process
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch
from torch import nn

import bayescope as bs
from bench.memory import peak_growth

ROWS = 1024
PRIOR = 1.0


def measure_depth(structure: str, depth: int) -> dict[str, float]:
    """Memory of predicting 1,024 rows with a network of width 512 and so many layers."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(512, 512), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    x, y = torch.randn(ROWS, 512), torch.randint(10, (ROWS,))
    # On few rows, so that what the fit gives back to the process does not hide what the prediction takes.
    curvature = bs.fit_curvature(model, (x[:16], y[:16]), likelihood="categorical", structure=structure)
    precision, network = curvature.with_prior(PRIOR), curvature.network
    network.latent_covariance(x[:8], precision)  # the eigenvectors, which the posterior holds, and torch's workspaces
    grown = peak_growth(lambda: network.latent_covariance(x, precision))
    return {"weights": network.dim, "peak_mb": grown / 1e6, "jacobian_mb": ROWS * 10 * network.dim * 4 / 1e6}


def measure_classes(structure: str) -> dict[str, float]:
    """Memory of fitting and predicting a last layer of 1,000 classes on 512 features."""
    x, y = torch.randn(2048, 512), torch.randint(1000, (2048,))
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1000))
    held: list[Any] = []
    options = {"likelihood": "categorical", "structure": structure, "weights": "last_layer"}
    fit = peak_growth(lambda: held.append(bs.fit_curvature(model, (x, y), **options)))
    precision, network = held[0].with_prior(PRIOR), held[0].network
    predict = peak_growth(lambda: network.latent_variance(x[:256], precision))
    joint = peak_growth(lambda: network.latent_covariance(x[:32], precision))
    return {"fit_mb": fit / 1e6, "variances_of_256_mb": predict / 1e6, "covariances_of_32_mb": joint / 1e6}


MEMORY = {
    **{f"{name}, depth {depth}": (measure_depth, (name, depth)) for name in ("kfac", "diagonal") for depth in (4, 8)},
    **{f"{name}, 1,000 classes": (measure_classes, (name,)) for name in ("kfac", "diagonal")},
}


def memory() -> dict[str, dict[str, float]]:
    """All of `MEMORY`, each in a process of its own."""
    found = {}
    for name in MEMORY:
        command = [sys.executable, "-m", "bench.curvature_memory", name]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
        if answer.returncode:
            print(answer.stderr, file=sys.stderr)
        found[name] = json.loads(answer.stdout) if answer.returncode == 0 else {"failed": answer.returncode}
    return found


if __name__ == "__main__":
    torch.set_num_threads(2)
    if len(sys.argv) == 2:
        measure, arguments = MEMORY[sys.argv[1]]
        print(json.dumps(measure(*arguments)))
    else:
        print(json.dumps(memory(), indent=2))
