"""Hyperparameters of likelihoods: where the data are most probable, and what networks learn of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import nbinom
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Weighted, resolve
from bayescope.training import first_likelihood

ROWS = 400
# First weights of layers are drawn globally.
pytestmark = pytest.mark.global_rng


def _counts(dispersion: float, rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs of two columns, and counts whose log mean is linear in them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 2))
    mean = np.exp(1.0 + x @ [0.6, -0.4])
    y = nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean)).rvs(random_state=rng)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float64))[:, None]


def _linear(x: Tensor, y: Tensor, likelihood: bs.NegativeBinomial) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(x.shape[1], 1, dtype=torch.float64)
    return bs.fit_map(module, (x, y), likelihood=likelihood, prior_precision=0.1, optimizer="lbfgs", epochs=200).model


def test_a_gaussians_noise_is_the_mean_square_in_closed_form_as_by_search() -> None:
    generator = torch.Generator().manual_seed(1)
    f = torch.randn(3, 50, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(50, 2, dtype=torch.float64, generator=generator)
    start = bs.Gaussian(0.3)
    found = start.fitted(("noise_variance",), f, y).noise_variance
    torch.testing.assert_close(found, (y - f).square().mean())
    searched = start.fitted(("noise_variance",), f[:1], y, marginal=True).noise_variance
    torch.testing.assert_close(searched, (y - f[0]).square().mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("start", [1e-3, 0.5, 50.0])
def test_a_dispersion_is_where_the_counts_are_most_probable(start: float) -> None:
    x, y = _counts(0.8)
    f = 1.0 + x @ torch.tensor([[0.6], [-0.4]], dtype=torch.float64)
    mean = f.exp().numpy()
    expected = minimize_scalar(
        lambda a: -nbinom(np.exp(-a), 1.0 / (1.0 + np.exp(a) * mean)).logpmf(y.numpy()).sum(), bracket=(-1.0, 0.5)
    )
    found = bs.NegativeBinomial(start).fitted(("dispersion",), f, y)
    assert float(found.dispersion) == pytest.approx(float(np.exp(expected.x)), rel=1e-3)
    weighted = Weighted.join(y, torch.full((ROWS,), 2.0, dtype=torch.float64))
    twice = Weighted(bs.NegativeBinomial(start), 2.0).fitted(("dispersion",), f, weighted)
    assert float(twice.unweighted.dispersion) == pytest.approx(float(np.exp(expected.x)), rel=1e-3)


def test_unconstrained_coordinates_go_both_ways_and_stay_in_their_graph() -> None:
    likelihood = bs.NegativeBinomial(0.7)
    coordinates = likelihood.unconstrained(("dispersion",)).requires_grad_()
    same = likelihood.at_unconstrained(("dispersion",), coordinates)
    torch.testing.assert_close(same.dispersion, likelihood.dispersion)
    f, y = torch.zeros(4, 1, dtype=torch.float64), torch.tensor([[0.0], [1.0], [2.0], [9.0]], dtype=torch.float64)
    (slope,) = torch.autograd.grad(same.log_prob(f, y).sum(), coordinates)
    step = 1e-5
    ends = [bs.NegativeBinomial(0.7 * np.exp(side * step)).log_prob(f, y).sum() for side in (-1, 1)]
    assert float(slope) == pytest.approx(float((ends[1] - ends[0]) / (2 * step)), rel=1e-6)


def test_laplaces_dispersion_is_where_its_evidence_is_largest() -> None:
    """For weights that are a mode at each dispersion, the fixed point of the M step is the evidence's maximum."""
    x, y = _counts(0.8)
    module = _linear(x, y, bs.NegativeBinomial(0.8))
    q = bs.laplace(module, (x, y), likelihood=bs.NegativeBinomial("evidence"), prior_precision="evidence",
                   structure="full")  # fmt: skip
    found = float(q.likelihood.dispersion)

    def loss(log_dispersion: float) -> float:
        likelihood = bs.NegativeBinomial(float(np.exp(log_dispersion)))
        mode = _linear(x, y, likelihood)
        return -float(bs.laplace(mode, (x, y), likelihood=likelihood, prior_precision=0.1,
                                 structure="full").log_evidence())  # fmt: skip

    best = minimize_scalar(loss, bounds=(np.log(0.4), np.log(1.6)), method="bounded", options={"xatol": 0.05})
    assert found == pytest.approx(float(np.exp(best.x)), rel=0.03)
    assert "dispersion" in q.summary()


@pytest.mark.parametrize("fit", ["fit_evidence", "variational", "mc_dropout"])
def test_trainings_learn_the_dispersion_with_the_weights(fit: str) -> None:
    x, y = _counts(0.8)
    torch.manual_seed(0)
    layers = [nn.Linear(2, 8), nn.Dropout(0.02), nn.Linear(8, 1)] if fit == "mc_dropout" else [nn.Linear(2, 1)]
    options = {"epochs": 75, "prior_precision": 1.0, "lr": 0.06} if fit != "fit_evidence" else {"epochs": 50}
    q = getattr(bs, fit)(nn.Sequential(*layers).double(), (x, y), likelihood="negative_binomial", generator=0,
                         progress=False, **options)  # fmt: skip
    assert float(q.likelihood.dispersion) == pytest.approx(0.8, rel=0.3)
    assert "dispersion" in q.summary()
    if fit != "mc_dropout":
        assert len(q.trace["dispersion"]) > 10


OF_EACH = {
    **{name: torch.distributions.Gamma(torch.tensor([2.0, 20.0]).double(), 1.0) for name in ("gamma", "weibull")},
    "log_normal": torch.distributions.LogNormal(torch.zeros(2).double(), torch.tensor([0.3, 1.0]).double()),
    "student_t": torch.distributions.StudentT(5.0, torch.zeros(2).double(), torch.tensor([1.0, 30.0]).double()),
    "laplace_noise": torch.distributions.Laplace(torch.zeros(2).double(), torch.tensor([1.0, 30.0]).double()),
    "beta": torch.distributions.Beta(torch.tensor([2.0, 20.0]).double(), torch.tensor([3.0, 10.0]).double()),
    **{
        name: torch.distributions.NegativeBinomial(torch.tensor([0.5, 5.0]).double(), torch.tensor(0.7).double())
        for name in ("negative_binomial", "zero_inflated_poisson", "tweedie")
    },
}


@pytest.mark.parametrize("name", OF_EACH)
def test_each_of_several_outputs_has_hyperparameters_of_its_own(name: str) -> None:
    """Where a network's training begins and where it leads them."""
    torch.manual_seed(2)
    start, y = resolve(name), OF_EACH[name].sample((120,))
    together, each = first_likelihood(start, lambda: y), [start.starting(column) for column in y.split(1, 1)]
    for key in start.hyperparameters:
        torch.testing.assert_close(together.known(key), torch.stack([one.known(key).reshape(()) for one in each]))
    f = together.constant(y).expand(120, 2)
    learnt = together.fitted(together.hyperparameters, f, y)
    for d, one in enumerate(each):
        alone = one.fitted(one.hyperparameters, f[:, d : d + 1], y[:, d : d + 1])
        for key in start.hyperparameters:
            if key != "degrees_of_freedom":
                assert float(learnt.known(key)[d]) == pytest.approx(float(alone.known(key)), rel=0.02, abs=1e-3)


def test_what_is_left_open_where_nothing_learns_it_is_refused_by_name() -> None:
    x, y = _counts(0.8, rows=20)
    module = nn.Linear(2, 1).double()
    with pytest.raises(InputError, match=r"dispersion: expected a number, got 'evidence'.*with_hyperparameters"):
        bs.fit_map(module, (x, y), likelihood="negative_binomial", epochs=1)
    with pytest.raises(UnsupportedError, match=r"dispersion: 'evidence' goes with prior_precision='auto'"):
        bs.laplace(module, (x, y), likelihood="negative_binomial", prior_precision=1.0)


def test_a_gaussian_process_learns_the_dispersion_too() -> None:
    x, y = _counts(0.8, rows=150)
    module = _linear(x, y, bs.NegativeBinomial(0.8))
    options = {"likelihood": "negative_binomial", "prior_precision": "evidence"}
    found = [float(fit(module, (x, y), **options).likelihood.dispersion) for fit in (bs.function_space, bs.laplace)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.filterwarnings("ignore:model. expected weights at a mode")
@pytest.mark.parametrize("value", [0.0, 5.0])
def test_targets_that_do_not_vary_leave_noise_to_begin_with(value: float) -> None:
    x = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.full((40, 1), value, dtype=torch.float64)
    assert float(first_likelihood(bs.Gaussian("evidence"), lambda: y).noise_variance) == 1.0
    q = bs.fit_evidence(nn.Linear(2, 1).double(), (x, y), likelihood="gaussian", epochs=20, generator=0, progress=False)
    assert float(q.likelihood.noise_variance) > 1e-6
