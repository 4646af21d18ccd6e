from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch.testing import assert_close

import bayescope as bs
from bayescope.errors import BayescopeWarning, ConvergenceWarning, InputError
from bayescope.likelihoods import Gaussian
from bayescope.linear import LinearDensity, compile_density, conjugate, tune_scales, weight_prior
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.cases import LINEAR_CASES
from tests.reference import regression

EXACT = {"rtol": 1e-10, "atol": 1e-10}
CASES = {name: case for name, case in LINEAR_CASES.items() if name.startswith("gaussian")}


def line(rows: int = 60, columns: int = 5, *, bias: bool = True, seed: int = 0, noise: float = 1.0) -> LinearDensity:
    generator = torch.Generator().manual_seed(seed)
    x = 3.0 * torch.randn(rows, columns, dtype=torch.float64, generator=generator) + 2.0
    y = x @ torch.linspace(-0.5, 0.8, columns, dtype=torch.float64) + 4.0
    y = y + noise * torch.randn(rows, dtype=torch.float64, generator=generator)
    return LinearDensity.of(LinearModel(columns, 1, bias), Gaussian(), Prior(), x, y[:, None])


def log_evidence(table: LinearDensity, log_alpha: float, log_beta: float, intercept: float) -> float:
    """log N(y; 0, noise + X Xᵀ/α + 1 1ᵀ/τ)."""
    x, rows = table.features, table.table.count
    covariance = math.exp(-log_beta) * torch.eye(rows).double() + x @ x.mT * math.exp(-log_alpha)
    covariance += table.model.bias / intercept
    marginal = torch.distributions.MultivariateNormal(torch.zeros(rows).double(), covariance)
    return float(marginal.log_prob(table.targets[:, 0]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_posterior_and_evidence_are_those_of_the_joint_gaussian(case):
    noise = case.likelihood.noise(case.targets).expand(case.targets.shape).reshape(-1)
    truth = regression(case.jacobian.flatten(0, 1), case.targets.reshape(-1), noise, case.precision, case.mean)
    q = conjugate(case.density)
    assert_close(q.mean, truth[0], **EXACT)
    assert_close(q.covariance, truth[1], **EXACT)
    assert float(q.log_evidence()) == pytest.approx(truth[2], rel=1e-10)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_halves_one_after_the_other_are_the_whole(case):
    x, y = case.features, case.targets
    whole = conjugate(compile_density(case.model, case.likelihood, case.prior, x, y))
    first = conjugate(compile_density(case.model, case.likelihood, case.prior, x[:15], y[:15]))
    second = first.condition((x[15:], y[15:]))
    assert_close(second.mean, whole.mean, **EXACT)
    assert_close(second.covariance, whole.covariance, **EXACT)
    assert_close(first.log_evidence() + second.log_evidence(), whole.log_evidence(), **EXACT)


def test_a_dense_prior_is_taken_whole():
    case = CASES["gaussian"]
    dense = torch.diag(case.precision) + 0.1
    q = conjugate(
        compile_density(
            case.model, case.likelihood, Prior(DensePrecision(dense), case.mean), case.features, case.targets
        )
    )
    jacobian = case.jacobian[:, 0]
    precision = dense + jacobian.mT @ jacobian / 0.5
    expected = torch.linalg.solve(precision, dense @ case.mean + jacobian.mT @ case.targets[:, 0] / 0.5)
    assert_close(q.mean, expected, **EXACT)
    assert_close(q.precision.to_dense(), precision, **EXACT)


def test_large_offsets_cost_no_digits():
    """y far from 0: the second step takes away what the first one rounds off."""
    table = line()
    x, y = table.features, table.targets + 1e7
    q = conjugate(compile_density(table.model, Gaussian(1.0), Prior(1e-12), x, y))
    near = conjugate(compile_density(table.model, Gaussian(1.0), Prior(1e-12), x, table.targets))
    assert_close(q.mean[:-1], near.mean[:-1], rtol=0, atol=1e-7)
    assert float(q.mean[-1] - near.mean[-1]) == pytest.approx(1e7, rel=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("point", [(0.0, 0.0), (1.0, -2.0), (-3.0, 2.0)])
def test_the_evidence_of_given_scales_is_exact(bias: bool, point: tuple[float, float]):
    table = line(bias=bias)
    scales = tune_scales(
        table,
        intercept_prior_precision=0.01,
        prior_precision=math.exp(point[0]),
        noise_variance=math.exp(-point[1]),
    )
    assert (scales.prior_precision, scales.noise_variance) == pytest.approx((math.exp(point[0]), math.exp(-point[1])))
    assert scales.log_evidence == pytest.approx(log_evidence(table, *point, 0.01), rel=1e-10)
    prior = weight_prior(table.model, math.exp(point[0]), 0.01)
    q = conjugate(compile_density(table.model, Gaussian(math.exp(-point[1])), prior, table.features, table.targets))
    assert float(q.log_evidence()) == pytest.approx(scales.log_evidence, rel=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("known", [{}, {"noise_variance": 0.7}, {"prior_precision": 2.0}], ids=str)
@pytest.mark.parametrize("shape", [(60, 5), (8, 20)], ids=str)
def test_learnt_scales_are_at_the_maximum(bias: bool, known: dict[str, float], shape: tuple[int, int]):
    table = line(*shape, bias=bias)
    scales = tune_scales(table, intercept_prior_precision=0.01, **known)
    a, b, h = math.log(scales.prior_precision), -math.log(scales.noise_variance), 1e-4
    along = [(h, 0.0)] * ("prior_precision" not in known) + [(0.0, h)] * ("noise_variance" not in known)
    here = log_evidence(table, a, b, 0.01)
    assert scales.log_evidence == pytest.approx(here, rel=1e-8)
    for da, db in along:
        up, down = log_evidence(table, a + da, b + db, 0.01), log_evidence(table, a - da, b - db, 0.01)
        # A shift of the optimum by 1e-8 would show as curvature × 1e-8; the difference itself resolves 1e-7 or so.
        assert abs(up - down) / (2 * h) < 2e-7 * max(1.0, abs(up + down - 2 * here) / h**2)
        assert max(up, down) < here + 1e-10


def test_a_weak_intercept_gives_the_scales_of_bayesian_ridge():
    table = line(200, 4)
    ridge = BayesianRidge(tol=1e-12, max_iter=10_000, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0)
    ridge.fit(table.features.numpy(), table.targets[:, 0].numpy())
    scales = tune_scales(table, intercept_prior_precision=1e-9)
    # Its noise divides by N − γ without the intercept's own degree of freedom.
    assert scales.prior_precision == pytest.approx(ridge.lambda_, rel=2e-2)
    assert scales.noise_variance == pytest.approx(1.0 / ridge.alpha_, rel=2e-2)


def test_features_without_information_are_told_and_do_no_harm():
    x = torch.tensor([[-1.0], [1.0]] * 10, dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 1.0, 1.0] * 5, dtype=torch.float64)
    table = LinearDensity.of(LinearModel(1), Gaussian(), Prior(), x, y[:, None])
    scales = tune_scales(table, intercept_prior_precision=1e-4)
    assert scales.useless
    assert scales.noise_variance == pytest.approx(0.25, rel=0.1)


def test_a_noise_of_zero_is_warned_of():
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    table = LinearDensity.of(LinearModel(1), Gaussian(), Prior(), x, 2.0 * x + 1.0)
    with pytest.warns(ConvergenceWarning, match="without noise"):
        scales = tune_scales(table, intercept_prior_precision=1e-4)
    assert scales.noise_variance < 1e-8


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_a_constant_has_no_noise_to_learn(value: float):
    y = torch.full((4, 1), value, dtype=torch.float64)
    table = LinearDensity.of(LinearModel(1), Gaussian(), Prior(), torch.arange(4.0).double()[:, None], y)
    with pytest.warns(BayescopeWarning, match="y: expected numbers that vary, got the constant"):
        scales = tune_scales(table, intercept_prior_precision=None)
    assert scales.useless
    assert 0.0 < scales.noise_variance <= 1e-20 * (value**2 or 1.0)
    assert math.isfinite(scales.log_evidence)
    assert math.isfinite(tune_scales(table, intercept_prior_precision=1e-4, noise_variance=1.0).log_evidence)


def test_columns_that_are_constant_hold_the_weights_at_zero():
    y = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    table = LinearDensity.of(LinearModel(2), Gaussian(), Prior(), torch.zeros(3, 2).double(), y)
    scales = tune_scales(table, intercept_prior_precision=None)
    assert scales.useless
    assert scales.noise_variance == pytest.approx(7.0 / 3.0)  # unbiased: Σ(y − ȳ)²/(N − 1)


@pytest.mark.parametrize("known", [{}, {"noise_variance": 0.7}, {"prior_precision": 2.0}], ids=str)
def test_a_flat_intercept_is_integrated_out(known: dict[str, float]):
    """Under a proper prior of precision τ → 0 the evidence falls as √(τ/2π), and nothing else changes."""
    table, weak = line(), 1e-12
    flat, proper = (tune_scales(table, intercept_prior_precision=each, **known) for each in (None, weak))
    assert flat.log_evidence == pytest.approx(proper.log_evidence - 0.5 * math.log(weak / (2 * math.pi)), rel=1e-9)
    assert (flat.prior_precision, flat.noise_variance) == pytest.approx(
        (proper.prior_precision, proper.noise_variance), rel=1e-6
    )
    prior = weight_prior(table.model, flat.prior_precision, None)
    q = conjugate(compile_density(table.model, Gaussian(flat.noise_variance), prior, table.features, table.targets))
    assert float(q.log_evidence()) == pytest.approx(flat.log_evidence, rel=1e-10)


def test_noise_that_is_still_to_be_learnt_is_refused():
    table = line()
    with pytest.raises(InputError, match="noise_variance"):
        conjugate(compile_density(table.model, Gaussian("evidence"), Prior(), table.features, table.targets))


def test_numpy_and_strides_give_the_same():
    case = CASES["gaussian"]
    q = conjugate(case.density)
    columns = np.asfortranarray(case.features.numpy())
    again = conjugate(compile_density(case.model, case.likelihood, case.prior, columns, case.targets[:, 0].numpy()))
    assert_close(again.mean, q.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", [1e5, 1e7])
def test_scales_do_not_move_with_the_origin_of_the_inputs(shift: float):
    """Under a flat intercept a shift of the columns changes nothing; XᵀX − N x̄x̄ᵀ would lose all digits."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    y = x @ torch.tensor([1.0, -0.5, 0.2]).double() + 0.3 * torch.randn(60, dtype=torch.float64, generator=generator)
    near, far = (
        tune_scales(
            LinearDensity.of(LinearModel(3), Gaussian(), Prior(), at, y[:, None]), intercept_prior_precision=None
        )
        for at in (x, x + shift)
    )
    assert far.prior_precision == pytest.approx(near.prior_precision, rel=1e-6)
    assert far.noise_variance == pytest.approx(near.noise_variance, rel=1e-6)


@pytest.mark.parametrize("shift", [1e6, 1e9, 1e12])
def test_the_answer_does_not_depend_on_the_origin_of_y(shift: float):
    """As far as y has digits: at 1e12 it is known to 1e-4."""
    source = np.random.default_rng(0)
    X = source.normal(size=(200, 3))
    y = X @ [1.0, 2.0, 0.5] + 0.3 * source.normal(size=200)
    near, far = (bs.BayesianLinearRegression().fit(X, y + origin) for origin in (0.0, shift))
    digits = 10.0 * np.spacing(shift)
    np.testing.assert_allclose(far.predict(X) - shift, near.predict(X), atol=max(digits, 1e-7))
    np.testing.assert_allclose(far.coef_, near.coef_, atol=max(digits, 1e-7))


@pytest.mark.parametrize("unit", [1e-200, 1e-160, 1e150, 1e200])
def test_a_y_whose_squares_vanish_or_overflow_is_refused(unit: float):
    source = np.random.default_rng(0)
    X = source.normal(size=(60, 2))
    for y in (source.normal(size=60) * unit, np.full(60, unit)):
        with pytest.raises(InputError, match="y: expected numbers whose squares have a sum, of a size"):
            bs.BayesianLinearRegression().fit(X, y)


def test_weights_that_count_no_two_rows_are_refused():
    source = np.random.default_rng(0)
    X, y = source.normal(size=(50, 2)), source.normal(size=50)
    with pytest.raises(InputError, match="Divide the weights by their mean"):
        bs.BayesianLinearRegression().fit(X, y, sample_weight=np.full(50, 0.02))
