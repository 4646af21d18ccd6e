"""What every likelihood fulfils: derivatives against autograd, roots, moments and samples against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods import (
    INTEGRALS,
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Weighted,
    resolve,
)
from tests.cases import LIKELIHOODS, LikelihoodCase
from tests.reference import dense_derivatives, expected_hessian

everywhere = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())
classes = pytest.mark.parametrize(
    "case",
    [case for case in LIKELIHOODS.values() if case.likelihood.discrete],
    ids=[name for name, case in LIKELIHOODS.items() if case.likelihood.discrete],
)


def _outputs(case: LikelihoodCase, *lead: int, scale: float = 2.0) -> Tensor:
    """Outputs with a leading shape, one row a label of the case."""
    generator = torch.Generator().manual_seed(3)
    shape = (*lead, len(case.labels), case.outputs)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


@everywhere
@pytest.mark.parametrize("scale", [2.0, 20.0])
def test_derivatives_equal_autograd(case: LikelihoodCase, scale: float) -> None:
    f = _outputs(case, scale=scale)
    gradient, hessian = case.likelihood.gradient(f, case.labels), case.likelihood.hessian(f, case.labels)
    for row, y in enumerate(case.labels):
        slope, curvature = dense_derivatives(lambda x, y=y: case.likelihood.log_prob(x[None], y[None])[0], f[row])
        torch.testing.assert_close(gradient[row], slope, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(hessian[row], curvature, rtol=1e-9, atol=1e-12)


@everywhere
@pytest.mark.parametrize("scale", [2.0, 5.0])
def test_roots_multiply_to_the_curvature_that_they_are_of(case: LikelihoodCase, scale: float) -> None:
    f, likelihood = _outputs(case, scale=scale), case.likelihood
    expected = expected_hessian(likelihood, f, case.labels)
    root = likelihood.fisher_sqrt(f)
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-9, atol=1e-14)
    root = likelihood.ggn_sqrt(f, case.labels)
    curvature = expected if case.expected else likelihood.hessian(f, case.labels)
    torch.testing.assert_close(root @ root.mT, curvature, rtol=1e-9, atol=1e-14)


@everywhere
def test_the_moments_of_the_ggn_need_no_matrix_a_row(case: LikelihoodCase) -> None:
    f = _outputs(case, scale=5.0)
    root = case.likelihood.ggn_sqrt(f, case.labels)
    curvature = root @ root.mT
    found = case.likelihood.ggn(f, case.labels)
    diagonal, total = found.diagonal(), found.sum()
    torch.testing.assert_close(diagonal, curvature.diagonal(dim1=-2, dim2=-1), rtol=1e-12, atol=0)
    torch.testing.assert_close(total, curvature.sum(-3), rtol=1e-12, atol=1e-14)


@classes
def test_probabilities_sum_to_one_over_the_labels_and_give_the_conditional_moments(case: LikelihoodCase) -> None:
    f = _outputs(case)[:1].expand(len(case.labels), -1)
    probabilities = case.likelihood.log_prob(f, case.labels).exp()
    assert probabilities.sum().item() == pytest.approx(1.0, rel=1e-14)
    # The outcome columns of every label: the indicators of the classes, or the labels themselves.
    if case.labels.ndim == 1:
        columns = torch.eye(len(case.labels), dtype=torch.float64)
    else:
        columns = torch.cat([1 - case.labels, case.labels], -1) if case.outputs == 1 else case.labels
    mean = (probabilities[:, None] * columns).sum(0)
    variance = (probabilities[:, None] * (columns - mean).square()).sum(0)
    got = case.likelihood.conditional(f)
    torch.testing.assert_close(got[0][0], mean, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(got[1][0], variance, rtol=1e-12, atol=1e-15)


@everywhere
def test_leading_draws_are_carried_through(case: LikelihoodCase) -> None:
    f, y, likelihood = _outputs(case, 2, 3), case.labels, case.likelihood
    for several, single in [
        (likelihood.log_prob(f, y), likelihood.log_prob(f[1, 2], y)),
        (likelihood.gradient(f, y), likelihood.gradient(f[1, 2], y)),
        (likelihood.hessian(f, y), likelihood.hessian(f[1, 2], y)),
        (likelihood.ggn_sqrt(f, y), likelihood.ggn_sqrt(f[1, 2], y)),
        (likelihood.fisher_sqrt(f), likelihood.fisher_sqrt(f[1, 2])),
        (likelihood.conditional(f)[0], likelihood.conditional(f[1, 2])[0]),
        (likelihood.conditional(f)[1], likelihood.conditional(f[1, 2])[1]),
    ]:
        assert several.shape == (2, 3, *single.shape)
        torch.testing.assert_close(several[1, 2], single, rtol=1e-14, atol=1e-300)


@everywhere
def test_float32_outputs_stay_float32_and_agree(case: LikelihoodCase) -> None:
    f, y, likelihood = _outputs(case), case.labels, case.likelihood
    single = f.to(torch.float32)
    for got, truth in [
        (likelihood.log_prob(single, y), likelihood.log_prob(f, y)),
        (likelihood.gradient(single, y), likelihood.gradient(f, y)),
        (likelihood.hessian(single, y), likelihood.hessian(f, y)),
        (likelihood.ggn_sqrt(single, y), likelihood.ggn_sqrt(f, y)),
        (likelihood.fisher_sqrt(single), likelihood.fisher_sqrt(f)),
        (likelihood.conditional(single)[0], likelihood.conditional(f)[0]),
    ]:
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), truth, rtol=1e-4, atol=1e-6)


@everywhere
@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one_row(case: LikelihoodCase, rows: int) -> None:
    f, y, likelihood, outputs = _outputs(case)[:rows], case.labels[:rows], case.likelihood, case.outputs
    cov = torch.eye(outputs, dtype=torch.float64).expand(rows, outputs, outputs)
    assert torch.equal(likelihood.targets(y, outputs), y)
    assert likelihood.log_prob(f, y).shape == (rows,)
    assert likelihood.hessian(f, y).shape == (rows, outputs, outputs)
    assert likelihood.sample(f, torch.Generator()).shape == y.shape
    for name in ("quadrature", "mackay", "laplace_bridge"):
        integral = likelihood.integral(name, outputs)
        moments = likelihood.predictive(f, cov, integral)
        assert moments.mean.shape == moments.aleatoric.shape == moments.epistemic.shape
        assert moments.mean.shape == likelihood.conditional(f)[0].shape
        assert likelihood.predictive_log_prob(f, cov, y, integral).shape == (rows,)


@everywhere
def test_samples_have_the_conditional_moments(case: LikelihoodCase) -> None:
    n, f = 20_000, _outputs(case)
    y = case.likelihood.sample(f.expand(n, *f.shape), torch.Generator().manual_seed(0))
    assert y.shape == (n, *case.labels.shape)
    assert y.dtype == case.labels.dtype
    case.likelihood.targets(y[0], case.outputs)
    mean, variance = case.likelihood.conditional(f)
    if case.labels.ndim == 1:
        columns = torch.nn.functional.one_hot(y, mean.shape[-1]).to(torch.float64)
    else:
        columns = torch.cat([1 - y, y], -1) if mean.shape[-1] > y.shape[-1] else y
    score = (columns.mean(0) - mean) / (variance / n).sqrt()
    assert score.abs().max() < 4.5
    spread = (columns - mean).square().mean(0)
    fourth = (columns - mean).pow(4).mean(0)
    assert ((spread - variance) / (fourth / n).sqrt()).abs().max() < 4.5


@everywhere
def test_samples_follow_their_generator(case: LikelihoodCase) -> None:
    f = _outputs(case, 50)
    first, second = (case.likelihood.sample(f, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, case.likelihood.sample(f, torch.Generator().manual_seed(6)))


def _covariances(case: LikelihoodCase, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    shape = (len(case.labels), case.outputs, case.outputs)
    root = torch.randn(shape, dtype=torch.float64, generator=generator)
    return scale * root @ root.mT


@everywhere
@pytest.mark.parametrize("name", ["quadrature", "mackay", "laplace_bridge"])
def test_the_parts_of_the_variance_are_those_of_the_outcome(case: LikelihoodCase, name: str) -> None:
    f, cov = _outputs(case), _covariances(case, 3.0)
    moments = case.likelihood.predictive(f, cov, case.likelihood.integral(name, case.outputs))
    assert (moments.aleatoric > 0).all()
    assert (moments.epistemic > 0).all()
    if case.likelihood.discrete:
        total = moments.mean * (1 - moments.mean)
        torch.testing.assert_close(moments.aleatoric + moments.epistemic, total, rtol=1e-10, atol=1e-11)


@everywhere
@pytest.mark.parametrize("name", ["quadrature", "mackay", "laplace_bridge"])
@pytest.mark.parametrize("rows", [0, None])
def test_the_mean_alone_is_that_of_the_moments_to_the_last_bit(
    case: LikelihoodCase, name: str, rows: int | None
) -> None:
    likelihood, integral = case.likelihood, case.likelihood.integral(name, case.outputs)
    for scale in (0.3, 30.0):
        f, cov = _outputs(case)[:rows], _covariances(case, scale)[:rows]
        for like in (likelihood, Weighted(likelihood)):
            assert torch.equal(like.predictive_mean(f, cov, integral), like.predictive(f, cov, integral).mean)


@classes
def test_without_uncertainty_the_predictive_is_the_conditional(case: LikelihoodCase) -> None:
    f, likelihood = _outputs(case), case.likelihood
    cov = torch.zeros(len(f), case.outputs, case.outputs, dtype=torch.float64)
    for name in ("quadrature", "mackay"):
        integral = likelihood.integral(name, case.outputs)
        moments, (mean, variance) = likelihood.predictive(f, cov, integral), likelihood.conditional(f)
        torch.testing.assert_close(moments.mean, mean, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(moments.aleatoric, variance, rtol=1e-12, atol=1e-15)
        assert moments.epistemic.abs().max() < 1e-15
        log_prob = likelihood.predictive_log_prob(f, cov, case.labels, integral)
        torch.testing.assert_close(log_prob, likelihood.log_prob(f, case.labels), rtol=1e-12, atol=1e-15)


@everywhere
def test_the_predictive_log_probability_is_the_integral_of_the_likelihood(case: LikelihoodCase) -> None:
    """Against 2·10⁵ plain draws, within five standard errors: correlated outputs and all."""
    f, cov, likelihood, y = _outputs(case), _covariances(case, 0.5), case.likelihood, case.labels
    got = likelihood.predictive_log_prob(f, cov, y, likelihood.integral(None, case.outputs)).exp()
    noise = torch.randn(200_000, *f.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    draws = f + torch.einsum("ncd,snd->snc", torch.linalg.cholesky(cov), noise)
    each = likelihood.log_prob(draws, y).exp()
    error = each.std(0) / math.sqrt(len(each)) + 2e-3 * got
    assert ((each.mean(0) - got).abs() < 5 * error).all()


@everywhere
def test_integral_names_are_resolved(case: LikelihoodCase) -> None:
    only = {
        "probit": "exact",
        "gaussian": "exact",
        "multivariate_gaussian": "exact",
        "ordinal_probit": "exact",
        "ordinal": "quadrature",
    }
    always = only.get(case.likelihood.name, None if case.likelihood.discrete else "quadrature")
    for name in INTEGRALS:
        assert case.likelihood.integral(name, case.outputs) == (always or name)
    assert case.likelihood.integral(None, case.outputs) == (always or "quadrature")
    with pytest.raises(OptionError, match=r"integral: expected one of .*'mackay'.*got 'mckay'\. Did you mean 'mackay'"):
        case.likelihood.integral("mckay", case.outputs)


@everywhere
def test_an_integral_that_has_no_closed_rule_is_refused(case: LikelihoodCase) -> None:
    f, cov = _outputs(case), _covariances(case, 1.0)
    with pytest.raises(OptionError, match="integral: expected one of"):
        case.likelihood.predictive(f, cov, "monte_carlo")
    with pytest.raises(OptionError, match="integral: expected one of"):
        case.likelihood.predictive_log_prob(f, cov, case.labels, "monte_carlo")


def test_names_resolve_to_likelihoods_and_likelihoods_to_themselves() -> None:
    assert resolve("bernoulli") == Bernoulli("logit")
    assert resolve("probit") == Bernoulli("probit")
    assert resolve("categorical") == Categorical()
    assert isinstance(resolve("gaussian"), Gaussian)
    assert resolve("heteroscedastic_gaussian") == HeteroscedasticGaussian()
    assert resolve("bradley_terry") == BradleyTerry()
    own = Gaussian(2.0)
    assert resolve(own) is own


def test_unknown_likelihoods_are_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'probit', 'categorical', 'gaussian', .* got 'gausian'\. Did you"):
        resolve("gausian")
    for other in (3, Bernoulli):
        with pytest.raises(InputTypeError, match="likelihood: expected one of"):
            resolve(other)  # type: ignore[arg-type]


@everywhere
def test_labels_of_another_shape_are_refused(case: LikelihoodCase) -> None:
    with pytest.raises(InputError, match=r"y: expected .*shape"):
        case.likelihood.targets(torch.zeros(2, 2, 2), case.outputs)
    with pytest.raises(InputError, match="y: expected finite numbers, got nan"):
        case.likelihood.targets([math.nan], case.outputs)


@everywhere
def test_an_integral_tells_its_error_or_that_nothing_tells_it(case: LikelihoodCase) -> None:
    f, cov, likelihood = _outputs(case), _covariances(case, 1.0), case.likelihood
    integral = likelihood.integral(None, case.outputs)
    error = likelihood.integration_error(f, cov, integral)
    assert error.shape == likelihood.predictive(f, cov, integral).mean.shape
    assert bool((error > 0).all()) == (case.outputs == 3 and likelihood.name == "categorical")
    if likelihood.integral("mackay", case.outputs) == "mackay":
        for name in ("mackay", "laplace_bridge"):
            with pytest.raises(UnsupportedError, match=f"'{name}' is an approximation whose error is unknown"):
                likelihood.integration_error(f, cov, name)


@everywhere
def test_outcomes_that_are_gaussian_given_f_are_mixtures_of_gaussians_and_others_are_not(case: LikelihoodCase) -> None:
    f, cov, likelihood = _outputs(case, scale=0.7), _covariances(case, 0.03), case.likelihood
    if not likelihood.gaussian_outcome:
        with pytest.raises(UnsupportedError, match="expected an outcome that is Gaussian given f, got a"):
            likelihood.components(f, cov)
        return
    log_weights, means, variances = likelihood.components(f, cov)
    weights = log_weights.exp()[:, None, None]
    moments = likelihood.predictive(f, cov, likelihood.integral(None, case.outputs))
    centre = (weights * means).sum(0)
    total = (weights * (variances + (means - centre).square())).sum(0)
    assert log_weights.logsumexp(0).abs() < 1e-14
    torch.testing.assert_close(centre, moments.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(total, moments.aleatoric + moments.epistemic, rtol=1e-7, atol=1e-9)
