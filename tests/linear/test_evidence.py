from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from bayescope.errors import ConvergenceError, ConvergenceWarning
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.linear import (
    Batch,
    LinearDensity,
    RowTable,
    effective_parameters,
    find_mode,
    laplace_at,
    maximise_evidence,
    tune_scales,
    weight_prior,
)
from bayescope.models import LinearModel
from bayescope.priors import Prior

INTERCEPT = 1e-4


def density(likelihood: Likelihood, rows: int, columns: int, strength: float, seed: int = 0) -> LinearDensity:
    """A table whose first column tells something of the labels, with the other columns of ever larger units."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator) * torch.arange(1, columns + 1)
    score = strength * x[:, 0] + torch.randn(rows, dtype=torch.float64, generator=generator)
    classes = 3 if likelihood.name == "categorical" else 1
    labels = torch.bucketize(score, torch.tensor([-0.5, 0.5]).double()) if classes == 3 else (score > 0.3).double()
    model = LinearModel(columns, classes)
    return LinearDensity.of(model, likelihood, Prior(), x, likelihood.targets(labels, classes))


def log_evidence(table: LinearDensity, t: float) -> float:
    """Laplace's log evidence at log α = t, from a mode found anew."""
    return float(
        laplace_at(find_mode(table.with_prior(weight_prior(table.model, math.exp(t), INTERCEPT)))).log_evidence()
    )


TABLES = {
    "logit": density(Bernoulli("logit"), 60, 5, 1.0),
    "probit": density(Bernoulli("probit"), 60, 5, 1.0),
    "categorical": density(Categorical(), 60, 4, 1.0),
    "few rows": density(Bernoulli("logit"), 20, 9, 3.0, seed=3),
    "separable": density(Bernoulli("logit"), 36, 3, 100.0),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_evidence_is_stationary_and_highest_nearby(table: LinearDensity):
    tuned = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    t, h = math.log(tuned.prior_precision), 1e-3
    slope = (log_evidence(table, t + h) - log_evidence(table, t - h)) / (2 * h)
    assert abs(slope) < 2e-6
    here = log_evidence(table, t)
    assert all(log_evidence(table, t + step) < here for step in (-1.0, -0.3, -0.05, 0.05, 0.3, 1.0))
    assert not tuned.useless
    assert float(laplace_at(tuned.mode).log_evidence()) == pytest.approx(here, abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_small_and_odd_tables_all_come_to_rest(seed: int):
    """Where the expansion misleads: more weights than rows, separable classes, no signal, units far from 1."""
    rng = np.random.default_rng(seed)
    likelihood = (Bernoulli("logit"), Bernoulli("probit"), Categorical())[seed % 3]
    table = density(likelihood, int(rng.integers(5, 60)), int(rng.integers(1, 12)), (0, 0.5, 3, 100)[seed % 4], seed)
    tuned = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    t, h = math.log(tuned.prior_precision), 1e-3
    assert tuned.useless or abs(log_evidence(table, t + h) - log_evidence(table, t - h)) / (2 * h) < 1e-5
    assert 0 <= tuned.effective_parameters <= table.model.outputs * table.model.features


def test_a_known_noise_is_tuned_as_in_closed_form():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 4, dtype=torch.float64, generator=generator) + 1.0
    y = (
        x @ torch.tensor([1.0, 0.5, 0.0, 0.0]).double()
        + 2.0
        + torch.randn(50, dtype=torch.float64, generator=generator)
    )
    table = LinearDensity.of(LinearModel(4), Gaussian(1.3), Prior(), x, y[:, None])
    tuned = maximise_evidence(table, intercept_prior_precision=0.01)
    exact = tune_scales(table, intercept_prior_precision=0.01, noise_variance=1.3)
    assert tuned.prior_precision == pytest.approx(exact.prior_precision, rel=1e-8)
    assert float(laplace_at(tuned.mode).log_evidence()) == pytest.approx(exact.log_evidence, abs=1e-9)


def test_the_intercept_keeps_its_own_prior():
    tuned = maximise_evidence(TABLES["categorical"], intercept_prior_precision=0.37)
    diagonal = tuned.mode.density.prior_precision.diagonal()
    assert diagonal[-3:].tolist() == [0.37] * 3
    assert diagonal[:-3].tolist() == pytest.approx([tuned.prior_precision] * 12)


def test_well_determined_weights_are_counted():
    """Two strong columns and three that the prior alone holds: γ counts the former."""
    table = TABLES["logit"]
    strong = weight_prior(table.model, torch.tensor([1e-9, 1e-9, 1e9, 1e9, 1e9]), INTERCEPT)
    precision = find_mode(table.with_prior(strong)).precision
    assert effective_parameters(table.model, strong, precision) == pytest.approx(2.0, abs=1e-3)


def test_features_without_information_are_held_at_zero():
    x = torch.tensor([[-1.0], [1.0]] * 20, dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 1.0, 1.0] * 10)  # balanced within both values of x
    table = LinearDensity.of(LinearModel(1), Bernoulli(), Prior(), x, y[:, None].double())
    tuned = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    assert tuned.useless
    assert tuned.effective_parameters < 1e-5
    assert tuned.prior_precision == pytest.approx(1e6 * 10.0, rel=1e-6)  # Σ σ(0)σ(0) x² = 10
    assert abs(float(tuned.mode.theta[0])) < 1e-6


def test_a_prior_that_wants_to_be_flat_warns():
    """The weight is 10⁴ and its curvature 10⁶: the optimum α ≈ 10⁻⁸ lies below 10⁻¹⁰ times the curvature."""
    x = torch.randn(60, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = LinearDensity.of(LinearModel(1), Gaussian(1e-4), Prior(), x, 1e4 * x)
    with pytest.warns(ConvergenceWarning, match="flat"):
        tuned = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    assert not tuned.useless


def test_a_large_table_takes_few_passes():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 8, dtype=torch.float64, generator=generator)
    model = LinearModel(8)
    truth = 0.4 * torch.randn(9, dtype=torch.float64, generator=generator)
    y = Bernoulli().sample(model.forward(x, truth), generator)
    passes = []
    rows = RowTable.streamed(lambda: passes.append(1) or (Batch(x, y),), 200_000, 200_000.0)
    table = LinearDensity(model, Bernoulli(), Prior(), rows)
    tuned = maximise_evidence(table, intercept_prior_precision=INTERCEPT)
    assert len(passes) <= 5  # the first takes the rows that the search begins on
    t, h = math.log(tuned.prior_precision), 1e-2
    assert abs(log_evidence(table, t + h) - log_evidence(table, t - h)) / (2 * h) < 1e-4
    with pytest.raises(ConvergenceError, match="stationary"):
        maximise_evidence(table, intercept_prior_precision=INTERCEPT, climbs=0)


def test_one_precision_a_feature_is_the_same_in_every_class():
    prior = weight_prior(LinearModel(2, 3), torch.tensor([1.0, 4.0]).double(), 0.5)
    assert prior.diagonal(9).tolist() == [1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 0.5, 0.5, 0.5]
    assert weight_prior(LinearModel(2, 1, bias=False), 3.0, 0.5).diagonal(2).tolist() == [3.0, 3.0]


def test_no_warning_where_the_optimum_is_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maximise_evidence(TABLES["logit"], intercept_prior_precision=INTERCEPT)
