"""What a likelihood p(y∣f) is: the protocol that every likelihood fulfils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError

# The names that a caller may give an integral over f; each likelihood resolves them to what it can do.
INTEGRALS = ("mackay", "quadrature", "monte_carlo", "laplace_bridge")


@dataclass(frozen=True)
class Moments:
    """Mean and split variance of the outcome under a distribution of f, each of shape (N, K).

    K is the number of outcome columns: the classes of a classifier (2 for a Bernoulli with one output, each
    column the indicator of its class), the outputs of a regression. By the law of total variance,
    Var[y] = E_f[Var(y∣f)] + Var_f[E(y∣f)] = aleatoric + epistemic.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor


@runtime_checkable
class Likelihood(Protocol):
    """p(y∣f) for outputs f of shape (..., N, C): its link, its domain and its constants.

    All methods broadcast over leading dimensions of f (posterior draws). Targets passed to the methods are in the
    canonical form that `targets` returns. Log densities keep all their constants.
    """

    @property
    def name(self) -> str:
        """The field's name, such as ``"bernoulli"``."""

    @property
    def discrete(self) -> bool:
        """Whether y is a class label. A continuous y is Gaussian given f, with a variance that f may tell."""

    @property
    def elementwise(self) -> bool:
        """Whether each outcome column is a monotone function of one output alone (not so for a softmax)."""

    def targets(self, y: Any, outputs: int) -> Tensor:
        """Checks the labels for a model with C = ``outputs`` outputs and returns them in canonical form.

        Raises:
            InputError: if a label is outside the likelihood's domain; the message names it.
        """

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y∣f) per row, shape (..., N)."""

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p(y∣f) / ∂f, shape (..., N, C)."""

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """The observed Λ = −∂² log p(y∣f) / ∂f², shape (..., N, C, C)."""

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """A root S of the Λ of the GGN, S Sᵀ: the observed one, or the expected one where that is indefinite.

        Shape (..., N, C, K).
        """

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """The diagonal of S Sᵀ, shape (..., N, C), without the rest of it."""

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_n S_n S_nᵀ over the rows, shape (..., C, C), without one matrix for each of them."""

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """A root S of the expected Λ, E_{y∣f}[Λ] = S Sᵀ, shape (..., N, C, K)."""

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws y ~ p(y∣f), in canonical form."""

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f) per outcome column, each of shape (..., N, K)."""

    def integral(self, name: str | None, outputs: int) -> str:
        """Resolves the name of an integral over f; ``None`` is the most accurate one for C = ``outputs``.

        Raises:
            OptionError: if the name is none of "mackay", "quadrature", "monte_carlo", "laplace_bridge".
        """

    def needs_covariance(self, integral: str) -> bool:
        """Whether an integral depends on the covariances between the outputs of a Gaussian f.

        Where it does not, the methods below take their variances, shape (N, C), in the place of cov.
        """

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of y when f ~ N(mean, cov), shapes (N, C) and (N, C, C), by a resolved deterministic integral."""

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The mean of `predictive`, shape (N, K), to the last bit the same, without the work of its variances."""

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df per row, shape (N,), accurate in the tails."""

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """Probabilities in outcome columns (..., N, K) as the distributions of G labels a row, shape (..., N, G, L).

        Raises:
            UnsupportedError: if y is continuous.
        """

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """I(y; f) = H[y] − E H[y∣f] for f ~ N(mean, cov), in nats, shape (N,): a sum over labels or over outputs.

        Labels or outputs of a row count each for itself, as if told apart from the others.
        """

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The standard error of the means that `predictive` gives, shape (N, K); 0 for rules that are right to 1e-10.

        Raises:
            UnsupportedError: for a closed form that is an approximation, whose error nothing tells.
        """

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A continuous y as a mixture of Gaussians: log weights (S,), means and variances (S, N, K).

        Raises:
            UnsupportedError: if y is a class label.
        """


def variances(cov: Tensor) -> Tensor:
    """The variances (N, C), in float64, of covariances (N, C, C), or as they are where they were given alone."""
    return (cov if cov.ndim == 2 else cov.diagonal(dim1=-2, dim2=-1)).to(torch.float64)


def refuse_unknown_error(integral: str) -> None:
    """Refuses to say how far off a closed-form approximation is.

    Raises:
        UnsupportedError: if the integral is "mackay" or "laplace_bridge".
    """
    if integral in ("mackay", "laplace_bridge"):
        raise UnsupportedError(
            f"integration_error: {integral!r} is an approximation whose error nothing tells. Ask for 'quadrature', "
            "whose error is known, and compare."
        )


def refuse_distributions(name: str) -> NoReturn:
    """Refuses to take a number for a class label.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"distributions: expected labels, got the continuous outcome of a {name} likelihood.")


def refuse_components(name: str) -> NoReturn:
    """Refuses to take a class label for a number.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"components: expected a continuous outcome, got the labels of a {name} likelihood.")
