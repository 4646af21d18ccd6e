"""Precisions of groups of weights, against the dense Gaussian density of y and modes that are found anew."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.testing import assert_close

from bayescope.errors import ConvergenceWarning
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.linear import (
    GroupedEvidence,
    LinearDensity,
    WeightGroups,
    find_mode,
    laplace_at,
    maximise_evidence,
    maximise_group_evidence,
    tune_group_scales,
    tune_scales,
    weight_prior,
)
from bayescope.models import LinearModel
from bayescope.priors import Prior

LEARNT = math.nan


def groups(index: list[int], given: list[float]) -> WeightGroups:
    return WeightGroups(torch.tensor(index), torch.tensor(given, dtype=torch.float64))


def relevance(features: int) -> WeightGroups:
    return groups(list(range(features)), [LEARNT] * features)


def regression(
    rows: int = 40, columns: int = 7, *, bias: bool = True, units: float = 3.0, seed: int = 0
) -> LinearDensity:
    """Columns of ever larger units, of which the first two are correlated and three tell something of y."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    x[:, 1] += 2.0 * x[:, 0]
    truth = torch.zeros(columns, dtype=torch.float64)
    truth[[0, 1, 4]] = torch.tensor([1.0, -0.6, 0.5], dtype=torch.float64)
    y = x @ truth + 0.8 * torch.randn(rows, dtype=torch.float64, generator=generator) + 1.0
    x = x * 10.0 ** torch.linspace(0, units, columns, dtype=torch.float64)
    return LinearDensity.of(LinearModel(columns, 1, bias), Gaussian(), Prior(), x, y[:, None])


def log_density(table: LinearDensity, precision: torch.Tensor, noise: float, intercept: float | None) -> float:
    """log N(y; 0, noise I + X diag(1/α) Xᵀ + 11ᵀ/τ); with a flat intercept the density of y's contrasts, times N^-½."""
    x, y = table.features.numpy(), table.targets[:, 0].numpy()
    covariance = noise * np.eye(len(x)) + (x / precision.numpy()) @ x.T
    if table.model.bias and intercept is None:
        contrasts = np.linalg.svd(np.ones((1, len(x))))[2][1:]
        density = multivariate_normal(cov=contrasts @ covariance @ contrasts.T)
        return float(density.logpdf(contrasts @ y)) - 0.5 * math.log(len(x))
    return float(multivariate_normal(cov=covariance + table.model.bias / (intercept or 1.0)).logpdf(y))


SCALES = {
    "relevance": (relevance(7), None, {}),
    "relevance, known noise": (relevance(7), None, {"noise_variance": 0.5}),
    "relevance, proper intercept": (relevance(7), 0.2, {}),
    "pairs": (groups([0, 0, 1, 1, 2, 2, 2], [LEARNT] * 3), None, {}),
    "some known": (groups([0, 0, 1, 1, 2, 2, 2], [LEARNT, 3.0, LEARNT]), None, {}),
    "some known, proper intercept": (groups([0, 1, 1, 1, 2, 2, 2], [LEARNT, 3.0, LEARNT]), 0.2, {}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", SCALES.values(), ids=SCALES)
def test_scales_of_groups_are_a_maximum_of_the_exact_evidence(case, bias: bool):
    which, intercept, known = case
    table = regression(bias=bias)
    found = tune_group_scales(table, which, intercept_prior_precision=intercept, **known)
    precision, noise = found.prior_precision, found.noise_variance
    here = log_density(table, precision, noise, intercept)
    assert found.log_evidence == pytest.approx(here, abs=1e-8)
    if known:
        assert noise == known["noise_variance"]
    else:
        h = 1e-3
        up, down = (log_density(table, precision, noise * math.exp(step), intercept) for step in (h, -h))
        assert abs(up - down) / (2 * h) < 1e-4
        assert max(up, down) < here
    for group, given in enumerate(which.given.tolist()):
        members = which.index == group
        if not math.isnan(given):
            assert (precision[members] == given).all()
        elif precision[members].isinf().all():
            on = torch.where(members, 1e4 * (table.features**2).sum(0)[members].mean() / noise, precision)
            assert log_density(table, on, noise, intercept) < here
        else:
            moved = [log_density(table, torch.where(members, f * precision, precision), noise, intercept)
                     for f in (0.999, 1.001, 0.5, 2.0, 1e3)]  # fmt: skip
            assert max(moved) < here
            assert abs(moved[1] - moved[0]) / 2e-3 < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_a_weight_is_off_if_and_only_if_its_quality_is_below_its_sparsity(seed: int):
    """Tipping & Faul (2003), eqs. 19–21, by the dense covariance of y: q² ≤ s, else α = s²/(q² − s)."""
    table = regression(seed=seed)
    found = tune_group_scales(table, relevance(7), intercept_prior_precision=0.2)
    x, y, precision = table.features, table.targets[:, 0], found.prior_precision
    for j in range(7):
        others = torch.arange(7) != j
        covariance = found.noise_variance * torch.eye(40, dtype=torch.float64) + 1.0 / 0.2
        covariance = covariance + (x[:, others] / precision[others]) @ x[:, others].mT
        s, q = (float(x[:, j] @ torch.linalg.solve(covariance, each)) for each in (x[:, j], y))
        if q**2 <= s:
            assert precision[j].isinf()
        else:
            assert float(precision[j]) == pytest.approx(s**2 / (q**2 - s), rel=1e-5)
    assert 0 < int(precision.isinf().sum()) < 7


def test_derivatives_are_those_of_the_evidence():
    table = regression()
    x, y = table.features - table.features.mean(0), table.targets[:, 0] - table.targets.mean()
    index, given = torch.tensor([0, 0, 1, 2, 3, 4, 4]), torch.tensor([LEARNT, LEARNT, 2.0, LEARNT, LEARNT]).double()
    scale = GroupedEvidence.scales(x.mT @ x, index, 5)
    evidence = GroupedEvidence(x.mT @ x, x.mT @ y, index, given, scale, 39.0, float(y @ y))
    z, h = torch.tensor([0.5, 4.0, 0.0, 0.0, 8.0, -0.3]).double(), 1e-5
    _, gradient, hessian = evidence(z)
    for k in (0, 1, 4, 5):
        step = h * torch.eye(6, dtype=torch.float64)[k]
        (up, after, _), (down, before, _) = evidence(z + step), evidence(z - step)
        assert float(gradient[k]) == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-6)
        assert_close(hessian[k], (after - before) / (2 * h), rtol=1e-5, atol=1e-5)
    # Switched off, a group has a slope at which it begins: one-sided.
    step = h * torch.eye(6, dtype=torch.float64)[3]
    assert float(gradient[3]) == pytest.approx((evidence(z + step)[0] - evidence(z)[0]) / h, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("intercept", [None, 0.2])
def test_one_group_is_one_precision(intercept: float | None):
    table, one = regression(units=0.5), groups([0] * 7, [LEARNT])
    ours = tune_group_scales(table, one, intercept_prior_precision=intercept)
    theirs = tune_scales(table, intercept_prior_precision=intercept)
    assert ours.prior_precision.tolist() == pytest.approx([theirs.prior_precision] * 7, rel=1e-5)
    assert ours.noise_variance == pytest.approx(theirs.noise_variance, rel=1e-6)
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-9)


def test_y_without_noise_is_warned_of():
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None] ** torch.arange(1, 4)
    table = LinearDensity.of(LinearModel(3), Gaussian(), Prior(), x, 2.0 * x[:, :1] + 1.0)
    with pytest.warns(ConvergenceWarning, match="without noise"):
        assert tune_group_scales(table, relevance(3), intercept_prior_precision=None).noise_variance < 1e-8


INTERCEPT = 1e-2


def classification(likelihood: Likelihood, rows: int, columns: int, strength: float, seed: int = 0) -> LinearDensity:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator) * torch.arange(1, columns + 1)
    score = strength * (x[:, 0] + 0.4 * x[:, 1]) + torch.randn(rows, dtype=torch.float64, generator=generator)
    classes = 3 if likelihood.name == "categorical" else 1
    labels = torch.bucketize(score, torch.tensor([-0.5, 0.5]).double()) if classes == 3 else (score > 0.3).double()
    return LinearDensity.of(LinearModel(columns, classes), likelihood, Prior(), x, likelihood.targets(labels, classes))


def log_evidence(table: LinearDensity, precision: torch.Tensor) -> float:
    """Laplace's, from a mode found anew in the columns that are not switched off."""
    kept = ~precision.isinf()
    model = LinearModel(int(kept.sum()), table.model.outputs)
    prior = weight_prior(model, precision[kept], INTERCEPT)
    narrow = LinearDensity.of(model, table.likelihood, prior, table.features[:, kept], table.targets)
    return float(laplace_at(find_mode(narrow)).log_evidence())


CLASSES = {
    "logit": classification(Bernoulli("logit"), 60, 5, 1.0),
    "probit": classification(Bernoulli("probit"), 60, 5, 1.0),
    "categorical": classification(Categorical(), 60, 4, 1.0),
    "few rows": classification(Bernoulli("logit"), 25, 9, 2.0, seed=4),
    "separable": classification(Bernoulli("logit"), 36, 3, 100.0),
}


@pytest.mark.parametrize("table", CLASSES.values(), ids=CLASSES)
def test_relevance_is_a_maximum_of_laplaces_evidence(table: LinearDensity):
    features = table.model.features
    precision = maximise_group_evidence(table, relevance(features), intercept_prior_precision=INTERCEPT).prior_precision
    here, h = log_evidence(table, precision), 1e-3
    for j in range(features):
        column = torch.arange(features) == j
        if precision[j].isinf():
            weak = torch.where(column, 1e4 * (table.features[:, j] ** 2).sum(), precision)
            assert log_evidence(table, weak) < here + 1e-9
            continue
        moved = [
            log_evidence(table, torch.where(column, math.exp(t) * precision, precision)) for t in (h, -h, 0.3, -0.3)
        ]
        assert abs(moved[0] - moved[1]) / (2 * h) < 3e-6
        assert max(moved) < here
    scalar = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    assert here > float(laplace_at(scalar.mode).log_evidence())


@pytest.mark.parametrize("table", CLASSES.values(), ids=CLASSES)
def test_laplaces_evidence_of_one_group_is_that_of_one_precision(table: LinearDensity):
    features = table.model.features
    found = maximise_group_evidence(
        table, groups([0] * features, [LEARNT]), intercept_prior_precision=INTERCEPT
    ).prior_precision
    scalar = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    assert found.tolist() == pytest.approx([scalar.prior_precision] * features, rel=1e-4)


def test_known_precisions_stay_and_others_are_learnt_beside_them():
    table = CLASSES["logit"]
    which = groups([0, 0, 1, 1, 1], [LEARNT, 2.0])
    precision = maximise_group_evidence(table, which, intercept_prior_precision=INTERCEPT).prior_precision
    assert precision[2:].tolist() == [2.0] * 3
    here = log_evidence(table, precision)
    first = which.index == 0
    assert all(log_evidence(table, torch.where(first, f * precision, precision)) < here for f in (0.9, 1.1))


@pytest.mark.parametrize("seed", range(6))
def test_order_and_units_of_the_columns_do_not_matter(seed: int):
    rng = np.random.default_rng(seed)
    order, units = torch.from_numpy(rng.permutation(6)), torch.from_numpy(10.0 ** rng.uniform(-4, 4, 6))
    table = regression(30, 6, seed=seed)
    x = (table.features * units)[:, order]
    moved = LinearDensity.of(table.model, table.likelihood, Prior(), x, table.targets)
    ours, theirs = (
        tune_group_scales(each, relevance(6), intercept_prior_precision=None).prior_precision for each in (moved, table)
    )
    assert_close(ours, (theirs * units**2)[order], rtol=1e-5, atol=0.0)
    labels = (table.targets > table.targets.mean()).double()
    ours, theirs = (
        maximise_group_evidence(
            LinearDensity.of(table.model, Bernoulli(), Prior(), each, labels),
            relevance(6),
            intercept_prior_precision=INTERCEPT,
        ).prior_precision
        for each in ((table.features * units)[:, order], table.features)
    )
    assert_close(ours, (theirs * units**2)[order], rtol=1e-3, atol=0.0)


def test_a_large_table_takes_few_passes():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 4, dtype=torch.float64, generator=generator)
    truth = torch.tensor([0.5, 0.2, 0.0, 0.0, -0.3], dtype=torch.float64)
    model = LinearModel(4)
    y = Bernoulli().sample(model.forward(x, truth), generator)
    table = LinearDensity.of(model, Bernoulli(), Prior(), x, y)
    precision = maximise_group_evidence(table, relevance(4), intercept_prior_precision=INTERCEPT).prior_precision
    assert precision[0].item() == pytest.approx(1 / 0.25, rel=0.2)
    assert precision[1].item() == pytest.approx(1 / 0.04, rel=0.2)
    assert precision[2:].isinf().any()
