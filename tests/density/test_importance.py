"""Importance sampling: exact proposals, known evidences, and tails that it must complain about."""

import math

import pytest
import torch

from bayescope import density
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from tests.density.targets import CORRELATED, gamma_poisson, two_gaussians


def test_an_exact_proposal():
    q = density.laplace(CORRELATED.log_density, [0.0, 0.0, 0.0])
    result = density.importance(CORRELATED.log_density, q, generator=0)
    assert float(result.log_evidence) == pytest.approx(CORRELATED.log_z)
    assert float(result.standard_error) < 1e-6
    assert result.pareto_k == -math.inf
    assert result.effective_draws == pytest.approx(4000)


def test_corrects_the_evidence():
    """Over 40 seeds the errors, in standard errors, have mean 0 and sd 1 (to 4 standard errors of these)."""
    target = gamma_poisson(total=6.0, rows=2)
    q = density.laplace(target.log_density, [1.0], transform="positive")
    results = [density.importance(target.log_density, q, draws=2000, generator=seed) for seed in range(40)]
    scores = torch.tensor([float((r.log_evidence - target.log_z) / r.standard_error) for r in results])
    assert abs(float(scores.mean())) < 4 / math.sqrt(40)
    assert 0.55 < float(scores.std()) < 1.45
    corrected = float(torch.stack([r.log_evidence for r in results]).mean())
    assert abs(corrected - target.log_z) < 0.2 * abs(float(q.log_evidence()) - target.log_z)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # in the far left tail q is thinner than p
def test_of_a_variational_fit():
    target = gamma_poisson(total=6.0, rows=2)
    q = density.variational(target.log_density, 1, transform="positive")
    result = density.importance(target.log_density, q, draws=20_000, generator=0)
    assert abs(float(result.log_evidence) - target.log_z) < 0.5 * (target.log_z - float(q.elbo))


def test_of_a_mixture():
    target = two_gaussians(weights=(0.3, 0.7), separation=3.0)
    q = density.laplace(target.log_density, [[-3.0], [3.0]], modes=2)
    result = density.importance(target.log_density, q, generator=1)
    assert float(result.log_evidence) == pytest.approx(0.0, abs=4 * float(result.standard_error) + 1e-9)


def test_thin_tails_are_warned_of():
    def student(x):  # two degrees of freedom
        return -1.5 * torch.log1p(0.5 * x.square()).sum()

    q = density.laplace(student, [0.1])
    with pytest.warns(ConvergenceWarning, match="k-hat"):
        result = density.importance(student, q, draws=20_000, generator=0)
    assert result.pareto_k > 0.7


def test_repeats():
    target = gamma_poisson(total=6.0, rows=2)
    q = density.laplace(target.log_density, [1.0], transform="positive")
    first, second = (density.importance(target.log_density, q, generator=5) for _ in range(2))
    assert first == second


def test_draws_outside_the_support_have_no_weight():
    def half(x):
        return torch.where(x > 0, -0.5 * x.square(), -math.inf).sum()

    q = density.laplace(lambda x: -0.5 * x @ x, [1.0])
    result = density.importance(half, q, generator=0, draws=20_000)
    assert float(result.log_evidence) == pytest.approx(0.5 * math.log(2 * math.pi) - math.log(2), abs=0.03)


class TestRefusals:
    def test_draws_have_no_density(self):
        q = density.metropolis(CORRELATED.log_density, [0.0, 0.0, 0.0], generator=0)
        with pytest.raises(UnsupportedError, match="Gaussian or mixture"):
            density.importance(CORRELATED.log_density, q)

    def test_a_density_that_is_no_number(self):
        q = density.laplace(CORRELATED.log_density, [0.0, 0.0, 0.0])
        with pytest.raises(InputError, match="NaN"):
            density.importance(lambda x: x.log().sum(), q)
