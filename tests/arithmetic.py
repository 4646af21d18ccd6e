"""Fits whose answers agree between processors: `python -m tests.arithmetic` prints the answers and their tolerances."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_wine, make_moons
from torch import Tensor, nn

import bayescope as bs

# A sum over rows, a factorisation and a solve round to a small multiple of ε; a badly conditioned posterior multiplies
# that by its condition number.
ROUNDINGS = 1e4 * sys.float_info.epsilon
Answer = tuple[list[float], float]

ENVIRONMENTS = {
    "baseline": {
        "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OPENBLAS_CORETYPE": "Nehalem",
        "OMP_NUM_THREADS": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell",
        "OMP_NUM_THREADS": "2",
    },
}  # fmt: skip


def conditioned(posterior: bs.posterior.GaussianPosterior) -> float:
    """The relative error that rounding may leave in an answer of this posterior."""
    return ROUNDINGS * float(torch.linalg.cond(posterior.precision.to_dense()))


def linear() -> Answer:
    """Means, standard deviations and evidence of a regression on ten correlated columns."""
    X, y = load_diabetes(return_X_y=True)
    model = bs.BayesianLinearRegression(standardize=True).fit(X, y)
    mean, sd = model.predict(X[:20], return_std=True)
    return [*mean, *sd, model.log_evidence_], conditioned(model.posterior_)


def logistic(posterior: str, classes: int) -> Answer:
    """Probabilities and evidence, or the bound, of a classification of wines."""
    X, y = load_wine(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    model = bs.BayesianLogisticRegression(posterior=posterior, prior_precision="evidence", standardize=True).fit(X, y)
    score = model.elbo_ if posterior == "variational" else model.log_evidence_
    return [*model.predict_proba(X[::9]).ravel(), score], 1e-6


def network() -> tuple[nn.Module, tuple[np.ndarray, np.ndarray]]:
    """A small network with given starting weights, and its data."""
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, dtype=torch.float64, generator=generator))
    return module, make_moons(60, noise=0.25, random_state=0)


def laplace() -> Answer:
    """Probabilities and evidence of Laplace at the mode that L-BFGS reaches."""
    module, data = network()
    point = bs.fit_map(module, data, likelihood="bernoulli", prior_precision=0.5, optimizer="lbfgs", epochs=100)
    q = bs.laplace(point.model, data, likelihood="bernoulli", prior_precision=0.5, structure="full")
    # The mode is reached to a criterion of its own, 1e-3 of a standard deviation.
    return [*flat(q.predict(data[0][:20]).probs), float(q.log_evidence())], 1e-3


def additive() -> Answer:
    """Means and standard deviations of an additive model of four columns."""
    X, y = load_diabetes(return_X_y=True)
    model = bs.NeuralAdditiveRegressor(random_state=0).fit(X[:200, :4], y[:200])
    mean, sd = model.predict(X[:20, :4], return_std=True)
    return [*mean, *sd], 1e-2


def density() -> Answer:
    """The mode, the covariance and the evidence of a skewed density."""

    def log_density(x: Tensor) -> Tensor:
        mean, scale = x
        return -5.0 * scale.log() - ((mean - 1.0) ** 2 + 2.0) / (2.0 * scale**2) - 0.1 * mean**2

    q = bs.density.laplace(log_density, [0.5, 1.0], transform=[None, "positive"])
    return [*flat(q.mean), *flat(q.covariance), float(q.log_evidence())], 1e-8


def flat(values: object) -> list[float]:
    """Numbers of a tensor or an array."""
    numbers: list[float] = np.asarray(values).ravel().tolist()
    return numbers


FITS: dict[str, Callable[[], Answer]] = {
    "linear": linear,
    "logistic, laplace": lambda: logistic("laplace", 2),
    "logistic, ep": lambda: logistic("ep", 2),
    "logistic, variational": lambda: logistic("variational", 2),
    "logistic, three classes": lambda: logistic("laplace", 3),
    "laplace": laplace,
    "additive": additive,
    "density": density,
}

if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.stdout.write(json.dumps({name: fit() for name, fit in FITS.items()}))
