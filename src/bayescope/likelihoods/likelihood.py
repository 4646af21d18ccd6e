"""What a likelihood p(y∣f) is: the members that each one writes, and all that follows from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.likelihoods.curvatures import Lambdas
from bayescope.transforms import coordinates_of, parameter_at

# The names that a caller may give an integral over f; each likelihood resolves them to what it can do.
IntegralName = Literal["mackay", "quadrature", "monte_carlo", "laplace_bridge", "exact"]
# How far a search for hyperparameters goes in unconstrained coordinates: from its start, and from 0.
_STRIDE, _FARTHEST = 8.0, 40.0
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


class Tilted(NamedTuple):
    """The tilted distribution p(s)^e N(s; μ, v)/Ẑ of an output s, all of shape (N,).

    Attributes:
        log_normaliser: log Ẑ.
        slope: ∂ log Ẑ/∂μ; the tilted mean is μ + v slope.
        bend: −∂² log Ẑ/∂μ²; the tilted variance is v (1 − v bend).
        shrinkage: tilted variance / v = 1 − v bend, without its cancellation.
    """

    log_normaliser: Tensor
    slope: Tensor
    bend: Tensor
    shrinkage: Tensor


@final
@dataclass(frozen=True)
class Domain:
    """What y is.

    Attributes:
        kind: "classes" for one label 0…C−1 a row, "binary" for a label 0 or 1 of each output, "ordered" for one of
            several ordered labels a row and one output, "numbers" for numbers.
        ignored: the label of a row that has none; ``None`` where every row needs a label.
        elementwise: whether E(y∣f) of each outcome column is a monotone function of one output alone (not so for a
            softmax).
        low: numbers are at least that.
        high: numbers are at most that.
        closed: whether ``low`` and ``high`` themselves are among the numbers.
        integer: whether numbers are whole.
        atom: whether ``low`` has a probability, and the numbers above it a density.
        joined: how many columns of a target may belong to one number: 4 for the ends of an interval and of what was
            watched, 2 for successes and trials; 0 if each column is a number.
    """

    kind: Literal["classes", "binary", "ordered", "numbers"]
    ignored: int | None = None
    elementwise: bool = True
    low: float = -math.inf
    high: float = math.inf
    closed: bool = True
    integer: bool = False
    atom: bool = False
    joined: int = 0


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
        """A y that is Gaussian given f as a mixture of Gaussians: log weights (S,), means and variances (S, N, K)."""
        raise NotImplementedError

    def log_density(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log p(y_d) of each number by itself, shape (N, D)."""
        raise NotImplementedError

    def cdf(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d) of each number by itself, shape (N, D)."""
        raise NotImplementedError

    def conditional_entropy(self, mean: Tensor, cov: Tensor) -> Tensor:
        """E H[y_d∣f_d] of each number by itself, shape (N, D)."""
        raise NotImplementedError


class Likelihood(ABC):
    """p(y∣f) for outputs f of shape (..., N, C): its link, its domain and its constants.

    All methods broadcast over leading dimensions of f (posterior draws). Targets passed to the methods are in the
    canonical form that `targets` returns. Log densities keep all their constants.

    A likelihood writes the members up to `integrals`; the others follow from them.

    Attributes:
        hyperparameters: the constants that can be learnt, which are attributes of these names, each with the transform
            of its unconstrained coordinates: "positive", "unit_interval", "ordered" or "covariance". A value is a
            float64 tensor, or ``"evidence"`` if it is to be learnt.
        noise_variance: a constant noise variance, ``"evidence"`` if it is to be learnt; ``None`` if there is none.
        mean_weight: the mean weight of weighted rows; ``None`` where each row counts once.
        gaussian_outcome: whether y is Gaussian given f, so that it is a mixture of Gaussians whatever f is.
        parts: the likelihoods of the numbers of an outcome, where each has one, with one output; else none.
    """

    hyperparameters: ClassVar[Mapping[str, str]] = {}
    noise_variance: Tensor | str | None = None
    mean_weight: float | None = None
    gaussian_outcome: ClassVar[bool] = False
    parts: tuple[Likelihood, ...] = ()

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
        return self.domain.kind != "numbers"

    @property
    def log_concave(self) -> bool:
        """Whether log p is a concave function of f, so that the observed Λ is nowhere indefinite."""
        return True

    @property
    def kinked(self) -> bool:
        """Whether a kink holds all the curvature of log p: the observed Λ is 0 beside it, and the GGN's is expected."""
        return False

    @property
    def by_column(self) -> list[tuple[Likelihood, slice]]:
        """Each part with its column of outputs and numbers; without parts the likelihood with all columns."""
        return [(part, slice(d, d + 1)) for d, part in enumerate(self.parts)] or [(self, slice(None))]

    @property
    def learnable(self) -> tuple[str, ...]:
        """The names of the hyperparameters that are still to be learnt from the evidence."""
        return tuple(name for name in self.hyperparameters if isinstance(self.hyperparameter(name), str))

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
        return self.with_hyperparameters(noise_variance=noise_variance)

    def with_hyperparameters(self, **values: Any) -> Self:
        """The same likelihood with other values of some hyperparameters; tensors stay in their graph."""
        return cast(Self, replace(cast(Any, self), **values))

    def in_unit(self, scale: Tensor) -> Self:
        """p(y∣f) of y and f that are both multiplied by a positive scale, shape (D,): of a noise its square.

        Raises:
            UnsupportedError: if y has no unit.
        """
        raise UnsupportedError(f"in_unit: expected a likelihood of any numbers, got {self.name!r}, which has one unit.")

    def hyperparameter(self, name: str) -> Tensor | str:
        """A constant that can be learnt: its number or numbers, or ``"evidence"`` where nothing has learnt it yet."""
        return cast(Tensor | str, getattr(self, name))

    def known(self, name: str) -> Tensor:
        """The value of a hyperparameter.

        Raises:
            InputError: if it is still to be learnt.
        """
        value = self.hyperparameter(name)
        if isinstance(value, Tensor):
            return value
        raise InputError(
            f"{name}: expected a number, got 'evidence', which has not been learnt yet. Fit a posterior that learns it "
            "(fit_evidence, variational, mc_dropout; an estimator), or give its value: "
            f"likelihood.with_hyperparameters({name}=value)."
        )

    def starting(self, y: Tensor) -> Self:
        """First values for the hyperparameters that are to be learnt, from canonical targets."""
        if not self.learnable:
            return self
        raise UnsupportedError(f"{self.name}: expected values of {', '.join(self.learnable)}, got 'evidence'.")

    def unconstrained(self, names: Sequence[str]) -> Tensor:
        """Some hyperparameters as unconstrained coordinates, one after another, float64 of shape (H,)."""
        parts = [coordinates_of(self.hyperparameters[name], self.known(name)) for name in names]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])

    def at_unconstrained(self, names: Sequence[str], coordinates: Tensor) -> Self:
        """The same likelihood with the hyperparameters of these unconstrained coordinates, in their graph."""
        if not names:
            return self
        parts = coordinates.split([len(self.unconstrained([name])) for name in names])
        values = {
            name: parameter_at(self.hyperparameters[name], part, self.known(name).shape)
            for name, part in zip(names, parts, strict=True)
        }
        return self.with_hyperparameters(**values)

    def fitted(
        self,
        names: Sequence[str],
        f: Tensor,
        y: Tensor,
        total: Callable[[Tensor], Tensor] = torch.Tensor.clone,
        *,
        marginal: bool = False,
        steps: int = 200,
    ) -> Self:
        """The same likelihood with the hyperparameters at which Σ log p(y∣f) is largest, over draws of f and rows.

        With f from a posterior it is the M step of expectation maximisation, whose fixed points are where the evidence
        is stationary (Dempster, Laird & Rubin 1977); for a Gaussian it is MacKay's update of the noise variance.

        Args:
            names: of the hyperparameters that are to be learnt, which have values.
            f: outputs, shape (..., N, C).
            y: canonical targets of N rows.
            total: sums numbers over the processes that each hold some of the rows.
            marginal: whether the log of the mean of p(y∣f) over the draws is summed, not the mean of its log.
            steps: of L-BFGS at most.
        """
        if not names:
            return self
        if not marginal and (closed := self._fitted_in_closed_form(f, y, total)) is not None:
            return closed
        start = self.unconstrained(names)

        def loss(coordinates: np.ndarray) -> tuple[float, np.ndarray]:
            at = torch.from_numpy(coordinates).requires_grad_()
            with torch.enable_grad():
                rows = self.at_unconstrained(names, at).log_prob(f, y)
                value = rows.flatten(0, -2).logsumexp(0).sum() if marginal else rows.sum()
                (slope,) = torch.autograd.grad(value, at)
            here = torch.cat([value.detach()[None].to(slope), slope, slope.new_tensor([float(f[..., 0].numel())])])
            sums = total(here.to(f.device)).cpu()
            return -float(sums[0] / sums[-1]), -(sums[1:-1] / sums[-1]).numpy()

        bounds = [(max(each - _STRIDE, -_FARTHEST), min(each + _STRIDE, _FARTHEST)) for each in start.tolist()]
        found = minimize(loss, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
        return self.at_unconstrained(names, torch.from_numpy(found.x.copy()))

    def _fitted_in_closed_form(self, f: Tensor, y: Tensor, total: Callable[[Tensor], Tensor]) -> Self | None:
        """What `fitted` finds where there is a formula for it, else ``None``."""
        return None

    def constant(self, y: Tensor) -> Tensor:
        """Outputs f, shape (C,), near those of the best constant model of canonical targets: where a fit may begin."""
        return torch.zeros(y.shape[-1] if y.ndim > 1 else 1, dtype=torch.float64)

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

    def tilted(self, mean: Tensor, variance: Tensor, power: Tensor, y: Tensor) -> Tilted | None:
        """p(y∣f)^power N(f; mean, variance) for one output, each (N,), where there is a formula, else ``None``."""
        return None

    def soft_targets(self, y: ArrayLike, outputs: int) -> Tensor | None:
        """Probabilities of labels in canonical form, float64 of shape (N, C); ``None`` where y is no such thing.

        With them log p(y∣f) stands for its expectation over the labels, the negative cross-entropy.

        Raises:
            InputError: if y has the shape of probabilities, and is none.
        """
        return None

    def soft(self, y: Tensor) -> bool:
        """Whether canonical targets are probabilities of labels."""
        return False

    def cross_entropy(self, y: Tensor, columns: Tensor) -> Tensor:
        """−E[log p(label)] per row, shape (N,).

        Args:
            y: canonical soft targets of N rows.
            columns: the mean of each outcome column, shape (N, K).
        """
        raise UnsupportedError(f"cross_entropy: expected labels that may be soft, got those of {self.name!r}.")

    def as_given(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Targets as data have them, without the weights that may stand beside them, and these, shape (N,)."""
        return y, None

    def apart(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Canonical targets of `unweighted`, and the weight of each, shape (N,); ``None`` where each counts once."""
        return y, None

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
        return self.by(integral, mean).moments(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The mean of `predictive`, shape (N, K), to the last bit the same, without the work of its variances."""
        return self.by(integral, mean).mean(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df per row, shape (N,), accurate in the tails."""
        y = y.to(mean.device)
        labelled = self.labelled(y)
        y = y if labelled is None else torch.where(labelled, y, 0)
        log_prob = self.by(integral, mean).log_prob(mean.to(torch.float64), cov.to(torch.float64), y)
        return log_prob if labelled is None else torch.where(labelled, log_prob, 0.0)

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """I(y; f) for f ~ N(mean, cov), in nats, shape (N,), summed over labels or outputs, each by itself."""
        return self.by(integral, mean).information(mean.to(torch.float64), cov.to(torch.float64))

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The standard error of the means that `predictive` gives, shape (N, K); 0 for rules that are right to 1e-10.

        Raises:
            UnsupportedError: for a closed form that is an approximation, whose error is unknown.
        """
        return self.by(integral, mean).error(mean.to(torch.float64), cov.to(torch.float64))

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A y that is Gaussian given f as a mixture of Gaussians: log weights (S,), means and variances (S, N, K).

        Raises:
            UnsupportedError: if y is not Gaussian given f.
        """
        if not self.gaussian_outcome:
            raise UnsupportedError(f"components: expected an outcome that is Gaussian given f, got a {self.name} one.")
        first = next(iter(self.integrals.values()))
        return first.components(mean.to(torch.float64), cov.to(torch.float64))

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y_d∣f) of each number by itself, shape (..., N, D)."""
        raise self._no_numbers("log_density")

    def cdf(self, f: Tensor, y: Tensor) -> Tensor:
        """P(y_d' ≤ y_d∣f) of each number by itself, shape (..., N, D)."""
        raise self._no_numbers("cdf")

    def quantile(self, f: Tensor, level: float | Tensor) -> Tensor:
        """The smallest y_d with P(y_d' ≤ y_d∣f) ≥ level, shape (..., N, D)."""
        raise self._no_numbers("quantile")

    def entropy(self, f: Tensor) -> Tensor:
        """H[y_d∣f] in nats of each number by itself, shape (..., N, D)."""
        raise self._no_numbers("entropy")

    def _no_numbers(self, question: str) -> UnsupportedError:
        return UnsupportedError(f"{question}: expected an outcome of numbers, got that of a {self.name} likelihood.")

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

    def by(self, integral: str, mean: Tensor) -> Integral:
        """The integral of a resolved name, for outputs f ~ N(mean, cov).

        Raises:
            OptionError: if the name is unknown.
        """
        if integral not in self.integrals:
            raise OptionError.unknown("integral", integral, self.integrals)
        return self.integrals[integral].for_outputs(mean.shape[-1])


def variances(cov: Tensor) -> Tensor:
    """The variances (N, C) of covariances (N, C, C), or unchanged where they were given alone."""
    return cov if cov.ndim == 2 else cov.diagonal(dim1=-2, dim2=-1)


def correlated(cov: Tensor) -> Tensor:
    """Which rows have outputs that are correlated, shape (N,); none of variances (N, C)."""
    if cov.ndim == 2:
        return torch.zeros(len(cov), dtype=torch.bool, device=cov.device)
    return (cov - torch.diag_embed(variances(cov))).flatten(1).any(-1)
