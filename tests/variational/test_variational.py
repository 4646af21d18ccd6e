"""Networks trained up the bound: equal to closed forms, to quadrature and to the evidence where that is attained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayescope import laplace
from bayescope.errors import ConvergenceWarning
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.layers import LinearVariational, kl
from bayescope.likelihoods import Gaussian
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import fit_map
from bayescope.variational import variational
from tests.training.toys import classes, line, perceptron, seeded
from tests.variational.toys import GAUSSIAN, network, regression, seeded_draws

DENSE = Prior(DensePrecision(torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.2], [0.5, 0.2, 4.0]])), [0.5, 0.0, -1.0])


@pytest.mark.parametrize(
    ("family", "prior"),
    [
        ("full", Prior(2.0)),
        ("full", Prior([1.0, 5.0, 20.0], [1.0, -2.0, 3.0])),
        ("full", DENSE),
        ("low_rank", Prior(2.0)),
        ("low_rank", DENSE),
    ],
    ids=["full, number", "full, array and mean", "full, matrix", "low rank, number", "low rank, matrix"],
)
def test_linear_regression_in_full_batch_is_exact(family: str, prior: Prior) -> None:
    """The posterior to 1e-3 sd, the evidence to 0.01 nats. Over three weights, diagonal and rank 2 is any matrix."""
    problem = regression(40, prior)
    q = variational(
        network(), (problem.x, problem.y), likelihood=GAUSSIAN, prior_precision=prior, family=family,
        rank=2 if family == "low_rank" else None, samples=2, epochs=350, lr=0.08, schedule="cosine", generator=0,
        progress=False,
    )  # fmt: skip
    assert ((q.mean - problem.mean) / problem.sds).abs().max() < 1e-3
    torch.testing.assert_close(q.covariance, torch.linalg.inv(problem.precision), rtol=2e-3, atol=1e-5)
    assert float(q.elbo) == pytest.approx(problem.evidence, abs=0.01)
    assert "sampled" in q.predict(problem.x, samples=2).summary()


def test_mean_field_on_a_linear_regression_has_the_conditional_sds() -> None:
    """Its best q has the posterior's mean and 1/√A_ii for sds (Bishop 2006, eq. 10.13), and its bound is below."""
    problem = regression(40)
    q = variational(
        network(), (problem.x, problem.y), likelihood=GAUSSIAN, prior_precision=2.0, estimator="sticking_the_landing",
        samples=4, epochs=500, lr=0.05, schedule="cosine", generator=0, progress=False,
    )  # fmt: skip
    assert ((q.mean - problem.mean) / problem.sds).abs().max() < 0.02
    torch.testing.assert_close(q.precision.diagonal(), problem.precision.diagonal(), rtol=0.03, atol=0.0)
    # KL between N(m, A⁻¹) and N(m, diag(A)⁻¹).
    gap = 0.5 * (problem.precision.diagonal().log().sum() - torch.logdet(problem.precision))
    assert float(q.elbo) == pytest.approx(problem.evidence - float(gap), abs=0.02)
    assert float(q.elbo) < problem.evidence


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.02, "epochs": 250, "generator": 0},
        {"lr": 0.02, "epochs": 200, "generator": 0, "samples": 8, "estimator": "flipout"},
        {"lr": 0.05, "epochs": 250, "generator": 0, "samples": 2, "optimizer": "ivon", "initial_sd": 0.2},
    ],
    ids=["local reparameterization", "flipout", "ivon"],
)
def test_minibatches_agree_with_quadrature_on_logistic_regression(options: dict[str, Any]) -> None:
    x, y = classes(200)
    exact = BayesianLogisticRegression(
        posterior="mean_field", prior_precision=2.0, intercept_prior_precision=2.0, standardize=False
    )
    p = exact.fit(x.numpy(), y.numpy()).posterior_
    q = variational(
        network(), (x, y), likelihood="bernoulli", prior_precision=2.0, batch_size=50, schedule="cosine",
        progress=False, **options,
    )  # fmt: skip
    sds = p.covariance.diagonal().sqrt()
    assert ((q.mean - p.mean) / sds).abs().max() < 0.1
    assert ((q.covariance.diagonal().sqrt() / sds) - 1.0).abs().max() < 0.12
    assert float(q.elbo) == pytest.approx(float(p.elbo), abs=0.12)  # standard error 0.03


def test_hyperparameters_are_those_of_the_evidence() -> None:
    """Where the bound is tight they are what type-II maximum likelihood finds."""
    x, y = line(60)
    design = torch.cat([x, torch.ones(60, 1, dtype=x.dtype)], 1)
    exact = BayesianLinearRegression(fit_intercept=False, standardize=False).fit(design.numpy(), y[:, 0].numpy())
    q = variational(
        network(), (x, y), likelihood=Gaussian("evidence"), prior_precision="evidence", share_prior="scalar",
        family="full", epochs=500, lr=0.05, samples=2, schedule="cosine", generator=0, progress=False,
    )  # fmt: skip
    assert float(q.likelihood.noise_variance) == pytest.approx(float(exact.noise_variance_), rel=0.01)
    assert q.trace["prior_precision"][-1] == pytest.approx([float(exact.prior_precision_)], rel=0.01)
    assert float(q.elbo) == pytest.approx(float(exact.log_evidence_), abs=0.02)
    assert len(q.trace["noise_variance"]) == 500
    assert "learnt from the evidence lower bound" in q.summary()


def test_prior_precisions_by_layer_and_noise_alone() -> None:
    x, y = line(40)
    q = variational(
        perceptron(), (x, y), likelihood="gaussian", prior_precision="evidence", epochs=3, generator=0, progress=False
    )
    assert len(q.trace["prior_precision"][-1]) == 2
    assert "0: " in q.record.notes["prior precision"]
    assert "noise_variance" not in q.trace
    alone = variational(perceptron(), (x, y), likelihood=Gaussian("evidence"), epochs=3, generator=0, progress=False)
    assert "prior_precision" not in alone.trace
    assert alone.record.notes["prior precision"] == "1"


def test_warmup_raises_the_weight_of_the_divergence() -> None:
    x, y = line(40)
    q = variational(
        perceptron(), (x, y), likelihood="gaussian", prior_precision="evidence", kl_weight=0.5, warmup=4, epochs=6,
        generator=0, progress=False,
    )  # fmt: skip
    trace = q.trace
    weights = [
        (loss - nll) / divergence
        for loss, nll, divergence in zip(trace["loss"], trace["nll"], trace["kl"], strict=True)
    ]
    assert weights == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5])
    assert trace["prior_precision"][2] == [1.0, 1.0]
    assert trace["prior_precision"][3] != [1.0, 1.0]
    for elbo, nll, divergence in zip(trace["elbo"], trace["nll"], trace["kl"], strict=True):
        assert elbo == pytest.approx(-nll - divergence)
    assert q.record.notes["kl weight"].startswith("0.5")


def test_a_lower_weight_of_the_divergence_is_a_colder_posterior() -> None:
    """The tempered posterior p(y∣θ) p(θ)^w raised to 1/w, which full VI finds exactly."""
    problem, kl_weight = regression(40), 0.25
    q = variational(
        network(), (problem.x, problem.y), likelihood=GAUSSIAN, prior_precision=2.0, family="full",
        kl_weight=kl_weight, samples=2, initial_sd=0.02, epochs=400, lr=0.05, schedule="cosine", generator=0,
        progress=False,
    )  # fmt: skip
    precision = problem.design.mT @ problem.design / 0.09 / kl_weight + 2.0 * torch.eye(3, dtype=torch.float64)
    exact = torch.linalg.inv(precision)
    scale = (exact.diagonal()[:, None] * exact.diagonal()).sqrt()
    assert ((q.covariance - exact) / scale).abs().max() < 0.2  # at the weight 1 it is four times as large


def test_laplace_is_a_start_for_trained_networks() -> None:
    """With no epochs it is Laplace's diagonal, cut at one sd; a few raise the bound far above another start's."""
    x, y = line(40)
    trained = fit_map(perceptron(), (x, y), likelihood=Gaussian(0.1), optimizer="lbfgs", epochs=30, progress=False)
    start = variational(
        trained.model, (x, y), likelihood=Gaussian(0.1), initial_sd="laplace", epochs=0, generator=0, progress=False
    )
    exact = laplace(trained.model, (x, y), likelihood=Gaussian(0.1), structure="diagonal", prior_precision=1.0)
    sds, own = start.precision.diagonal().rsqrt(), exact.precision.diagonal().rsqrt()
    torch.testing.assert_close(sds, own.clamp(max=float(sds.max())))
    torch.testing.assert_close(start.mean, exact.mean)
    assert start.trace == {}
    few = variational(
        trained.model, (x, y), likelihood=Gaussian(0.1), initial_sd="laplace", epochs=20, lr=3e-3, generator=0,
        progress=False,
    )  # fmt: skip
    wide = variational(
        trained.model, (x, y), likelihood=Gaussian(0.1), initial_sd=0.5, epochs=20, lr=3e-3, generator=0, progress=False
    )
    assert float(few.elbo) > float(start.elbo)
    assert float(few.elbo) > float(wide.elbo) + 1.0
    ivon = variational(
        trained.model, (x, y), likelihood=Gaussian(0.1), initial_sd="laplace", optimizer="ivon", epochs=0, generator=0,
        progress=False,
    )  # fmt: skip
    torch.testing.assert_close(ivon.precision.diagonal(), start.precision.diagonal())


def test_variational_layers_answer_as_they_stand() -> None:
    x, y = line(30)
    with seeded_draws(0):
        layered = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), LinearVariational(4, 1, initial_sd=0.3)).double()
    q = variational(layered, (x, y), likelihood=GAUSSIAN, epochs=0, generator=0, progress=False)
    assert q.mean.shape == (5,)
    torch.testing.assert_close(q.precision.diagonal(), torch.full((5,), 0.3**-2, dtype=torch.float64))
    assert type(q.model[2]) is nn.Linear
    assert float(-q.elbo_terms["kl"]) == pytest.approx(float(kl(layered).detach()))
    with seeded_draws(1):
        f = torch.stack([layered(x) for _ in range(4000)]).detach()
    p = q.predict(x, samples=4000, generator=0)
    assert ((p.latent_mean - f.mean(0)).abs() / (f.std(0) * (2.0 / 4000) ** 0.5)).max() < 4.5
    torch.testing.assert_close(p.latent_cov[:, 0, 0].sqrt(), f.std(0)[:, 0], rtol=0.08, atol=0.0)
    whole = variational(layered, (x, y), likelihood=GAUSSIAN, weights=["*"], initial_sd=0.1, epochs=1, generator=0,
                        progress=False)  # fmt: skip
    assert whole.mean.shape == (17,)


def test_condition_on_more_data() -> None:
    """In two parts, a linear regression comes to the posterior of all rows."""
    problem = regression(40)
    options: dict[str, Any] = {
        "epochs": 300,
        "lr": 0.03,
        "samples": 4,
        "schedule": "cosine",
        "generator": 0,
        "progress": False,
    }
    first = variational(
        network(), (problem.x[:20], problem.y[:20]), likelihood=GAUSSIAN, prior_precision=2.0, family="full", **options
    )
    both = first.condition((problem.x[20:], problem.y[20:]))
    assert ((both.mean - problem.mean) / problem.sds).abs().max() < 0.02
    torch.testing.assert_close(both.covariance, torch.linalg.inv(problem.precision), rtol=0.03, atol=2e-5)
    field = variational(
        network(), (problem.x[:20], problem.y[:20]), likelihood=GAUSSIAN, prior_precision=2.0,
        **{**options, "epochs": 50, "lr": 0.1},
    )  # fmt: skip
    more = field.condition((problem.x[20:], problem.y[20:]))
    assert bool((more.precision.diagonal() > field.precision.diagonal()).all())


class Stopped(nn.Module):
    """A network whose training is stopped by Ctrl-C after 300 steps."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.passes = body, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.training and self.passes == 301:
            raise KeyboardInterrupt
        out: torch.Tensor = self.body(x)
        return out


@pytest.mark.parametrize("seed", range(2))
def test_a_bound_that_prunes_the_network_warns(seed: int) -> None:
    """Fifty units of which forty rows pay for few: the network without a Gaussian predicts far better."""
    data = classes(40, seed=seed)
    options: dict[str, Any] = {"likelihood": "bernoulli", "lr": 0.03, "generator": 0, "progress": False}
    with pytest.warns(ConvergenceWarning, match="likely worse than the plain network's.*bs.laplace"):
        variational(Stopped(perceptron(hidden=50)), data, **options)
    variational(Stopped(seeded(0, (nn.Linear, (2, 1))).double()), data, **options)  # warnings are errors
