"""The log joint density of a linear model, its table and its prior, read in blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood
from bayescope.linear.rows import Rows
from bayescope.models import LinearModel
from bayescope.precision import Precision
from bayescope.priors import Prior


@final
@dataclass(frozen=True)
class Reading:
    """What one pass over the rows tells of the likelihood at one θ; the prior is left aside.

    Attributes:
        log_likelihood: Σ_n log p(y_n∣f_n), a scalar.
        gradient: Σ_n J_nᵀ ∂ log p(y_n∣f_n)/∂f, shape (P,).
        curvature: Σ_n J_nᵀ Λ_n J_n with the observed Λ = −∂² log p/∂f², shape (P, P); ``None`` if not asked for.
            It is the exact negative Hessian of the log likelihood, as f is linear in θ.
    """

    log_likelihood: Tensor
    gradient: Tensor
    curvature: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class LinearDensity:
    """log p(y, θ) = Σ_n w_n log p(y_n∣W x_n + b) + log p(θ), a `LogDensity` over the flat weights (W row-major, b).

    The table is read where it lies: it is not copied and gets no column of ones.

    Attributes:
        model: f = W x (+ b), with C outputs and P = C D (+ C) weights.
        likelihood: p(y∣f).
        prior: p(θ).
        features: X, float64, shape (N, D), of any strides.
        targets: y in the likelihood's canonical form; the first dimension is N.
        weights: w, how often each row counts, shape (N,); ``None`` counts each once.
    """

    model: LinearModel
    likelihood: Likelihood
    prior: Prior
    features: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.targets.shape[0] != self.features.shape[0]:
            raise InputError(f"y: expected {self.features.shape[0]} rows as X has, got {self.targets.shape[0]}.")

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.model.dim

    @cached_property
    def rows(self) -> Rows:
        """The rows of the table, to be read in blocks."""
        return Rows(self.features.shape[0], self.model.features, self.model.outputs)

    @cached_property
    def prior_precision(self) -> Precision:
        """The prior's precision as a P×P structure."""
        return self.prior.structured(self.dim)

    @cached_property
    def prior_mean(self) -> Tensor:
        """The prior's mean, shape (P,)."""
        return self.prior.centre(self.dim)

    @property
    def total(self) -> float:
        """How many rows there are, by their weights."""
        return float(self.features.shape[0] if self.weights is None else self.weights.sum())

    def weighed(self, each: Tensor) -> Tensor:
        """What each row has, shape (N, ...), times the row's weight."""
        return each if self.weights is None else each * self.weights.view(-1, *[1] * (each.ndim - 1))

    def with_prior(self, prior: Prior) -> LinearDensity:
        """The same table under another prior."""
        return LinearDensity(self.model, self.likelihood, prior, self.features, self.targets, self.weights)

    def outputs(self, theta: Tensor) -> Tensor:
        """f of every row, shape (..., N, C) for θ of shape (..., P)."""
        return self.model.forward(self.features, theta)

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Σ_n w_n log p(y_n∣f_n), shape (...) for θ of shape (..., P)."""
        total = theta.new_zeros(theta.shape[:-1])
        for rows in self.rows.blocks(max(1, theta.numel() // self.dim)):
            log_prob = self.likelihood.log_prob(self.model.forward(self.features[rows], theta), self.targets[rows])
            total += log_prob.sum(-1) if self.weights is None else log_prob @ self.weights[rows]
        return total

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p(y, θ), shape (...) for θ of shape (..., P)."""
        offset = theta - self.prior_mean
        rows = offset.reshape(-1, self.dim)
        quadratic = (rows * self.prior_precision.multiply(rows.mT).mT).sum(-1).reshape(theta.shape[:-1])
        return self.log_likelihood(theta) - 0.5 * quadratic + self._prior_constant

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, θ), a scalar, and its gradient, shape (P,), for θ of shape (P,)."""
        reading = self.read(theta, curvature=False)
        offset = theta - self.prior_mean
        pull = self.prior_precision.multiply(offset)
        return reading.log_likelihood - 0.5 * (offset @ pull) + self._prior_constant, reading.gradient - pull

    def hessian(self, theta: Tensor) -> Tensor:
        """∂² log p(y, θ)/∂θ², shape (P, P), for θ of shape (P,)."""
        return -(self.curvature(theta) + self.prior_precision.to_dense())

    def read(self, theta: Tensor, *, curvature: bool = True) -> Reading:
        """One pass over the rows: the log likelihood, its gradient and, if asked for, its curvature at θ (P,)."""

        def block(rows: slice) -> tuple[Tensor, ...]:
            x, y = self.features[rows], self.targets[rows]
            f = self.model.forward(x, theta)
            log_prob, slope = self.likelihood.log_prob(f, y), self.likelihood.gradient(f, y)
            if self.weights is not None:
                log_prob, slope = log_prob * self.weights[rows], slope * self.weights[rows, None]
            parts = log_prob.sum(), self._pull_back(x, slope)
            return (*parts, self._curvature(rows, f)) if curvature else parts

        return Reading(*self.rows.sum(block, size=self.dim**2 if curvature else self.dim))

    def curvature(self, theta: Tensor) -> Tensor:
        """Σ_n w_n J_nᵀ Λ_n J_n at θ, shape (P, P): the negative Hessian of the log likelihood."""

        def block(rows: slice) -> tuple[Tensor]:
            return (self._curvature(rows, self.model.forward(self.features[rows], theta)),)

        return self.rows.sum(block, size=self.dim**2)[0]

    def pull_back(self, g: Tensor) -> Tensor:
        """Σ_n J_nᵀ g_n, shape (P,), for g of shape (N, C); row weights are not applied."""
        return self._pull_back(self.features, g)

    def weighted_gram(self, lam: Tensor) -> Tensor:
        """Σ_n J_nᵀ Λ_n J_n, shape (P, P), for Λ of shape (N,) or (N, C, C); row weights are not applied."""
        each = lam[:, None, None] if lam.ndim == 1 else lam
        return self.rows.sum(lambda rows: (self._gram(self.features[rows], each[rows]),), size=self.dim**2)[0]

    def latent_variance(self, precision: Precision) -> Tensor:
        """J_n A⁻¹ J_nᵀ of every row, shape (N, C, C), for θ of precision A."""
        root = precision.sqrt_solve(torch.eye(self.dim, dtype=torch.float64))  # A⁻¹ = R Rᵀ
        weights, bias = self.model.unflat(root.mT)  # (P, C, D) and (P, C): entry p is from column p of R
        stacked = weights.permute(2, 1, 0).reshape(self.model.features, -1)
        variances = []
        for rows in self.rows.blocks(self.dim):
            spread = (self.features[rows] @ stacked).unflatten(-1, (self.model.outputs, self.dim))
            if bias is not None:
                spread += bias.mT
            if self.model.outputs == 1:  # a batch of 1×P by P×1 products would be slow
                variances.append(spread.square().sum(-1, keepdim=True))
            else:
                variances.append(spread @ spread.mT)
        return torch.cat(variances)

    @cached_property
    def _prior_constant(self) -> Tensor:
        return self.prior.log_prob(self.prior_mean)

    def _pull_back(self, x: Tensor, g: Tensor) -> Tensor:
        weights = (g.mT @ x).reshape(-1)
        return torch.cat([weights, g.sum(0)]) if self.model.bias else weights

    def _curvature(self, rows: slice, f: Tensor) -> Tensor:
        lam = self.likelihood.hessian(f, self.targets[rows])
        return self._gram(self.features[rows], lam if self.weights is None else lam * self.weights[rows, None, None])

    def _gram(self, x: Tensor, lam: Tensor) -> Tensor:
        """Σ JᵀΛJ of one block, a product of the augmented inputs for each pair of outputs, in the flat order."""
        outputs, features = self.model.outputs, self.model.features
        split = outputs * features
        total = x.new_empty(self.dim, self.dim)
        blocks = total[:split, :split].unflatten(0, (outputs, -1)).unflatten(-1, (outputs, -1))
        mixed = total[:split, split:].unflatten(0, (outputs, -1))
        for c in range(outputs):
            for k in range(c + 1):
                product = _weighted_product(x, lam[:, c, k])
                blocks[c, :, k] = blocks[k, :, c] = product[:features, :features]
                if self.model.bias:
                    mixed[c, :, k] = mixed[k, :, c] = product[:features, features]
                    total[split + c, split + k] = total[split + k, split + c] = product[features, features]
        if self.model.bias:
            total[split:, :split] = total[:split, split:].mT
        return total


def _weighted_product(x: Tensor, weights: Tensor) -> Tensor:
    """Σ w (x, 1)(x, 1)ᵀ, shape (D + 1, D + 1).

    NumPy sends a matrix times its own transpose to the symmetric product, half the work.
    """
    rows, columns = x.shape
    signed = bool((weights < 0).any())
    factor = weights if signed else weights.sqrt()
    scaled = x.new_empty(rows, columns + 1)
    torch.mul(x, factor[:, None], out=scaled[:, :columns])
    scaled[:, columns] = factor
    if not signed:
        array = scaled.numpy()
        return torch.from_numpy(array.T @ array)
    return torch.cat([x.mT @ scaled, scaled.sum(0)[None]])
