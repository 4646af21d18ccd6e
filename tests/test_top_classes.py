"""The most probable classes of a prediction, against the prediction of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, MemoryBudgetError, UnsupportedError
from bayescope.likelihoods import Categorical
from bayescope.posterior import Posterior
from bayescope.posterior import gaussian as gaussian_module
from tests.network.networks import built

CLASSES, TOP = 12, 3
pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, NEW = numbers(60, 4), numbers(6, 4, seed=1)
LABELS = torch.arange(60) % CLASSES


def network(scale: float = 1.0) -> nn.Module:
    module = built(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), 3).double()
    with torch.no_grad():
        module[0].weight.mul_(scale)
    return module


def laplace(**options: Any) -> Posterior:
    return bs.laplace(network(), (X, LABELS), likelihood="categorical", **options)


def few(q: Posterior, monkeypatch: pytest.MonkeyPatch) -> Posterior:
    """The posterior, for which twelve classes are very many."""
    monkeypatch.setattr(gaussian_module, "EVERY_CLASS", 2)
    return q


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
def test_of_very_many_classes_covariances_are_those_of_the_whole(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = laplace(**options)
    whole, top = q.predict(NEW), few(q, monkeypatch).predict(NEW, top=TOP)
    index = top.classes
    rows = torch.arange(len(NEW))[:, None, None]
    want = whole.latent_cov[rows, index[:, :, None], index[:, None]]
    torch.testing.assert_close(top.latent_cov, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(top.latent_mean, top_of(whole.latent_mean, index), rtol=0, atol=1e-10)
    for mine, all_of_them in zip(top.interval(0.9, of="latent"), whole.interval(0.9, of="latent"), strict=True):
        torch.testing.assert_close(mine, top_of(all_of_them, index))
    assert f"the other {CLASSES - TOP} classes at their mean outputs" in top.summary()


def test_of_very_many_classes_of_a_last_layer_mackay_s_integral_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    q = few(laplace(**STRUCTURES[1]), monkeypatch)
    whole, top = q.predict(NEW, integral="mackay"), q.predict(NEW, integral="mackay", top=TOP)
    torch.testing.assert_close(top.probs, top_of(whole.probs, top.classes), rtol=0, atol=1e-10)
    torch.testing.assert_close(top.epistemic, top_of(whole.epistemic, top.classes), rtol=0, atol=1e-10)
    assert "mean outputs" not in top.summary()


@pytest.mark.parametrize("integral", [None, "mackay"])
def test_the_others_count_at_their_mean_outputs(integral: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    q = few(laplace(), monkeypatch)
    whole, top = q.predict(NEW), q.predict(NEW, integral=integral, top=TOP)
    mean = whole.latent_mean
    order = mean.argsort(1, descending=True)
    others = mean.gather(1, order[:, TOP:]).exp().sum(1, keepdim=True).log()
    joined = torch.cat([mean.gather(1, order[:, :TOP]), others], 1)
    cov = torch.zeros(len(NEW), TOP + 1, TOP + 1, dtype=torch.float64)
    cov[:, :TOP, :TOP] = top.latent_cov
    likelihood = Categorical()
    want = likelihood.predictive(joined, cov, likelihood.integral(integral, TOP + 1))
    torch.testing.assert_close(top.probs, want.mean[:, :TOP])
    torch.testing.assert_close(top.epistemic, want.epistemic[:, :TOP])
    torch.testing.assert_close(top.remaining, want.mean[:, TOP])
    assert (top.abstains(probability=0.9) == (top.probs.max(1).values < 0.9)).all()


def test_without_uncertainty_they_are_the_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    top = few(laplace(prior_precision=1e12), monkeypatch).predict(NEW, top=TOP)
    softmax = network()(NEW).softmax(1).detach()
    torch.testing.assert_close(top.probs, softmax.topk(TOP).values, rtol=0, atol=1e-8)
    torch.testing.assert_close(top.remaining, 1 - softmax.topk(TOP).values.sum(1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("make", ["linear head", "convolution", "all layers"])
def test_dense_outputs_have_their_classes_at_each_position(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, CLASSES, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x))).movedim(1, -1)

    image = make != "linear head"
    module = built(Moved, 3).double() if image else network()
    x, shape = (numbers(3, 2, 3, 4), (3, 3, 4)) if image else (numbers(3, 6, 4), (3, 6))
    y = torch.arange(np.prod(shape)).reshape(shape) % CLASSES
    weights = "all" if make == "all layers" else "last_layer"
    q = bs.laplace(module, (x, y), likelihood="categorical", weights=weights)
    assert q.function.network.head == (weights == "last_layer")
    whole, top = q.predict(x), few(q, monkeypatch).predict(x, top=TOP)
    assert top.classes.shape == (*shape, TOP)
    assert top.remaining.shape == shape
    index = top.classes
    want = whole.latent_cov.gather(-2, index[..., None].expand(*index.shape, CLASSES))
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


def test_covariances_that_do_not_fit_are_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    q = laplace(weights="last_layer")
    monkeypatch.setattr(gaussian_module, "COVARIANCE_BYTES", 10)
    monkeypatch.setattr(gaussian_module, "free_memory", lambda _: 20_000)
    with pytest.raises(MemoryBudgetError, match=r"6 rows of 12 outputs.*take about 27.6 kB.*integral='mackay'"):
        q.predict(NEW)
    with pytest.raises(InputError):
        q.predict(NEW[:0])
    assert q.predict(NEW, integral="mackay").probs.shape == (len(NEW), CLASSES)
