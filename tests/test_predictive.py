import dataclasses

import numpy as np
import pytest
import torch

from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, MixtureLatent
from bayescope.likelihoods import (
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)
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
    with pytest.raises(UnsupportedError, match="'mackay' is an approximation whose error is unknown"):
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


def forms(outputs: int = 1, integral: str = "quadrature") -> dict[str, object]:
    """Each latent, and the likelihoods' integrals of it: parts of a mixture are a Gaussian and draws."""
    source = torch.Generator().manual_seed(7)
    mean = torch.randn(5, outputs, dtype=torch.float64, generator=source)
    root = torch.randn(5, outputs, outputs + 1, dtype=torch.float64, generator=source)
    gaussian = GaussianLatent(mean, root @ root.mT, integral)
    draws = DrawsLatent(2 * torch.randn(6, 5, outputs, dtype=torch.float64, generator=source))
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    return {
        "gaussian": gaussian,
        "marginals": GaussianLatent(mean, gaussian.variance, "mackay"),
        "draws": draws,
        "monte carlo": gaussian.with_draws(50, source),
        "mixture": MixtureLatent(weights, [gaussian, draws]),
        "mixture of mixtures": MixtureLatent(weights, [MixtureLatent(weights, [gaussian, draws]), draws]),
    }


CLASSES = {
    "bernoulli": (Bernoulli(), 1),
    "two labels": (Bernoulli(), 2),
    "categorical": (Categorical(), 3),
    "bradley-terry": (BradleyTerry(), 2),
}


@pytest.mark.parametrize(
    ("form", "case"),
    # The difference of two rewards needs their covariance
    [(form, case) for form in forms() for case in CLASSES if (form, case) != ("marginals", "bradley-terry")],
)
def test_the_entropy_of_classes_splits_in_two(form, case):
    """0 ≤ I(y; f) ≤ H[y], and for everything but marginals H[y] − I is the draws' mean entropy."""
    likelihood, outputs = CLASSES[case]
    latent = forms(outputs)[form]
    p = Predictive(latent, likelihood)
    probs = torch.cat([p.probs, 1 - p.probs], 1) if case == "two labels" else p.probs
    torch.testing.assert_close(p.entropy, -torch.xlogy(probs, probs).sum(1))
    assert p.mutual_information.shape == (5,)
    assert ((p.mutual_information >= 0) & (p.mutual_information <= p.entropy)).all()
    if form == "marginals":
        return
    f = latent.sample(100_000, torch.Generator().manual_seed(1)) if form != "monte carlo" else latent.draws.values
    columns = likelihood.conditional(f)[0]
    labels = torch.cat([columns, 1 - columns], -1) if case == "two labels" else columns
    each = -torch.xlogy(labels, labels).sum(-1)
    error = 6 * each.std(0).max().item() / len(f) ** 0.5 + 1e-3 if form != "monte carlo" else 1e-12
    torch.testing.assert_close(p.entropy - p.mutual_information, each.mean(0), rtol=0, atol=error)


@pytest.mark.parametrize(
    ("form", "likelihood"),
    [
        *((form, Gaussian([0.3, 2.0])) for form in ("gaussian", "draws", "mixture", "mixture of mixtures")),
        ("draws", HeteroscedasticGaussian("natural")),
    ],
    ids=["gaussian", "draws", "mixture", "mixture of mixtures", "draws, unknown noise"],
)
def test_the_entropy_of_a_regression_splits_in_two(form, likelihood):
    """H[y] per output from the density on a grid; E H[y∣f] = ½ E log 2πe σ² from draws of f."""
    known = isinstance(likelihood, Gaussian)
    latent = forms(integral="exact", outputs=2)[form] if known else DrawsLatent(0.3 * forms(4)[form].values)
    p = Predictive(latent, likelihood)
    log_weights, means, variances = latent.components(likelihood)
    y = torch.linspace(-40, 40, 8001, dtype=torch.float64)[:, None, None, None]
    normal = torch.distributions.Normal(means, variances.sqrt())
    log_p = torch.cat([torch.logsumexp(normal.log_prob(part) + log_weights[:, None, None], 1) for part in y.split(500)])
    truth = -(log_p.exp() * log_p).sum(0) * 0.01
    torch.testing.assert_close(p.entropy, truth.sum(1), rtol=0, atol=1e-7)
    sampled = latent.values if form == "draws" else latent.sample(10, torch.Generator().manual_seed(1))
    inner = 0.5 * torch.log(2 * torch.pi * torch.e * likelihood.conditional(sampled)[1]).mean(0).sum(-1)
    torch.testing.assert_close(p.entropy - p.mutual_information, inner, rtol=0, atol=1e-7)


def test_constant_noise_has_its_closed_forms():
    p = regression()
    torch.testing.assert_close(p.entropy, 0.5 * torch.log(2 * torch.pi * torch.e * p.variance[:, 0]))
    torch.testing.assert_close(p.mutual_information, 0.5 * torch.log(p.variance[:, 0] / p.aleatoric[:, 0]))


def test_a_point_tells_nothing_and_has_the_noise_s_entropy():
    for likelihood in (Bernoulli(), Gaussian(0.5)):
        for latent in (DrawsLatent(MEAN[None]), GaussianLatent(MEAN, 0 * COV, likelihood.integral(None, 1))):
            p = Predictive(latent, likelihood)
            torch.testing.assert_close(p.mutual_information, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-20)


def test_differentiable_predictions_have_differentiable_information():
    """A row's information rises with its variance."""
    scale = torch.ones(3, 1, 1, dtype=torch.float64, requires_grad=True)
    for likelihood in (Bernoulli(), Gaussian(0.5)):
        p = Predictive(GaussianLatent(MEAN, COV * scale, likelihood.integral(None, 1)), likelihood)
        (told,) = torch.autograd.grad(p.mutual_information.sum(), scale, retain_graph=True)
        assert (told > 0).all()
        (total,) = torch.autograd.grad(p.entropy.sum(), scale)
        assert total.isfinite().all()


def test_rows_below_a_threshold_are_left_undecided():
    p = classes(arrays=True)
    best = p.probs.max(1)
    for threshold in (0.6, 0.8, 0.99):
        assert (p.abstains(probability=threshold) == (best < threshold)).all()
    sd = np.sqrt(p.epistemic[:, 0])
    assert (p.abstains(epistemic=0.1) == (sd > 0.1)).all()
    assert (p.abstains(probability=0.8, epistemic=0.1) == ((best < 0.8) | (sd > 0.1))).all()
    assert isinstance(p.abstains(probability=0.5), np.ndarray)
    assert regression().abstains(epistemic=3.0).tolist() == [False, False, True]


def test_a_threshold_is_for_the_class_that_is_called():
    """Three classes: the sd of the most probable one; two labels: a row is undecided where one of them is."""
    f = torch.tensor([[[0.0, 0.0, 5.0]], [[0.0, 4.0, 5.0]]], dtype=torch.float64)
    p = Predictive(DrawsLatent(f), Categorical())
    sd = p.epistemic.sqrt()[0]
    assert sd[0] < sd[2]
    assert p.abstains(epistemic=float(sd[2]) - 1e-9).all()
    assert not p.abstains(epistemic=float(sd[2]) + 1e-9).any()
    labels = torch.tensor([[4.0, -4.0], [4.0, 0.1], [-4.0, -4.0]], dtype=torch.float64)
    several = Predictive(DrawsLatent(labels[None]), Bernoulli())
    assert several.abstains(probability=0.9).tolist() == [False, True, False]
    dense = dataclasses.replace(several, shape=(1, 3))
    assert dense.abstains(probability=0.9).shape == (1, 3)
    assert dense.mutual_information.shape == dense.entropy.shape == (1, 3)


def test_thresholds_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="expected probability=, epistemic= or both, got neither"):
        classes().abstains()
    with pytest.raises(InputError, match="probability: expected a number strictly between 0 and 1, got 80"):
        classes().abstains(probability=80)
    with pytest.raises(InputError, match="epistemic: expected a positive number"):
        classes().abstains(epistemic=-1)
    with pytest.raises(UnsupportedError, match="has no classes"):
        regression().abstains(probability=0.8)


@pytest.mark.parametrize(("likelihood", "outputs"), [(Bernoulli(), 1), (Bernoulli("probit"), 1), (Categorical(), 4)])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_of_probabilities_hold_the_share_of_draws_that_they_say(likelihood, outputs, level):
    """200,000 draws of f; two classes are exact, and more right to 2e-3 in either tail."""
    latent = dataclasses.replace(forms(outputs)["gaussian"], integral=likelihood.integral(None, outputs))
    probs = likelihood.conditional(latent.sample(200_000, torch.Generator().manual_seed(3)))[0]
    low, high = Predictive(latent, likelihood).interval(level)
    tail = (1 - level) / 2
    error = 6 * (tail * (1 - tail) / 200_000) ** 0.5 + (2e-3 if outputs > 1 else 0.0)
    for share in ((probs < low).double().mean(0), (probs > high).double().mean(0)):
        torch.testing.assert_close(share, torch.full_like(share, tail), rtol=0, atol=error)


@pytest.mark.parametrize(
    "likelihood", [Gaussian(0.5), HeteroscedasticGaussian(), Poisson()], ids=lambda each: each.name
)
def test_quantiles_and_the_distribution_function_are_inverse_and_agree_with_samples(likelihood: Likelihood) -> None:
    outputs = 2 if likelihood.name == "heteroscedastic_gaussian" else 1
    mean = torch.linspace(0.2, 1.4, 4 * outputs, dtype=torch.float64).reshape(4, outputs)
    cov = 0.2 * torch.eye(outputs, dtype=torch.float64).expand(4, -1, -1)
    p = Predictive(GaussianLatent(mean, cov, likelihood.integral(None, outputs)), likelihood)
    draws = p.sample(20_000, generator=0)
    for level in (0.1, 0.5, 0.9):
        q = p.quantile(level)
        reached = p.cdf(q)
        if likelihood.name == "poisson":
            assert (reached >= level).all()
            assert (p.cdf((q - 1.0).clamp_min(0.0))[q > 0] < level).all()
        else:
            torch.testing.assert_close(reached, torch.full_like(reached, level), rtol=1e-6, atol=0)
        torch.testing.assert_close((draws <= q).double().mean(0), reached, rtol=0, atol=0.02)
    torch.testing.assert_close(p.interval(0.8)[0], p.quantile(0.1))
    torch.testing.assert_close(p.sd.square(), p.variance)
