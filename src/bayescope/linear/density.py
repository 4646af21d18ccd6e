"""The log joint density of a linear model, its table and its prior, read in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood
from bayescope.linear.table import Batch, Block, RowTable, blocks
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.precision import Precision
from bayescope.priors import Prior
from bayescope.storage import stored

# Rows at once: J R, with C outputs and P = C D weights, stays near the core while it is multiplied with itself.
SPREAD_ROWS = 64
# Rows of a table on disk that tell where a climb begins.
CONSTANT_ROWS = 10_000


@final
@dataclass(frozen=True)
class LikelihoodExpansion:
    """What one pass over the rows tells of the likelihood at one θ; the prior is left aside.

    Attributes:
        log_likelihood: Σ_n log p(y_n∣f_n), a scalar.
        gradient: Σ_n J_nᵀ ∂ log p(y_n∣f_n)/∂f, shape (P,).
        curvature: Σ_n J_nᵀ Λ_n J_n with the observed Λ = −∂² log p/∂f², shape (P, P): the exact negative
            Hessian of the log likelihood, as f is linear in θ. If log p has a kink, Λ is that of the GGN.
    """

    log_likelihood: Tensor
    gradient: Tensor
    curvature: Tensor


@final
@dataclass(frozen=True, eq=False)
class LinearDensity:
    """log p(y, θ) = Σ_n w_n log p(y_n∣W x_n + b) + log p(θ), a `LogDensity` over the flat weights (W row-major, b).

    Attributes:
        model: f = W x (+ b), with C outputs and P = C D (+ C) weights.
        likelihood: p(y∣f).
        prior: p(θ).
        table: the N rows: X, y and how often each counts.
    """

    model: LinearModel
    likelihood: Likelihood
    prior: Prior
    table: RowTable

    @classmethod
    def of(
        cls,
        model: LinearModel,
        likelihood: Likelihood,
        prior: Prior,
        features: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
    ) -> LinearDensity:
        """With rows in memory; no argument is copied.

        Args:
            model: f = W x (+ b).
            likelihood: p(y∣f).
            prior: p(θ).
            features: X, float64, shape (N, D), of any strides.
            targets: y in the likelihood's canonical form; the first dimension is N.
            weights: w, how often each row counts, shape (N,); ``None`` counts each once.

        Raises:
            InputError: if there is not a target for each row.
        """
        return cls(model, likelihood, prior, RowTable.of(Batch(features, targets, weights)))

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.model.dim

    @cached_property
    def prior_precision(self) -> Precision:
        """The prior's precision as a P×P structure."""
        return self.prior.structured(self.dim)

    @cached_property
    def prior_mean(self) -> Tensor:
        """The prior's mean, shape (P,)."""
        return self.prior.centre(self.dim)

    @property
    def features(self) -> Tensor:
        """X, shape (N, D), where the rows are in memory."""
        return self.table.held().features

    @property
    def targets(self) -> Tensor:
        """y of N rows, where they are in memory."""
        return self.table.held().targets

    @property
    def weights(self) -> Tensor | None:
        """w, shape (N,), where the rows are in memory; ``None`` counts each once."""
        return self.table.held().weights

    def with_prior(self, prior: Prior) -> LinearDensity:
        """The same table under another prior."""
        return LinearDensity(self.model, self.likelihood, prior, self.table)

    def with_likelihood(self, likelihood: Likelihood) -> LinearDensity:
        """The same table under another likelihood."""
        return LinearDensity(self.model, likelihood, self.prior, self.table)

    def every(self, stride: int) -> LinearDensity:
        """Every ``stride``-th row, in memory, weighted so that the rows taken count for all."""
        taken = self.table.every(stride)
        scaled = taken.scaled(self.table.count / taken.count)
        return LinearDensity(self.model, self.likelihood, self.prior, scaled)

    def sum(self, block: Block, *, size: int, copies: int = 1) -> list[Tensor]:
        """Σ over blocks of rows of what ``block`` returns, of ``size`` numbers, for ``copies`` vectors θ at once."""
        return self.table.sum(block, size=size, outputs=self.model.outputs, copies=copies)

    @cached_property
    def constant(self) -> Tensor:
        """The weights of about the best constant model, shape (P,): where a climb begins."""
        theta, targets = torch.zeros(self.dim, dtype=torch.float64), self.some_targets
        if self.model.bias and len(targets):
            theta[-self.model.outputs :] = self.likelihood.constant(targets)
        return self.table.agreed(theta)[0]

    @property
    def some_targets(self) -> Tensor:
        """y of this process's rows, or of some of them where they are on disk."""
        table = self.table
        held = table if table.memory is not None else table.every(max(1, table.count // CONSTANT_ROWS))
        assert held.memory is not None
        return held.memory.targets

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Σ_n w_n log p(y_n∣f_n), shape (...) for θ of shape (..., P)."""

        def block(rows: Batch) -> tuple[Tensor]:
            log_prob = self.likelihood.log_prob(self.model.forward(rows.features, theta), rows.targets)
            return (log_prob.sum(-1) if rows.weights is None else log_prob @ rows.weights,)

        copies = max(1, theta.numel() // self.dim)
        return self.sum(block, size=copies, copies=copies)[0]

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p(y, θ), shape (...) for θ of shape (..., P)."""
        offset = theta - self.prior_mean
        rows = offset.reshape(-1, self.dim)
        quadratic = (rows * self.prior_precision.multiply(rows.mT).mT).sum(-1).reshape(theta.shape[:-1])
        return self.log_likelihood(theta) - 0.5 * quadratic + self._prior_constant

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, θ), a scalar, and its gradient, shape (P,), for θ of shape (P,) on the CPU and without a graph."""
        log_likelihood, gradient = self.likelihood_and_gradient(theta)
        offset = theta - self.prior_mean
        pull = self.prior_precision.multiply(offset)
        return log_likelihood - 0.5 * (offset @ pull) + self._prior_constant, gradient - pull

    def likelihood_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The log likelihood, a scalar, and its gradient, shape (P,), for θ of shape (P,)."""
        log_likelihood, gradient = self.sum(lambda rows: self._slopes(rows, theta), size=self.dim)
        return log_likelihood, gradient

    def hessian(self, theta: Tensor) -> Tensor:
        """∂² log p(y, θ)/∂θ², shape (P, P), for θ of shape (P,)."""
        return -(self.curvature(theta) + self.prior_precision.to_dense())

    def read(self, theta: Tensor) -> LikelihoodExpansion:
        """One pass over the rows: the log likelihood, its gradient and its curvature at θ (P,)."""

        def block(rows: Batch) -> tuple[Tensor, ...]:
            x, y, _ = rows
            f = self.model.forward(x, theta)
            log_prob, slope = self.likelihood.log_prob_and_gradient(f, y)
            return rows.weighed(log_prob).sum(), self.pull_back(x, rows.weighed(slope)), self._curvature(rows, f)

        return LikelihoodExpansion(*self.sum(block, size=self.dim**2))

    def curvature(self, theta: Tensor) -> Tensor:
        """Σ_n w_n J_nᵀ Λ_n J_n at θ, shape (P, P): the negative Hessian of the log likelihood."""

        def block(rows: Batch) -> tuple[Tensor]:
            return (self._curvature(rows, self.model.forward(rows.features, theta)),)

        return self.sum(block, size=self.dim**2)[0]

    def ggn(self, theta: Tensor) -> Tensor:
        """Σ_n w_n J_nᵀ Λ_n J_n at θ with the Λ of the GGN, shape (P, P): never indefinite."""

        def block(rows: Batch) -> tuple[Tensor]:
            lam = self.likelihood.ggn(self.model.forward(rows.features, theta), rows.targets).dense()
            return (self.gram(rows.features, rows.weighed(lam)),)

        return self.sum(block, size=self.dim**2)[0]

    def outputs(self, theta: Tensor) -> Tensor:
        """f of every row in memory, shape (..., N, C) for θ of shape (..., P)."""
        return self.model.forward(self.features, theta)

    def gram_of_all(self, lam: Tensor) -> Tensor:
        """`gram` of all rows in memory, a block at a time, for Λ of shape (N, C, C)."""
        rows = RowTable.of(Batch(self.features, lam))
        return rows.sum(lambda some: (self.gram(some.features, some.targets),), size=self.dim**2)[0]

    def latent_variance(self, precision: Precision) -> Tensor:
        """J_n A⁻¹ J_nᵀ of every row in memory, shape (N, C, C), for θ of precision A."""
        spread = OutputCovariance.under(self.model, precision)
        ranges = blocks(self.table.count, self.model.features, self.model.outputs, self.dim)
        return torch.cat([spread(self.features[rows]) for rows in ranges])

    def pull_back(self, x: Tensor, g: Tensor) -> Tensor:
        """Σ_n J_nᵀ g_n, shape (P,), for rows x of shape (n, D) and g of shape (n, C), whatever their weights."""
        weights = (g.mT @ x).reshape(-1)
        return torch.cat([weights, g.sum(0)]) if self.model.bias else weights

    @cached_property
    def _prior_constant(self) -> Tensor:
        return self.prior.log_prob(self.prior_mean)

    def _slopes(self, rows: Batch, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The log likelihood of some rows at one θ (P,) and its gradient, shape (P,).

        A sampler asks for it a hundred thousand times: by NumPy, whose small products start sooner than torch's.
        """
        features, point = rows.features.numpy(), theta.numpy()
        split = self.model.outputs * self.model.features
        with np.errstate(all="ignore"):  # as torch: an infinity is an answer, which divergences show
            f = features @ point[:split].reshape(self.model.outputs, -1).T
            if self.model.bias:
                f += point[split:]
            log_prob, slope = self.likelihood.log_prob_and_gradient(torch.from_numpy(f), rows.targets)
        return rows.weighed(log_prob).sum(), self.pull_back(rows.features, rows.weighed(slope))

    def _curvature(self, rows: Batch, f: Tensor) -> Tensor:
        likelihood, y = self.likelihood, rows.targets
        lam = likelihood.ggn(f, y).dense() if likelihood.kinked else likelihood.hessian(f, y)
        return self.gram(rows.features, rows.weighed(lam))

    def gram(self, x: Tensor, lam: Tensor) -> Tensor:
        """Σ_n J_nᵀ Λ_n J_n, shape (P, P), for rows x of shape (n, D) and Λ of shape (n, C, C), whatever their weights.

        One product for each output, of the inputs with the inputs times a row of Λ, in the flat order.
        """
        outputs, features, bias = self.model.outputs, self.model.features, self.model.bias
        if outputs == 1 and bool((lam >= 0).all()):
            return _weighted_product(x, lam[:, 0, 0])[: features + bias, : features + bias]
        split = outputs * features
        total = x.new_empty(self.dim, self.dim)
        blocks = total[:split, :split].unflatten(0, (outputs, -1)).unflatten(-1, (outputs, -1))
        for c in range(outputs):
            weighted = (lam[:, c, : c + 1, None] * x[:, None]).flatten(1)
            product = (x.mT @ weighted).unflatten(1, (c + 1, features))
            blocks[c, :, : c + 1] = product
            blocks[: c + 1, :, c] = product.permute(1, 2, 0)
        if bias:
            sums = (x.mT @ lam.flatten(1)).unflatten(1, (outputs, outputs))
            total[:split, split:] = sums.transpose(0, 1).flatten(0, 1)
            total[split:, :split] = total[:split, split:].mT
            total[split:, split:] = lam.sum(0)
        return total


def compile_density(
    model: LinearModel,
    likelihood: Likelihood,
    prior: Prior,
    X: ArrayLike,
    y: ArrayLike,
    weights: ArrayLike | None = None,
) -> LinearDensity:
    """Check a table, its labels and its weights and join them with the model and the prior to a log joint density.

    Args:
        model: f = W x (+ b).
        likelihood: p(y∣f).
        prior: p(θ); a dense precision and a mean other than zero are fine.
        X: shape (N, D).
        y: labels or numbers, as the likelihood takes them.
        weights: how often each row counts, shape (N,); once by default.

    Raises:
        InputError: if X, y or the weights cannot be used.
    """
    inputs = model.inputs(X)
    rows = inputs.shape[0]
    if rows == 0:
        raise InputError("X: expected at least one row, got none.")
    counts = None if weights is None else checks.float64("weights", weights)
    if counts is not None and (counts.shape != (rows,) or bool((counts < 0).any())):
        raise InputError(f"weights: expected {rows} numbers, one for each row, none of them negative.")
    return LinearDensity.of(model, likelihood, prior, inputs, likelihood.targets(y, model.outputs), counts)


@stored("again")
@final
@dataclass(frozen=True)
class Again:
    """An inference for more data, which `condition` calls; not a closure, so that a posterior can be pickled.

    Attributes:
        infer: the posterior of a log joint.
        model: f = W x (+ b).
        likelihood: p(y∣f).
    """

    infer: Callable[[LinearDensity], GaussianPosterior]
    model: LinearModel
    likelihood: Likelihood

    def __call__(self, prior: Prior, X: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> GaussianPosterior:
        return self.infer(compile_density(self.model, self.likelihood, prior, X, y, weights))


@final
@dataclass(frozen=True, eq=False)
class OutputCovariance:
    """The covariance of the outputs for uncertain weights, row by row.

    Attributes:
        model: f = W x (+ b).
        weights: the part of W in the columns of a root R of A⁻¹ = R Rᵀ, shape (D, C P).
        bias: that of b, shape (C, P), or ``None``.
    """

    model: LinearModel
    weights: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, model: LinearModel, root: Tensor) -> OutputCovariance:
        """For a root R of the covariance A⁻¹ of θ, shape (P, P)."""
        weights, bias = model.unflat(root.mT)  # (P, C, D) and (P, C): entry p is from column p of R
        return cls(model, weights.permute(2, 1, 0).flatten(1), None if bias is None else bias.mT)

    @classmethod
    def under(cls, model: LinearModel, precision: Precision) -> OutputCovariance:
        """For θ of precision A."""
        return cls.of(model, precision.sqrt_solve(torch.eye(model.dim, dtype=torch.float64)))

    def __call__(self, x: Tensor) -> Tensor:
        """J_n A⁻¹ J_nᵀ of each row x, shape (n, C, C)."""
        if self.model.outputs > 1:
            return torch.cat([self._of_few(some) for some in x.split(SPREAD_ROWS)])
        return self._of_few(x)

    def _of_few(self, x: Tensor) -> Tensor:
        spread = (x @ self.weights).unflatten(-1, (self.model.outputs, self.model.dim))
        if self.bias is not None:
            spread += self.bias
        if self.model.outputs == 1:  # a batch of 1×P by P×1 products would be slow
            return spread.square().sum(-1, keepdim=True)
        return spread @ spread.mT


def _weighted_product(x: Tensor, weights: Tensor) -> Tensor:
    """Σ w (x, 1)(x, 1)ᵀ for weights w of 0 or more, shape (D + 1, D + 1).

    NumPy sends a matrix times its own transpose to the symmetric product, half the work.
    """
    rows, columns = x.shape
    factor = weights.sqrt()
    scaled = x.new_empty(rows, columns + 1)
    torch.mul(x, factor[:, None], out=scaled[:, :columns])
    scaled[:, columns] = factor
    array = scaled.numpy()
    return torch.from_numpy(array.T @ array)
