"""The published data sets, read from the folder beside the repository, and their splits."""

from __future__ import annotations

import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

DATA = Path(__file__).resolve().parents[2] / "../shared/data"

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Inputs of shape (N, D) and labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Split:
    """Rows to train on, to choose by, and to test on."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class RegressionSplit:
    """Standardised rows to train and test on, and the scale of the targets.

    Attributes:
        train: inputs and targets, both standardised by the training rows.
        test: in the same units.
        scale: of one unit of the standardised targets, in the data's own.
    """

    train: Rows
    test: Rows
    scale: float


def folder(name: str) -> Path:
    """A folder of the reference data; where there is none, the run ends and says so.

    Raises:
        SystemExit: if the folder is absent.
    """
    path = DATA / name
    if not path.is_dir():
        print(f"skipped: no folder {path.name!r} in the reference data, {DATA.resolve()}", file=sys.stderr)
        raise SystemExit(0)
    return path


def text(path: Path, delimiter: str | None = None) -> Floats:
    """A table of numbers."""
    return np.loadtxt(path, delimiter=delimiter)


def classification(name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Inputs (N, D) and labels 0…C−1 of one of the classification sets."""
    if name == "digits":
        return load_digits(return_X_y=True)
    where = folder("uci_classification") / name
    if name == "banana":
        table = text(where / "banana.csv", ",")
        return table[:, :-1], table[:, -1].astype(np.int64) - 1
    if name == "breast_cancer":
        x, y = (
            np.concatenate([text(where / f"breast_cancer_scale_{part}_{half}.csv") for half in ("tr", "te")])
            for part in ("X", "y")
        )
        return x, y.astype(np.int64)
    return text(where / "X.txt"), text(where / "Y.txt").astype(np.int64)


def classification_split(name: str, seed: int) -> Split:
    """70 % to train, 15 % to validate, 15 % to test, by class, standardised by the first (Immer et al. 2021a)."""
    x, y = classification(name)
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=0.7, random_state=seed, stratify=y)
    halves = train_test_split(x_rest, y_rest, train_size=0.5, random_state=seed, stratify=y_rest)
    centre, scale = x_train.mean(0), _spread(x_train)
    x_validation, x_test, y_validation, y_test = halves
    named = ((x_train, y_train), (x_validation, y_validation), (x_test, y_test))
    return Split(*(Rows(_single((x - centre) / scale), torch.as_tensor(y)) for x, y in named))


def regression_split(name: str, split: int) -> RegressionSplit:
    """One of the 20 published splits of Gal and Ghahramani (2016), 90 % to train and 10 % to test."""
    where = folder("uci_regression") / name
    table = text(where / "data.txt")
    columns = text(where / "index_features.txt").astype(int)
    target = int(text(where / "index_target.txt"))
    train, test = (text(where / f"index_{part}_{split}.txt").astype(int) for part in ("train", "test"))
    x, y = table[:, columns], table[:, target]
    centre, scale = x[train].mean(0), _spread(x[train])
    x, unit = (x - centre) / scale, float(y[train].std())
    y = (y - y[train].mean()) / unit
    return RegressionSplit(*(Rows(_single(x[rows]), torch.as_tensor(y[rows])) for rows in (train, test)), unit)


def published_dropout(name: str, what: str) -> Floats:
    """MC dropout's published ``"test_ll"`` or ``"test_MC_rmse"`` per split, shape (20,)."""
    return text(folder("uci_regression") / name / "results" / f"{what}_100_xepochs_1_hidden_layers.txt")


def images(name: str, part: str) -> Rows:
    """Those of ``"mnist"``, the part ``"train"`` or ``"t10k"``: (N, 1, 28, 28) between 0 and 1, and labels."""
    where = folder(name)
    pixels = _idx(where / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = _idx(where / f"{part}-labels-idx1-ubyte.gz", 8)
    return Rows(torch.as_tensor(pixels).float() / 255.0, torch.as_tensor(labels).long())


def _idx(path: Path, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header).copy()


def _spread(x: Floats) -> Floats:
    """The standard deviation of each column, 1 where it is constant."""
    sd = x.std(0)
    return np.where(sd > 0, sd, 1.0)


def _single(x: Floats) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float32)
