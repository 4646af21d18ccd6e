"""What a likelihood p(y∣f) is: the twelve members that each one writes, and all that follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Self, cast, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.likelihoods.curvatures import Lambdas

# The names that a caller may give an integral over f; each likelihood resolves them to what it can do.
IntegralName = Literal["mackay", "quadrature", "monte_carlo", "laplace_bridge", "exact"]
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


@final
@dataclass(frozen=True)
class Domain:
    """What y is.

    Attributes:
        kind: "classes" for one label 0…C−1 a row, "binary" for a label 0 or 1 of each output, "real" for numbers.
        ignored: the label of a row that has none; ``None`` where every row needs a label.
        elementwise: whether each outcome column is a monotone function of one output alone (not so for a softmax).
    """

    kind: Literal["classes", "binary", "real"]
    ignored: int | None = None
    elementwise: bool = True


class Integral(ABC):
    """A deterministic integral of p(y∣f) over f ~ N(mean, cov), shapes (N, C) and (N, C, C), float64.

    Attributes:
        needs_covariance: whether it depends on the covariances between outputs. If not, ``cov`` may be their variances,
            shape (N, C).
    """

    needs_covariance: bool = True

    def for_outputs(self, outputs: int) -> Integral:
        """The integral for C = ``outputs``: another one where fewer dimensions are enough."""
        return self

    @abstractmethod
    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        """Mean and split variance of y, each of shape (N, K)."""

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        """The mean of `moments`, equal to the last bit; overridden where it costs less than the variances."""
        return self.moments(mean, cov).mean

    @abstractmethod
    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df per row, shape (N,), accurate in the tails."""

    @abstractmethod
    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """I(y; f) = H[y] − E H[y∣f] in nats, summed over labels or outputs, shape (N,)."""

    def error(self, mean: Tensor, cov: Tensor) -> Tensor:
        """The standard error of `mean`, shape (N, K): 0 for rules that are right to 1e-10."""
        return torch.zeros_like(self.mean(mean, cov))

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A continuous y as a mixture of Gaussians: log weights (S,), means and variances (S, N, K)."""
        raise NotImplementedError


class Likelihood(ABC):
    """p(y∣f) for outputs f of shape (..., N, C): its link, its domain and its constants.

    All methods broadcast over leading dimensions of f (posterior draws). Targets passed to the methods are in the
    canonical form that `targets` returns. Log densities keep all their constants.

    A likelihood writes the members up to `integrals`; the others follow from them.

    Attributes:
        noise_variance: a constant noise variance, ``"evidence"`` if it is to be learnt; ``None`` if there is none.
        mean_weight: the mean weight of weighted rows; ``None`` where each row counts once.
    """

    noise_variance: Tensor | str | None = None
    mean_weight: float | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The field's name, such as ``"bernoulli"``."""

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """What y is: labels or numbers."""

    @abstractmethod
    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks the labels for a model with C = ``outputs`` outputs and returns them in canonical form.

        Raises:
            InputError: if a label is outside the likelihood's domain; the message names it.
        """

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y∣f) per row, shape (..., N)."""

    @abstractmethod
    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p(y∣f) / ∂f, shape (..., N, C)."""

    def observed(self, f: Tensor, y: Tensor) -> Lambdas:
        """The observed Λ = −∂² log p(y∣f) / ∂f² of each row; overridden where it is not the expected one."""
        return self.expected(f)

    @abstractmethod
    def expected(self, f: Tensor) -> Lambdas:
        """The expected Λ of each row, E_{y∣f}[Λ]."""

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        """The Λ of the GGN: the observed one; overridden by the expected one where that is indefinite."""
        return self.observed(f, y)

    @abstractmethod
    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws y ~ p(y∣f), in canonical form."""

    @abstractmethod
    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f) per outcome column, each of shape (..., N, K)."""

    @property
    @abstractmethod
    def integrals(self) -> Mapping[str, Integral]:
        """The integrals over a Gaussian f by name, the most accurate one first."""

    # What follows from these

    @property
    def discrete(self) -> bool:
        """Whether y is a class label."""
        return self.domain.kind != "real"

    @property
    def learnable(self) -> bool:
        """Whether the noise variance is still to be learnt from the evidence."""
        return isinstance(self.noise_variance, str)

    @property
    def unweighted(self) -> Likelihood:
        """The likelihood of a row that counts once."""
        return self

    def with_noise_variance(self, noise_variance: ArrayLike | Literal["evidence"]) -> Self:
        """The same likelihood with another noise variance, such as the one that was learnt.

        Raises:
            UnsupportedError: if the likelihood has none.
        """
        if self.noise_variance is None:
            raise UnsupportedError(f"noise_variance: expected a Gaussian likelihood, got {self.name!r}.")
        return cast(Self, replace(cast(Any, self), noise_variance=noise_variance))

    def noise(self, like: Tensor) -> Tensor:
        """The noise variance per output, shape (D,), for f of shape (..., D) and in its dtype.

        Raises:
            InputError: if it is still to be learnt, or was given for another number of outputs.
        """
        variance = self.noise_variance
        if not isinstance(variance, Tensor):
            raise InputError(
                "noise_variance: expected a number, got 'evidence', which has not been learnt yet. Fit a posterior "
                "that learns it (fit_evidence, variational, mc_dropout; BayesianLinearRegression), or give its value: "
                "likelihood.with_noise_variance(value)."
            )
        outputs = like.shape[-1]
        if variance.ndim and variance.shape[0] != outputs:
            raise InputError(
                f"noise_variance: expected one number or {outputs} of them for {outputs} output(s), "
                f"got {variance.shape[0]}."
            )
        return variance.to(like).expand(outputs)

    def labelled(self, y: Tensor) -> Tensor | None:
        """Which canonical targets are labels; ``None`` where none are ignored."""
        return None if self.domain.ignored is None else y != self.domain.ignored

    def log_prob_and_gradient(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`log_prob` and `gradient` at once, without a graph; overridden where both cost little more than one."""
        return self.log_prob(f, y), self.gradient(f, y)

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """The observed Λ, shape (..., N, C, C)."""
        return self.observed(f, y).dense()

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """A root S of the Λ of the GGN, S Sᵀ, shape (..., N, C, K)."""
        return self.ggn(f, y).root()

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """A root S of the expected Λ, shape (..., N, C, K)."""
        return self.expected(f).root()

    def integral(self, name: str | None, outputs: int) -> IntegralName:
        """Resolves the name of an integral over f; ``None`` is the most accurate one for C = ``outputs``.

        Raises:
            OptionError: if the name is unknown.
        """
        names = list(self.integrals)
        found = checks.choice("integral", names[0] if name is None else name, dict.fromkeys([*names, *INTEGRALS]))
        return cast(IntegralName, names[0] if len(names) == 1 else found)

    def needs_covariance(self, integral: str) -> bool:
        """Whether an integral depends on the covariances between the outputs of a Gaussian f.

        If not, the methods below also take the variances, shape (N, C), as ``cov``.
        """
        return integral not in self.integrals or self.integrals[integral].needs_covariance

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of y when f ~ N(mean, cov), shapes (N, C) and (N, C, C), by a resolved deterministic integral."""
        return self._by(integral, mean).moments(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The mean of `predictive`, shape (N, K), to the last bit the same, without the work of its variances."""
        return self._by(integral, mean).mean(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df per row, shape (N,), accurate in the tails."""
        y = y.to(mean.device)
        labelled = self.labelled(y)
        y = y if labelled is None else torch.where(labelled, y, 0)
        log_prob = self._by(integral, mean).log_prob(mean.to(torch.float64), cov.to(torch.float64), y)
        return log_prob if labelled is None else torch.where(labelled, log_prob, 0.0)

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """I(y; f) for f ~ N(mean, cov), in nats, shape (N,), summed over labels or outputs, each by itself."""
        return self._by(integral, mean).information(mean.to(torch.float64), cov.to(torch.float64))

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The standard error of the means that `predictive` gives, shape (N, K); 0 for rules that are right to 1e-10.

        Raises:
            UnsupportedError: for a closed form that is an approximation, whose error is unknown.
        """
        return self._by(integral, mean).error(mean.to(torch.float64), cov.to(torch.float64))

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A continuous y as a mixture of Gaussians: log weights (S,), means and variances (S, N, K).

        Raises:
            UnsupportedError: if y is a class label.
        """
        if self.discrete:
            raise UnsupportedError(
                f"components: expected a continuous outcome, got the labels of a {self.name} likelihood."
            )
        first = next(iter(self.integrals.values()))
        return first.components(mean.to(torch.float64), cov.to(torch.float64))

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """Probabilities in outcome columns (..., N, K) as the distributions of G labels a row, shape (..., N, G, L).

        Raises:
            UnsupportedError: if y is continuous.
        """
        if not self.discrete:
            raise UnsupportedError(
                f"distributions: expected labels, got the continuous outcome of a {self.name} likelihood."
            )
        if self.domain.kind == "binary" and outputs > 1:
            return torch.stack([1.0 - columns, columns], -1)
        return columns[..., None, :]

    def _by(self, integral: str, mean: Tensor) -> Integral:
        if integral not in self.integrals:
            raise OptionError.unknown("integral", integral, self.integrals)
        return self.integrals[integral].for_outputs(mean.shape[-1])


def variances(cov: Tensor) -> Tensor:
    """The variances (N, C) of covariances (N, C, C), or unchanged where they were given alone."""
    return cov if cov.ndim == 2 else cov.diagonal(dim1=-2, dim2=-1)


# Rows that count several times, or in part.


@final
@dataclass(frozen=True)
class Weighted(Likelihood):
    """p(y∣f)^w: log densities, gradients and curvatures of a row times its weight w, as if it were there w times.

    Targets have the weight as one column more, shape (N, K + 1): canonical ones are float64. It is for fitting: what is
    fitted predicts with the likelihood itself, and what needs another outcome than the observed one is refused.

    A Kronecker factorisation takes the weights into the factor of the cotangents, not into that of the inputs.

    Attributes:
        likelihood: p(y∣f).
        mean_weight: of the rows it is for: this many observations stand behind each, where a noise variance is learnt.
    """

    likelihood: Likelihood
    mean_weight: float = 1.0

    @staticmethod
    def join(targets: Tensor, weights: Tensor) -> Tensor:
        """Targets with their weights: (N,) or (N, K), and (N,)."""
        columns = targets[:, None] if targets.ndim == 1 else targets
        return torch.cat([columns.to(torch.float64), weights[:, None].to(torch.float64)], 1)

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def domain(self) -> Domain:
        return replace(self.likelihood.domain, ignored=None)

    @property
    def unweighted(self) -> Likelihood:
        return self.likelihood

    def with_noise_variance(self, noise_variance: ArrayLike | Literal["evidence"]) -> Weighted:
        """The same weights with another noise variance.

        Raises:
            UnsupportedError: if the likelihood has none.
        """
        return Weighted(self.likelihood.with_noise_variance(noise_variance), self.mean_weight)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks targets and weights and returns both in float64, shape (N, K + 1).

        Raises:
            InputError: if there is no column of weights, one is negative, or the targets do not fit the likelihood.
        """
        table = torch.as_tensor(y)
        if table.ndim != 2 or table.shape[1] < 2:
            raise InputError(f"y: expected targets and a last column of weights, got shape {tuple(table.shape)}.")
        if (table[:, -1] < 0).any():
            raise InputError("y: expected weights of at least 0 in the last column, got a negative one.")
        return self.join(self.likelihood.targets(table[:, :-1], outputs), table[:, -1])

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """w log p(y∣f), shape (..., N)."""
        return self.likelihood.log_prob(f, self._y(y)) * _weights(y, f)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """w ∂ log p(y∣f)/∂f, shape (..., N, C)."""
        return self.likelihood.gradient(f, self._y(y)) * _weights(y, f)[..., None]

    def observed(self, f: Tensor, y: Tensor) -> Lambdas:
        return self.likelihood.observed(f, self._y(y)).times(_weights(y, f))

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        """w times the Λ of the GGN."""
        return self.likelihood.ggn(f, self._y(y)).times(_weights(y, f))

    def expected(self, f: Tensor) -> NoReturn:
        """Refused: f does not determine the weight."""
        _refuse()

    def sample(self, f: Tensor, generator: torch.Generator) -> NoReturn:
        """Refused: a drawn outcome has no weight."""
        _refuse()

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), those of the likelihood."""
        return self.likelihood.conditional(f)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return self.likelihood.integrals

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """w log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        return self.likelihood.predictive_log_prob(mean, cov, self._y(y), integral) * _weights(y, mean)

    def _y(self, y: Tensor) -> Tensor:
        """The targets as the likelihood takes them: of one label a row, which several outputs decide, its number."""
        return y[:, 0].long() if self.domain.kind == "classes" else y[:, :-1]


def _weights(y: Tensor, f: Tensor) -> Tensor:
    return y[:, -1].to(f)


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "curvature: expected 'ggn' or 'hessian' for weighted rows, got one of drawn outcomes, which have no weights."
    )
