"""How wrong a fitted posterior is: held against the exact one of its own model, prior and training rows.

A model that is linear in its weights, or is used as its linearisation at the mode, has f = f₀ + J D^{-½} z with z ~
N(0, I) under the prior, D the prior precisions. Of the directions of z only those matter that training rows see: with
the singular value decomposition J D^{-½} = U S Vᵀ these are u = Vᵀ z, and the posterior of all other directions is the
prior. So NUTS runs over a few coordinates u, in function space, however many weights there are; and where rows are too
many for NUTS, the fitted posterior's own draws of u, weighted by the exact density over its own, take its place if
Pareto k̂ allows it (Vehtari et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.additive.problem import AdditiveHyperparameters
from bayescope.comparison.resampling import evenly
from bayescope.density import PARETO_K_LIMIT, convergence, nuts_draws, pareto_smoothed
from bayescope.errors import BayescopeError, InputError, MissingDependencyError, OptionError, UnsupportedError
from bayescope.estimators import BayesianGeneralizedLinearModel, BayesianLinearRegression, BayesianLogisticRegression
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.estimators.base import TableEstimator
from bayescope.estimators.mlp import MLPEstimator
from bayescope.estimators.priors import WEAK_INTERCEPT, sparse_prior
from bayescope.estimators.targets import class_factors
from bayescope.laplace.fit import LaplaceFit
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Likelihood
from bayescope.linear.evidence import weight_prior
from bayescope.models import Model
from bayescope.posterior import GaussianPosterior, InputRows, Posterior
from bayescope.predictive import Predictive
from bayescope.process_state import one_thread
from bayescope.report.judged import Judged, take

REFERENCES = ("auto", "nuts")
# NUTS reads rows × directions some 10⁴ times: up to this many it takes seconds to a minute.
MOST_NUMBERS = 300_000
# Numbers of the Jacobian, and directions or rows of which a matrix is decomposed.
MOST_JACOBIAN, MOST_SIDE = 2**25, 2000
# Rows whose predictions are compared.
MOST_ROWS = 500
CHAINS, TUNE, DRAWS = 4, 150, 200
# Chains that agree less than this are no reference.
MIXED = 1.05
# Relative errors of standard deviations below this are of it: of probabilities, and in sds of the predictive
# distribution for numbers. Smaller ones matter to nobody, and a sample does not know them.
LEAST_SD = 0.01
# Draws of the fitted posterior that are weighed.
WEIGHED = 4000
# A direction whose posterior variance the rows change by less than this share is the prior's.
SEEN = 1e-4
VARIATIONAL = ("variational", "mean_field")
# Whose model is linear in its weights; others are used as their linearisation at the mode.
LINEAR = (BayesianGeneralizedLinearModel, BayesianLogisticRegression)
# A posterior is of other rows if its mode is further than this from theirs, in squared standard deviations.
ELSEWHERE = 1.0


@final
@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows that a model was fitted to, as the caller has them.

    Attributes:
        X: the table.
        y: what happened.
        weights: how often each row counted, shape (N,), or ``None`` for once.
    """

    X: object
    y: object
    weights: np.ndarray | None = None


class Difference(NamedTuple):
    """How far predictions are from the reference's: over the compared rows, and what the reference's noise is.

    Attributes:
        typical: the mean over the rows.
        largest: of all rows.
        noise: the mean over the rows of the reference's own standard error.
    """

    typical: float
    largest: float
    noise: float


@final
@dataclass(frozen=True, eq=False)
class Standing:
    """Where a posterior stands.

    Attributes:
        method: what it was held against: "exact" (nothing is approximate), "nuts", or "importance"; "" for nothing.
        reason: why it was held against nothing; empty otherwise.
        rows: training rows.
        compared: rows whose predictions are compared.
        left_out: judged rows that lack a value, and are not compared for that.
        directions: of function space.
        linearized: whether the model is its linearisation at the mode.
        mean: of the predictions: of probabilities, or of means in sds of the predictive distribution.
        spread: of the epistemic sds, ∣sd − sd_reference∣/max(sd_reference, `LEAST_SD`); ``None`` for a point.
        ratio: the median of sd/sd_reference.
        pareto_k: of importance weights from the posterior to the exact one; ``None`` where it has no density.
        predictions: of each compared row by the reference and by the model, shape (n, 2).
        sds: the epistemic sds of the same, shape (n, 2).
    """

    method: Literal["", "exact", "nuts", "importance"]
    reason: str = ""
    rows: int = 0
    compared: int = 0
    left_out: int = 0
    directions: int = 0
    linearized: bool = False
    mean: Difference | None = None
    spread: Difference | None = None
    ratio: float = 1.0
    pareto_k: float | None = None
    predictions: np.ndarray | None = None
    sds: np.ndarray | None = None


def reference_choice(reference: str | None) -> str | None:
    """Checks ``reference=``.

    Raises:
        OptionError: if it is not one of "auto", "nuts" and ``None``.
    """
    if reference is not None and reference not in REFERENCES:
        raise OptionError.unknown("reference", reference, [*REFERENCES, "None"])
    return reference


def standing(
    estimator: TableEstimator,
    judged: Judged,
    training: TrainingRows | None,
    reference: str | None,
    random_state: int,
    most: int = MOST_NUMBERS,
) -> Standing:
    """Compares the posterior with the exact one, if the training rows are given and few enough.

    Args:
        estimator: fitted.
        judged: the rows whose predictions are compared.
        training: those that it was fitted to.
        reference: "auto", "nuts" or ``None``.
        random_state: the seed of all draws.
        most: rows × directions up to which "auto" takes NUTS.

    Raises:
        UnsupportedError: if "nuts" was asked for and there is no reference for this model.
        MissingDependencyError: if "nuts" was asked for and the packages are not installed.
        InputError: if the training rows are not those that the model was fitted to.
    """
    if reference is None:
        return Standing("", "This posterior was not compared with a reference, since the caller asked for none.")
    obstacle = _obstacle(estimator)
    if not obstacle and isinstance(estimator, BayesianLinearRegression):
        return Standing("exact")
    if not obstacle and training is None:
        obstacle = (
            "This posterior was not compared with a reference. A reference needs the rows that the model was trained "
            "on: give training=(X, y) in Python, --training TABLE on the command line."
        )
    if obstacle:
        if reference == "nuts":
            raise UnsupportedError(f"reference='nuts': {obstacle} Use reference='auto'.")
        return Standing("", obstacle)
    assert training is not None
    try:
        for package in ("nutpie", "arviz"):
            checks.optional_package(package, extra="nuts")
    except MissingDependencyError:
        if reference == "nuts":
            raise
        return Standing(
            "",
            "This posterior was not compared with a reference, since NUTS is not installed: pip install "
            "'bayescope[nuts]'.",
        )
    return _measured(estimator, judged, training, reference, random_state, most)


@singledispatch
def _obstacle(estimator: TableEstimator) -> str:
    """Why the estimator's posterior has no reference here; empty if it has one."""
    return (
        f"This posterior was not compared with a reference: bayescope has none for a {type(estimator).__name__}. "
        "bs.compare fits several posteriors and compares them."
    )


@_obstacle.register
def _(estimator: MLPEstimator) -> str:
    if _of_laplace(estimator.posterior_):
        return ""
    return (
        "This posterior was not compared with a reference: for a network bayescope has one only for Laplace's "
        "posterior. NUTS over the weights of a network takes minutes to hours."
    )


def _of_laplace(posterior: Posterior) -> bool:
    """Whether it is Laplace's posterior of a network, untempered, of one target."""
    if not isinstance(posterior, GaussianPosterior) or posterior.record.method != "laplace":
        return False
    fit, likelihood = posterior.fit, posterior.likelihood
    one = likelihood is not None and likelihood.domain.kind != "ordered" and not likelihood.parts
    return one and isinstance(fit, LaplaceFit) and fit.temperature == 1.0


@_obstacle.register(AdditiveEstimator)
@_obstacle.register(BayesianGeneralizedLinearModel)
@_obstacle.register(BayesianLogisticRegression)
@_obstacle.register(BayesianLinearRegression)
def _(estimator: Any) -> str:
    likelihood, what = estimator.posterior_.likelihood, ""
    if sparse_prior(estimator.prior_precision) is not None:
        what = "a sparse prior"
    elif getattr(estimator, "monotone", None):
        what = "monotone effects"
    elif likelihood.domain.kind == "ordered":
        what = "ordered classes"
    elif getattr(estimator, "_multilabel", False) or likelihood.parts:
        what = "several targets"
    elif isinstance(estimator, BayesianGeneralizedLinearModel) and likelihood.hyperparameters:
        what = f"a learnt {' and '.join(likelihood.hyperparameters).replace('_', ' ')}"
    said = "This posterior was not compared with a reference: bayescope has none for a model with"
    return f"{said} {what}." if what else ""


@singledispatch
def _prior_diagonal(estimator: Any) -> Tensor:
    """The prior precisions of all weights, shape (P,)."""
    model = estimator.posterior_.function
    intercept = estimator.intercept_prior_precision or WEAK_INTERCEPT
    known = torch.from_numpy(np.asarray(estimator._precisions_kept(), dtype=np.float64))
    return weight_prior(model, known, intercept).diagonal(model.dim)


@_prior_diagonal.register
def _(estimator: AdditiveEstimator) -> Tensor:
    fitted, likelihood = estimator.additive_, estimator.posterior_.likelihood
    assert likelihood is not None
    at = AdditiveHyperparameters(fitted.precisions, estimator.intercept_prior_precision, likelihood)
    return at.diagonal(fitted.model.families)


@_prior_diagonal.register
def _(estimator: MLPEstimator) -> Tensor:
    posterior: Any = estimator.posterior_
    diagonal: Tensor = posterior.fit.prior.diagonal(posterior.sizes[0])
    return diagonal


@singledispatch
def _centred(estimator: Any) -> Tensor:
    """Which weights have a prior mean of 0, bool (P,)."""
    return torch.ones(sum(estimator.posterior_.sizes), dtype=torch.bool)


@_centred.register
def _(estimator: AdditiveEstimator) -> Tensor:
    """All but those of inner layers, whose prior mean is where nets began, and intercepts, which have an origin."""
    families, model = estimator.additive_.model.families, estimator.additive_.model
    inner = [torch.tensor([name == "inner" for name in family.layers])[family.layer] for family in families]
    each = [part.repeat(len(family.terms)) for part, family in zip(inner, families, strict=True)]
    return ~torch.cat([*each, torch.ones(model.outputs, dtype=torch.bool)])


# Function space -------------------------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, eq=False)
class FunctionDensity:
    """log p(y, u) = Σ_n w_n log p(y_n∣f₀ + B u) − ½ ∥u∥², a `LogDensity` over r directions.

    Attributes:
        constant: f₀, shape (N, C).
        basis: B, shape (N C, r).
        targets: canonical, of N rows.
        weights: w, shape (N,).
        likelihood: p(y∣f).
    """

    constant: Tensor
    basis: Tensor
    targets: Tensor
    weights: Tensor
    likelihood: Likelihood

    @property
    def dim(self) -> int:
        return self.basis.shape[1]

    def outputs(self, u: Tensor) -> Tensor:
        """f, shape (..., N, C) for u of shape (..., r)."""
        return self.constant + (u @ self.basis.mT).unflatten(-1, self.constant.shape)

    def log_prob(self, u: Tensor) -> Tensor:
        """log p(y, u), shape (...)."""
        return self.likelihood.log_prob(self.outputs(u), self.targets) @ self.weights - 0.5 * u.square().sum(-1)

    def value_and_gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, u) and its gradient."""
        value, slope = self.likelihood.log_prob_and_gradient(self.outputs(u), self.targets)
        gradient = (slope * self.weights[:, None]).flatten() @ self.basis
        return value @ self.weights - 0.5 * u @ u, gradient - u

    def hessian(self, u: Tensor) -> Tensor:
        """∂² log p(y, u)/∂u²."""
        bent = self.likelihood.hessian(self.outputs(u), self.targets) * self.weights[:, None, None]
        rows = self.basis.unflatten(0, self.constant.shape)
        return -torch.einsum("ncr,ncd,nds->rs", rows, bent, rows) - torch.eye(self.dim, dtype=torch.float64)

    def mode(self, start: Tensor, steps: int = 50) -> Tensor:
        """The maximum, by Newton steps that are halved until they climb."""
        u, value = start, float(self.log_prob(start))
        for _ in range(steps):
            _, gradient = self.value_and_gradient(u)
            step = torch.linalg.solve(-self.hessian(u), gradient)
            if float(gradient @ step) < 1e-12:
                break
            size = 1.0
            while size > 1e-6 and float(self.log_prob(u + size * step)) < value:
                size *= 0.5
            u = u + size * step
            value = float(self.log_prob(u))
        return u


class _Whitened(NamedTuple):
    """The density in v, u = û + R v with R Rᵀ = (−Hessian)⁻¹ at the mode û: near N(0, I)."""

    density: FunctionDensity
    centre: Tensor
    root: Tensor

    @property
    def dim(self) -> int:
        return self.density.dim

    def log_prob(self, v: Tensor) -> Tensor:
        return self.density.log_prob(self.centre + v @ self.root.mT)

    def value_and_gradient(self, v: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.density.value_and_gradient(torch.addmv(self.centre, self.root, v))
        return value, gradient @ self.root

    def hessian(self, v: Tensor) -> Tensor:
        return self.root.mT @ self.density.hessian(self.centre + v @ self.root.mT) @ self.root


@final
@dataclass(frozen=True, eq=False)
class FunctionSpace:
    """The directions in which training rows move f, and how other rows depend on them.

    Attributes:
        density: of u.
        model: f(x, θ).
        at: the weights θ* where the model is linearised; any for a linear model.
        start: u at θ*.
        scaled: D^{-½}, shape (P,).
        directions: V, shape (P, r).
        pull: z at θ* that is left of the mode's condition z = Σ_n J D^{-½} ∂ log p/∂f, shape (P,).
    """

    density: FunctionDensity
    model: Model
    at: Tensor
    start: Tensor
    scaled: Tensor
    directions: Tensor
    pull: Tensor

    @classmethod
    def of(cls, estimator: Any, training: TrainingRows) -> FunctionSpace:
        """From a fitted estimator and its training rows.

        Raises:
            InputError: if there is not a target for each row, or the rows are not those that were fitted.
        """
        posterior: Posterior = estimator.posterior_
        model, likelihood = posterior.function, posterior.likelihood
        assert model is not None
        assert likelihood is not None
        at = posterior.mean
        constant, jacobian = _linearised(model, estimator._rows(training.X), at)
        y = estimator._targets(training.y, len(constant))
        weights = np.ones(len(y)) if training.weights is None else np.asarray(training.weights, dtype=np.float64)
        if (given := getattr(estimator, "class_weight", None)) is not None:
            weights = weights * class_factors(given, estimator.classes_.tolist(), y, weights)[y]
        scaled = _prior_diagonal(estimator).rsqrt()
        basis = (jacobian * scaled).flatten(0, 1)
        targets, w = likelihood.targets(y, model.outputs), torch.from_numpy(weights)
        # At a mode θ* − m = D⁻¹ Jᵀ ∂ log p/∂f: so much is known of the prior mean m without being told; 0 if linear.
        slope = (likelihood.gradient(constant, targets) * w[:, None]).flatten()
        _refuse_other_rows(posterior, (slope @ basis - at / scaled) / scaled * _centred(estimator))
        pull = at / scaled if isinstance(estimator, LINEAR) else slope @ basis
        bent = float((likelihood.hessian(constant, targets) * w[:, None, None]).abs().max())
        directions = _directions(basis, max(bent, 1e-3))
        first = constant - (basis @ pull).unflatten(0, constant.shape)
        density = FunctionDensity(first, basis @ directions, targets, w, likelihood)
        return cls(density, model, at, pull @ directions, scaled, directions, pull)

    def fitted(self, posterior: GaussianPosterior) -> tuple[Tensor, Tensor]:
        """Mean (r,) and covariance (r, r) of u under the fitted Gaussian."""
        turned = self.directions / self.scaled[:, None]
        return self.start + (posterior.mean - self.at) @ turned, turned.mT @ posterior.precision.solve(turned)

    def predicted(self, rows: InputRows, u: Tensor, generator: torch.Generator) -> Predictive:
        """The predictive of rows at draws of u (S, r); directions that no training row sees are the prior's."""
        constant, jacobian = _linearised(self.model, rows, self.at)
        basis = jacobian * self.scaled
        seen = basis @ self.directions
        unseen = basis @ basis.mT - seen @ seen.mT
        values, vectors = torch.linalg.eigh(unseen)
        root = vectors * values.clamp_min(0.0).sqrt()[:, None]
        shift = constant - basis @ self.pull
        noise = torch.randn(len(u), *shift.shape, dtype=torch.float64, generator=generator)
        f = shift + torch.einsum("ncr,sr->snc", seen, u) + torch.einsum("ncd,snd->snc", root, noise)
        return Predictive(DrawsLatent(f), self.density.likelihood, arrays=True)


def _linearised(model: Model, rows: InputRows, at: Tensor) -> tuple[Tensor, Tensor]:
    """f and its Jacobian by the weights, shapes (N, C) and (N, C, P); an offset is added to f."""
    x = model.inputs(rows.values)
    f = model.forward(x, at)
    return f if (added := rows.shift(f)) is None else f + added, model.jacobian(x, at)


def _directions(basis: Tensor, bent: float) -> Tensor:
    """V of the directions that rows see: those of the squared singular values above `SEEN` over the curvature."""
    wide = basis.shape[0] < basis.shape[1]
    values, vectors = torch.linalg.eigh(basis @ basis.mT if wide else basis.mT @ basis)
    kept = values * bent > SEEN
    kept[-1] = True
    vectors = vectors[:, kept]
    return (basis.mT @ vectors) / values[kept].sqrt() if wide else vectors


# The measurement ------------------------------------------------------------------------------------------------------
def _measured(
    estimator: Any, judged: Judged, training: TrainingRows, reference: str, random_state: int, most: int
) -> Standing:
    posterior: Posterior = estimator.posterior_
    size = _rows_of(training) * sum(posterior.sizes)
    if size > MOST_JACOBIAN or min(_rows_of(training), sum(posterior.sizes)) > MOST_SIDE:
        return Standing("", f"This posterior was not compared with a reference: {_rows_of(training)} training rows "
                        f"and {sum(posterior.sizes)} weights are too many to compute one here.")  # fmt: skip
    source = checks.generator(random_state)
    with one_thread():
        space = FunctionSpace.of(estimator, training)
        density = space.density
        mode = density.mode(space.start)
        weighed, pareto_k = None, None
        if isinstance(posterior, GaussianPosterior):
            weighed, pareto_k = _weighed(space, posterior, source)
        if density.basis.numel() <= most or reference == "nuts":
            draws: Tensor | None = _sampled(density, mode, source)
            method: Literal["nuts", "importance"] = "nuts"
        else:
            draws, method = weighed, "importance"
        found = Standing(
            method, rows=len(density.weights), directions=density.dim, pareto_k=pareto_k,
            linearized=not isinstance(estimator, LINEAR),
        )  # fmt: skip
        if draws is not None:
            return _compared(estimator, judged, space, draws, found, source)
        khat = "" if pareto_k is None else f" (Pareto k̂ is {pareto_k:.2f}; the limit is {PARETO_K_LIMIT})"
        why = {
            "nuts": "the chains of NUTS have not mixed",
            "importance": "NUTS would take too long for so many training rows, and the exact posterior is too far from "
            f"this one for importance sampling{khat}",
        }[method]
        return replace(found, method="", reason=f"It is unknown how wrong this posterior is: {why}.")


def _rows_of(training: TrainingRows) -> int:
    X: Any = training.X
    return int(X.shape[0] if hasattr(X, "shape") else len(X))


def _refuse_other_rows(posterior: Posterior, gradient: Tensor) -> None:
    """Refuses training rows whose log joint climbs at the mode of Laplace's posterior, by its Newton decrement.

    Args:
        posterior: fitted.
        gradient: of the log joint at its mean by the weights whose prior mean is known, and 0 by others, shape (P,).
    """
    if not isinstance(posterior, GaussianPosterior) or posterior.record.method != "laplace":
        return
    fit = posterior.fit
    if isinstance(fit, LaplaceFit) and (fit.gradient is None or float(fit.newton_decrement()) > 0.5):
        return  # a network that was not trained to its mode
    _refuse_distance(float(gradient @ posterior.precision.solve(gradient[:, None])[:, 0]))


def _refuse_distance(distance: float) -> None:
    """Refuses training rows whose posterior is this far away, in squared standard deviations."""
    if distance > ELSEWHERE:
        raise InputError(
            "training: expected the rows that the model was fitted to, got others, whose posterior lies "
            f"{distance**0.5:.1f} standard deviations away. Give those rows, or leave training out."
        )


def _sampled(density: FunctionDensity, mode: Tensor, source: torch.Generator) -> Tensor | None:
    """Draws of u by NUTS, shape (S, r), chain after chain; ``None`` if its chains have not mixed."""
    root = torch.linalg.inv(torch.linalg.cholesky(-density.hessian(mode))).mT
    whitened = _Whitened(density, mode, root)
    start = 2.0 * torch.randn(CHAINS, density.dim, dtype=torch.float64, generator=source)
    try:
        v, _ = nuts_draws(
            whitened, start=start, draws=DRAWS, tune=TUNE, chains=CHAINS, target_accept=0.9, generator=source, at_once=1
        )
    except BayescopeError:
        return None
    r_hat, _ = convergence(v)
    return None if float(r_hat.max()) > MIXED else (mode + v @ root.mT).flatten(0, 1)


def _weighed(
    space: FunctionSpace, posterior: GaussianPosterior, source: torch.Generator
) -> tuple[Tensor | None, float]:
    """Draws of u by the fitted posterior, resampled to the exact one, if k̂ allows it, and k̂.

    Raises:
        InputError: if a variational posterior was fitted to other rows: the mean of ∂ log p(y, u)/∂u over the posterior
            is 0 for the rows that were fitted.
    """
    mean, covariance = space.fitted(posterior)
    fitted = torch.distributions.MultivariateNormal(mean, covariance_matrix=0.5 * (covariance + covariance.mT))
    z = torch.randn(WEIGHED, len(mean), dtype=torch.float64, generator=source)
    u = mean + z @ fitted.scale_tril.mT
    density, blocks = space.density, u.split(max(1, 2**22 // space.density.constant.numel()))
    if posterior.record.method in VARIATIONAL:
        slope = torch.cat([density.likelihood.gradient(density.outputs(some), density.targets) for some in blocks])
        gradient = (slope.mean(0) * density.weights[:, None]).flatten() @ density.basis - u.mean(0)
        _refuse_distance(float(gradient @ covariance @ gradient))
    log_weights, k_hat = pareto_smoothed(
        (torch.cat([density.log_prob(some) for some in blocks]) - fitted.log_prob(u))[None]
    )
    if float(k_hat[0]) > PARETO_K_LIMIT:
        return None, float(k_hat[0])
    ends = log_weights[0].exp().cumsum(0)
    at = (torch.arange(WEIGHED, dtype=torch.float64) + 0.5) / WEIGHED * ends[-1]
    return u[torch.searchsorted(ends, at).clamp_max(WEIGHED - 1)], float(k_hat[0])


def _compared(
    estimator: Any, judged: Judged, space: FunctionSpace, draws: Tensor, found: Standing, source: torch.Generator
) -> Standing:
    rows = estimator._rows(judged.X)
    whole = np.flatnonzero(rows.imputed == 0)
    if not len(whole):
        return Standing("", "This posterior was not compared with a reference: every judged row lacks a value.")
    some = whole[evenly(len(whole), MOST_ROWS)]
    table = take(judged.X, some)
    fitted = estimator.predict_distribution(table)
    inputs = estimator._rows(table)
    exact = _moments(space.predicted(inputs, draws, source))
    ours = np.asarray(fitted.mean), np.sqrt(np.asarray(fitted.epistemic))
    # Halves are of other chains, or of other draws of the fitted posterior: half their difference is the noise.
    one, other = (_moments(space.predicted(inputs, half, source)) for half in draws.tensor_split(2))
    column = exact[0].argmax(1) if judged.classes else np.zeros(len(some), dtype=int)
    at = np.arange(len(some)), column
    unit = np.ones(len(some)) if judged.classes else np.sqrt(np.asarray(fitted.variance))[:, 0]
    apart, halves = (np.abs(a[0] - b[0]).max(1) / unit for a, b in ((ours, exact), (one, other)))
    sds = np.column_stack([exact[1][at], ours[1][at]])
    least = np.maximum(sds[:, 0], LEAST_SD * unit)
    off, halved = (np.abs(a[1][at] - b[1][at]) / least for a, b in ((ours, exact), (one, other)))
    point = not (sds[:, 1] > 0).any()
    return replace(
        found, compared=len(some), left_out=len(judged) - len(whole), mean=_difference(apart, halves),
        spread=None if point else _difference(off, halved),
        ratio=1.0 if point else float(np.median(sds[:, 1] / sds[:, 0])), sds=sds,
        predictions=np.column_stack([exact[0][at], ours[0][at]]),
    )  # fmt: skip


def _difference(apart: np.ndarray, halves: np.ndarray) -> Difference:
    """From the distances of N rows, and those between the reference's halves."""
    return Difference(float(apart.mean()), float(apart.max()), float(0.5 * halves.mean()))


def _moments(predictive: Predictive) -> Sequence[np.ndarray]:
    return np.asarray(predictive.mean), np.sqrt(np.asarray(predictive.epistemic))
