"""Categorical: the softmax in the tails, its integrals and their stated errors, relabelling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.likelihoods import Bernoulli, Categorical
from bayescope.quadrature import gauss_hermite


def _problem(rows: int, outputs: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(outputs)
    mean = 2 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    root = torch.randn(rows, outputs, outputs, dtype=torch.float64, generator=generator)
    return mean, scale * root @ root.mT


def _product_rule(mean: Tensor, cov: Tensor) -> Tensor:
    """E[softmax(f)] for three classes by a 150² Gauss–Hermite rule along the differences to the last class."""
    differences = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    nodes, log_weights = gauss_hermite(150)
    z = torch.cartesian_prod(nodes, nodes)
    weights = torch.cartesian_prod(log_weights, log_weights).sum(-1).exp()
    factor = torch.linalg.cholesky(differences @ cov @ differences.mT)
    f = (mean @ differences.mT)[:, None] + z @ factor.mT
    p = torch.softmax(torch.cat([f, torch.zeros_like(f[..., :1])], -1), -1)
    return (weights[:, None] * p).sum(1)


def test_three_classes_equal_a_product_rule_within_the_stated_error() -> None:
    mean, cov = _problem(60, 3, scale=0.3)
    moments = Categorical().predictive(mean, cov, "quadrature")
    error = Categorical().integration_error(mean, cov, "quadrature")
    score = (moments.mean - _product_rule(mean, cov)) / error
    assert error.max() < 5e-4
    assert score.abs().max() < 5.5
    assert 0.5 < score.square().mean().sqrt() < 1.6  # the stated error is neither too small nor too large


@pytest.mark.parametrize("scale", [0.5, 20.0])
@pytest.mark.parametrize("outputs", [3, 4, 6, 12, 32])
def test_log_probabilities_are_those_of_the_means(outputs: int, scale: float) -> None:
    mean, cov = _problem(8, outputs, scale=scale)
    y = torch.arange(8) % outputs
    log_prob = Categorical().predictive_log_prob(mean, cov, y, "quadrature")
    p = Categorical().predictive(mean, cov, "quadrature").mean
    torch.testing.assert_close(log_prob.exp(), p[torch.arange(8), y], rtol=1e-9, atol=0)
    torch.testing.assert_close(p.sum(-1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_log_probabilities_keep_the_tails() -> None:
    """With f₀ the only random output, hopeless, and in the last row so wide that plain Newton steps would cycle."""
    mean = torch.tensor([[-60.0, 0.0, 0.0], [-400.0, 0.0, -3.0], [-3e4, 0.0, 1.0]], dtype=torch.float64)
    cov = torch.zeros(3, 3, 3, dtype=torch.float64)
    cov[:, 0, 0] = torch.tensor([25.0, 100.0, 1e8])
    got = Categorical().predictive_log_prob(mean, cov, torch.zeros(3, dtype=torch.int64), "quadrature")
    # p₀ = σ(f₀ − log Σ_{c≠0} exp f_c): one Gaussian activation, where Bernoulli's integral is exact
    centre = mean[:, :1] - torch.logsumexp(mean[:, 1:], -1, keepdim=True)
    one = torch.ones(3, 1, dtype=torch.float64)
    truth = Bernoulli().predictive_log_prob(centre, cov[:, :1, :1], one, "quadrature")
    torch.testing.assert_close(got, truth, rtol=0, atol=2e-2)
    assert truth[0] < -45  # plain nodes about the mean would say −60 and less


def test_two_classes_are_a_bernoulli_of_the_difference() -> None:
    mean, cov = _problem(20, 2)
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    difference, variance = (mean @ contrast)[:, None], (contrast @ cov @ contrast)[:, None, None]
    got, truth = (
        likelihood.predictive(m, v, "quadrature")
        for likelihood, m, v in ((Categorical(), mean, cov), (Bernoulli(), difference, variance))
    )
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(got, name), getattr(truth, name), rtol=1e-10, atol=1e-12)
    y = torch.arange(20) % 2
    log_prob = Categorical().predictive_log_prob(mean, cov, y, "quadrature")
    torch.testing.assert_close(log_prob, got.mean[torch.arange(20), y].log(), rtol=1e-10, atol=1e-12)
    assert (Categorical().integration_error(mean, cov, "quadrature") == 0).all()


@pytest.mark.parametrize("integral", ["quadrature", "mackay", "laplace_bridge"])
def test_relabelling_the_classes_relabels_the_answer(integral: str) -> None:
    mean, cov = _problem(10, 4)
    order = torch.tensor([2, 0, 3, 1])
    moments = Categorical().predictive(mean, cov, integral)
    relabelled = Categorical().predictive(mean[:, order], cov[:, order][:, :, order], integral)
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(relabelled, name), getattr(moments, name)[:, order], rtol=1e-10, atol=1e-12)


def test_what_softmax_does_not_see_does_not_matter() -> None:
    mean, cov = _problem(10, 4)
    shifted, widened = mean + 7.0, cov + 50.0
    for integral in ("quadrature", "laplace_bridge"):
        moments, other = (Categorical().predictive(*pair, integral) for pair in ((mean, cov), (shifted, widened)))
        torch.testing.assert_close(other.mean, moments.mean, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(other.epistemic, moments.epistemic, rtol=1e-9, atol=1e-11)


def test_answers_do_not_depend_on_the_batch() -> None:
    mean, cov = _problem(500, 3)
    y = torch.zeros(500, dtype=torch.int64)
    for integral in ("quadrature", "mackay", "laplace_bridge"):
        whole, part = (Categorical().predictive(mean[:k], cov[:k], integral).mean for k in (500, 3))
        torch.testing.assert_close(whole[:3], part, rtol=1e-13, atol=0)
        whole, part = (Categorical().predictive_log_prob(mean[:k], cov[:k], y[:k], integral) for k in (500, 3))
        torch.testing.assert_close(whole[:3], part, rtol=1e-8, atol=0)


def test_singular_covariances_are_taken_and_indefinite_ones_refused() -> None:
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    mean = torch.tensor([[0.3, -0.2, 1.0]], dtype=torch.float64)
    got = Categorical().predictive(mean, torch.outer(direction, direction)[None], "quadrature").mean
    nodes, log_weights = gauss_hermite(100)
    truth = (log_weights.exp()[:, None] * torch.softmax(mean + nodes[:, None] * direction, -1)).sum(0, keepdim=True)
    torch.testing.assert_close(got, truth, rtol=0, atol=1e-4)
    with pytest.raises(NotPositiveDefiniteError, match=r"the eigenvalue -0\.5 in row 0"):
        Categorical().predictive(mean, torch.diag(torch.tensor([1.0, 1.0, -1.0]).double())[None] * 1.5, "quadrature")


def test_mackay_moderates_each_output() -> None:
    mean, cov = _problem(5, 3)
    moments = Categorical().predictive(mean, cov, "mackay")
    scale = 1 / torch.sqrt(1 + math.pi / 8 * torch.diagonal(cov, dim1=-2, dim2=-1))
    torch.testing.assert_close(moments.mean, torch.softmax(scale * mean, -1), rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.aleatoric, scale * moments.mean * (1 - moments.mean), rtol=1e-12, atol=0)


def test_the_laplace_bridge_has_the_dirichlet_of_its_formula() -> None:
    mean, variance = torch.tensor([[0.5, -1.0, 0.5]], dtype=torch.float64), 0.8
    # Equal variances σ² about their average leave σ²(1 − 1/C) for each output.
    left = variance * (1 - 1 / 3)
    counts = (1 - 2 / 3 + mean.exp() * (-mean).exp().sum() / 9) / left
    total = counts.sum()
    moments = Categorical().predictive(mean, variance * torch.eye(3, dtype=torch.float64)[None], "laplace_bridge")
    p = counts / total
    torch.testing.assert_close(moments.mean, p, rtol=1e-13, atol=0)
    torch.testing.assert_close(moments.epistemic, p * (1 - p) / (total + 1), rtol=1e-13, atol=0)
    with pytest.raises(InputError, match=r"cov: expected a positive variance .* in row 0\. Use integral='quadrature'"):
        Categorical().predictive(mean, torch.zeros(1, 3, 3, dtype=torch.float64), "laplace_bridge")


def test_sure_predictions_keep_the_distance_to_one() -> None:
    f = torch.tensor([[60.0, 0.0, -5.0]], dtype=torch.float64)
    y = torch.tensor([0])
    rest = math.exp(-60) + math.exp(-65)
    assert Categorical().gradient(f, y)[0, 0].item() == pytest.approx(rest, rel=1e-12)
    assert Categorical().conditional(f)[1][0, 0].item() == pytest.approx(rest, rel=1e-12)
    assert Categorical().hessian(f, y)[0, 0, 0].item() == pytest.approx(rest, rel=1e-12)
    assert Categorical().log_prob(-1e4 * f, y).item() == pytest.approx(-650000.0, rel=1e-14)


def test_labels() -> None:
    likelihood = Categorical()
    for labels in ([0, 2, 1], np.array([[0], [2], [1]], dtype=np.int8), torch.tensor([0.0, 2.0, 1.0])):
        targets = likelihood.targets(labels, 3)
        assert targets.dtype == torch.int64
        assert targets.tolist() == [0, 2, 1]
    with pytest.raises(InputError, match=r"y: expected class labels 0…2 for 3 outputs, got 3 in row 1\. Number"):
        likelihood.targets([0, 3, -1], 3)
    with pytest.raises(InputError, match=r"got 0\.5 in row 0"):
        likelihood.targets([0.5], 3)
    with pytest.raises(
        InputError, match=r"\(N,\), or probabilities of shape \(N, 3\), got \(2, 4\)\. Give one a row\."
    ):
        likelihood.targets(np.ones((2, 4)), 3)
    with pytest.raises(InputError, match="outputs: expected at least 2"):
        likelihood.targets([0, 1], 1)


def test_the_root_has_as_many_columns_as_the_curvature_has_rank() -> None:
    for outputs in (2, 3, 7):
        f, _ = _problem(6, outputs)
        root = Categorical().ggn_sqrt(f, torch.zeros(6, dtype=torch.int64))
        assert root.shape == (6, outputs, outputs - 1)
        assert (torch.linalg.matrix_rank(root) == outputs - 1).all()


@pytest.mark.parametrize("sure", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots_and_hessians_of_sure_predictions_do_not_cancel(sure: int, dtype: torch.dtype) -> None:
    """The curvature of p with 1 − p_c = 1e-17 and less, entry by entry, whichever class is the sure one."""
    others = [-40.0, -50.0]
    f = torch.tensor([[*others[:sure], 0.0, *others[sure:]]], dtype=dtype)
    p = f[0].double().exp() / f[0].double().exp().sum()
    truth = -p[:, None] * p
    for c in range(3):
        truth[c, c] = p[c] * sum(p[j] for j in range(3) if j != c)
    y, tolerance = torch.zeros(1, dtype=torch.int64), 100 * torch.finfo(dtype).eps
    root = Categorical().ggn_sqrt(f, y)[0]
    assert root.dtype == dtype
    torch.testing.assert_close(Categorical().hessian(f, y)[0].double(), truth, rtol=tolerance, atol=0)
    torch.testing.assert_close((root.double() @ root.double().mT).diagonal(), truth.diagonal(), rtol=tolerance, atol=0)


def test_a_row_without_a_label_tells_nothing() -> None:
    """Every method gives 0 there, and elsewhere what it gives without it."""
    generator = torch.Generator().manual_seed(5)
    f = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    y, plain, marked = torch.tensor([2, -100, 0, -100]), Categorical(), Categorical(ignored=-100)
    told, known = torch.tensor([0, 2]), y.clamp(min=0)
    assert torch.equal(marked.targets(y, 3), y)
    for name in ("log_prob", "gradient", "hessian", "ggn_sqrt"):
        found, wanted = getattr(marked, name)(f, y), getattr(plain, name)(f, known)
        assert torch.equal(found[:, told], wanted[:, told])
        assert not found[:, [1, 3]].any()
    torch.testing.assert_close(marked.ggn(f, y).sum(), plain.ggn(f[:, told], y[told]).sum())


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("integral", ["quadrature", "mackay", "laplace_bridge"])
def test_a_prediction_is_not_scored_where_there_is_no_label(integral: str, outputs: int) -> None:
    mean = torch.linspace(-1.0, 1.0, 3 * outputs, dtype=torch.float64).reshape(3, outputs)
    cov = torch.eye(outputs, dtype=torch.float64).expand(3, outputs, outputs)
    y = torch.tensor([1, -100, 0])
    found = Categorical(ignored=-100).predictive_log_prob(mean, cov, y, integral)
    wanted = Categorical().predictive_log_prob(mean[[0, 2]], cov[[0, 2]], y[[0, 2]], integral)
    assert found[1] == 0
    torch.testing.assert_close(found[[0, 2]], wanted)


def test_the_label_for_none_is_no_class() -> None:
    with pytest.raises(InputError, match="ignored: expected a label that is not a class"):
        Categorical(ignored=1).targets([0, 1], 3)
    with pytest.raises(InputError, match=r"got -100 in row 1. .*bs.Categorical\(ignored=-100\)"):
        Categorical().targets([0, -100], 3)
    with pytest.raises(InputError, match=r"got -1 in row 1. Number the classes"):
        Categorical(ignored=-100).targets([0, -1], 3)
