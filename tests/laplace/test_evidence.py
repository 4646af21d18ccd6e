"""The evidence as a function of hyperparameters, and its maximum: brute force, MacKay, the closed form."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayescope.curvature import CurvatureOptions
from bayescope.errors import NotPositiveDefiniteError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression
from bayescope.laplace import EvidenceOfModes, LaplaceFit, LaplaceOptions, maximise
from bayescope.likelihoods import Categorical, Gaussian, Likelihood
from bayescope.priors import Prior
from tests.laplace.problems import DTYPE, mlp, normal, penalty, seeded, set_flat, train

STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
PAIRS = [
    (structure, kind)
    for structure in STRUCTURES
    for kind in ("scalar", "layer", "tensor", "weight", "feature")
    if structure not in ("kfac", "ekfac") or kind in ("scalar", "layer") or (structure == "kfac" and kind != "weight")
]
X, Y = normal(30, 2, seed=1), normal(30, 2, seed=2)


def trained() -> nn.Sequential:
    """A network at the mode of a regression under unit noise and prior precision 0.5."""
    return copy.deepcopy(_trained())


@functools.lru_cache
def _trained() -> nn.Sequential:
    module = mlp(2)
    train(module, lambda: 0.5 * (module(X) - Y).square().sum() + penalty(module, 0.5))
    return module


def reading(likelihood: Likelihood, structure: str, temperature: float = 1.0, **options: Any) -> LaplaceOptions:
    return LaplaceOptions(likelihood, temperature=temperature, curved=CurvatureOptions(structure=structure, **options))


def fitted(structure: str, likelihood: Likelihood | None = None, prior: Any = 0.5, **options: Any) -> LaplaceFit:
    likelihood = likelihood or Gaussian(1.0)
    y = (Y[:, 0] > 0).long() if likelihood.discrete else Y
    if structure == "low_rank":
        options["rank"] = 20
    return reading(likelihood, structure=structure, **options).fit(trained(), (X, y), prior, generator=0)


def dense_evidence(fit: LaplaceFit, diagonal: np.ndarray, noise: float) -> float:
    """log Z in NumPy, from H as a dense matrix and the residuals themselves."""
    theta = fit.mode.numpy()
    residual = (Y - fit.function.module(X).detach()).numpy()
    log_likelihood = -0.5 * ((residual**2).sum() / noise + residual.size * math.log(2 * math.pi * noise))
    precision = fit.curvature.precision.to_dense().numpy() / noise + np.diag(diagonal)
    sign, logdet = np.linalg.slogdet(precision)
    assert sign > 0
    return float(log_likelihood + 0.5 * (np.log(diagonal) - diagonal * theta**2).sum() - 0.5 * logdet)


@pytest.mark.parametrize(
    ("structure", "kind"), [(s, "layer") for s in STRUCTURES] + [("kfac", "feature"), ("full", "weight")]
)
def test_value_is_the_fits_own_evidence_and_the_gradient_its_slope(structure: str, kind: str) -> None:
    fit = fitted(structure, temperature=0.7)
    evidence = EvidenceOfModes([fit], kind, noise=True)
    assert float(evidence.value(evidence.start())) == pytest.approx(float(fit.log_evidence()), abs=1e-9)
    x = evidence.start() + 0.3 * normal(len(evidence.names), seed=4)
    (precisions,), noise = evidence.split(x)
    diagonal = evidence.groups[0].diagonal(precisions)
    value, gradient = evidence.value_and_gradient(x)
    assert float(value) == pytest.approx(float(fit.log_evidence(diagonal, noise)), abs=1e-9)
    for place in range(min(3, len(x))):
        step = torch.zeros_like(x)
        step[place] = 1e-5
        slope = (evidence.value(x + step) - evidence.value(x - step)) / 2e-5
        assert float(gradient[place]) == pytest.approx(float(slope), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", ["scalar", "layer"])
def test_maximum_is_that_of_a_brute_force_grid(structure: str, kind: str) -> None:
    fit = fitted(structure)
    evidence = EvidenceOfModes([fit], kind, noise=True)
    optimum = maximise(evidence)
    assert optimum.settled
    assert optimum.stuck == ()
    (precisions,), groups = optimum.prior_precisions, evidence.groups[0]
    found = torch.cat([precisions, optimum.noise_variance[None]]).log().numpy()  # type: ignore[index]

    def value(logs: np.ndarray) -> float:
        diagonal = np.exp(logs[:-1])[groups.index.numpy()]
        return dense_evidence(fit, diagonal, math.exp(logs[-1]))

    best = value(found)
    steps = np.linspace(-4.0, 4.0, 7) if kind == "layer" else np.linspace(-4.0, 4.0, 17)
    for offsets in itertools.product(steps, repeat=len(found)):
        assert value(found + np.array(offsets)) <= best + 1e-9
    for place, side in itertools.product(range(len(found)), (-0.01, 0.01)):
        near = found.copy()
        near[place] += side
        assert value(near) < best


@pytest.mark.parametrize(("structure", "kind"), PAIRS)
def test_maximum_is_mackays_fixed_point(structure: str, kind: str) -> None:
    fit = fitted(structure)
    evidence = EvidenceOfModes([fit], kind, noise=True)
    optimum = maximise(evidence)
    assert optimum.settled
    groups, noise = evidence.groups[0], optimum.noise_variance
    assert noise is not None
    (precisions,) = optimum.prior_precisions
    diagonal = groups.diagonal(precisions)
    tuned = replace(fit.at_noise(noise), prior=Prior(diagonal))
    variances = tuned.precision().marginal_variance()
    gamma = groups.counts - groups.sums(diagonal * variances)
    stuck = torch.tensor([name in optimum.stuck for name in groups.names])
    # γ_g = δ_g ‖θ_g‖² for each group, σ² = RSS/(n − γ)
    squares = groups.sums(fit.mode.square())
    torch.testing.assert_close((precisions * squares)[~stuck], gamma[~stuck], rtol=1e-5, atol=1e-5)
    residual = (Y - fit.function.module(X).detach()).square().sum()
    torch.testing.assert_close(noise, residual / (Y.numel() - gamma.sum()), rtol=1e-6, atol=0.0)
    if kind == "scalar":
        total = tuned.effective_parameters()
        torch.testing.assert_close(precisions[0], total / fit.mode.square().sum(), rtol=1e-6, atol=0.0)


def test_a_linear_gaussian_model_has_the_closed_forms_hyperparameters() -> None:
    x = normal(3000, 5, seed=5)
    y = x @ torch.tensor([2.0, -1.0, 0.5, 0.0, 0.1], dtype=DTYPE) + 0.4 * normal(3000, seed=6)
    exact = BayesianLinearRegression(fit_intercept=False, standardize=False).fit(x.numpy(), y.numpy())
    module = seeded(lambda: nn.Linear(5, 1, bias=False))
    set_flat(module, torch.as_tensor(exact.coef_))
    # started far away from the answer, in both
    fit = reading(Gaussian(30.0), structure="full").fit(module, (x, y[:, None]), 1e-3)
    optimum = maximise(EvidenceOfModes([fit], "scalar", noise=True))
    assert float(optimum.prior_precisions[0]) == pytest.approx(float(exact.prior_precision_), rel=1e-9)
    assert float(optimum.noise_variance) == pytest.approx(float(exact.noise_variance_), rel=1e-9)  # type: ignore[arg-type]
    assert optimum.log_evidences[-1] == pytest.approx(float(exact.log_evidence_), abs=1e-6)
    assert optimum.noise_variance is not None
    tuned = replace(fit.at_noise(optimum.noise_variance), prior=Prior(optimum.prior_precisions[0][0])).posterior()
    assert float(tuned.log_evidence()) == pytest.approx(float(exact.log_evidence_), abs=1e-8)
    torch.testing.assert_close(tuned.covariance, torch.as_tensor(exact.posterior_.covariance), rtol=1e-6, atol=1e-12)


def test_the_slope_at_the_maximum_is_rounding() -> None:
    evidence = EvidenceOfModes([fitted("kfac")], "layer", noise=True)
    optimum = maximise(evidence)
    best = torch.cat([*optimum.prior_precisions, optimum.noise_variance[None]]).log()  # type: ignore[index]
    assert (evidence.value_and_gradient(best)[1].abs() <= 1e-9 * evidence.sizes()).all()


def test_an_irrelevant_input_is_switched_off() -> None:
    x = normal(200, 3, seed=7)
    y = x[:, :1].sin() + x[:, 1:2] + 0.1 * normal(200, 1, seed=8)
    module = mlp(1, inputs=3, hidden=5)
    train(module, lambda: 50.0 * (module(x) - y).square().sum() + penalty(module, 1.0))
    fit = reading(Gaussian(0.01), structure="full").fit(module, (x, y), 1.0)
    evidence = EvidenceOfModes([fit], "feature", noise=True)
    precisions = dict(zip(evidence.names, maximise(evidence).prior_precisions[0].tolist(), strict=False))
    relevant = max(precisions["0.weight[:, 0]"], precisions["0.weight[:, 1]"])
    assert precisions["0.weight[:, 2]"] > 5 * relevant


def test_hyperparameters_without_an_optimum_end_at_their_bounds() -> None:
    module = trained()
    with torch.no_grad():
        module[2].weight.zero_()
    fit = reading(Categorical(), structure="block", blocks="tensor").fit(module, (X, (Y[:, 0] > 0).long()), 0.5)
    evidence = EvidenceOfModes([fit], "tensor", noise=True)
    optimum = maximise(evidence)
    # The weights of the last layer are 0: no prior precision is too high. Those of the first one reach no output: the
    # lower theirs, the better, and it stays as it was.
    assert set(optimum.stuck) == {"0.weight", "0.bias", "2.weight"}
    assert optimum.prior_precisions[0][:2].tolist() == pytest.approx([0.5, 0.5], rel=1e-12)
    told = fit.curvature.precision.diagonal()[12:20].mean()
    assert 1e3 < float(optimum.prior_precisions[0][2] / told) < 1e9
    assert optimum.settled  # in the others
    assert optimum.noise_variance is None


def test_values_climb_and_are_those_of_the_points_reached() -> None:
    evidence = EvidenceOfModes([fitted("kfac")], "layer", noise=True)
    optimum = maximise(evidence)
    assert all(after > before for before, after in itertools.pairwise(optimum.log_evidences))
    assert optimum.log_evidences[0] == pytest.approx(float(evidence.fits[0].log_evidence()), abs=1e-9)
    assert optimum.noise_variance is not None
    end = evidence.fits[0].log_evidence(
        evidence.groups[0].diagonal(optimum.prior_precisions[0]), optimum.noise_variance
    )
    assert optimum.log_evidences[-1] == pytest.approx(float(end), abs=1e-8)


def test_several_modes_share_their_noise_alone() -> None:
    fits = [fitted("kfac"), LaplaceOptions(Gaussian(1.0)).fit(mlp(2, seed=5), (X, Y), 0.5)]
    evidence = EvidenceOfModes(fits, "layer", noise=True)
    assert evidence.names == ("0 of mode 0", "2 of mode 0", "0 of mode 1", "2 of mode 1", "noise_variance")
    optimum = maximise(evidence)
    for fit, precisions in zip(fits, optimum.prior_precisions, strict=True):
        assert optimum.noise_variance is not None
        alone = maximise(EvidenceOfModes([fit.at_noise(optimum.noise_variance)], "layer", noise=False))
        torch.testing.assert_close(precisions, alone.prior_precisions[0], rtol=1e-6, atol=0.0)
    apart = [maximise(EvidenceOfModes([fit], "layer", noise=True)).noise_variance for fit in fits]
    assert min(map(float, apart)) < float(optimum.noise_variance) < max(map(float, apart))  # type: ignore[arg-type]


class Cliff:
    """A stand-in for an evidence that is defined above 0 alone, and whose slope far away tempts to long steps."""

    names, noise = ("all",), False

    def value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if float(x) < 0:
            raise NotPositiveDefiniteError("the precision: none")
        distance = (10.0 * (x - 0.3)).square().add(1.0).sqrt()
        return -distance.sum(), -100.0 * (x - 0.3) / distance

    def start(self) -> Tensor:
        return torch.tensor([2.0], dtype=DTYPE)

    def bounds(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([-30.0], dtype=DTYPE), torch.tensor([30.0], dtype=DTYPE)

    def sizes(self) -> Tensor:
        return torch.ones(1, dtype=DTYPE)

    def without_optimum(self, x: Tensor, slope: Tensor) -> Tensor:
        return torch.zeros(1, dtype=torch.bool)

    def split(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        return (x,), None


def test_a_step_to_where_there_is_no_precision_is_taken_shorter() -> None:
    optimum = maximise(Cliff())  # type: ignore[arg-type]
    assert optimum.settled
    assert float(optimum.prior_precisions[0]) == pytest.approx(0.3, abs=1e-8)


def test_no_precision_anywhere_near_is_an_error() -> None:
    module = mlp(1)
    fit = reading(Gaussian(0.01), structure="full", curvature="hessian").fit(module, (X, 5.0 * Y[:, :1]), 1e-3)
    assert float(torch.linalg.eigvalsh(fit.curvature.precision.to_dense())[0]) < -1.0
    with pytest.raises(NotPositiveDefiniteError, match="expected a positive definite matrix"):
        maximise(EvidenceOfModes([fit], "scalar", noise=False))


def test_what_has_no_number_to_tune_is_refused() -> None:
    for noise in ([1.0, 2.0], [0.2, 0.2]):
        with pytest.raises(UnsupportedError, match=r"noise_variance: expected one number .* one for each"):
            EvidenceOfModes([fitted("kfac", Gaussian(noise))], "scalar", noise=True)
    EvidenceOfModes([fitted("kfac", Gaussian([1.0, 2.0]))], "scalar", noise=False)
    EvidenceOfModes([fitted("kfac", Categorical())], "scalar", noise=True)  # classes have none
    structured = fitted("full").posterior().precision
    with pytest.raises(UnsupportedError, match="expected a prior with a precision per weight, got a structured one"):
        EvidenceOfModes([fitted("full", prior=Prior(structured))], "scalar", noise=True)


def test_a_prior_mean_counts() -> None:
    centre = 0.3
    fit = fitted("full", prior=Prior(0.5, centre))
    optimum = maximise(EvidenceOfModes([fit], "scalar", noise=False))
    (precision,) = optimum.prior_precisions[0]
    gamma = replace(fit, prior=Prior(precision, centre)).effective_parameters()
    torch.testing.assert_close(precision, gamma / (fit.mode - centre).square().sum(), rtol=1e-6, atol=0.0)
