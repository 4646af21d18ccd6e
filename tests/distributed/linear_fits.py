"""Linear models that every rank fits: of arrays that all have, and of its part of a table on disk."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import distributed

import bayescope as bs
from bayescope.estimators import mapped_rows
from bayescope.linear import evidence, mode
from bayescope.precision import DensePrecision
from bayescope.processes import present
from tests.estimators.streamed import features, frame, opened

ROWS = 500


def every(folder: str) -> dict[str, Any]:
    """Fits by name."""
    table = frame(ROWS)
    found = {}
    for name, options in {
        "evidence": {"prior_precision": "evidence", "standardize": True},
        "variational": {"posterior": "variational", "class_weight": "balanced"},
        "expectation propagation": {"posterior": "ep", "prior_precision": "evidence", "standardize": True},
    }.items():
        model = bs.BayesianLogisticRegression(**options)
        found[name] = told(model.fit(features(table), table["two"], sample_weight=table["w"] + 0.5))
    found["regression"] = told(bs.BayesianLinearRegression().fit(features(table), table["y"]))
    for held in (0, mapped_rows.HELD_BYTES):
        with mock.patch.object(mapped_rows, "HELD_BYTES", held):
            found[f"classes on disk, {held}"] = told(
                bs.BayesianLogisticRegression(prior_precision="evidence", standardize=True, features="polynomial").fit(
                    opened(folder, "two", weighted=True), "two", sample_weight="w"
                )
            )
            found[f"numbers on disk, {held}"] = told(
                bs.BayesianLinearRegression(standardize=True).fit(opened(folder, "y"), "y")
            )
    return found | large(folder)


def rounded(folder: str) -> dict[str, Any]:
    """Rank 1 rounds solutions and eigenvalues in another way, as with another number of threads."""
    solve, eigh, factor = DensePrecision.solve, torch.linalg.eigh, 1.0 + 1e-13 * present().rank
    with (
        mock.patch.object(DensePrecision, "solve", lambda self, b: solve(self, b) * factor),
        mock.patch.object(torch.linalg, "eigh", lambda a: (eigh(a)[0] * factor, eigh(a)[1])),
    ):
        return every(folder)


def large(folder: str) -> dict[str, Any]:
    """A climb that begins on some of the rows, as that of a large table does: every rank takes those of its part."""
    with (
        mock.patch.multiple(mode, SAMPLED_ROWS=100, SAMPLED_SHARE=5, LARGE_ROWS=300, STRIDE=3),
        mock.patch.object(evidence, "LARGE_ROWS", 300),
        mock.patch.object(mapped_rows, "HELD_BYTES", 0),
    ):
        model = bs.BayesianLogisticRegression(prior_precision="evidence", standardize=True)
        table = frame(ROWS)
        return {
            "large on disk": told(model.fit(opened(folder, "two"), "two")),
            "large in memory": told(model.fit(features(table), table["two"])),
        }


def refusals(folder: str) -> list[str]:
    """What each rank is told: of different tables, and of a file that one of them cannot read."""
    rank = distributed.get_rank()
    found = []
    other = frame(ROWS, seed=rank)
    try:
        bs.BayesianLogisticRegression().fit(features(other)[["dose"]], other["two"])
    except bs.errors.InputError as error:
        found.append(str(error))
    table = opened(folder, "two")
    with mock.patch.object(type(table), "blocks", _broken if rank == 1 else type(table).blocks):
        try:
            bs.BayesianLogisticRegression().fit(table, "two")
        except bs.errors.ProcessError as error:
            found.append(str(error))
    with bs.distributed.alone():
        bs.BayesianLogisticRegression().fit(features(other)[["dose"]], other["two"])
        found.append(str(present().count))
    return found


def _broken(*_: object, **__: object) -> Any:
    raise bs.errors.InputError("part-1.parquet: cannot be read")


def told(model: Any) -> dict[str, Any]:
    q = model.posterior_
    return {
        "mean": q.mean.numpy(),
        "precision": q.precision.to_dense().numpy(),
        "prior": np.asarray(model.prior_precision_),
        "summary": model.summary(),
        "goes on": (q.infer is not None, q.lost),
    }
