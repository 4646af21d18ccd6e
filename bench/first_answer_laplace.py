"""Points of the benchmark of first answers: Laplace by default, beside the network's own probabilities."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import bayescope as bs
from bench.first_answer_points import Point

FOLDER = Path(os.environ.get("BAYESCOPE_REFERENCE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
# Adam in ordinary ways: the step size, the epochs, the weight decay.
WAYS = {"stopped early": (1e-3, 40, 0.0), "weight decay": (1e-2, 100, 1e-3), "overfitted": (1e-2, 300, 0.0)}
STRUCTURES: dict[str, dict[str, Any]] = {
    "kfac": {},
    "diagonal": {"structure": "diagonal"},
    "last layer": {"weights": "last_layer"},
}
# So many rows of a table are taken at most.
ROWS = 1500


def _frame(name: str, columns: int | str = -1, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """A table whose labels are its last column, with its text columns as indicators."""
    frame = pd.read_csv(FOLDER / "tabular" / name, **options).dropna()
    frame = frame.sample(min(len(frame), ROWS), random_state=0)
    label = frame.iloc[:, columns] if isinstance(columns, int) else frame[columns]
    features = frame.drop(columns=[name for name in ("diagnosis", "condition") if name in frame])
    features = features if len(features.columns) < len(frame.columns) else features.drop(columns=label.name)
    return pd.get_dummies(features).to_numpy(float), label.to_numpy()


def _texts(name: str) -> tuple[np.ndarray, np.ndarray]:
    folder = FOLDER / "uci_classification" / name
    return np.loadtxt(folder / "X.txt"), np.loadtxt(folder / "Y.txt")


def _banana() -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(FOLDER / "uci_classification" / "banana" / "banana.csv", delimiter=",")[:ROWS]
    return table[:, :-1], table[:, -1]


def _breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    start = FOLDER / "uci_classification" / "breast_cancer" / "breast_cancer_scale_"
    x, y = ([np.loadtxt(f"{start}{of}_{part}.csv") for part in ("tr", "te")] for of in ("X", "y"))
    return np.concatenate(x), np.concatenate(y)


TABLES: Mapping[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "banana": _banana,
    "glass": partial(_texts, "glass"),
    "vehicle": partial(_texts, "vehicle"),
    "breast cancer": _breast_cancer,
    "adult": partial(_frame, "adult-train.csv", header=None, skipinitialspace=True),
    "german": partial(_frame, "german.csv", header=None),
    "pima": partial(_frame, "pima-indians-diabetes.csv", header=None),
    "sonar": partial(_frame, "sonar.csv", header=None),
    "heart, Statlog": partial(_frame, "heart/statlog_heart.dat", sep=r"\s+"),
    "heart, Cleveland": partial(_frame, "heart/processed.cleveland.data", "condition", na_values="?"),
}


def _split(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training rows and labels, test rows and labels; columns are standardised by the training rows."""
    x, labels = TABLES[name]()
    y = np.unique(labels, return_inverse=True)[1]
    train, test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    mean, sd = train.mean(0), train.std(0)
    sd[sd == 0] = 1.0
    x_train, x_test = (torch.tensor((part - mean) / sd, dtype=torch.float32) for part in (train, test))
    return x_train, torch.tensor(y_train), x_test, torch.tensor(y_test)


def _trained(x: Tensor, y: Tensor, lr: float, epochs: int, decay: float) -> nn.Module:
    """A network of 50 hidden units after so many epochs of Adam."""
    torch.manual_seed(0)  # noqa: TID251
    network = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, int(y.max()) + 1))
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=decay)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
    return network


def _differences(structure: str, names: list[str]) -> dict[str, float]:
    """Test NLL, accuracy and calibration of the default less those of the network, over tables and trainings."""
    losses, accuracies, errors, warned = [], [], [], 0
    for name in names:
        x, y, x_test, y_test = _split(name)
        for way in WAYS.values():
            network = _trained(x, y, *way)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                q = bs.laplace(network, (x, y), likelihood="categorical", **STRUCTURES[structure])
            warned += bool(caught)
            ours, found = network(x_test).detach().double().softmax(1), q.predict(x_test).probs
            losses.append(float(bs.metrics.nll(found, y_test)) - float(bs.metrics.nll(ours, y_test)))
            right = [float((p.argmax(1) == y_test).double().mean()) for p in (ours, found)]
            accuracies.append(right[0] - right[1])
            errors.append(float(bs.metrics.ece(found, y_test)) - float(bs.metrics.ece(ours, y_test)))
    return {
        "NLL above the network's, the largest": max(losses),
        "NLL above the network's, mean": float(np.mean(losses)),
        "accuracy below the network's, the largest": max(accuracies),
        "calibration error above the network's, mean": float(np.mean(errors)),
        "share of trainings that warn": warned / len(losses),
    }


def _tables(structure: str, quick: bool) -> dict[str, float]:
    return _differences(structure, ["glass", "heart, Statlog"] if quick else list(TABLES))


def _spoilt(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """Whether a prior precision that spoils the predictions is warned of by its first sentence."""
    x, y, _, _ = _split("digits")
    network = _trained(x, y, *WAYS["stopped early"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bs.laplace(network, (x, y), likelihood="categorical", structure="diagonal", prior_precision=1e-4)
    first = [str(warning.message).split(". ")[0] for warning in caught]
    return {"says that predictions are worse": float(any("redictions" in sentence for sentence in first))}


WANTED = {
    "NLL above the network's, the largest": "≤ 0.005",
    "NLL above the network's, mean": "≤ 0",
    "accuracy below the network's, the largest": "≤ 0.01",
    "calibration error above the network's, mean": "≤ 0.01",
    "share of trainings that warn": "≤ 0",
}
SECTION = "Laplace for a network that was trained by Adam"
POINTS: tuple[Point, ...] = (
    *(
        Point(
            SECTION,
            f"laplace_{structure.replace(' ', '_')}",
            f"`bs.laplace(network, data, likelihood='categorical')`, {structure}: ten tables and digits, networks "
            "stopped early, with weight decay and overfitted.",
            partial(_tables, structure),
            WANTED,
            240.0,
        )
        for structure in STRUCTURES
    ),
    Point(
        SECTION,
        "laplace_spoilt",
        "The same on digits with `structure='diagonal', prior_precision=1e-4`.",
        _spoilt,
        {"says that predictions are worse": "≥ 1"},
    ),
)
