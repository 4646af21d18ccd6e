"""Features of a wide table enter a few at a time: the odds, the gains, and what a fit of few rows keeps."""

from __future__ import annotations

import math
from functools import partial
from math import comb
from typing import Any

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope.additive import AdditiveFit, AdditiveHyperparameters, AdditiveProblem, Design, climb, settled
from bayescope.additive.fit import MOST_PRECISION
from bayescope.additive.interactions import gains_by_precision
from bayescope.additive.selection import Begun, log_odds, with_silent
from bayescope.likelihoods import Gaussian
from tests.additive.problems import FIRST, SECOND, hyperparameters, labels, nets, normal, problem_of, table


def wide(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three columns that y depends on, among many that it does not, at places that are drawn."""
    source = np.random.default_rng(seed)
    X = source.standard_normal((rows, columns))
    f = np.sin(2.0 * X[:, 3]) + 0.5 * X[:, 11] ** 2 + np.tanh(2.0 * X[:, columns - 1])
    return X, f + 0.3 * source.standard_normal(rows)


@pytest.fixture(scope="module")
def fitted() -> tuple[bs.NeuralAdditiveRegressor, np.ndarray, np.ndarray]:
    X, y = wide(240, 90)
    return bs.NeuralAdditiveRegressor(hidden=12, random_state=0).fit(X[:120], y[:120]), X[120:], y[120:]


def test_a_wide_table_keeps_the_columns_that_y_depends_on(
    fitted: tuple[bs.NeuralAdditiveRegressor, np.ndarray, np.ndarray],
) -> None:
    model, X, y = fitted
    on = {name for name, layers in model.prior_precision_.items() if min(_outer(layers)) < MOST_PRECISION}
    assert {"x3", "x11", "x89"} <= on
    assert len(on) <= 6
    # The noise has the sd 0.3, and the best constant leaves more than 1
    assert float(np.sqrt(np.mean((model.predict(X) - y) ** 2))) < 0.55


def test_features_that_never_entered_have_an_effect_of_zero(
    fitted: tuple[bs.NeuralAdditiveRegressor, np.ndarray, np.ndarray],
) -> None:
    model, X, _ = fitted
    off = next(j for j in range(90) if min(_outer(model.prior_precision_[f"x{j}"])) >= MOST_PRECISION)
    effect = model.effects(off)
    assert float(np.abs(effect.mean).max()) == 0.0
    assert float(np.abs(effect.sd).max()) == 0.0
    moved = X.copy()
    moved[:, off] += 1.0
    np.testing.assert_array_equal(model.predict(moved), model.predict(X))
    assert len(model.importance().names) == 90


def test_noise_alone_keeps_no_column() -> None:
    X, _ = wide(60, 80)
    y = np.random.default_rng(9).standard_normal(60)
    model = bs.NeuralAdditiveRegressor(hidden=12, random_state=0).fit(X, y)
    assert all(min(_outer(layers)) >= MOST_PRECISION for layers in model.prior_precision_.values())
    mean, sd = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y.mean(), atol=0.05)
    np.testing.assert_allclose(sd, y.std(), rtol=0.2)


def test_no_climb_reads_the_features_that_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(problem: AdditiveProblem, *args: Any, **options: Any) -> AdditiveFit:
        sizes.append(sum(len(family.terms) for family in problem.families))
        return climb(problem, *args, **options)

    monkeypatch.setattr("bayescope.additive.additive.climb", counted)
    X, y = wide(120, 90)
    model = bs.NeuralAdditiveRegressor(hidden=12, random_state=0).fit(X, y)
    assert max(sizes) <= 15
    assert len(model.additive_.model.terms) == 90


def test_silent_terms_change_neither_the_weights_nor_the_evidence() -> None:
    rows, y = table(40), normal(40, 1)
    some, rest = problem_of([nets(SECOND)], rows, y), problem_of([nets(FIRST, SECOND), labels()], rows, y)
    fit, every = (
        settled(problem, problem.centre, hyperparameters(problem, Gaussian(0.5)), {}, "rest", 1e-10)
        for problem in (some, rest)
    )
    begun = with_silent(
        Begun.of(fit), Begun.of(every), partial(Design.of, rows=rows, weights=some.weights), shared=False
    )
    assert sorted(term.name for family in begun.families for term in family.terms) == ["a", "b", "label"]
    theta, centre = (
        torch.cat([*[part.flatten() for part in parts], some.split(flat)[1]])
        for parts, flat in ((begun.theta, fit.theta), (begun.centre, some.centre))
    )
    problem = AdditiveProblem(begun.families, begun.designs, y, some.weights, centre, None)
    at = AdditiveHyperparameters(begun.precisions, fit.at.intercept_precision, fit.at.likelihood)
    both = settled(problem, theta, at, {}, "rest", 1e-10)
    assert both.log_evidence == pytest.approx(fit.log_evidence, abs=1e-3)
    torch.testing.assert_close(both.problem.split(both.theta)[0][0], some.split(fit.theta)[0][0], atol=1e-3, rtol=0)
    assert all(float(part.abs().max()) < 1e-5 for part in both.problem.split(both.theta)[0][1:])


def test_far_too_many_columns_are_refused_at_once() -> None:
    X = np.random.default_rng(0).standard_normal((8, 10_001))
    with pytest.raises(bs.errors.InputError, match=r"X: expected at most 10,000 columns .* got 10,001\. Take a linear"):
        bs.NeuralAdditiveRegressor().fit(X, np.arange(8.0))


@pytest.mark.parametrize(("count", "chosen", "new"), [(40, 0, 5), (500, 5, 10), (10, 2, 1)])
def test_the_odds_are_those_of_sets_of_equal_size(count: int, chosen: int, new: int) -> None:
    expected = math.log(comb(count, chosen + new) / comb(count, chosen))
    assert log_odds(count, chosen, new) == pytest.approx(expected)


def test_the_odds_never_speak_for_a_feature() -> None:
    assert log_odds(10, 8, 1) == 0.0


def test_the_gain_of_functions_is_the_difference_of_two_exact_evidences() -> None:
    source = torch.Generator().manual_seed(3)
    n, p, noise = 30, 4, 0.7
    phi = torch.randn(n, p, generator=source, dtype=torch.float64)
    y = torch.randn(n, generator=source, dtype=torch.float64)
    constant = torch.ones(n, 1, dtype=torch.float64)
    y = y - y.mean()  # at the mode of the constant, the slope is (y − f)/σ²
    functions = torch.cat([constant, phi], 1)[None]
    one = torch.ones(1, n, 1, dtype=torch.float64)
    got = gains_by_precision(functions, 1, (y / noise)[None, :, None], one / noise)[0]
    # p = 1 is the 13th of 22 precisions from 1e-4 to 1e3; the constant has next to no prior
    precisions = torch.logspace(-4, 3, 22, dtype=torch.float64)
    broad = 1e6 * noise / n
    without = noise * torch.eye(n, dtype=torch.float64) + broad * constant @ constant.mT
    for place in (0, 12, 21):
        both = without + phi @ phi.mT / precisions[place]
        assert float(got[place]) == pytest.approx(_log_normal(y, both) - _log_normal(y, without), abs=1e-4)


def _log_normal(y: torch.Tensor, covariance: torch.Tensor) -> float:
    return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


def _outer(layers: float | dict[str, float]) -> list[float]:
    return [layers] if isinstance(layers, float) else [value for name, value in layers.items() if name != "inner"]
