import dataclasses

import numpy as np
import pytest
import torch

from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.predictive import Predictive

MEAN = torch.tensor([[0.5], [-2.0], [30.0]], dtype=torch.float64)
COV = torch.tensor([[[4.0]], [[0.25]], [[100.0]]], dtype=torch.float64)


def classes(arrays: bool = False) -> Predictive:
    return Predictive(GaussianLatent(MEAN, COV, "quadrature"), Bernoulli(), arrays=arrays)


def regression() -> Predictive:
    return Predictive(GaussianLatent(MEAN, COV, "exact"), Gaussian(noise_variance=0.5))


def test_answers_follow_what_went_in():
    for name in ("mean", "probs", "variance", "epistemic", "aleatoric", "latent_mean", "latent_cov"):
        assert isinstance(getattr(classes(arrays=True), name), np.ndarray), name
        assert isinstance(getattr(classes(arrays=False), name), torch.Tensor), name
    assert isinstance(classes(arrays=True).sample(2, generator=0), np.ndarray)
    assert isinstance(classes(arrays=True).interval(0.9)[0], np.ndarray)
    assert isinstance(classes(arrays=True).log_prob([0, 1, 1]), np.ndarray)


def test_class_probabilities_and_their_split():
    p = classes()
    torch.testing.assert_close(p.probs.sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(p.variance, p.probs * (1 - p.probs))
    torch.testing.assert_close(p.variance, p.epistemic + p.aleatoric)
    assert (p.epistemic > 0).all()
    torch.testing.assert_close(p.log_prob([1, 1, 1]).exp(), p.probs[:, 1])
    torch.testing.assert_close(p.log_prob([0, 0, 0]).exp(), p.probs[:, 0])


def test_intervals_of_classes_are_of_the_probability():
    p = classes()
    low, high = p.interval(0.9)
    sd = COV[:, 0, 0].sqrt()
    z = 1.6448536269514722
    torch.testing.assert_close(low[:, 1], torch.sigmoid(MEAN[:, 0] - z * sd))
    torch.testing.assert_close(high[:, 1], torch.sigmoid(MEAN[:, 0] + z * sd))
    torch.testing.assert_close(low[:, 0], 1 - high[:, 1], rtol=1e-9, atol=1e-12)
    with pytest.raises(UnsupportedError, match="of='mean'"):
        p.interval(0.9, of="outcome")


def test_intervals_of_a_regression_include_the_noise_unless_of_the_mean():
    p = regression()
    z = 1.959963984540054
    low, high = p.interval(0.95)
    torch.testing.assert_close(high - low, 2 * z * (COV[:, 0] + 0.5).sqrt())
    low, high = p.interval(0.95, of="mean")
    torch.testing.assert_close(high - low, 2 * z * COV[:, 0].sqrt())
    torch.testing.assert_close(p.interval(0.95, of="latent")[0], low)
    torch.testing.assert_close(p.variance, COV[:, 0] + 0.5)


def test_intervals_from_draws_cover_what_they_say():
    source = torch.Generator().manual_seed(0)
    draws = MEAN + COV[:, 0].sqrt() * torch.randn(4000, 3, 1, dtype=torch.float64, generator=source)
    sampled = Predictive(DrawsLatent(draws), Gaussian(noise_variance=0.5))
    for a, b in zip(sampled.interval(0.9), regression().interval(0.9), strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.15)


def test_a_draw_of_outcomes_has_the_predictive_s_moments():
    """100,000 draws; six standard errors."""
    draws = regression().sample(100_000, generator=0)
    error = 6 * (COV[:, 0] + 0.5).sqrt() / 100_000**0.5
    assert ((draws.mean(0) - MEAN).abs() < error).all()
    labels = classes().sample(100_000, generator=0)
    share = labels.reshape(100_000, 3).double().mean(0)
    assert ((share - classes().probs[:, 1]).abs() < 6 * 0.5 / 100_000**0.5).all()


def test_bad_questions_are_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        classes().interval(95)
    with pytest.raises(OptionError, match="'outcome', 'mean', 'latent'"):
        classes().interval(of="probability")
    with pytest.raises(UnsupportedError, match="Ask for mean"):
        _ = regression().probs
    with pytest.raises(InputError, match="expected 3 rows, got 2"):
        classes().log_prob([0, 1])


def test_it_is_immutable():
    p = classes(arrays=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.likelihood = Categorical()
    p.mean[:] = 7.0
    assert p.mean.max() <= 1.0
    assert len(p) == 3


def test_the_error_of_an_integral_is_said_or_refused():
    assert (classes().integration_error == 0).all()
    mean = torch.tensor([[0.5, -1.0, 0.0]], dtype=torch.float64)
    cov = 4 * torch.eye(3, dtype=torch.float64)[None]
    several = Predictive(GaussianLatent(mean, cov, "quadrature"), Categorical(), arrays=True)
    assert isinstance(several.integration_error, np.ndarray)
    assert several.integration_error.shape == (1, 3)
    assert 0 < several.integration_error.max() < 2e-3
    with pytest.raises(UnsupportedError, match="'mackay' is an approximation whose error nothing tells"):
        _ = Predictive(GaussianLatent(mean, cov, "mackay"), Categorical()).integration_error


def test_dense_outcomes_keep_their_positions():
    """Two rows of three positions are six rows inside; each answer has their shape."""
    source = torch.Generator().manual_seed(0)
    mean, root = torch.randn(6, 4, dtype=torch.float64, generator=source), torch.eye(4, dtype=torch.float64)
    latent = GaussianLatent(mean, (0.5 * root).expand(6, 4, 4), "mackay")
    flat, dense = Predictive(latent, Categorical()), Predictive(latent, Categorical(), shape=(2, 3))
    for name in ("mean", "probs", "variance", "epistemic", "aleatoric", "latent_mean", "latent_cov"):
        assert torch.equal(getattr(dense, name), getattr(flat, name).unflatten(0, (2, 3))), name
    for of in ("mean", "latent"):
        for low_or_high, rows in zip(dense.interval(0.9, of=of), flat.interval(0.9, of=of), strict=True):
            assert torch.equal(low_or_high, rows.unflatten(0, (2, 3)))
    y = torch.tensor([[0, 1, 2], [3, 3, 0]])
    assert torch.equal(dense.log_prob(y), flat.log_prob(y.flatten()).reshape(2, 3))
    assert torch.equal(dense.log_prob(y.tolist()), dense.log_prob(y))
    assert torch.equal(dense.sample(5, generator=0), flat.sample(5, generator=0).unflatten(1, (2, 3)))
    assert len(dense) == 2
    assert "2 rows of 3 positions, 4 latent outputs" in dense.summary()
    for wrong in (y.T, y.flatten(), y[:1]):
        with pytest.raises(InputError, match=r"y: expected shape \(2, 3\)"):
            dense.log_prob(wrong)


def test_dense_regression_takes_outcomes_of_its_shape():
    latent = GaussianLatent(torch.zeros(6, 1, dtype=torch.float64), torch.ones(6, 1, 1, dtype=torch.float64), "exact")
    p = Predictive(latent, Gaussian(noise_variance=1.0), arrays=True, shape=(2, 3))
    y = np.arange(6.0).reshape(2, 3)
    expected = -0.25 * y**2 - 0.5 * np.log(4 * np.pi)
    np.testing.assert_allclose(p.log_prob(y), expected)
    np.testing.assert_allclose(p.log_prob(y[..., None]), expected)
