"""Bernoulli: links in the tails, integrals over one output, labels."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Bernoulli
from tests import reference


def _column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def _sigmoid(a: object) -> object:
    return 1 / (1 + mpmath.exp(-a))


LINKS = {"logit": _sigmoid, "probit": mpmath.ncdf}
WIDTHS = [0.0, 0.5, 3.0, 30.0, 1e4]


@pytest.mark.parametrize("sd", WIDTHS)
@pytest.mark.parametrize("link", LINKS)
def test_moments_equal_adaptive_quadrature_to_1e_10(link: str, sd: float) -> None:
    h, likelihood = LINKS[link], Bernoulli(link)
    for mean in (-1.3, 2.0 * sd):
        moments = likelihood.predictive(_column(mean), _column(sd**2)[..., None], likelihood.integral(None, 1))
        p = reference.gaussian_expectation(h, mean, sd)
        within = reference.gaussian_expectation(lambda a: h(a) * h(-a), mean, sd)
        across = reference.gaussian_expectation(lambda a, p=p: (h(a) - p) ** 2, mean, sd)
        assert moments.mean[0].tolist() == pytest.approx([float(1 - p), float(p)], abs=1e-10)
        assert moments.aleatoric[0].tolist() == pytest.approx([float(within)] * 2, abs=1e-10)
        assert moments.epistemic[0].tolist() == pytest.approx([float(across)] * 2, abs=1e-10)


@pytest.mark.parametrize(("mean", "sd"), [(-2.0, 0.3), (-20.0, 2.0), (-20.0, 1.0), (1.0, 1e-6)])
def test_the_probit_parts_are_right_relative_to_themselves(mean: float, sd: float) -> None:
    moments = Bernoulli("probit").predictive(_column(mean), _column(sd**2)[..., None], "exact")
    # Var[Φ(f)] = ∫₀^ρ φ₂(h, h; r) dr and E[Φ(f)Φ(−f)] the rest up to 1, by mpmath in r itself
    with mpmath.workdps(40):
        variance = mpmath.mpf(sd) ** 2
        point, rho = mpmath.mpf(mean) / mpmath.sqrt(1 + variance), variance / (1 + variance)

        def density(r: object) -> object:
            return mpmath.exp(-(point**2) / (1 + r)) / (2 * mpmath.pi * mpmath.sqrt(1 - r * r))

        across = mpmath.quad(density, mpmath.linspace(0, rho, 9))
        within = mpmath.quad(density, mpmath.linspace(rho, 1, 9))
    tolerance = 1e-10 if mean / sd > -15 else 1e-8
    assert reference.relative_error(moments.epistemic[0, 0].item(), across) < tolerance
    assert reference.relative_error(moments.aleatoric[0, 0].item(), within) < tolerance


@pytest.mark.parametrize(("mean", "sd"), [(-1000.0, 20.0), (-40.0, 0.5), (0.3, 1e4), (-300.0, 1e2)])
def test_log_probabilities_keep_the_tails(mean: float, sd: float) -> None:
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    f, cov = _column(mean), _column(sd**2)[..., None]
    truth = float(reference.log_expected_sigmoid(mean, sd))
    logit = Bernoulli("logit")
    assert logit.predictive_log_prob(f, cov, one, "quadrature").item() == pytest.approx(truth, rel=1e-12)
    assert logit.predictive_log_prob(-f, cov, zero, "quadrature").item() == pytest.approx(truth, rel=1e-12)
    truth = float(reference.log_ndtr_chain(mean / np.sqrt(1 + sd**2))[0])
    assert Bernoulli("probit").predictive_log_prob(f, cov, one, "exact").item() == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("link", LINKS)
def test_far_wrong_and_far_right_labels_have_finite_exact_terms(link: str) -> None:
    likelihood, y = Bernoulli(link), torch.ones(2, 1, dtype=torch.float64)
    f = _column(-1000.0, 30.0)
    log_prob, gradient = likelihood.log_prob(f, y), likelihood.gradient(f, y)
    if link == "logit":
        assert log_prob.tolist() == pytest.approx([-1000.0, -float(mpmath.exp(-30))], rel=1e-12)
        assert gradient[:, 0].tolist() == pytest.approx([1.0, float(mpmath.exp(-30))], rel=1e-12)
    else:
        chains = [reference.log_ndtr_chain(s) for s in (-1000.0, 30.0)]
        assert log_prob.tolist() == pytest.approx([float(c[0]) for c in chains], rel=1e-12)
        assert gradient[:, 0].tolist() == pytest.approx([float(c[1]) for c in chains], rel=1e-12)
        assert likelihood.hessian(f, y)[:, 0, 0].tolist() == pytest.approx([float(c[2]) for c in chains], rel=1e-12)


def test_mackay_is_the_sigmoid_of_the_moderated_mean() -> None:
    mean, variance = _column(-1.0, 2.0), _column(0.5, 9.0)
    moments = Bernoulli().predictive(mean, variance[..., None], "mackay")
    p = torch.sigmoid(mean / torch.sqrt(1 + torch.pi * variance / 8))[:, 0]
    torch.testing.assert_close(moments.mean, torch.stack([1 - p, p], -1), rtol=1e-14, atol=0)
    # The aleatoric part is the derivative of the mean in μ, as it is for the integral itself.
    step = 1e-5
    up, down = (Bernoulli().predictive(mean + d, variance[..., None], "mackay").mean[:, 1] for d in (step, -step))
    torch.testing.assert_close(moments.aleatoric[:, 1], (up - down) / (2 * step), rtol=1e-8, atol=0)
    log_prob = Bernoulli().predictive_log_prob(mean, variance[..., None], torch.ones_like(mean), "mackay")
    torch.testing.assert_close(log_prob, p.log(), rtol=1e-13, atol=0)


def test_the_laplace_bridge_is_that_of_two_symmetric_outputs() -> None:
    """For outputs ±f/2, α_k = (1 + e^{2 m_k}) / σ² by Hobbhahn, Kristiadi & Hennig with C = 2."""
    mean, variance = _column(-1.0, 2.0), _column(0.5, 9.0)
    one, zero = ((1 + torch.exp(sign * mean)) / variance for sign in (1, -1))
    total = one + zero
    moments = Bernoulli().predictive(mean, variance[..., None], "laplace_bridge")
    torch.testing.assert_close(moments.mean[:, 1:], one / total, rtol=1e-13, atol=0)
    spread = one * zero / (total.square() * (total + 1))
    torch.testing.assert_close(moments.epistemic[:, 1:], spread, rtol=1e-13, atol=0)


def test_independent_labels_multiply_and_correlated_ones_do_not() -> None:
    f = torch.zeros(2, 2, dtype=torch.float64)
    cov = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[4.0, 4.0], [4.0, 4.0]]], dtype=torch.float64)
    y = torch.ones(2, 2, dtype=torch.float64)
    for link, h in LINKS.items():
        likelihood = Bernoulli(link)
        independent, tied = likelihood.predictive_log_prob(f, cov, y, likelihood.integral(None, 2)).exp().tolist()
        assert independent == pytest.approx(0.25, rel=1e-10)
        # Tied outputs are one f twice: E[link(f)²].
        truth = reference.gaussian_expectation(lambda a, h=h: h(a) ** 2, 0.0, 2.0)
        assert tied == pytest.approx(float(truth), rel=2e-3)


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1], np.array([False, True, True]), np.array([[0.0], [1.0], [1.0]]), torch.tensor([0, 1, 1])],
)
def test_labels_come_in_many_forms(labels: object) -> None:
    targets = Bernoulli().targets(labels, 1)
    assert targets.dtype == torch.float64
    assert targets.tolist() == [[0.0], [1.0], [1.0]]


def test_labels_outside_the_domain_are_named() -> None:
    with pytest.raises(InputError, match=r"y: expected labels 0 and 1, got 2 in row 1\. Encode"):
        Bernoulli().targets([0, 2, 1], 1)
    with pytest.raises(InputError, match="got -1 in row 0"):
        Bernoulli().targets([-1, 1], 1)
    with pytest.raises(InputError, match=r"y: expected shape \(N, 3\) for 3 outputs, got \(2,\)"):
        Bernoulli().targets([0, 1], 3)
    with pytest.raises(InputError, match=r"got 0\.5 in row 1"):
        Bernoulli().targets([[0, 1], [1, 0.5]], 2)


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"link: expected one of 'logit', 'probit', got 'probi'\. Did you mean 'probit'"
    ):
        Bernoulli("probi")
