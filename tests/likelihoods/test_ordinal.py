"""Ordered classes: tails, integrals, what two of them are, first cutpoints, and every door that asks for classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Bernoulli, Ordinal, entropy

CUTS = {"logit": [-1.0, 0.3, 0.3001, 2.5], "probit": [-0.7, 0.9, 4.0]}
links = pytest.mark.parametrize("link", CUTS)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def function(link: str) -> Any:
    return mpmath.ncdf if link == "probit" else lambda x: 1 / (1 + mpmath.exp(-x))


@links
def test_probabilities_are_right_in_the_tails(link: str) -> None:
    likelihood, f = Ordinal(link, CUTS[link]), column(-25.0, -3.0, 0.31, 4.0, 30.0)
    edges = [-mpmath.inf, *map(mpmath.mpf, CUTS[link]), mpmath.inf]
    with mpmath.workdps(400):
        below = function(link)
        for k in range(len(edges) - 1):
            got = likelihood.log_prob(f, torch.full((len(f),), k))
            for place, at in enumerate(f[:, 0].tolist()):
                ends = [0 if e == -mpmath.inf else 1 if e == mpmath.inf else below(e - mpmath.mpf(at)) for e in edges]
                truth = float(mpmath.log(ends[k + 1] - ends[k]))
                assert float(got[place]) == pytest.approx(truth, rel=1e-10, abs=1e-11)


@links
def test_two_classes_are_a_bernoulli(link: str) -> None:
    ordinal, bernoulli, cut = Ordinal(link, [0.6]), Bernoulli(link), 0.6
    f, variance, y = column(-3.0, 0.1, 9.0), column(0.0, 2.0, 90.0)[..., None], torch.tensor([1, 0, 0])
    g, labels = f - cut, y[:, None].double()
    torch.testing.assert_close(ordinal.log_prob(f, y), bernoulli.log_prob(g, labels))
    torch.testing.assert_close(ordinal.hessian(f, y), bernoulli.hessian(g, labels))
    torch.testing.assert_close(ordinal.expected(f).dense(), bernoulli.expected(g).dense())
    name, other = ordinal.integral(None, 1), bernoulli.integral(None, 1)
    one, two = ordinal.predictive(f, variance, name), bernoulli.predictive(g, variance, other)
    torch.testing.assert_close(one.mean, two.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(one.epistemic, two.epistemic, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(one.aleatoric, two.aleatoric, rtol=1e-8, atol=1e-10)
    log_prob = bernoulli.predictive_log_prob(g, variance, labels, other)
    torch.testing.assert_close(ordinal.predictive_log_prob(f, variance, y, name), log_prob, rtol=1e-9, atol=1e-10)
    told = bernoulli.mutual_information(g, variance, other)
    torch.testing.assert_close(ordinal.mutual_information(f, variance, name), told, rtol=1e-8, atol=1e-10)


@links
@pytest.mark.parametrize("sd", [0.3, 3.0, 20.0])
def test_integrals_are_sums_over_f(link: str, sd: float) -> None:
    likelihood, mean = Ordinal(link, CUTS[link]), column(-2.0, 0.4, 15.0)
    z = torch.linspace(-12, 12, 15_001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * z.square(), 0)
    p = likelihood.conditional(mean + sd * z[:, None, None])[0]
    average = torch.tensordot(weights, p, dims=1)
    variance = column(sd, sd, sd).square()[..., None]
    name = likelihood.integral(None, 1)
    moments = likelihood.predictive(mean, variance, name)
    torch.testing.assert_close(moments.mean, average, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(moments.mean.sum(-1), torch.ones(3).double(), rtol=1e-12, atol=0)
    epistemic = torch.tensordot(weights, (p - average).square(), dims=1)
    torch.testing.assert_close(moments.epistemic, epistemic, rtol=1e-7, atol=1e-12)
    information = entropy(average) - torch.tensordot(weights, entropy(p), dims=1)
    torch.testing.assert_close(likelihood.mutual_information(mean, variance, name), information, rtol=1e-6, atol=1e-10)
    far = likelihood.predictive_log_prob(column(-60.0), column(4.0)[..., None], torch.tensor([len(CUTS[link])]), name)
    assert -800 < float(far) < -20


@links
def test_first_cutpoints_give_the_frequencies(link: str) -> None:
    y = torch.tensor([0] * 9 + [1] * 19 + [2] * 4 + [3] * 64)
    found = Ordinal(link).starting(y)
    p = found.conditional(torch.zeros(1, 1, dtype=torch.float64))[0][0]
    torch.testing.assert_close(p, torch.tensor([10.0, 20.0, 5.0, 65.0]).double() / 100.0)
    assert Ordinal(link).learnable == ("cutpoints",)
    assert torch.equal(found.constant(y), torch.zeros(1).double())
    cuts = found.cutpoints.clone().requires_grad_()
    moved = found.with_hyperparameters(cutpoints=cuts)
    (slope,) = torch.autograd.grad(moved.log_prob(torch.zeros(len(y), 1).double(), y).sum(), cuts)
    differences = [
        float(found.with_hyperparameters(cutpoints=found.cutpoints + sign * 1e-6 * row).log_prob(
            torch.zeros(len(y), 1).double(), y).sum()) for row in torch.eye(3).double() for sign in (1, -1)
    ]  # fmt: skip
    truth = torch.tensor(differences, dtype=torch.float64).reshape(3, 2) @ torch.tensor([1.0, -1.0]).double() / 2e-6
    torch.testing.assert_close(slope, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.global_rng  # torch draws the first weights
def test_every_door_of_classes_is_open(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, dtype=torch.float64, generator=source)
    likelihood = Ordinal("logit", [-1.0, 0.5, 2.0])
    y = likelihood.sample(1.5 * x[:, :1], source)
    module = nn.Linear(2, 1).double()
    q = bs.laplace(bs.fit_map(module, (x, y), likelihood=likelihood).model, (x, y), likelihood=likelihood)
    path = tmp_path / "ordinal.bayes"
    q.save(path)
    p, again = q.predict(x), bs.load(path).predict(x)
    torch.testing.assert_close(p.probs, again.probs)
    assert p.probs.shape == (60, 4)
    assert p.entropy.shape == p.mutual_information.shape == (60,)
    low, high = p.interval(0.9)
    assert ((low <= p.probs) & (p.probs <= high)).all()
    frame = p.to_frame(classes=["bad", "fair", "good", "best"])
    assert list(frame.columns[:5]) == ["predicted", "p(bad)", "p(fair)", "p(good)", "p(best)"]
    sets = bs.conformal(p, y, level=0.8).sets(p)
    assert sets.shape == (60, 4)
    assert float(p.log_prob(y).mean()) > math.log(1 / 4)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 4], r"ordered classes 0…3, got 4 in row 2\. Number the levels from 0 in their order, or use the categ"),
        ([0.5, 1], r"ordered classes 0…3, got 0\.5 in row 0"),
        ([-1, 1], r"ordered classes 0…3, got -1 in row 0"),
    ],
)
def test_labels_that_are_no_ordered_classes_are_refused(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ordinal("logit", [0.0, 1.0, 2.0]).targets(y, 1)


def test_what_no_ordinal_likelihood_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"outputs: expected 1 .* got 3"):
        Ordinal().targets([0, 1], 3)
    with pytest.raises(InputError, match=r"cutpoints: expected increasing numbers .* Sort them"):
        Ordinal("logit", [1.0, 0.0])
    with pytest.raises(OptionError, match="link: expected one of 'logit', 'probit'"):
        Ordinal("cloglog")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cutpoints: expected numbers, got 'evidence'"):
        Ordinal().log_prob(torch.zeros(1, 1), torch.tensor([0]))
    with pytest.raises(InputError, match="at least two ordered classes"):
        Ordinal().starting(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="ordered classes 0…1, got 2"):
        Ordinal("logit", [0.0]).log_prob(torch.zeros(1, 1), torch.tensor([2]))
    assert np.array_equal(Ordinal().targets(np.array([[2], [0]]), 1), [2, 0])


def test_as_many_cutpoints_are_learnt_as_there_are_classes() -> None:
    found = Ordinal(classes=5).starting(torch.tensor([0, 2, 2, 1]))
    assert found.known("cutpoints").shape == (4,)
    assert found.with_hyperparameters(cutpoints="evidence").classes == 5


@links
def test_quantiles_of_probabilities_are_those_of_draws(link: str) -> None:
    likelihood, mean, variance = Ordinal(link, CUTS[link]), column(-2.0, 0.2, 3.0, 1.0), column(0.5, 2.0, 0.01, 0.0)
    probabilities = torch.linspace(0.5e-4, 1.0 - 0.5e-4, 10_000, dtype=torch.float64)
    f = mean + variance.sqrt() * torch.special.ndtri(probabilities)[:, None, None]
    p = likelihood.conditional(f)[0]
    for level in (0.05, 0.9):
        got = likelihood.probability_quantile(mean, variance, level)
        truth = torch.from_numpy(np.quantile(p.numpy(), level, axis=0))
        torch.testing.assert_close(got, truth, rtol=3e-3, atol=1e-4)
