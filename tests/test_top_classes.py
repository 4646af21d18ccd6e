"""The most probable classes of a prediction, against the prediction of all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, MemoryBudgetError, UnsupportedError
from bayescope.likelihoods import Categorical
from bayescope.memory import memory_limit
from bayescope.models import among_pairs
from bayescope.posterior import Posterior
from bayescope.top_classes import Representatives, Together, inclusion, sums_of_copies, top_classes
from tests.network.networks import built

CLASSES, TOP = 12, 3
MANY = 257  # the top classes of so many are found without a prediction of all
pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, NEW = numbers(60, 4), numbers(6, 4, seed=1)
LABELS = torch.arange(60) % CLASSES


def network(scale: float = 1.0, classes: int = CLASSES) -> nn.Module:
    hidden = 6 if classes == CLASSES else 3
    module = built(lambda: nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, classes)), 3).double()
    with torch.no_grad():
        module[0].weight.mul_(scale)
    return module


def laplace(classes: int = CLASSES, **options: Any) -> Posterior:
    return bs.laplace(network(classes=classes), (X, LABELS), likelihood="categorical", **options)


def top_of(values: Any, classes: Any) -> Tensor:
    return torch.as_tensor(values).gather(1, torch.as_tensor(classes))


STRUCTURES = [
    {"structure": "kfac", "weights": "last_layer"},
    {"structure": "kfac", "weights": "last_layer", "output_factor": "diagonal"},
    {"structure": "diagonal", "weights": "last_layer"},
    {"structure": "full", "weights": "last_layer"},
    {"structure": "ekfac"},
    {"structure": "low_rank", "rank": 8},
]


@pytest.mark.parametrize("integral", [None, "mackay", "laplace_bridge", "monte_carlo"])
@pytest.mark.parametrize("options", STRUCTURES[:2])
def test_they_are_entries_of_the_whole_prediction(options: dict[str, Any], integral: str | None) -> None:
    q = laplace(**options)
    whole, top = (q.predict(NEW, integral=integral, generator=0, **more) for more in ({}, {"top": TOP}))
    classes = whole.latent_mean.topk(TOP).indices
    assert torch.equal(top.classes, classes)
    for name in ("latent_mean", "probs", "variance", "epistemic", "aleatoric"):
        torch.testing.assert_close(
            getattr(top, name), top_of(getattr(whole, name), classes), rtol=0, atol=1e-12, msg=name
        )
    torch.testing.assert_close(top.remaining, 1.0 - top.probs.sum(1))
    torch.testing.assert_close(top.mutual_information, whole.mutual_information)
    rest = torch.cat([top.probs, top.remaining[:, None]], 1)
    torch.testing.assert_close(top.entropy, -(rest * rest.log()).sum(1))


@pytest.mark.parametrize("options", STRUCTURES)
def test_of_very_many_classes_covariances_are_those_of_the_whole(options: dict[str, Any]) -> None:
    q = laplace(MANY, **options)
    whole, top = q.predict(NEW), q.predict(NEW, top=TOP)
    index = top.classes
    rows = torch.arange(len(NEW))[:, None, None]
    want = whole.latent_cov[rows, index[:, :, None], index[:, None]]
    torch.testing.assert_close(top.latent_cov, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(top.latent_mean, top_of(whole.latent_mean, index), rtol=0, atol=1e-10)
    for mine, all_of_them in zip(top.interval(0.9, of="latent"), whole.interval(0.9, of="latent"), strict=True):
        torch.testing.assert_close(mine, top_of(all_of_them, index))
    assert f"the other {MANY - TOP} classes taken together" in top.summary()


def test_of_very_many_classes_of_a_last_layer_mackay_s_integral_is_that_of_all() -> None:
    q = laplace(MANY, **STRUCTURES[1])
    whole, top = q.predict(NEW, integral="mackay"), q.predict(NEW, integral="mackay", top=TOP)
    torch.testing.assert_close(top.probs, top_of(whole.probs, top.classes), rtol=0, atol=1e-10)
    torch.testing.assert_close(top.epistemic, top_of(whole.epistemic, top.classes), rtol=0, atol=1e-10)
    assert "together" not in top.summary()


def gaussians(sd: float, shared: str) -> tuple[Tensor, Tensor]:
    """The mean of 300 outputs, of which one is likely, and their covariance, by what their uncertainty shares."""
    mean = numbers(300, seed=2)
    mean[0] = math.log(300) + 1.5
    spread = {"nothing": 0.0, "one direction": 0.8, "some directions": 0.8}[shared]
    common = torch.ones(300, 1, dtype=torch.float64) if shared == "one direction" else numbers(300, 8, seed=3) / 8**0.5
    own = 0.5 + torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return mean, sd**2 * (spread**2 * common @ common.mT + (1 - spread**2) * torch.diag(own))


@pytest.mark.parametrize("shared", ["nothing", "one direction", "some directions"])
@pytest.mark.parametrize(("sd", "known", "unknown"), [(1.0, 0.01, 0.02), (2.0, 0.04, 0.06)])
def test_the_others_together_are_near_all_of_them(sd: float, known: float, unknown: float, shared: str) -> None:
    mean, cov = gaussians(sd, shared)
    z = torch.randn(8_000, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    drawn = (mean + z @ torch.linalg.cholesky(cov).mT).softmax(-1)
    want, noise = drawn.mean(0), 4 * drawn.std(0) / 8_000**0.5
    classes = top_classes(mean[None], 3)
    for variance, limit in ((cov.diagonal()[None], known), (None, unknown)):
        others = Representatives.of(mean[None], classes, variance)
        found = among_pairs(cov[None], torch.cat([classes, others.classes], -1))
        latent = Together(mean[None], classes, others, found).gaussian("quadrature")
        off = (latent.moments(Categorical()).mean[0, :3] - want[classes[0]]).abs()
        assert (off <= limit + noise[classes[0]]).all(), off
        assert torch.linalg.eigvalsh(latent.cov[0])[0] > -1e-10


def test_rare_classes_are_of_low_mean_and_large_variance() -> None:
    """Expanded around the means their uncertainty is not seen: it is that of a few that may lead the sum."""
    mean = torch.cat([torch.tensor([5.0, 1.0]), numbers(298) / 2 - 3]).double()
    variance = torch.cat([torch.full((10,), 0.1), torch.full((290,), 9.0)]).double()
    noise = torch.randn(8_000, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    want = (mean + noise * variance.sqrt()).softmax(-1).mean(0)[0]
    classes = torch.tensor([[0, 1]])
    others = Representatives.of(mean[None], classes, variance[None])
    found = among_pairs(torch.diag(variance)[None], torch.cat([classes, others.classes], -1))
    latent = Together(mean[None], classes, others, found).gaussian("quadrature")
    assert (latent.moments(Categorical()).mean[0, 0] - want).abs() < 0.02
    held = torch.stack([*mean[:2], mean[2:].logsumexp(0)])[None]
    exact = Categorical().predictive(held, torch.diag(torch.tensor([0.1, 0.1, 0.0]))[None], "quadrature")
    assert exact.mean[0, 0] - want > 0.2


def test_the_logarithm_of_a_sum_of_copies_has_the_moments_of_draws() -> None:
    variance = torch.tensor([0.05, 0.5, 2.0, 4.0, 4.0], dtype=torch.float64)
    counts = torch.tensor([30, 30, 30, 3, 2])
    noise = torch.randn(40_000, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = torch.stack(
        [(noise[:, :n] * v.sqrt()).logsumexp(-1) for v, n in zip(variance, counts.tolist(), strict=True)], 1
    )
    centre, spread = sums_of_copies(variance, counts.log().double())
    torch.testing.assert_close(centre, drawn.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(spread, drawn.var(0), rtol=0.05, atol=0)
    centre, spread = sums_of_copies(variance, torch.zeros_like(variance))  # of one it is that one
    assert torch.equal(centre, torch.zeros_like(variance))
    assert torch.equal(spread, variance)
    centre, spread = sums_of_copies(0.0 * variance, counts.log().double())
    torch.testing.assert_close(centre, counts.log().double(), rtol=0, atol=1e-12)
    assert torch.equal(spread, 0.0 * variance)


def test_representatives_are_drawn_once_each_and_stand_for_all() -> None:
    mean, variance = 3 * numbers(4, 300), numbers(4, 300, seed=1).square()
    classes = top_classes(mean, 5)
    rest = mean.scatter(1, classes, -torch.inf).logsumexp(1)
    for known in (variance, None):
        found = Representatives.of(mean, classes, known)
        counts = torch.zeros(4, 300).scatter_add(1, found.classes, torch.ones(found.classes.shape))
        assert not counts.gather(1, classes).any()
        assert counts.max() == 1
        assert (found.log_counts >= -0.5).all()
        assert (found.log_counts == 0).any()  # those that lead the sum are there for themselves
        torch.testing.assert_close((mean.gather(1, found.classes) + found.log_counts).logsumexp(1), rest)


def test_inclusion_is_in_proportion_to_the_share_or_certain() -> None:
    share = (4 * numbers(5, 40)).softmax(1)
    found = inclusion(share, 12)
    torch.testing.assert_close(found.sum(1), torch.full((5,), 12.0, dtype=torch.float64))
    for row, q in zip(found, share, strict=True):
        drawn = row < 1
        assert 0 < (~drawn).sum() < 12
        torch.testing.assert_close(row[drawn] / q[drawn], (row[drawn] / q[drawn])[:1].expand(int(drawn.sum())))
        assert q[~drawn].min() >= q[drawn].max()
    torch.testing.assert_close(inclusion(share, 40), torch.ones_like(share))


@pytest.mark.parametrize("sd", [1e-9, 0.3, 3.0])
def test_where_all_others_are_drawn_it_is_the_whole_prediction(sd: float) -> None:
    mean, root = numbers(3, 30), sd * numbers(3, 30, 30, seed=1) / 30**0.5
    cov, classes = root @ root.mT, top_classes(mean, 3)
    others = Representatives.of(mean, classes, None)
    assert torch.equal(others.log_counts, torch.zeros(3, 27, dtype=torch.float64))
    found = among_pairs(cov, torch.cat([classes, others.classes], -1))
    got = Together(mean, classes, others, found).gaussian("quadrature").moments(Categorical()).mean[:, :3]
    want = Categorical().predictive(mean, cov, "quadrature").mean.gather(1, classes)
    torch.testing.assert_close(got, want, rtol=0, atol=3e-3 * min(sd, 1.0))  # other nodes: the root is another


def test_few_directions_that_move_all_classes_are_not_averaged() -> None:
    """Covariances of low rank, and a few classes of very large variance among narrow ones."""
    mean = numbers(2, 300)
    mean[:, 0] += 6
    classes = top_classes(mean, 3)
    directions = 1.9 * numbers(300, 2, seed=1)
    wide = torch.full((300,), 0.01, dtype=torch.float64)
    wide[5:8] = 100.0
    z = torch.randn(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    noise = torch.randn(20_000, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for cov, moved in ((directions @ directions.mT, z @ directions.mT), (wide.diag(), noise * wide.sqrt())):
        want = torch.stack(
            [(row + moved).softmax(-1).mean(0)[chosen] for row, chosen in zip(mean, classes, strict=True)]
        )
        others = Representatives.of(mean, classes, cov.diagonal().expand(2, 300))
        found = among_pairs(cov.expand(2, 300, 300), torch.cat([classes, others.classes], -1))
        got = Together(mean, classes, others, found).gaussian("quadrature").moments(Categorical()).mean[:, :3]
        assert (got - want).abs().max() < 0.02


@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_of_very_many_classes_they_are_near_the_whole_prediction(weights: str) -> None:
    classes = 280
    module = built(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, classes)), 3).double()
    options = {"curvature": "fisher", "generator": 0, "output_factor": {"2": "diagonal"}} if weights == "all" else {}
    y = torch.arange(60) * 4
    q = bs.laplace(
        module, (X, y), likelihood="categorical", prior_precision=3.0, weights=weights, progress=False, **options
    )
    whole, top = q.predict(NEW), q.predict(NEW, top=TOP)
    assert (whole.latent_cov.diagonal(dim1=1, dim2=2) > 0.5).any()  # uncertain enough for that to be seen
    torch.testing.assert_close(top.probs, top_of(whole.probs, top.classes), rtol=0.1, atol=0)
    torch.testing.assert_close(top.epistemic.sqrt(), top_of(whole.epistemic, top.classes).sqrt(), rtol=0.2, atol=0)
    mackay, few_mackay = q.predict(NEW, integral="mackay"), q.predict(NEW, integral="mackay", top=TOP)
    torch.testing.assert_close(few_mackay.probs, top_of(mackay.probs, top.classes), rtol=0.1, atol=0)
    torch.testing.assert_close(few_mackay.latent_cov, top.latent_cov)
    with pytest.raises(UnsupportedError, match=r"stand for all of them.*Predict without top="):
        _ = top.integration_error
    assert (top.abstains(probability=0.02) == (top.probs.max(1).values < 0.02)).all()


@pytest.mark.parametrize(("integral", "off"), [("mackay", 1e-8), ("quadrature", 1e-8)])
def test_without_uncertainty_they_are_the_softmax(integral: str, off: float) -> None:
    """A few classes stand for the others in an integral over f: their sum is the softmax's up to that."""
    top = laplace(MANY, prior_precision=1e12).predict(NEW, top=TOP, integral=integral)
    softmax = network(classes=MANY)(NEW).softmax(1).detach()
    torch.testing.assert_close(top.probs, softmax.topk(TOP).values, rtol=0, atol=off)
    torch.testing.assert_close(top.remaining, 1 - softmax.topk(TOP).values.sum(1), rtol=0, atol=off)


@pytest.mark.parametrize("make", ["linear head", "convolution", "all layers"])
def test_dense_outputs_have_their_classes_at_each_position(make: str) -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, MANY, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x))).movedim(1, -1)

    image = make != "linear head"
    module = built(Moved, 3).double() if image else network(classes=MANY)
    x, shape = (numbers(2, 2, 2, 3), (2, 2, 3)) if image else (numbers(3, 6, 4), (3, 6))
    y = torch.arange(np.prod(shape)).reshape(shape) % CLASSES
    weights = "all" if make == "all layers" else "last_layer"
    q = bs.laplace(module, (x, y), likelihood="categorical", weights=weights)
    assert q.function.network.head == (weights == "last_layer")
    whole, top = q.predict(x), q.predict(x, top=TOP)
    assert top.classes.shape == (*shape, TOP)
    assert top.remaining.shape == shape
    index = top.classes
    want = whole.latent_cov.gather(-2, index[..., None].expand(*index.shape, MANY))
    want = want.gather(-1, index[..., None, :].expand(*index.shape, TOP))
    torch.testing.assert_close(top.latent_cov, want, rtol=1e-10, atol=1e-10)


def test_draws_and_mixtures_have_them_too() -> None:
    q = bs.laplace([network(), network(0.5)], (X, LABELS), likelihood="categorical", structure="diagonal")
    for options in ({}, {"method": "sampled", "samples": 20}):
        whole, top = (q.predict(NEW, generator=1, **options, **more) for more in ({}, {"top": TOP}))
        torch.testing.assert_close(top.probs, top_of(whole.probs, top.classes))
        torch.testing.assert_close(top.latent_cov.diagonal(dim1=1, dim2=2), top_of(
            whole.latent_cov.diagonal(dim1=1, dim2=2), top.classes))  # fmt: skip


def test_arrays_come_back_as_arrays() -> None:
    p = laplace(weights="last_layer").predict(NEW.numpy(), top=TOP)
    assert isinstance(p.classes, np.ndarray)
    assert p.classes.dtype == np.int64
    assert p.remaining.shape == (len(NEW),)
    whole = laplace(weights="last_layer").predict(NEW)
    assert torch.equal(whole.classes[2], torch.arange(CLASSES))
    assert not whole.remaining.any()


def test_what_needs_all_classes_is_refused() -> None:
    p = laplace(weights="last_layer").predict(NEW, top=TOP)
    for ask in (lambda: p.log_prob(LABELS[: len(NEW)]), lambda: p.sample(2, generator=0)):
        with pytest.raises(UnsupportedError, match="Predict without top="):
            ask()


@pytest.mark.parametrize(("top", "message"), [(0, "top: expected"), (CLASSES, "fewer than all 12"), (2.5, "top: expe")])
def test_a_number_that_cannot_be_is_refused(top: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        laplace(weights="last_layer").predict(NEW, top=top)


def test_another_likelihood_is_refused() -> None:
    q = bs.laplace(built(lambda: nn.Linear(4, 3), 0).double(), (X, numbers(60, 3)), likelihood="gaussian")
    with pytest.raises(UnsupportedError, match="categorical likelihood, got 'gaussian'"):
        q.predict(NEW, top=2)


def test_covariances_that_do_not_fit_are_refused_beforehand() -> None:
    q, x = laplace(MANY, weights="last_layer"), numbers(600, 4)
    refused = r"600 rows of 257 outputs.*would take about 1\.27 GB.*integral='mackay'"
    with memory_limit(10**9):
        with pytest.raises(MemoryBudgetError, match=refused):
            q.predict(x)
        with pytest.raises(InputError):
            q.predict(x[:0])
        assert q.predict(x, integral="mackay").probs.shape == (600, MANY)


def test_their_table_names_the_classes_that_they_are() -> None:
    """The most probable class of a row is not class 0, and the columns of two rows are not the same classes."""
    top = laplace().predict(NEW, top=TOP)
    assert len(set(top.classes[:, 0].tolist())) > 1
    frame = top.to_frame()
    for k in range(TOP):
        np.testing.assert_array_equal(frame[f"{k + 1}: class"], top.classes[:, k])
        np.testing.assert_array_equal(frame[f"{k + 1}: p"], top.probs[:, k])
    low, high = top.interval(0.95, of="mean")
    np.testing.assert_array_equal(frame[["1: low", "1: high"]], torch.stack([low[:, 0], high[:, 0]], 1))
    np.testing.assert_array_equal(frame["remaining"], top.remaining)
    names = [f"class {k}" for k in range(CLASSES)]
    named = top.to_frame(classes=names, level=None)["1: class"]
    assert named.tolist() == [names[k] for k in top.classes[:, 0].tolist()]
    with pytest.raises(InputError, match="classes: expected a name for each"):
        top.to_frame(classes=names[:1])


def test_what_needs_all_classes_refuses_them() -> None:
    """Their columns are other classes in each row, which the codes of the labels do not fit."""
    q = laplace()
    whole, top, y = q.predict(X), q.predict(X, top=TOP), LABELS
    for score in (bs.metrics.nll, bs.metrics.ece, bs.metrics.auroc):
        with pytest.raises(UnsupportedError, match=r"most probable ones alone\. Predict without top="):
            score(top, y)
    with pytest.raises(UnsupportedError, match="Predict without top="):
        bs.conformal(top, y)
    with pytest.raises(UnsupportedError, match="Predict without top="):
        bs.conformal(whole, y).sets(top)
