"""The guarantee of conformal predictions, over repetitions of models that are wrong; and what a result is."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayescope import storage
from bayescope.conformal import Conformal, conformal
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, MixtureLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from bayescope.predictive import Predictive

REPEATS = 400


def gaussian(mean: Tensor, sd: Tensor, noise: float = 0.3, arrays: bool = False) -> Predictive:
    return Predictive(GaussianLatent(mean, torch.diag_embed(sd.square()), "exact"), Gaussian(noise), arrays)


def classes(logits: Tensor) -> Predictive:
    likelihood = Categorical() if logits.shape[1] > 1 else Bernoulli()
    return Predictive(DrawsLatent(torch.stack([logits, 2 * logits])), likelihood)


def mixture(x: Tensor) -> Predictive:
    """Two Gaussian parts: skewed where x is large."""
    parts = [GaussianLatent(shift * x, (0.1 + 0.2 * x.square())[..., None], "exact") for shift in (0.5, 2.0)]
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    return Predictive(MixtureLatent(weights, parts), Gaussian(0.2))


def source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def regression_trial(seed: int, rows: int, level: float) -> float:
    """Skewed noise three times as wide as the model thinks, around a line that is no line. The share of 40 new rows."""
    g = source(seed)
    x = normal(rows + 40, 1, generator=g)
    y = x.square() + (normal(rows + 40, 1, generator=g)).exp()
    predict = gaussian if seed % 8 else (lambda m, s: mixture(m + s))
    held, new = x[:rows], x[rows:]
    c = conformal(predict(held, 0.2 + held.abs()), y[:rows], level=level)
    low, high = c.interval(predict(new, 0.2 + new.abs()))
    return float(((low <= y[rows:]) & (y[rows:] <= high)).double().mean())


def class_trial(
    seed: int, rows: int, level: float, outputs: int, method: str = "least_ambiguous", randomized: bool = False
) -> float:
    """Overconfident logits of which one class is systematically off."""
    g = source(seed)
    f = normal(rows + 40, outputs, generator=g)
    likelihood = Categorical() if outputs > 1 else Bernoulli()
    y = likelihood.sample(f, g).reshape(len(f), -1)
    wrong = 3 * f + torch.arange(outputs)
    c = conformal(
        classes(wrong[:rows]), y[:rows], level=level, method=method, randomized=randomized,
        generator=seed if randomized else None,
    )  # fmt: skip
    sets = c.sets(classes(wrong[rows:]), generator=seed + 10_000 if randomized else None)
    return float(sets.gather(1, y[rows:].long()).double().mean())


TRIALS = {
    "regression": regression_trial,
    "binary": lambda seed, rows, level: class_trial(seed, rows, level, 1),
    "three classes": lambda seed, rows, level: class_trial(seed, rows, level, 3),
    "adaptive": lambda seed, rows, level: class_trial(seed, rows, level, 3, "adaptive"),
    "adaptive, randomised": lambda seed, rows, level: class_trial(seed, rows, level, 3, "adaptive", True),
}


@pytest.mark.parametrize(("name", "rows", "level"), [*((name, 19, 0.9) for name in TRIALS), ("three classes", 60, 0.8)])
def test_the_guarantee_holds_however_wrong_the_model(name: str, rows: int, level: float) -> None:
    """400 repetitions; the mean coverage is within [level, level + 1/(rows + 1)] up to three standard errors.

    Sets that always hold the most probable class ("adaptive") may hold more than that, and not less.
    """
    shares = np.array([TRIALS[name](seed, rows, level) for seed in range(REPEATS)])
    error = 3 * shares.std() / math.sqrt(REPEATS)
    assert shares.mean() >= level - error
    if name != "adaptive":
        assert shares.mean() <= level + 1 / (rows + 1) + error


def test_the_model_s_own_intervals_do_not_hold_it() -> None:
    """What the guarantee is needed for: these predictions without it."""
    g = source(0)
    x = normal(4000, 1, generator=g)
    y = x.square() + normal(4000, 1, generator=g).exp()
    low, high = gaussian(x, 0.2 + x.abs()).interval(0.9)
    assert ((low <= y) & (y <= high)).double().mean() < 0.8


def test_the_rank_is_that_of_the_finite_sample() -> None:
    """Of 19 rows at 0.9 the 18th smallest score; of 9 rows the largest; of 8 none."""
    y = torch.arange(1.0, 20.0, dtype=torch.float64)[:, None]
    p = gaussian(torch.zeros(19, 1, dtype=torch.float64), torch.zeros(19, 1, dtype=torch.float64), noise=1.0)
    assert conformal(p, y, level=0.9).quantile == pytest.approx((18.0,), rel=1e-9)
    few = gaussian(torch.zeros(9, 1, dtype=torch.float64), torch.zeros(9, 1, dtype=torch.float64), noise=1.0)
    assert conformal(few, y[:9], level=0.9).quantile == pytest.approx((9.0,), rel=1e-9)
    fewer = gaussian(torch.zeros(8, 1, dtype=torch.float64), torch.zeros(8, 1, dtype=torch.float64), noise=1.0)
    with pytest.raises(InputError, match=r"y: expected at least 9 rows for level=0\.9, got 8"):
        conformal(fewer, y[:8], level=0.9)
    # As written: 0.55 · 100 is a little more than 55 in floating point
    hundred = gaussian(torch.zeros(99, 1, dtype=torch.float64), torch.zeros(99, 1, dtype=torch.float64), noise=1.0)
    values = torch.arange(1.0, 100.0, dtype=torch.float64)
    assert conformal(hundred, values, level=0.55).quantile == pytest.approx((55.0,), rel=1e-9)


def test_a_gaussian_s_scores_are_normalised_residuals_however_far_out() -> None:
    """At 300 standard deviations, and with the ends where the residual is."""
    sd = torch.full((9, 1), 2.0, dtype=torch.float64)
    p = gaussian(torch.zeros(9, 1, dtype=torch.float64), sd, noise=5.0)
    y = torch.full((9,), -900.0, dtype=torch.float64)
    c = conformal(p, y, level=0.9)
    assert c.quantile == pytest.approx((300.0,), rel=1e-9)
    low, high = c.interval(p)
    torch.testing.assert_close(low[:, 0], y, rtol=1e-9, atol=0)
    torch.testing.assert_close(high[:, 0], -y, rtol=1e-9, atol=0)


def test_a_mixture_s_interval_is_its_own_at_another_level() -> None:
    g = source(1)
    x = normal(200, 1, generator=g)
    p = mixture(x)
    c = conformal(p, p.sample(1, generator=3)[0], level=0.8)
    own = 2 * stats.norm.cdf(c.quantile[0]) - 1
    assert own == pytest.approx(0.8, abs=0.1)  # 200 rows of a model that is right
    for got, expected in zip(c.interval(p), p.interval(float(own)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("parametrization", ["mean_log_variance", "natural"])
def test_unknown_noise_has_intervals_too(parametrization: str) -> None:
    g = source(2)
    mean = normal(100, 2, generator=g)
    latent = GaussianLatent(mean, 0.1 * torch.eye(2, dtype=torch.float64).expand(100, 2, 2), "quadrature")
    p = Predictive(latent, HeteroscedasticGaussian(parametrization))
    y = p.sample(1, generator=5)[0]
    low, high = conformal(p, y, level=0.9).interval(p)
    assert ((low <= y) & (y <= high)).double().mean() >= 0.9


def test_outputs_are_corrected_each_for_itself() -> None:
    g = source(3)
    mean, y = torch.zeros(99, 2, dtype=torch.float64), normal(99, 2, generator=g) * torch.tensor([1.0, 10.0])
    p = gaussian(mean, torch.zeros_like(mean), noise=1.0)
    both = conformal(p, y, level=0.9)
    for d in range(2):
        one = gaussian(mean[:, :1], torch.zeros_like(mean[:, :1]), noise=1.0)
        assert both.quantile[d] == conformal(one, y[:, d], level=0.9).quantile[0]
    assert both.interval(p)[0].shape == (99, 2)


def test_sets_are_what_their_definitions_say() -> None:
    """p = (0.5, 0.3, 0.15, 0.05) for all rows."""
    f = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log().expand(9, 4)
    p = Predictive(DrawsLatent(f[None]), Categorical(), arrays=True)
    c = conformal(p, [2] * 8 + [0], level=0.9)
    assert c.quantile == pytest.approx((0.85,))
    assert isinstance(c.sets(p), np.ndarray)
    assert c.sets(p)[0].tolist() == [True, True, True, False]
    c = conformal(p, [2] * 8 + [0], level=0.9, method="adaptive")
    assert c.quantile == pytest.approx((0.8,))
    assert c.sets(p)[0].tolist() == [True, True, True, False]
    c = conformal(p, [0] * 9, level=0.9)
    sure = Predictive(DrawsLatent(torch.zeros(1, 2, 4, dtype=torch.float64)), Categorical())
    assert not c.sets(sure).any()  # no class reaches ½
    alone = conformal(p, [0] * 9, level=0.9, method="adaptive")
    assert alone.quantile == (0.0,)
    assert alone.sets(p)[0].tolist() == [True, False, False, False]
    assert alone.sets(sure).sum(1).tolist() == [1, 1]  # never empty


def test_certain_wrong_rows_make_sets_of_everything() -> None:
    f = torch.tensor([[60.0, 0.0, -60.0]], dtype=torch.float64).expand(9, 3)
    p = Predictive(DrawsLatent(f[None]), Categorical())
    for method in ("least_ambiguous", "adaptive"):
        assert conformal(p, [2] * 9, level=0.9, method=method).sets(p).all()


def test_labels_are_corrected_each_for_itself() -> None:
    g = source(4)
    f = normal(60, 3, generator=g)
    p = Predictive(DrawsLatent(f[None]), Bernoulli())
    y = p.sample(1, generator=6)[0]
    c = conformal(p, y, level=0.9)
    sets = c.sets(p)
    assert sets.shape == (60, 3, 2)
    assert len(c.quantile) == 3
    held = sets.gather(2, y.long()[..., None])[..., 0].double().mean(0)
    assert (held >= 0.9).all()
    one = Predictive(DrawsLatent(f[None, :, :1]), Bernoulli())
    assert conformal(one, y[:, 0], level=0.9).quantile[0] == c.quantile[0]
    assert torch.equal(conformal(one, y[:, 0], level=0.9).sets(one), sets[:, 0])


def test_randomised_sets_are_drawn_from_the_generator() -> None:
    f = normal(60, 3, generator=source(5))
    p = classes(f)
    y = p.sample(1, generator=6)[0]
    c = conformal(p, y, level=0.8, method="adaptive", randomized=True, generator=1)
    assert torch.equal(c.sets(p, generator=2), c.sets(p, generator=2))
    assert not torch.equal(c.sets(p, generator=2), c.sets(p, generator=3))


def test_randomised_scores_of_a_model_that_is_right_are_uniform() -> None:
    """4,000 rows; five standard errors of a quantile."""
    f = normal(4000, 3, generator=source(7))
    p = Predictive(DrawsLatent(f[None]), Categorical())
    y = p.sample(1, generator=8)[0]
    for level in (0.2, 0.5, 0.9):
        c = conformal(p, y, level=level, method="adaptive", randomized=True, generator=1)
        assert c.quantile[0] == pytest.approx(level, abs=5 * (level * (1 - level) / 4000) ** 0.5)


def test_randomised_sets_hold_no_more_than_they_say() -> None:
    """Where the most probable class is always right, that one in all sets holds 1; and left out of some, the level."""
    f = 3 * normal(2000, 3, generator=source(6))
    p, y = classes(f), f.argmax(1)
    whole = conformal(p, y, level=0.8, method="adaptive").sets(p)
    assert (whole.sum(1) == 1).all()
    drawn = conformal(p, y, level=0.8, method="adaptive", randomized=True, generator=1).sets(p, generator=2)
    assert drawn.gather(1, y[:, None]).double().mean() == pytest.approx(0.8, abs=4 * (2 * 0.16 / 2000) ** 0.5)


def test_it_says_what_it_is() -> None:
    p = gaussian(torch.zeros(19, 1, dtype=torch.float64), torch.ones(19, 1, dtype=torch.float64))
    c = conformal(p, torch.linspace(-2, 2, 19), level=0.9)
    assert (c.level, c.rows, c.method, c.likelihood, c.outputs) == (0.9, 19, "predictive_interval", "gaussian", 1)
    assert "level 0.9, from 19 held-out rows" in c.summary()
    assert "reach 1.754 normal scores to either side, where the predictive's own reach 1.645" in repr(c)
    assert "0.9 of rows like the held-out ones, on average; give or take 0.065 for these held-out rows" in c.summary()
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.level = 0.5
    f = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log().expand(19, 3)
    for method, words in (
        ("least_ambiguous", "whose probability is at least 1 − 0.7"),
        ("adaptive", "until their sum exceeds 0.5"),
    ):
        told = conformal(Predictive(DrawsLatent(f[None]), Categorical()), [1] * 19, level=0.9, method=method).summary()
        assert words in told


def test_misuse_is_refused() -> None:
    f = normal(60, 3, generator=source(5))
    labels, numbers = classes(f), gaussian(f[:, :1], 1 + f[:, :1].abs())
    y = torch.zeros(60)
    c = conformal(labels, y)
    with pytest.raises(InputError, match="expected the categorical likelihood with 3 output"):
        c.sets(classes(f[:, :2]))
    with pytest.raises(InputError, match="expected the categorical likelihood"):
        c.sets(numbers)
    counts = Predictive(DrawsLatent(f[None, :, :1]), Poisson())
    with pytest.raises(UnsupportedError, match=r"got the likelihood 'poisson'\. Take its own intervals"):
        conformal(counts, y)
    with pytest.raises(UnsupportedError, match="Ask for sets"):
        c.interval(labels)
    with pytest.raises(UnsupportedError, match="Ask for interval"):
        conformal(numbers, y).sets(numbers)
    with pytest.raises(InputError, match="y: expected 60 rows, got 59"):
        conformal(labels, y[:59])
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        conformal(labels, y, level=95)
    with pytest.raises(OptionError, match="'least_ambiguous', 'adaptive'"):
        conformal(labels, y, method="aps")
    with pytest.raises(OptionError, match="'predictive_interval'"):
        conformal(numbers, y, method="adaptive")
    with pytest.raises(UnsupportedError, match="Take method='adaptive'"):
        conformal(labels, y, randomized=True)
    for wrong in (lambda: conformal(labels, y, generator=0), lambda: c.sets(labels, generator=0)):
        with pytest.raises(InputError, match="generator: expected None where nothing is drawn"):
            wrong()
    dense = dataclasses.replace(labels, shape=(20, 3))
    for wrong in (lambda: conformal(dense, y), lambda: c.sets(dense)):
        with pytest.raises(InputError, match="positions of a row are not exchangeable"):
            wrong()
    assert isinstance(c, Conformal)


def test_it_can_be_kept_in_a_file(tmp_path: Path) -> None:
    f = normal(60, 3, generator=source(5))
    c = conformal(classes(f), torch.zeros(60))
    assert storage.load(storage.save(c, tmp_path / "corrected.bayes")) == c
