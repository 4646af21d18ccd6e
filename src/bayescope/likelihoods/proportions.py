"""Likelihoods with the logit link: successes of several trials (binomial), and proportions (Beta)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.elementwise import Elementwise, hyperparameter, one_or_each
from bayescope.likelihoods.likelihood import Domain
from bayescope.likelihoods.targets import LabelError
from bayescope.special import log_poisson
from bayescope.storage import stored

# The columns of targets that have their trials: successes and trials.
TRIALS = 2


@stored("binomial")
@final
@dataclass(frozen=True)
class Binomial(Elementwise):
    """y ~ Binomial(trials, μ) successes with the logit link μ = σ(f).

    log p(y∣f) = log C(n, y) + y log σ(f) + (n − y) log σ(−f) (McCullagh & Nelder 1989, chapter 4). Var(y∣f) is
    n μ(1 − μ). Moments and log densities under a Gaussian f are integrated to 1e-9.

    Args:
        trials: n of every row: y and what is predicted are counts. If ``None``, targets have two columns, the successes
            and the trials of each row, (N, 2), and predictions are of one trial: their mean is the probability of a
            success.

    Raises:
        InputError: if the trials are no positive whole number.
    """

    trials: int | None = None

    name = "binomial"

    def __post_init__(self) -> None:
        if self.trials is not None:
            checks.count("trials", self.trials)

    @property
    def domain(self) -> Domain:
        """Whole numbers from 0 to the trials."""
        return Domain(
            "numbers", low=0.0, high=float(self.trials or 1), integer=True, joined=0 if self.trials else TRIALS
        )

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks successes, and trials where they are in the targets, and returns them in float64.

        Args:
            y: counts (N,) or (N, D); for ``trials=None`` successes and trials, (N, 2), or zeros and ones (N,).
            outputs: D; 1 for ``trials=None``.

        Raises:
            InputError: if the shape does not fit, a number is not whole, or there are more successes than trials.
        """
        values = checks.float64("y", y)
        if self.trials is not None or values.ndim != 2 or values.shape[1] != 2:
            return super().targets(y, outputs)
        if outputs != 1:
            raise InputError(f"outputs: expected 1 for targets with trials, got {outputs}.")
        whole = (values >= 0) & (values == values.round())
        advice = "The columns are the successes and the trials of each row."
        for wrong, expected, column in (
            (~whole[:, 0], "whole numbers of at least 0", 0),
            (~whole[:, 1], "whole numbers of at least 0", 1),
            (values[:, 0] > values[:, 1], "no more successes than trials", 0),
        ):
            if wrong.any():
                row = int(torch.nonzero(wrong)[0])
                raise LabelError(expected, f"{values[row, column]:g}", row, advice, f"row {row}, column {column}")
        return values

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log C(n, y) + y log σ(f) + (n − y) log σ(−f)."""
        successes, trials = self._counts(f, y)
        # Poissons of both counts given their sum, so that nothing cancels for many trials
        log_trials = trials.clamp_min(1.0).log()
        both = log_poisson(log_trials + logsigmoid(f), successes)
        both = both + log_poisson(log_trials + logsigmoid(-f), trials - successes)
        return both - log_poisson(log_trials, trials)

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = y σ(−f) − (n − y) σ(f)."""
        successes, trials = self._counts(f, y)
        return successes * torch.sigmoid(-f) - (trials - successes) * torch.sigmoid(f)

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² = n σ(f) σ(−f)."""
        return self._counts(f, y)[1] * torch.sigmoid(f) * torch.sigmoid(-f)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, n σ(f) σ(−f); of one trial if the targets have the trials."""
        return (self.trials or 1) * torch.sigmoid(f) * torch.sigmoid(-f)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = n μ and Var(y∣f) = n μ(1 − μ), each (..., N, D)."""
        return (self.trials or 1) * torch.sigmoid(f), self.fisher(f)

    def distribution(self, f: np.ndarray) -> Any:
        return stats.binom(self.trials or 1, 1.0 / (1.0 + np.exp(-f)))

    def place(self, y: Tensor) -> Tensor:
        if y.shape[-1] == 2 and self.trials is None:
            successes, trials = y.split(1, -1)
        else:
            successes, trials = y, torch.full_like(y, float(self.trials or 1))
        return ((successes + 0.5) / (trials - successes + 0.5)).log()

    def _counts(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.to(f)
        if self.trials is None and y.shape[-1] == 2 and f.shape[-1] == 1:
            successes, trials = y.split(1, -1)
            return successes, trials
        return y, torch.full_like(y, float(self.trials or 1))


@stored("beta")
@final
@dataclass(frozen=True, eq=False)
class Beta(Elementwise):
    """Proportions strictly between 0 and 1 with the mean μ = σ(f) and the variance μ(1 − μ)/(1 + precision).

    y ~ Beta(μ φ, (1 − μ) φ) with the logit link (Ferrari & Cribari-Neto 2004). The observed Λ may be negative, so the
    GGN takes the expected one, φ² μ²(1 − μ)² (ψ'(μ φ) + ψ'((1 − μ) φ)). Moments and log densities under a Gaussian f
    are integrated to 1e-9.

    Args:
        precision: φ, a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if the precision is not positive.
        OptionError: if it is another word than "evidence".
    """

    precision: Tensor | str = "evidence"

    name = "beta"
    domain = Domain("numbers", low=0.0, high=1.0, closed=False)
    log_concave = False
    hyperparameters: ClassVar[Mapping[str, str]] = {"precision": "positive"}

    def __init__(self, precision: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "precision", hyperparameter("precision", precision))

    def starting(self, y: Tensor) -> Beta:
        """The precision with which each output's constant mean has the variance of its targets."""
        if not self.learnable:
            return self
        mean, variance = y.mean(0), y.var(0, correction=0)
        return Beta(one_or_each((mean * (1.0 - mean) / variance.clamp_min(1e-12) - 1.0).clamp(0.1, 1e6)))

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """−log B(a, b) + (a − 1) log y + (b − 1) log(1 − y), a = μ φ, b = (1 − μ) φ."""
        a, b, phi = self._shapes(f)
        y = y.to(f)
        log_y, log_rest = y.log(), torch.log1p(-y)
        # −log B(a + 1, b + 1) by Poissons as in `Binomial`, so that nothing cancels for a large φ
        both = log_poisson(phi.log() + log_y, a) + log_poisson(phi.log() + log_rest, b) - log_poisson(phi.log(), phi)
        return both + phi.log() + logsigmoid(f) + logsigmoid(-f) - log_y - log_rest

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = φ μ(1 − μ)(logit y − ψ(a) + ψ(b)), with ψ(a) = ψ(a + 1) − 1/a, which may be infinite."""
        a, b, phi = self._shapes(f)
        score = torch.logit(y.to(f)) - torch.digamma(a + 1.0) + torch.digamma(b + 1.0)
        return phi * torch.sigmoid(f) * torch.sigmoid(-f) * score - torch.tanh(0.5 * f)

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        return self.fisher(f) + torch.tanh(0.5 * f) * self.slope(f, y)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, φ² μ²(1 − μ)² (ψ'(a) + ψ'(b)), with a² ψ'(a) = 1 + a² ψ'(a + 1)."""
        a, b, _ = self._shapes(f)
        low, high = (1.0 + n.square() * torch.polygamma(1, n + 1.0) for n in (a, b))
        return torch.sigmoid(-f).square() * low + torch.sigmoid(f).square() * high

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """μ and μ(1 − μ)/(1 + φ), each (..., N, D)."""
        mean = torch.sigmoid(f)
        return mean, mean * torch.sigmoid(-f) / (1.0 + self.value("precision", f))

    def distribution(self, f: np.ndarray) -> Any:
        a, b, _ = (each.numpy() for each in self._shapes(torch.from_numpy(np.asarray(f, dtype=np.float64))))
        return stats.beta(a, b)

    def entropy(self, f: Tensor) -> Tensor:
        """log B(a, b) − (a − 1) ψ(a) − (b − 1) ψ(b) + (φ − 2) ψ(φ)."""
        a, b, phi = self._shapes(f)
        spread = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(phi) + (phi - 2.0) * torch.digamma(phi)
        return spread - (a - 1.0) * torch.digamma(a) - (b - 1.0) * torch.digamma(b)

    def place(self, y: Tensor) -> Tensor:
        return torch.logit(y.clamp(1e-300, 1.0 - 2.0**-53))

    def _shapes(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        phi = self.value("precision", f)
        return phi * torch.sigmoid(f), phi * torch.sigmoid(-f), phi
