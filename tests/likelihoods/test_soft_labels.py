"""Soft labels: probabilities of classes, and fractions of a yes or no, whose log likelihood is an expectation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bayescope as bs
from bayescope.errors import InputError
from tests.laplace.problems import mlp, normal

ROWS = 13
x = normal(ROWS, 2, seed=1)
soft = torch.softmax(normal(ROWS, 3, seed=2), 1)
labels = torch.arange(ROWS) % 3
fractions = torch.sigmoid(normal(ROWS, 2, seed=3))
IGNORE_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")


def in_shares(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row with every label, weighted by the label's probability: what a soft label stands for."""
    rows, classes = q.shape
    return x.repeat_interleave(classes, 0), torch.arange(classes).repeat(rows), q.flatten()


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_soft_labels_are_labels_in_shares(structure: Any, kind: Any) -> None:
    if kind == "hessian" and structure == "kfac":
        return
    options: dict[str, Any] = {"likelihood": "categorical", "structure": structure, "curvature": kind}
    found = bs.fit_curvature(mlp(3), (x, soft), **options)
    expected = bs.fit_curvature(mlp(3), in_shares(soft), **options)
    torch.testing.assert_close(found.precision.to_dense(), expected.precision.to_dense(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood)
    hard = bs.fit_curvature(mlp(3), (x, labels), **options)
    if kind == "ggn":  # Λ does not depend on y
        torch.testing.assert_close(found.precision.to_dense(), hard.precision.to_dense(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["ggn", "empirical_fisher", "fisher", "hessian"])
def test_one_hot_rows_are_labels(kind: Any) -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "full", "curvature": kind, "generator": 0}
    for one_hot in (torch.eye(3, dtype=torch.float64)[labels], torch.eye(3)[labels].long()):
        found, expected = (bs.fit_curvature(mlp(3), (x, y), **options) for y in (one_hot, labels))
        torch.testing.assert_close(found.precision.to_dense(), expected.precision.to_dense(), rtol=1e-12, atol=1e-12)


def test_the_empirical_fisher_is_of_the_gradient_of_the_expectation() -> None:
    found = bs.fit_curvature(
        mlp(3), (x, soft), likelihood="categorical", curvature="empirical_fisher", structure="full"
    )
    module, rows = mlp(3), []
    for one, q in zip(x, soft, strict=True):
        loss = -(q * torch.log_softmax(module(one[None])[0], -1)).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]))
    u = torch.stack(rows)
    torch.testing.assert_close(found.precision.to_dense(), u.mT @ u, rtol=1e-9, atol=1e-9)


@IGNORE_MODE
@pytest.mark.parametrize("prior", ["auto", "evidence"])
def test_laplace_and_modes_take_soft_labels(prior: Any) -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": prior}
    q, expected = bs.laplace(mlp(3), (x, soft), **options), bs.laplace(mlp(3), in_shares(soft), **options)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-6, atol=1e-6)
    trained, other = (
        bs.fit_map(mlp(3), data, likelihood="categorical", prior_precision=0.5, generator=0, progress=False)
        for data in ((x, soft), in_shares(soft))
    )
    torch.testing.assert_close(trained.predict(x).mean, other.predict(x).mean, rtol=1e-4, atol=1e-4)


@IGNORE_MODE
def test_soft_labels_have_weights_and_held_out_rows() -> None:
    weights = 1.0 + torch.arange(ROWS) % 3
    q = bs.laplace(mlp(3), (x, soft, weights), likelihood="categorical", prior_precision=0.5)
    inputs, classes, shares = in_shares(soft * weights[:, None])
    expected = bs.laplace(mlp(3), (inputs, classes, shares), likelihood="categorical", prior_precision=0.5)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence())
    tuned, other = (
        bs.tune_prior(each, method="validation", data=data)
        for each, data in ((q, (x, soft, weights)), (expected, (inputs, classes, shares)))
    )
    torch.testing.assert_close(tuned.sd, other.sd, rtol=1e-6, atol=1e-9)


@IGNORE_MODE
@pytest.mark.parametrize("make", ["laplace", "ensemble", "mixture"])
def test_predictives_score_soft_labels_by_the_cross_entropy(make: str) -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.5}
    several = [mlp(3), mlp(3, seed=1)]
    if make == "laplace":
        q: Any = bs.laplace(mlp(3), (x, labels), **options)
    elif make == "mixture":
        q = bs.laplace(several, (x, labels), **options)
    else:
        q = bs.ensemble(several, (x, labels), epochs=0, **options)
    p = q.predict(x)
    torch.testing.assert_close(p.log_prob(soft), (soft * p.mean.log()).sum(1))
    torch.testing.assert_close(p.log_prob(torch.eye(3)[labels]), p.log_prob(labels), rtol=1e-6, atol=1e-6)


@IGNORE_MODE
@pytest.mark.parametrize("outputs", [1, 2])
def test_fractions_are_labels_in_shares(outputs: int) -> None:
    q = fractions[:, :outputs]
    options: dict[str, Any] = {"likelihood": "bernoulli", "structure": "full"}
    for kind in ("ggn", "hessian"):
        found = bs.fit_curvature(mlp(outputs), (x, q), curvature=kind, **options)
        if outputs == 1:
            shares = torch.cat([1.0 - q, q], 1).flatten()
            data: Any = (x.repeat_interleave(2, 0), torch.tensor([0, 1]).repeat(ROWS), shares)
            expected = bs.fit_curvature(mlp(1), data, curvature=kind, **options)
            torch.testing.assert_close(found.precision.to_dense(), expected.precision.to_dense(), rtol=1e-9, atol=1e-9)
        f = mlp(outputs)(x).detach()
        torch.testing.assert_close(
            found.log_likelihood, -torch.nn.functional.binary_cross_entropy_with_logits(f, q, reduction="sum")
        )
    p = bs.laplace(mlp(outputs), (x, q), likelihood="bernoulli", prior_precision=0.5).predict(x)
    one = p.mean[:, 1:] if outputs == 1 else p.mean
    expected_score = (q * torch.as_tensor(one).log() + (1 - q) * (1 - torch.as_tensor(one)).log()).sum(1)
    torch.testing.assert_close(p.log_prob(q), expected_score)


def test_gradients_of_soft_labels_do_not_cancel_in_the_tails() -> None:
    likelihood = bs.Categorical()
    f = torch.tensor([[60.0, 0.0, -3.0]], dtype=torch.float64)
    hard = likelihood.gradient(f, torch.tensor([0]))
    torch.testing.assert_close(likelihood.gradient(f, torch.eye(3, dtype=torch.float64)[:1]), hard, rtol=1e-12, atol=0)


def test_dense_outputs_have_soft_labels_for_each_position() -> None:
    inputs, q = x.expand(4, ROWS, 2), soft.expand(4, ROWS, 3)
    found = bs.laplace(mlp(3), (inputs, q), likelihood="categorical", prior_precision=0.5)
    one = bs.fit_curvature(mlp(3), (x, soft), likelihood="categorical", structure="kfac")
    fit: Any = found.fit
    torch.testing.assert_close(fit.curvature.log_likelihood, 4 * one.log_likelihood)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.ones(ROWS, 3), r"sum to 1, got \[1\.0, 1\.0, 1\.0\] in row 0\. For several labels .*'bernoulli'"),
        (soft - 0.5, "in row 0"),
        (torch.full((ROWS, 3), torch.nan), "finite"),
    ],
)
def test_what_is_no_distribution_is_refused(y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bs.fit_curvature(mlp(3), (x, y), likelihood="categorical")


def test_fractions_are_for_the_logit_and_within_bounds() -> None:
    with pytest.raises(InputError, match="labels 0 and 1"):
        bs.fit_curvature(mlp(2), (x, fractions), likelihood="probit")
    with pytest.raises(InputError, match=r"from 0 to 1, got 1\.5"):
        bs.fit_curvature(mlp(1), (x, fractions[:, 0].index_fill(0, torch.tensor([4]), 1.5)), likelihood="bernoulli")
