"""`q.condition`: the posterior becomes the prior, and the answer is that of all the data."""

from __future__ import annotations

import copy
import io
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from bayescope import laplace
from bayescope.errors import ConvergenceWarning, UnsupportedError
from bayescope.laplace import LaplaceFit
from bayescope.likelihoods import Gaussian
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.priors import Prior
from tests.laplace.problems import (
    closed_form,
    mlp,
    normal,
    nothing_written,
    penalty,
    seeded,
    set_flat,
    train,
    with_ones,
)

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
OPTIONS: dict[str, dict[str, Any]] = {"full": {}, "block": {}, "diagonal": {}, "kfac": {}, "low_rank": {"rank": 4}}


def gaussian(q: Posterior) -> GaussianPosterior:
    assert isinstance(q, GaussianPosterior)
    return q


def orthogonal(rows: int, seed: int) -> Tensor:
    x = normal(rows, 3, seed=seed)
    return 2.0 * torch.linalg.qr(x - x.mean(0))[0]


@pytest.mark.parametrize("structure", OPTIONS)
def test_linear_gaussian_in_two_halves_is_the_batch_posterior(structure: str) -> None:
    make = orthogonal if structure == "diagonal" else lambda rows, seed: normal(rows, 3, seed=seed)
    x, y = torch.cat([make(9, 1), make(7, 2)]), normal(16, seed=3)
    prior = torch.full((4,), 0.8, dtype=torch.float64)
    half, whole = (closed_form(with_ones(x[:n]), y[:n], prior, 0.6) for n in (9, 16))
    net = seeded(lambda: nn.Linear(3, 1))
    set_flat(net, half.mean)
    first = laplace(
        net, (x[:9], y[:9]), likelihood=Gaussian(0.6), structure=structure, prior_precision=0.8, **OPTIONS[structure]
    )
    before = first.mean, first.log_evidence()
    q = gaussian(first.condition((x[9:], y[9:])))
    torch.testing.assert_close(q.mean, whole.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), whole.precision, **EXACT)
    # p(all) = p(first) p(second∣first)
    torch.testing.assert_close(first.log_evidence() + q.log_evidence(), whole.log_evidence, **EXACT)
    new = normal(5, 3, seed=5)
    torch.testing.assert_close(q.predict(new).mean[:, 0], with_ones(new) @ whole.mean, **EXACT)
    assert torch.equal(first.mean, before[0])
    assert torch.equal(first.log_evidence(), before[1])


def test_row_by_row_is_the_batch_posterior() -> None:
    x, y = normal(6, 2, seed=1), normal(6, seed=2)
    whole = closed_form(with_ones(x), y, torch.full((3,), 0.8, dtype=torch.float64), 0.6)
    net = seeded(lambda: nn.Linear(2, 1))
    set_flat(net, closed_form(with_ones(x[:1]), y[:1], torch.full((3,), 0.8, dtype=torch.float64), 0.6).mean)
    q = laplace(net, (x[:1], y[:1]), likelihood=Gaussian(0.6), structure="full", prior_precision=0.8)
    for i in range(1, 6):
        q = q.condition(TensorDataset(x[i : i + 1], y[i : i + 1]))
    torch.testing.assert_close(q.mean, whole.mean, **EXACT)
    torch.testing.assert_close(gaussian(q).precision.to_dense(), whole.precision, **EXACT)


def test_temperature_stays() -> None:
    x, y, prior = normal(16, 2, seed=1), normal(16, seed=2), torch.full((3,), 0.8, dtype=torch.float64)
    half, whole = (closed_form(with_ones(x[:n]), y[:n], prior, 0.6 * 3.0) for n in (9, 16))
    net = seeded(lambda: nn.Linear(2, 1))
    set_flat(net, half.mean)
    q = laplace(
        net, (x[:9], y[:9]), likelihood=Gaussian(0.6), structure="full", prior_precision=0.8, temperature=3.0
    ).condition((x[9:], y[9:]))
    torch.testing.assert_close(q.mean, whole.mean, **EXACT)
    torch.testing.assert_close(gaussian(q).precision.to_dense(), whole.precision, **EXACT)


def test_a_subset_of_the_weights_is_what_moves() -> None:
    x, y = normal(16, 2, seed=1), normal(16, seed=2)
    net = mlp(1)
    design = with_ones(torch.tanh(net[0](x))).detach()
    prior = torch.full((5,), 0.8, dtype=torch.float64)
    half, whole = (closed_form(design[:n], y[:n], prior, 0.6) for n in (9, 16))
    set_flat(net[2], half.mean)
    first = laplace(
        net, (x[:9], y[:9]), likelihood=Gaussian(0.6), weights="last_layer", structure="full", prior_precision=0.8
    )
    q = gaussian(first.condition((x[9:], y[9:])))
    torch.testing.assert_close(q.mean, whole.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), whole.precision, **EXACT)
    assert torch.equal(q.model[0].weight, net[0].weight)


def classifier(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Trained on the first n rows under the prior precision 1."""
    x = normal(120, 2, seed=1)
    y = (x[:, 0] + 0.7 * x[:, 1].square() + 0.4 * normal(120, seed=2) > 0.5).long()
    net = mlp(2, hidden=6)
    train(net, lambda: F.cross_entropy(net(x[:n]), y[:n], reduction="sum") + penalty(net, 1.0))
    return net, x, y


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_a_classifier_comes_near_the_batch_posterior(structure: str) -> None:
    """Far nearer than the first half alone is, in what it says about new inputs, and at a mode of its own."""
    net, x, y = classifier(60)
    first = laplace(net, (x[:60], y[:60]), likelihood="categorical", structure=structure, prior_precision=1.0)
    with warnings.catch_warnings(), nothing_written(net):
        warnings.simplefilter("error")
        q = first.condition((x[60:], y[60:]))
    batch_net, _, _ = classifier(120)
    batch = laplace(batch_net, (x, y), likelihood="categorical", structure=structure, prior_precision=1.0)
    new = 1.5 * normal(200, 2, seed=4)
    near = (q.predict(new).probs - batch.predict(new).probs).abs().mean()
    far = (first.predict(new).probs - batch.predict(new).probs).abs().mean()
    assert near < 0.6 * far
    assert q.fit.newton_decrement() < 1e-3  # type: ignore[union-attr]
    assert q.predict(x).log_prob(y).sum() > first.predict(x).log_prob(y).sum()


def test_single_precision_is_conditioned_too() -> None:
    net, x, y = classifier(60)
    double = laplace(net, (x[:60], y[:60]), likelihood="categorical").condition((x[60:], y[60:]))
    single = laplace(net.float(), (x[:60], y[:60]), likelihood="categorical").condition((x[60:], y[60:]))
    torch.testing.assert_close(single.predict(x.float()).probs.double(), double.predict(x).probs, rtol=1e-2, atol=1e-3)


def test_files_and_copies_can_be_conditioned() -> None:
    net, x, y = classifier(60)
    q = laplace(net, (x[:60], y[:60]), likelihood="categorical")
    truth = q.condition((x[60:], y[60:])).mean
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for twin in (copy.deepcopy(q), torch.load(file, weights_only=False)):
        assert torch.equal(twin.condition((x[60:], y[60:])).mean, truth)


class Unread(Dataset[Any]):
    """Rows that nobody is to ask for."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> Any:
        raise AssertionError("nothing is to be read")


def test_bases_that_differ_do_not_add() -> None:
    net, x, y = classifier(60)
    q = laplace(net, (x[:60], y[:60]), likelihood="categorical", structure="ekfac")
    with pytest.raises(UnsupportedError, match=r"condition: .*'ekfac'.*Take structure='kfac'"):
        q.condition(Unread())
    kfac = laplace(net, (x[:60], y[:60]), likelihood="categorical", structure="kfac")
    with pytest.raises(AssertionError, match="nothing is to be read"):
        kfac.condition(Unread())


def test_the_noise_that_was_tuned_is_what_new_data_have() -> None:
    x, y, prior = normal(16, 2, seed=1), normal(16, seed=2), torch.full((3,), 0.8, dtype=torch.float64)
    half, whole = (closed_form(with_ones(x[:n]), y[:n], prior, 0.25) for n in (9, 16))
    net = seeded(lambda: nn.Linear(2, 1))
    set_flat(net, half.mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # at another noise it is no mode yet
        q = laplace(net, (x[:9], y[:9]), likelihood=Gaussian(0.6), structure="full", prior_precision=1.0)
    assert isinstance(q.fit, LaplaceFit)
    tuned = replace(q.fit.at_noise(0.25), prior=Prior(0.8)).posterior()
    found = gaussian(tuned.condition((x[9:], y[9:])))
    torch.testing.assert_close(found.precision.to_dense(), whole.precision, **EXACT)
    torch.testing.assert_close(found.mean, whole.mean, **EXACT)


class Bounded(nn.Module):
    """f = log(b − w x₁) + v x₂: no number beyond a plane in the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.inner(x[:, :1])) + self.outer(x[:, 1:])


def test_the_climb_turns_back_where_outputs_are_not_finite() -> None:
    net = seeded(Bounded)
    set_flat(net, torch.tensor([0.1, 2.0, 0.3], dtype=torch.float64))
    x = normal(20, 2, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = laplace(net, (x[:4], normal(4, seed=2)), likelihood=Gaussian(0.5), structure="full", prior_precision=0.1)
    y = torch.log(0.2 + torch.exp(-3.0 * x[:, 0]))  # steep: steps overshoot
    moved = q.condition((x, y))
    assert moved.fit.newton_decrement() < 1e-3  # type: ignore[union-attr]
    assert torch.isfinite(moved.predict(x).mean).all()
