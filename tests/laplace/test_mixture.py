"""Several modes: mixtures of Laplace's approximations."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from bayescope import laplace
from bayescope.errors import InputError, UndefinedQuantityError, UnsupportedError
from bayescope.laplace import tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.posterior import MixturePosterior
from tests.laplace.problems import closed_form, mlp, normal, nothing_written, seeded, set_flat, with_ones

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*expected weights:bayescope.errors.ConvergenceWarning"
)  # of networks that were not trained
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def members(count: int) -> list[nn.Sequential]:
    return [mlp(2, seed=k) for k in range(count)]


def mixed(count: int = 3, **options: Any) -> MixturePosterior:
    data = (normal(12, 2, seed=1), torch.arange(12) % 2)
    q = laplace(members(count), data, likelihood="categorical", **options)
    assert isinstance(q, MixturePosterior)
    return q


def test_equal_weights() -> None:
    q, x = mixed(), normal(5, 2, seed=2)
    torch.testing.assert_close(q.weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    each = torch.stack([part.predict(x).probs for part in q.components])
    torch.testing.assert_close(q.predict(x).probs, each.mean(0), **EXACT)
    evidences = torch.stack([part.log_evidence() for part in q.components])
    torch.testing.assert_close(q.log_evidence(), torch.logsumexp(evidences, 0) - math.log(3))


def test_evidence_weights() -> None:
    q, x = mixed(mixture="evidence"), normal(5, 2, seed=2)
    evidences = torch.stack([part.log_evidence() for part in q.components])
    torch.testing.assert_close(q.weights, torch.softmax(evidences, 0))
    torch.testing.assert_close(q.log_evidence(), torch.logsumexp(evidences, 0))
    each = torch.stack([part.predict(x).probs for part in q.components])
    torch.testing.assert_close(q.predict(x).probs, torch.tensordot(q.weights, each, 1), **EXACT)
    assert "evidence weights" in q.summary()


def test_one_mode_found_several_times_is_that_mode() -> None:
    x, y = normal(14, 3, seed=1), normal(14, seed=2)
    closed = closed_form(with_ones(x), y, torch.full((4,), 0.8, dtype=torch.float64), 0.6)
    net = seeded(lambda: nn.Linear(3, 1))
    set_flat(net, closed.mean)
    q = laplace([net, net], (x, y), likelihood=Gaussian(0.6), structure="full", prior_precision=0.8)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)
    torch.testing.assert_close(q.mean, closed.mean, **EXACT)
    torch.testing.assert_close(q.covariance, torch.linalg.inv(closed.precision), **EXACT)


def test_each_function_is_drawn_from_its_own_mode() -> None:
    q, x = mixed(2, prior_precision=1e8), normal(4, 2, seed=2)
    own = torch.stack([part.function.forward(x, part.mean) for part in q.components])
    functions = q.sample_functions(x, 40, generator=0)
    distances = (functions[:, None] - own).flatten(2).norm(dim=2).min(1)
    assert distances.values.max() < 0.05
    assert set(distances.indices.tolist()) == {0, 1}
    sampled = q.predict(x, method="sampled", samples=5, generator=0).probs
    torch.testing.assert_close(sampled, q.predict(x).probs, rtol=1e-2, atol=1e-2)


def test_nothing_is_written_and_copies_answer_alike() -> None:
    nets, data = members(2), (normal(12, 2, seed=1), torch.arange(12) % 2)
    with nothing_written(nets[0]), nothing_written(nets[1]):
        q = laplace(nets, data, likelihood="categorical", generator=3, curvature="fisher")
    again = laplace(nets, data, likelihood="categorical", generator=3, curvature="fisher")
    assert torch.equal(q.log_evidence(), again.log_evidence())
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for twin in (copy.deepcopy(q), torch.load(file, weights_only=False)):
        assert torch.equal(twin.predict(data[0]).probs, q.predict(data[0]).probs)


def test_a_mixture_is_no_prior() -> None:
    with pytest.raises(UndefinedQuantityError, match="mixture"):
        mixed(2).condition((normal(4, 2, seed=1), torch.arange(4) % 2))


def test_what_cannot_be_mixed() -> None:
    data = (normal(12, 2, seed=1), torch.arange(12) % 2)
    with pytest.raises(InputError, match="at least one in the list"):
        laplace([], data, likelihood="categorical")
    with pytest.raises(InputError, match=r"modules with the same number of outputs, got \[2, 3\]"):
        laplace([mlp(2), mlp(3)], data, likelihood="categorical")
    with pytest.raises(UnsupportedError, match="takes one module"):
        laplace(members(2), data, likelihood="categorical", structure="samples")


def test_modes_are_tuned_together() -> None:
    data = (normal(12, 2, seed=1), normal(12, 2, seed=2))
    q = laplace(members(2), data, likelihood=Gaussian("evidence"), prior_precision="evidence", mixture="evidence")
    assert isinstance(q, MixturePosterior)
    noises = {float(part.fit.noise_variance) for part in q.components}  # type: ignore[union-attr]
    assert len(noises) == 1
    torch.testing.assert_close(q.weights, torch.softmax(torch.stack([part.log_evidence() for part in q.components]), 0))


def test_networks_that_differ_are_mixed() -> None:
    data, x = (normal(12, 2, seed=1), torch.arange(12) % 2), normal(5, 2, seed=2)
    nets = [mlp(2), mlp(2, hidden=5), seeded(lambda: nn.Linear(2, 2))]
    q = laplace(nets, data, likelihood="categorical", prior_precision="evidence")
    assert isinstance(q, MixturePosterior)
    assert q.sizes == (22, 27, 6)
    each = torch.stack([part.predict(x).probs for part in q.components])
    torch.testing.assert_close(q.predict(x).probs, each.mean(0), **EXACT)
    assert q.sample_functions(x, 7, generator=0).shape == (7, 5, 2)
    with pytest.raises(UndefinedQuantityError, match="unlike weights"):
        q.sample()


def test_the_summary_has_the_hyperparameters_of_the_modes() -> None:
    data = (normal(12, 2, seed=1), normal(12, 2, seed=2))
    alike = laplace(members(2), data, likelihood=Gaussian(0.3), prior_precision=0.7)
    for line in ("prior precision: 0.7", "likelihood: gaussian", "noise variance: 0.3"):
        assert f"\n  {line}\n" in f"{alike.summary()}\n"
    q = laplace(members(2), data, likelihood=Gaussian(0.3), prior_precision="evidence")
    assert isinstance(q, MixturePosterior)
    noise = float(q.likelihood.noise_variance)  # type: ignore[union-attr]
    assert float(q.record.notes["noise variance"]) == pytest.approx(noise, rel=1e-3)
    own = [part.record.notes["prior precision"] for part in q.components]
    assert q.record.notes["prior precision"] == f"mode 0: {own[0]}; mode 1: {own[1]}"


@pytest.mark.parametrize("mixture", ["equal", "evidence"])
def test_tuning_keeps_how_modes_are_weighted(mixture: str) -> None:
    """Also of a single mode, and of modes alike, whose numbers do not tell."""
    for count in (1, 2):
        data = (normal(12, 2, seed=1), torch.arange(12) % 2)
        q = laplace(members(1) * count, data, likelihood="categorical", mixture=mixture)
        assert isinstance(q, MixturePosterior)
        tuned = tune_prior(q, share_prior="scalar")
        assert isinstance(tuned, MixturePosterior)
        assert tuned.weighting == q.weighting == mixture
        assert f"{mixture} weights" in tuned.summary()
