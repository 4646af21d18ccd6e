"""Terms tried off: the density ratio against fits without them, and what is left of noise."""

from __future__ import annotations

import pytest
import torch

from bayescope.additive import (
    AdditiveFit,
    AdditiveHyperparameters,
    laplace_at,
    pruned,
    removal_gains,
    settled,
    tightest_log_evidence,
)
from bayescope.likelihoods import Gaussian
from tests.additive.problems import FIRST, OFF, SECOND, Case, labels, nets, normal, problem_of, seeded, table
from tests.additive.test_model import model_of


def fit_of(precision: float, *, effect: float) -> AdditiveFit:
    rows = table(60)
    y = normal(60, 1) + effect * (rows.levels[:, 2:3] % 2).to(torch.float64)
    problem = problem_of([labels()], rows, y)
    at = AdditiveHyperparameters((torch.full((1, 1), precision, dtype=torch.float64),), 1e-4, Gaussian(1.0))
    return settled(problem, problem.centre, at, {}, "rest")


@pytest.mark.parametrize(("precision", "effect"), [(1.0, 0.0), (1.0, 3.0), (50.0, 0.0)])
def test_of_a_linear_gaussian_term_the_density_ratio_is_the_change_of_log_z(precision: float, effect: float) -> None:
    fit = fit_of(precision, effect=effect)
    [(gain, family, term)] = removal_gains(fit)
    assert (family, term) == (0, 0)
    without = AdditiveHyperparameters((torch.full((1, 1), 1e12, dtype=torch.float64),), 1e-4, Gaussian(1.0))
    off = settled(fit.problem, fit.problem.centre, without, {}, "rest")
    assert gain == pytest.approx(off.log_evidence - fit.log_evidence, abs=2e-3)  # of the steps that settle


def test_what_log_z_would_rather_be_without_goes_and_what_it_needs_stays() -> None:
    assert float(pruned(fit_of(1.0, effect=0.0)).at.precisions[0][0, 0]) == OFF
    assert float(pruned(fit_of(1.0, effect=3.0)).at.precisions[0][0, 0]) == 1.0


def test_a_term_that_is_half_off_is_tried_too() -> None:
    rows, y = table(60), normal(60, 1)
    problem = problem_of([nets(FIRST, SECOND)], rows, y)
    precisions = torch.tensor([[0.3, 1.0], [0.3, OFF]], dtype=torch.float64)
    at = AdditiveHyperparameters((precisions,), 1e-4, Gaussian(1.0))
    fit = settled(problem, problem.centre, at, {}, "rest")
    assert [term for _, _, term in removal_gains(fit)] == [0]  # the second is off in all that it is linear in
    assert pruned(fit).log_evidence >= fit.log_evidence


def test_the_tightest_evidence_is_that_of_the_full_structure() -> None:
    rows, y = table(40), normal(40, 1)
    problem = problem_of(
        [nets(FIRST, SECOND), labels()], rows, y, 0.5 + torch.rand(40, dtype=torch.float64, generator=seeded())
    )
    case = Case("both", problem, rows, Gaussian(0.5), 1)
    precisions = (torch.full((2, 2), 0.7, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64))
    fit = settled(problem, problem.centre, AdditiveHyperparameters(precisions, 1e-4, Gaussian(0.5)), {}, "rest")
    full = laplace_at(fit, model_of(case, fit.theta), "full", 0.0)
    assert tightest_log_evidence(fit) == pytest.approx(float(full.log_evidence()), abs=1e-8)
    assert tightest_log_evidence(fit) >= fit.log_evidence
