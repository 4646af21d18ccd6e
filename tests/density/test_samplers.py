"""One statistical test that every sampler passes, and that a sampler with a bug does not."""

import math
from typing import NamedTuple

import pytest
import torch

from bayescope import density
from bayescope.density import convergence
from bayescope.errors import ConvergenceWarning, InputError, OptionError
from bayescope.posterior import DrawsPosterior
from tests.density.targets import CORRELATED, Target, gamma_poisson, vector


def nuts(log_density, dim, **options) -> DrawsPosterior:
    return density.nuts(log_density, dim, **{"draws": 400, "tune": 300, **options})


def metropolis(log_density, dim, *, start, **options) -> DrawsPosterior:
    assert len(start) == dim or len(start[0]) == dim
    return density.metropolis(log_density, start, **{"draws": 1500, "tune": 1000, **options})


SAMPLERS = {"nuts": nuts, "metropolis": metropolis}
# Under the null each score is a standard normal: with nine of them at most, a correct sampler fails with probability
# below 9 · 6e-7 ≈ 5e-6 at a fresh seed. The seeds are fixed.
LARGEST_SCORE = 5.0


class Case(NamedTuple):
    target: Target
    transform: object
    start: list[float]


CASES = {
    "correlated Gaussian": Case(CORRELATED, None, [0.0, 0.0, 0.0]),
    "gamma in log coordinates": Case(gamma_poisson(total=2.0, rows=1), "positive", [1.0]),
}


def scores(draws, target):
    """(estimate − truth)/standard error, with effective sample sizes, of the first and second moments."""
    x = draws - target.mean
    dim = x.shape[-1]
    rows, columns = torch.triu_indices(dim, dim)
    products = x[..., rows] * x[..., columns]
    values = torch.cat([x, products], -1)
    truth = torch.cat([torch.zeros(dim, dtype=torch.float64), target.covariance[rows, columns]])
    _, effective = convergence(values)
    return (values.mean((0, 1)) - truth) / (values.flatten(0, 1).std(0) / effective.sqrt())


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # NUTS has few draws here
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_moments(sampler, case):
    q = sampler(case.target.log_density, len(case.start), transform=case.transform, start=case.start, generator=1)
    assert float(scores(q.draws, case.target).abs().max()) < LARGEST_SCORE
    assert float(q.r_hat.max()) < 1.03
    torch.testing.assert_close(q.mean, case.target.mean, rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_the_test_sees_a_missing_jacobian(sampler):
    """Sampling Gamma(a, b) in log λ without the Jacobian draws from Gamma(a − 1, b)."""
    target = gamma_poisson(total=0.5, rows=0)
    q = sampler(lambda u: target.log_density(u.exp()), 1, start=[0.0], generator=1)
    assert float(scores(q.draws.exp(), target).abs().max()) > 2 * LARGEST_SCORE


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
class TestEverySampler:
    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    def test_repeats(self, sampler):
        def run(seed):
            return sampler(CORRELATED.log_density, 3, start=[0.0] * 3, draws=50, tune=50, generator=seed)

        first, second, other = (run(seed) for seed in (3, 3, 4))
        assert torch.equal(first.draws, second.draws)
        assert not torch.equal(first.draws, other.draws)

    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    def test_answers_in_the_users_coordinates(self, sampler):
        def ordered(x):
            return -0.5 * (x - vector(0.0, 1.0)).square().sum()

        q = sampler(ordered, 2, start=[0.0, 1.0], transform="ordered", draws=50, tune=50, generator=0)
        assert (q.draws[..., 1] > q.draws[..., 0]).all()
        assert (q.sample(50, generator=0).diff(dim=-1) > 0).all()

    def test_warns_of_chains_that_disagree(self, sampler):
        def far_apart(x):
            return torch.logsumexp(-0.5 * (x - vector(-20.0, 20.0)).square(), 0)

        chains = 4 if sampler is nuts else 8
        starts = [[-20.1], [20.1]] * (chains // 2)
        with pytest.warns(ConvergenceWarning, match="R-hat"):
            q = sampler(far_apart, 1, start=starts, generator=0)
        assert float(q.r_hat) > 1.5

    def test_starts_outside_the_support(self, sampler):
        with pytest.raises(InputError, match="finite log density"):
            sampler(lambda x: (x.log() - x).sum(), 1, start=[-1.0], generator=0)

    def test_the_users_own_error_surfaces(self, sampler):
        calls = []

        def breaks(x):
            calls.append(None)
            if len(calls) > 200:
                raise ZeroDivisionError("the user's own")
            return -0.5 * x @ x

        with pytest.raises(ZeroDivisionError, match="the user's own"):
            sampler(breaks, 2, start=[0.0, 0.0], generator=0)

    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    def test_to_arviz(self, sampler):
        q = sampler(CORRELATED.log_density, 3, start=[0.0] * 3, draws=50, tune=50, generator=0)
        assert q.to_arviz().posterior["theta"].shape == tuple(q.draws.shape)
        assert q.record.method in q.summary()
        assert "R-hat" in q.summary()

    def test_transforms_are_checked(self, sampler):
        with pytest.raises(OptionError, match="ordered"):
            sampler(CORRELATED.log_density, 3, start=[0.0] * 3, transform="sorted")


class TestMetropolis:
    def test_scales_differ_by_nine_orders(self):
        """The proposal learns the units from nothing."""
        scale = vector(1e-3, 1.0, 1e6)
        q = density.metropolis(lambda x: -0.5 * ((x / scale) ** 2).sum(), [0.0, 0.0, 0.0], draws=3000, generator=0)
        torch.testing.assert_close(q.covariance.diagonal().sqrt() / scale, torch.ones_like(scale), rtol=0.1, atol=0.0)

    def test_no_gradients_are_used(self):
        q = density.metropolis(lambda x: (-2.0 * x.detach().abs()).sum(), [0.1], generator=0)
        assert float(q.covariance) == pytest.approx(0.5, rel=0.15)

    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    @pytest.mark.parametrize(("dim", "low", "high"), [(1, 0.3, 0.55), (10, 0.15, 0.35)])
    def test_acceptance_rate(self, dim, low, high):
        q = density.metropolis(lambda x: -0.5 * x @ x, [0.0] * dim, draws=4000, tune=2000, generator=0)
        assert low < float(q.record.notes["acceptance rate"]) < high

    def test_an_infinite_peak_is_refused(self):
        with pytest.raises(InputError, match=r"\+inf"):
            density.metropolis(lambda x: torch.where(x.abs() < 0.5, math.inf, -x.abs()).sum(), [[2.0]] * 8, generator=0)

    def test_number_of_starts(self):
        with pytest.raises(InputError, match="each of the 8 chains, got 3"):
            density.metropolis(CORRELATED.log_density, [[0.0] * 3] * 3, generator=0)
