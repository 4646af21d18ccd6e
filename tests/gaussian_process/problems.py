"""Problems of function space: few rows, of which each likelihood has labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.precision import DensePrecision
from tests.laplace.problems import normal

ROWS = 17  # fewer than the weights of `mlp`, and with two columns each more
CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}
X, NEW = normal(ROWS, 2, seed=1), 2.0 * normal(6, 2, seed=2)
LABELS = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(3))
TASKS: dict[str, tuple[Likelihood, int, Tensor]] = {
    "gaussian": (Gaussian(0.3), 2, normal(ROWS, 2, seed=4)),
    "noise for each output": (Gaussian([0.3, 1.2]), 2, normal(ROWS, 2, seed=4)),
    "categorical": (Categorical(), 3, LABELS),
    "bernoulli": (Bernoulli(), 1, LABELS > 0),
    "probit": (Bernoulli(link="probit"), 1, LABELS > 0),
    "multilabel": (Bernoulli(), 2, normal(ROWS, 2, seed=5) > 0),
}

FORMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "subset": {"approximation": "subset", "points": 5},
    "nystrom": {"approximation": "nystrom", "points": 5},
    "inducing": {"approximation": "inducing", "points": 5},
}


def dense_prior(dim: int) -> DensePrecision:
    root = normal(dim, dim, seed=6) / math.sqrt(dim)
    return DensePrecision(root @ root.mT + 0.3 * torch.eye(dim, dtype=torch.float64))


def gaussian(q: Posterior) -> GaussianPosterior:
    assert isinstance(q, GaussianPosterior)
    return q


def assert_equal(one: Posterior, other: Posterior, x: Any, **tolerance: Any) -> None:
    """The same predictive and evidence, and the same for what is computed from the fit."""
    p, q = one.predict(x), other.predict(x)
    for name in ("latent_mean", "latent_cov", "mean", "variance"):
        torch.testing.assert_close(getattr(p, name), getattr(q, name), **(tolerance or CLOSE))
    torch.testing.assert_close(one.log_evidence(), other.log_evidence(), **(tolerance or CLOSE))
