"""Likelihoods whose rows have one number more: a weight, or an offset of the outputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn, Self, cast, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods.curvatures import Lambdas
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Tilted
from bayescope.storage import stored


class RowColumn(Likelihood):
    """p(y∣f) of another likelihood, changed by a number c of each row.

    Targets have c as one column more, shape (N, K + 1): canonical ones are float64. It is for fitting: what is fitted
    predicts with the likelihood itself, and what needs another outcome than the observed one is refused.

    Attributes:
        likelihood: p(y∣f).
        column: what c is, in words.
    """

    likelihood: Likelihood
    column: ClassVar[str]

    @staticmethod
    def join(targets: Tensor, column: Tensor) -> Tensor:
        """Targets with their numbers: (N,) or (N, K), and (N,)."""
        columns = targets[:, None] if targets.ndim == 1 else targets
        return torch.cat([columns.to(torch.float64), column[:, None].to(torch.float64)], 1)

    @property
    def name(self) -> str:
        return self.likelihood.name

    @property
    def domain(self) -> Domain:
        return replace(self.likelihood.domain, ignored=None)

    @property
    def log_concave(self) -> bool:
        """Whether the likelihood without the number of each row is."""
        return self.likelihood.log_concave

    @property
    def kinked(self) -> bool:
        """Whether the likelihood without the number of each row is."""
        return self.likelihood.kinked

    @property
    def parts(self) -> tuple[Likelihood, ...]:  # type: ignore[override]
        """Those of the likelihood."""
        return self.likelihood.parts

    def with_hyperparameters(self, **values: Any) -> Self:
        """The same with other hyperparameters of the likelihood."""
        return cast(Self, replace(cast(Any, self), likelihood=self.likelihood.with_hyperparameters(**values)))

    def with_noise_variance(self, noise_variance: ArrayLike | str) -> Self:
        """The same with another noise variance.

        Raises:
            UnsupportedError: if the likelihood has none.
        """
        likelihood = self.likelihood.with_noise_variance(cast(Any, noise_variance))
        return cast(Self, replace(cast(Any, self), likelihood=likelihood))

    @property
    def hyperparameters(self) -> Mapping[str, str]:  # type: ignore[override]
        """Those of the likelihood, where their values are."""
        return self.likelihood.hyperparameters

    def hyperparameter(self, name: str) -> Tensor | str:
        return self.likelihood.hyperparameter(name)

    def starting(self, y: Tensor) -> Self:
        return cast(Self, replace(cast(Any, self), likelihood=self.likelihood.starting(self.outcomes(y))))

    def constant(self, y: Tensor) -> Tensor:
        return self.likelihood.constant(self.outcomes(y)) - self.shift(y)

    def shift(self, y: Tensor) -> Tensor:
        """What is added to f on average."""
        return torch.zeros((), dtype=torch.float64)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks targets and their numbers and returns both in float64, shape (N, K + 1).

        Raises:
            InputError: if there is no such column, a number in it is not allowed, or the targets do not fit.
        """
        table = torch.as_tensor(y)
        if table.ndim != 2 or table.shape[1] < 2:
            raise InputError(f"y: expected targets and a last column of {self.column}, got shape {tuple(table.shape)}.")
        self.check(table[:, -1])
        return self.join(self.likelihood.targets(table[:, :-1], outputs), table[:, -1])

    @abstractmethod
    def check(self, column: Tensor) -> None:
        """Raises for a number that no row may have."""

    def expected(self, f: Tensor) -> NoReturn:
        """Refused: f does not determine the number."""
        self._refuse()

    def sample(self, f: Tensor, generator: torch.Generator) -> NoReturn:
        """Refused: a drawn outcome has no such number."""
        self._refuse()

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), those of the likelihood."""
        return self.likelihood.conditional(f)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return self.likelihood.integrals

    def outcomes(self, y: Tensor) -> Tensor:
        """The targets as the likelihood takes them: of one label a row, which several outputs decide, its number."""
        label = self.domain.kind in ("classes", "ordered") and y.shape[-1] == 2
        return y[:, 0].long() if label else y[:, :-1]

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"curvature: expected 'ggn' or 'hessian' for rows with {self.column}, got one of drawn outcomes, which "
            f"have no {self.column}."
        )


@final
@stored("weighted")
@dataclass(frozen=True)
class Weighted(RowColumn):
    """p(y∣f)^w: log densities, gradients and curvatures of a row times its weight w, as if it were there w times.

    Attributes:
        likelihood: p(y∣f).
        mean_weight: of the rows it is for: this many observations stand behind each, where a noise variance is learnt.
        beside: whether targets come with the weight of the row beside each number, shape (N, ..., 2), as
            `bayescope.network` reads them from triples (inputs, targets, weights); else it is a last column.
        zero_rows: the number of rows of weight 0 among such triples.
    """

    likelihood: Likelihood
    mean_weight: float = 1.0
    beside: bool = False
    zero_rows: int = 0

    column = "weights"

    @property
    def unweighted(self) -> Likelihood:
        return self.likelihood

    def check(self, column: Tensor) -> None:
        """Refuses negative weights.

        Raises:
            InputError: if there is one.
        """
        if (column < 0).any():
            raise InputError("y: expected weights of at least 0 in the last column, got a negative one.")

    def as_given(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        return (y[..., 0], y[..., 1].reshape(len(y), -1)[:, 0]) if self.beside else (y, None)

    def apart(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.outcomes(y), y[..., -1]

    def labelled(self, y: Tensor) -> Tensor | None:
        """Which canonical targets are labels."""
        return self.likelihood.labelled(self.outcomes(y))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """w log p(y∣f), shape (..., N)."""
        return self.likelihood.log_prob(f, self.outcomes(y)) * _last(y, f)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """w ∂ log p(y∣f)/∂f, shape (..., N, C)."""
        return self.likelihood.gradient(f, self.outcomes(y)) * _last(y, f)[..., None]

    def observed(self, f: Tensor, y: Tensor) -> Lambdas:
        return self.likelihood.observed(f, self.outcomes(y)).times(_last(y, f))

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        """w times the Λ of the GGN."""
        return self.likelihood.ggn(f, self.outcomes(y)).times(_last(y, f))

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """w log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        return self.likelihood.predictive_log_prob(mean, cov, self.outcomes(y), integral) * _last(y, mean)


@stored("with_offset")
@final
@dataclass(frozen=True)
class WithOffset(RowColumn):
    """p(y∣f + o) with an offset o of each row: for a log link and o = log(exposure), the mean is exposure · eᶠ.

    Predictions are those of the likelihood at outputs to which the caller has added the offset.

    Attributes:
        likelihood: p(y∣f).
    """

    likelihood: Likelihood

    column = "offsets"

    @property
    def unweighted(self) -> Likelihood:
        return WithOffset(self.likelihood.unweighted)

    @property
    def mean_weight(self) -> float | None:  # type: ignore[override]
        """The mean weight of the likelihood, if that has weights."""
        return self.likelihood.mean_weight

    def check(self, column: Tensor) -> None:
        """Refuses offsets that are not finite.

        Raises:
            InputError: for the first of them.
        """
        wrong = torch.nonzero(~torch.isfinite(column))
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"y: expected finite offsets in the last column, got {column[row].item()} in row {row}. An exposure "
                "has to be positive: its logarithm is the offset."
            )

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y∣f + o), shape (..., N)."""
        return self.likelihood.log_prob(self.moved(f, y), self.outcomes(y))

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.gradient(self.moved(f, y), self.outcomes(y))

    def log_prob_and_gradient(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.likelihood.log_prob_and_gradient(self.moved(f, y), self.outcomes(y))

    def observed(self, f: Tensor, y: Tensor) -> Lambdas:
        return self.likelihood.observed(self.moved(f, y), self.outcomes(y))

    def ggn(self, f: Tensor, y: Tensor) -> Lambdas:
        return self.likelihood.ggn(self.moved(f, y), self.outcomes(y))

    def tilted(self, mean: Tensor, variance: Tensor, power: Tensor, y: Tensor) -> Tilted | None:
        return self.likelihood.tilted(mean + _last(y, mean), variance, power, self.outcomes(y))

    def shift(self, y: Tensor) -> Tensor:
        return y[:, -1].mean()

    def moved(self, f: Tensor, y: Tensor) -> Tensor:
        """f + o."""
        return f + _last(y, f)[:, None]

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log ∫ p(y∣f + o) N(f; mean, cov) df, shape (N,)."""
        return self.likelihood.predictive_log_prob(self.moved(mean, y), cov, self.outcomes(y), integral)


def _last(y: Tensor, f: Tensor) -> Tensor:
    return y[:, -1].to(f)
