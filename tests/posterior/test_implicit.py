"""What can be asked of a posterior that draws functions and nothing else, and of mixtures of points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, UndefinedQuantityError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Gaussian, Likelihood
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, ImplicitPosterior, MixturePosterior, PointPosterior, Record
from bayescope.precision import DiagonalPrecision

MODEL = LinearModel(2, 1, True)
MEAN = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
X = np.array([[0.0, 1.0], [2.0, -1.0], [0.3, 0.3], [5.0, 5.0]])


@dataclass(frozen=True)
class HalfKept:
    """A linear model of whose weights each is doubled or dropped, the same for all rows of a pass."""

    def __call__(self, x: Any, n: int, generator: torch.Generator) -> Tensor:
        kept = 2.0 * torch.randint(2, (n, 3), generator=generator)
        return MODEL.forward(x, MEAN * kept)


def implicit(likelihood: Likelihood) -> ImplicitPosterior:
    return ImplicitPosterior(MEAN, HalfKept(), Record("mc_dropout"), MODEL, likelihood)


def test_its_moments_are_those_of_the_passes() -> None:
    p = implicit(Gaussian(0.7)).predict(X, samples=40_000, generator=0)
    terms = np.concatenate([X, np.ones((4, 1))], 1) * MEAN.numpy()
    variance = (terms**2).sum(1, keepdims=True)  # each term is doubled or dropped: its mean squared
    sd = np.sqrt(variance / 40_000)
    assert (np.abs(p.mean - terms.sum(1, keepdims=True)) < 5 * sd).all()
    np.testing.assert_allclose(p.epistemic, variance, rtol=0.05)
    np.testing.assert_allclose(p.aleatoric, 0.7)


def test_its_log_probability_averages_the_likelihoods() -> None:
    q, y = implicit(Bernoulli()), np.array([0, 1, 1, 0])
    f = q.sample_functions(X, 100, generator=3)
    want = torch.logsumexp(Bernoulli().log_prob(f, Bernoulli().targets(y, 1)), 0) - math.log(100)
    np.testing.assert_allclose(q.predict(X, generator=3).log_prob(y), want)  # 100 passes are the default


def test_answers_repeat_by_seed_and_do_not_depend_on_the_batch() -> None:
    q, state = implicit(Bernoulli()), torch.get_rng_state()
    whole = q.predict(X, generator=1).probs
    np.testing.assert_array_equal(whole, q.predict(X, generator=1).probs)
    np.testing.assert_allclose(whole[2:3], q.predict(X[2:3], generator=1).probs)
    assert not np.array_equal(whole, q.predict(X, generator=2).probs)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_has_a_mean_and_no_density() -> None:
    q = implicit(Bernoulli())
    assert torch.equal(q.mean, MEAN)
    assert q.sizes == (3,)
    for ask in (
        lambda: q.covariance,
        lambda: q.sd,
        lambda: q.sample(3),
        q.log_evidence,
        lambda: q.elbo,
        lambda: q.condition((X, np.zeros(4))),
    ):
        with pytest.raises(UndefinedQuantityError, match="mc_dropout"):
            ask()


def test_options_for_a_gaussian_are_refused() -> None:
    q = implicit(Bernoulli())
    for options in ({"method": "linearized"}, {"integral": "mackay"}):
        with pytest.raises(InputError, match="no Gaussian"):
            q.predict(X, **options)
    with pytest.raises(UnsupportedError, match="differentiable"):
        q.predict(torch.tensor(X, requires_grad=True), differentiable=True)


def test_a_mixture_of_points_is_their_average() -> None:
    points = [PointPosterior(MEAN + k, Record("map"), MODEL, Bernoulli()) for k in range(3)]
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    q = MixturePosterior(weights.log(), points, Record("ensemble"), MODEL, Bernoulli())
    each = np.stack([point.predict(X).probs for point in points])
    np.testing.assert_allclose(q.predict(X).probs, np.tensordot(weights.numpy(), each, 1))
    torch.testing.assert_close(q.mean, MEAN + 1.1)
    torch.testing.assert_close(q.covariance, torch.full((3, 3), 0.49, dtype=torch.float64))
    drawn = {tuple(draw) for draw in q.sample(50, generator=0).tolist()}
    assert drawn == {tuple((MEAN + k).tolist()) for k in range(3)}
    with pytest.raises(UndefinedQuantityError, match="density"):
        q.log_prob(MEAN)


def test_a_gaussian_is_read_as_its_method_says() -> None:
    precision = DiagonalPrecision(torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64))
    q = GaussianPosterior(MEAN, precision, Record("variational"), MODEL, Bernoulli(), method="sampled")
    same = q.predict(X, method="sampled", generator=0).probs
    np.testing.assert_array_equal(q.predict(X, generator=0).probs, same)
    assert "sampled" in q.predict(X).summary()
    assert "linearized" in q.predict(X, method="linearized").summary()
    assert "linearized" in q.predict(X, integral="quadrature").summary()  # only a Gaussian f has an integral
