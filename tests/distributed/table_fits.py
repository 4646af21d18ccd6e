"""Fits of a table on disk that every rank makes of its part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from torch import distributed

import bayescope as bs
from bayescope.additive import coded
from tests.estimators.streamed import features, frame, opened

CODED_ROWS = 64


def additive(folder: str) -> dict[str, Any]:
    coded.CODED_ROWS = CODED_ROWS
    table = opened(folder, "y", weighted=True, block_rows=100)
    model = bs.NeuralAdditiveRegressor(hidden=5, pair_hidden=4, epochs=6, interactions=1, random_state=0)
    return told(model.fit(table, "y", sample_weight="w"))


def network(folder: str) -> dict[str, Any]:
    table = opened(folder, "cls", weighted=True, block_rows=100)
    model = bs.BayesianMLPClassifier(hidden=(5,), epochs=6, batch_size=5000, random_state=0)
    return told(model.fit(table, "cls", sample_weight="w"))


def held() -> dict[str, Any]:
    """In memory, all rows on each rank: rank 0's seed counts."""
    table = frame()
    model = bs.NeuralAdditiveRegressor(hidden=3, epochs=3, burn_in=1, random_state=distributed_seed())
    return told(model.fit(features(table), table["y"]))


def others() -> str:
    """In memory, other rows on each rank."""
    table = frame(seed=distributed_seed())
    try:
        bs.NeuralAdditiveRegressor(hidden=3, epochs=3, burn_in=1).fit(features(table), table["y"])
    except bs.errors.InputError as error:
        return str(error)
    return "fitted"


def distributed_seed() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def both(folder: str) -> list[dict[str, Any]]:
    return [additive(folder), network(folder), held()]


def all_of_them(folder: str) -> tuple[list[dict[str, Any]], str]:
    return both(folder), others()


def told(model: Any) -> dict[str, Any]:
    some: pd.DataFrame = features(frame())[:30]
    predictive = model.predict_distribution(some)
    mean = predictive.probs if hasattr(model, "classes_") else predictive.mean
    return {"evidence": model.log_evidence_, "mean": np.asarray(mean), "weights": model.posterior_.location.numpy()}
