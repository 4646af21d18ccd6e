"""Gaussian: noise of several forms, and the conjugate marginal."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Gaussian

F = torch.tensor([[1.0, -2.0], [0.5, 0.0]], dtype=torch.float64)
Y = torch.tensor([[0.0, -2.5], [3.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("noise", [0.7, [0.7, 2.0]])
def test_log_prob_is_the_normal_density_with_its_constants(noise: object) -> None:
    normal = torch.distributions.Normal(F, torch.as_tensor(noise, dtype=torch.float64).sqrt())
    torch.testing.assert_close(Gaussian(noise).log_prob(F, Y), normal.log_prob(Y).sum(-1), rtol=1e-13, atol=0)


def test_the_marginal_has_the_noise_added_to_the_covariance() -> None:
    cov = torch.tensor([[[2.0, 1.9], [1.9, 2.0]], [[0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    likelihood = Gaussian([0.7, 2.0])
    marginal = torch.distributions.MultivariateNormal(F, cov + torch.diag(torch.tensor([0.7, 2.0]).double()))
    got = likelihood.predictive_log_prob(F, cov, Y, "exact")
    torch.testing.assert_close(got, marginal.log_prob(Y), rtol=1e-6, atol=0)
    moments = likelihood.predictive(F, cov, "exact")
    assert torch.equal(moments.mean, F)
    assert torch.equal(moments.epistemic, torch.tensor([[2.0, 2.0], [0.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(moments.aleatoric, torch.tensor([[0.7, 2.0]] * 2, dtype=torch.float64))


def test_noise_that_is_to_be_learnt_is_not_used_before() -> None:
    likelihood = Gaussian("evidence")
    assert likelihood.learnable
    with pytest.raises(InputError, match=r"noise_variance: .* has not been learnt yet\. .*with_noise_variance"):
        likelihood.log_prob(F, Y)
    learnt = likelihood.with_noise_variance(2.0)
    assert not learnt.learnable
    assert likelihood.learnable
    torch.testing.assert_close(learnt.log_prob(F, Y), Gaussian(2.0).log_prob(F, Y))


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), [1.0, 0.0], [[1.0]]])
def test_noise_has_to_be_positive(noise: object) -> None:
    with pytest.raises(InputError, match="noise_variance"):
        Gaussian(noise)


def test_noise_has_to_fit_the_outputs() -> None:
    with pytest.raises(InputError, match=r"expected one number or 2 of them for 2 output\(s\), got 3"):
        Gaussian([1.0, 1.0, 1.0]).log_prob(F, Y)
    with pytest.raises(OptionError, match="noise_variance: expected one of 'evidence'"):
        Gaussian("learn")


def test_targets() -> None:
    likelihood = Gaussian()
    assert likelihood.targets([1, 2], 1).tolist() == [[1.0], [2.0]]
    assert likelihood.targets([[1, 2]], 2).tolist() == [[1.0, 2.0]]
    with pytest.raises(InputError, match=r"y: expected shape \(N, 2\)"):
        likelihood.targets([1.0, 2.0], 2)
