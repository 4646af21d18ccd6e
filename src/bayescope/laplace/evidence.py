"""The evidence of one or more modes as a function of its hyperparameters, and where it is largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import fsolve, minimize
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError, UnsupportedError
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.groups import PriorGroups
from bayescope.processes import same, same_value

MAX_ITERATIONS = 500
# For at most this many hyperparameters the slope is then brought to 0: the line search of L-BFGS ends where log Z is
# rounded. That takes at most `POLISHING` evaluations for each of them.
POLISHED, POLISHING = 32, 12
# L-BFGS ends where log Z rises by a smaller share of itself: below, it would search along lines of rounding.
RISE = 1e-13
# The step in logs, as a share of them, for differences of slopes.
DIFFERENCE = 1e-4
# At the maximum the slope in the log of a hyperparameter is at most this share of the numbers that it stands for, and
# it is then brought lower.
SETTLED, AIM = 1e-5, 1e-10
# A prior precision is sought between SMALLEST n/‖θ − m‖², where the data would determine that share of a weight, and a
# little above n/‖θ − m‖², which bounds γ/‖θ − m‖²; of weights that are all at their prior mean, up to LARGEST times the
# mean curvature. A noise variance is sought from a little below the residuals' mean square to 1/SMALLEST times it.
SMALLEST, LARGEST, SLACK = 1e-12, 1e8, 2.0
# How far the log of a hyperparameter moves before the next start at most, and at least where A is no precision.
RADIUS, SHORTEST = 3.0, 1e-3
# Two logs that are closer than this are the same: the optimum lies at its bound.
AT_BOUND = 1e-6
# Where both terms of a slope, γ_g and δ_g S_g, are at most this share of n_g, log Z is flat and has no optimum.
FLAT = 1e-6


@final
@dataclass(frozen=True)
class Optimum:
    """Where the evidence is largest.

    Attributes:
        prior_precisions: δ for each mode, shape (G,).
        noise_variance: σ², or ``None`` where it was not sought.
        log_evidences: of the steps that raised it.
        settled: whether the slope vanishes there.
        stuck: the names of the prior precisions, and "noise_variance", that ended at a bound.
    """

    prior_precisions: tuple[Tensor, ...]
    noise_variance: Tensor | None
    log_evidences: list[float]
    settled: bool
    stuck: tuple[str, ...]

    def shared(self) -> Optimum:
        """The first process's, for all: another number of threads rounds the same evidence in another way."""
        noise = [] if self.noise_variance is None else [self.noise_variance]
        precisions = same(*self.prior_precisions, *noise)
        values, settled, stuck = same_value((self.log_evidences, self.settled, self.stuck))
        return Optimum(
            precisions[: len(self.prior_precisions)], precisions[-1] if noise else None, values, settled, stuck
        )


@final
class EvidenceOfModes:
    """Σ_k log Z_k over modes k, as a function of x: the logs of their prior precisions, and of the noise they share.

    With S_g = Σ_{p ∈ g} (θ*_p − m_p)², log Z = Σ log p(y∣f*)/T + ½ Σ_g (n_g log δ_g − δ_g S_g) − ½ log∣H/T + diag(δ)∣.
    Its slopes are ½ (γ_g − δ_g S_g) in log δ_g and ½ ((RSS/σ² − n)/T + γ) in log σ², where γ_g is what the data
    determine of a group (MacKay 1992, eqs. 4.8 to 4.12); they come by autograd through log∣A∣.

    Args:
        fits: one for each mode.
        kind: of the groups, as `PriorGroups.of` takes them.
        noise: whether the noise variance of a Gaussian likelihood is sought, too; others have none.

    Raises:
        UnsupportedError: if a prior is no precision per weight, the structure cannot hold one for each group, or there
            is a noise variance for each output.
    """

    def __init__(self, fits: Sequence[LaplaceFit], kind: str, *, noise: bool) -> None:
        self.fits, self.noise = tuple(fits), noise and has_noise(fits[0])
        self._modes = [_ModeEvidence(fit, kind) for fit in fits]
        self.groups = tuple(mode.groups for mode in self._modes)
        self._sizes = [len(groups) for groups in self.groups]

    @property
    def names(self) -> tuple[str, ...]:
        """What each entry of x is the log of."""
        several = len(self.fits) > 1
        names = [
            f"{name} of mode {k}" if several else name for k, groups in enumerate(self.groups) for name in groups.names
        ]
        return (*names, "noise_variance") if self.noise else tuple(names)

    def value(self, x: Tensor) -> Tensor:
        """Σ_k log Z_k, a float64 scalar in the graph of x."""
        noise = x[-1].exp() if self.noise else None
        logs = x[: sum(self._sizes)].split(self._sizes)
        values = [mode.value(log_precision, noise) for mode, log_precision in zip(self._modes, logs, strict=True)]
        return torch.stack(values).sum()

    def value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_k log Z_k and its gradient in x, both detached."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.value(x)
            (gradient,) = torch.autograd.grad(value, x)
        return value.detach(), gradient

    def start(self) -> Tensor:
        """The fits' own hyperparameters, as x."""
        logs = [mode.prior.log() for mode in self._modes]
        return torch.cat([*logs, self.fits[0].noise_variance.log()[None]] if self.noise else logs)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest x among which the maximum is sought."""
        lows, highs = (list(ends) for ends in zip(*(mode.bounds() for mode in self._modes), strict=True))
        if self.noise:
            residual = torch.stack([mean_square_residual(fit) for fit in self.fits]).mean()
            centre = torch.where(residual > 0, residual, self.fits[0].noise_variance).log()
            below = torch.where(residual > 0, 1.0 / SLACK, -math.log(SMALLEST))
            lows.append((centre - below)[None])
            highs.append((centre - math.log(SMALLEST))[None])
        return torch.cat(lows), torch.cat(highs)

    def sizes(self) -> Tensor:
        """The numbers that each entry of x stands for: the weights of a group, the targets for the noise."""
        sizes = [groups.counts for groups in self.groups]
        targets = sum(fit.numbers for fit in self.fits)
        return torch.cat([*sizes, sizes[0].new_tensor([targets])] if self.noise else sizes)

    def without_optimum(self, x: Tensor, slope: Tensor) -> Tensor:
        """Which entries of x have none, given the slope: log Z is flat there, or rises as δ_g falls to 0."""
        pulls = torch.cat([mode.squares for mode in self._modes]) * x[: sum(self._sizes)].exp()  # δ_g S_g
        gamma = 2.0 * slope[: sum(self._sizes)] + pulls
        small = FLAT * torch.cat([groups.counts for groups in self.groups])
        informed = torch.cat([mode.trace for mode in self._modes]) > 0
        found = torch.where(informed, (gamma < small) & (pulls < small), pulls > small)
        return torch.cat([found, found.new_zeros(1)]) if self.noise else found

    def split(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """δ for each mode, and σ²."""
        return tuple(x[: sum(self._sizes)].exp().split(self._sizes)), x[-1].exp() if self.noise else None


@final
class _ModeEvidence:
    """log Z of one mode, up to a constant, as a function of its prior precisions and the noise.

    Args:
        fit: at the mode.
        kind: of the groups.

    Attributes:
        groups: of weights that share a prior precision.
        squares: S_g, shape (G,).
        prior: δ of the fit, shape (G,).
        trace: tr H over each group, shape (G,): 0 where the data say nothing about its weights.
    """

    def __init__(self, fit: LaplaceFit, kind: str) -> None:
        self._fit, self.groups = fit, PriorGroups.of(fit.curvature.network, kind)
        require_diagonal(fit)
        curvature = fit.curvature.precision
        self.groups.require(curvature, fit.curvature.structure)
        self._add = self.groups.adder(curvature)
        centre = fit.prior.centre(fit.function.dim).to(fit.mode)
        self.squares, self.prior = self.groups.sums((fit.mode - centre).square()), self.groups.precisions(fit.prior)
        self.trace = self.groups.sums(curvature.diagonal())

    def value(self, log_precision: Tensor, noise: Tensor | None) -> Tensor:
        """log Z, a float64 scalar in the graph of log δ and of the noise variance, ``None`` for the fit's."""
        fit = self._fit if noise is None else self._fit.at_noise(noise)
        precision = log_precision.exp()
        prior = self.groups.counts @ log_precision - precision @ self.squares
        logdet = self._add(fit.tempered(), precision).logdet()
        return fit.curvature.log_likelihood.to(prior) / fit.temperature + 0.5 * (prior - logdet)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest log δ.

        Where the data say nothing, δ stays: its evidence, −½ δ_g S_g, is largest without any prior.
        """
        counts, squares, stays = self.groups.counts, self.squares, self.prior.log()
        top = torch.where(squares > 0, counts / squares * math.exp(SLACK), LARGEST * self.trace / counts).log()
        low = torch.where(squares > 0, math.log(SMALLEST) + top, stays)
        informed = self.trace > 0
        return torch.where(informed, low, stays), torch.where(informed, torch.maximum(top, stays), stays)


def maximise(evidence: EvidenceOfModes) -> Optimum:
    """The largest evidence, by L-BFGS in the logs of the hyperparameters, which ends at a root of its slope.

    With everything else held, log Z has one maximum in each log δ_g: γ_g/δ_g falls with δ_g, and the slope has the sign
    of γ_g/δ_g − S_g.

    Raises:
        NotPositiveDefiniteError: if H/T + P₀ is not positive definite even close to the start.
    """
    low, high = evidence.bounds()
    best = evidence.start().clamp(low, high)
    values = [float(evidence.value_and_gradient(best)[0])]

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        point = torch.from_numpy(logs.copy()).to(best)
        value, gradient = evidence.value_and_gradient(point)
        if float(value) > values[-1]:
            best = point
            values.append(float(value))
        return -float(value), -gradient.cpu().numpy()

    # L-BFGS in boxes that move along: left to itself it takes first steps as long as the whole range.
    radius, inside = RADIUS, False
    while not inside:
        start, first, last = best, low.maximum(best - radius), high.minimum(best + radius)
        try:
            minimize(
                objective, start.cpu().numpy(), jac=True, method="L-BFGS-B",
                bounds=list(zip(first.tolist(), last.tolist(), strict=True)),
                options={"maxiter": MAX_ITERATIONS, "maxcor": 20, "ftol": RISE, "gtol": 1e-9},
            )  # fmt: skip
        except NotPositiveDefiniteError:  # rounding, or a Hessian away from its mode: no farther at a time
            radius /= 4.0
            if radius < SHORTEST:
                raise
            continue
        inside = not bool((((best <= first) & (first > low)) | ((best >= last) & (last < high))).any())
    stuck = ((best - low).abs().minimum((best - high).abs()) < AT_BOUND) & (low < high)
    free = ~stuck & (low < high)
    x, slope = _polished(evidence, best, free)
    stuck |= evidence.without_optimum(x, slope)
    settled = bool((slope.abs() <= SETTLED * evidence.sizes())[free].all())
    names = tuple(name for name, is_stuck in zip(evidence.names, stuck.tolist(), strict=True) if is_stuck)
    return Optimum(*evidence.split(x), values, settled, names)


def _polished(evidence: EvidenceOfModes, x: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """x where the slope in its free entries is 0, by MINPACK's hybrid method, and the slope; x itself if that fails."""
    (value, slope), (low, high) = evidence.value_and_gradient(x), evidence.bounds()
    places = free.nonzero()[:, 0].to(x.device)
    if not 0 < len(places) <= POLISHED or bool((slope[places].abs() <= AIM * evidence.sizes()[places]).all()):
        return x, slope

    last = x[places].cpu().numpy(), (value, slope)

    def at(logs: np.ndarray) -> Tensor:
        return x.index_copy(0, places, torch.from_numpy(logs).to(x)).clamp(low, high)

    def asked(logs: np.ndarray) -> tuple[Tensor, Tensor]:
        nonlocal last
        if not np.array_equal(logs, last[0]):  # MINPACK asks several times at its first point and at its last
            last = logs.copy(), evidence.value_and_gradient(at(logs))
        return last[1]

    try:
        found, *_ = fsolve(  # type: ignore[call-overload]
            lambda logs: asked(logs)[1][places].cpu().numpy(), last[0], full_output=True, xtol=1e-9, factor=0.1,
            epsfcn=DIFFERENCE**2, maxfev=POLISHING * (len(places) + 1),
        )  # fmt: skip
        moved, (there, slope_there) = at(found), asked(found)
    except NotPositiveDefiniteError:
        return x, slope
    nearer = slope_there[places].norm() < slope[places].norm() and there >= value - RISE * value.abs()
    return (moved, slope_there) if nearer else (x, slope)


def has_noise(fit: LaplaceFit) -> bool:
    """Whether a fit has a noise variance to be tuned.

    Raises:
        UnsupportedError: if there is one for each output.
    """
    if fit.likelihood.unweighted.noise_variance is None:
        return False
    _ = fit.noise_variance  # raises where there is one for each output
    return True


def require_diagonal(fit: LaplaceFit) -> None:
    """Checks that the prior has a precision per weight, which is what groups of weights share.

    Raises:
        UnsupportedError: if it is structured.
    """
    if not isinstance(fit.prior.precision, Tensor):
        raise UnsupportedError(
            "tune_prior: expected a prior with a precision per weight, got a structured one, such as a posterior that "
            "became the prior. There is no single number in it to tune."
        )


def mean_square_residual(fit: LaplaceFit) -> Tensor:
    """The mean square of the residuals, from Σ log p(y∣f) = −½ RSS/σ² − ½ n log(2π σ²)."""
    noise, numbers = fit.noise_variance, fit.numbers
    constant = 0.5 * numbers * (2.0 * math.pi * noise).log()
    return (-2.0 * (fit.curvature.log_likelihood.to(noise) + constant) * noise / numbers).clamp_min(0.0)
