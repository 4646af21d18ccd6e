"""What type checkers know of answers: arrays in give arrays out, tensors in give tensors out."""

from collections.abc import Callable
from typing import assert_type

import numpy as np
import pandas as pd
from torch import Tensor

import bayescope as bs


def of_a_posterior(q: bs.Posterior, x: Tensor, rows: np.ndarray, named: dict[str, Tensor]) -> None:
    assert_type(q.predict(x), bs.Predictive[Tensor])
    assert_type(q.predict(x, method="sampled", samples=10, generator=0).mean, Tensor)
    assert_type(q.predict(named).probs, Tensor)
    assert_type(q.predict(rows).mean, np.ndarray)
    assert_type(q.predict([[1.0, 2.0]]).variance, Tensor | np.ndarray)
    assert_type(q.predict(pd.DataFrame()).sd, np.ndarray)
    assert_type(q.predict(rows)[2:].interval(0.9), tuple[np.ndarray, np.ndarray])
    assert_type(q.predict(x).log_prob(rows), Tensor)
    assert_type(q.sample(3, generator=0), Tensor)
    assert_type(q.log_evidence(), Tensor)
    assert_type(bs.most_informative(q.predict(rows), 2), np.ndarray)


def of_an_estimator(model: bs.BayesianLinearRegression, X: object, y: object, several: list[bs.Predictive]) -> None:
    assert_type(model.fit(X, y), bs.BayesianLinearRegression)
    assert_type(model.predict(X), np.ndarray)
    assert_type(model.predict(X, return_std=True), tuple[np.ndarray, np.ndarray])
    assert_type(model.predict_distribution(X), bs.Predictive[np.ndarray])
    assert_type(model.predict_distribution(X).quantile(0.5), np.ndarray)
    assert_type(bs.predict_distribution(model, X).sample(5), np.ndarray)
    assert_type(model.log_evidence_, float)
    assert_type(several[0].mean, Tensor | np.ndarray)


def of_a_density(log_density: Callable[[Tensor], Tensor]) -> None:
    assert_type(bs.density.laplace(log_density, [0.0]), bs.GaussianPosterior)
    assert_type(bs.density.nuts(log_density, 2), bs.DrawsPosterior)
    assert_type(bs.density.variational(log_density, 2).elbo, Tensor)
