"""Outcomes of several numbers of different kinds, such as an amount and a count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.elementwise import Elementwise
from bayescope.likelihoods.gaussian import Gaussian
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, correlated, variances
from bayescope.likelihoods.names import LikelihoodName, resolve
from bayescope.likelihoods.quasi_monte_carlo import log_expected, principal_root
from bayescope.likelihoods.targets import LabelError, numbers_in_columns
from bayescope.storage import stored


@stored("joint")
@final
@dataclass(frozen=True, init=False, eq=False)
class Joint(Likelihood):
    """p(y∣f) = Π_d p_d(y_d∣f_d): a likelihood for each of D numbers, which has one output each.

    Given f the numbers are independent, and Λ is diagonal; by f, whose outputs share the weights of a network, they are
    not. Canonical targets are float64 of shape (N, D). Each part says of its own number what its mean, its quantiles,
    its entropy and its CRPS are. The log density is of all numbers together: for outputs that are correlated the
    Gaussian parts are integrated in closed form, and the others given them by quadrature (one of them) or randomised
    quasi-Monte Carlo (several), as for each likelihood of numbers with several outputs.

    A hyperparameter is named by its part: ``dispersion_1`` is that of ``parts[1]``.

    Args:
        parts: for each column of y a name, whose hyperparameters are to be learnt, or a `Likelihood` of one number,
            such as ``["gaussian", "poisson", Binomial(5)]``. ``Binomial(1)`` is for 0 and 1.
        more: the others, where they are not in a list: ``Joint("gaussian", "poisson")``.

    Attributes:
        parts: the likelihoods.

    Raises:
        OptionError: if a name is unknown.
        InputTypeError: if a part is neither a name nor a likelihood.
        InputError: if there are no parts.
        UnsupportedError: if a part is of classes, or has several outputs.
    """

    parts: tuple[Likelihood, ...]

    name = "joint"
    domain = Domain("numbers")

    def __init__(
        self,
        parts: Sequence[LikelihoodName | Likelihood] | LikelihoodName | Likelihood,
        *more: LikelihoodName | Likelihood,
    ) -> None:
        given: Any = [parts, *more] if more else parts
        if isinstance(given, str | Likelihood) or not len(given):
            raise InputError(
                f"parts: expected a likelihood for each column of y, got {given!r}. Write "
                'bs.Joint(["gaussian", "poisson"]).'
            )
        object.__setattr__(self, "parts", tuple(_part(each) for each in given))

    @property
    def hyperparameters(self) -> Mapping[str, str]:  # type: ignore[override]
        """Those of the parts, with the position of the part after an underscore."""
        each = enumerate(part.hyperparameters.items() for part in self.parts)
        return {f"{name}_{d}": kind for d, some in each for name, kind in some}

    @property
    def log_concave(self) -> bool:
        return all(part.log_concave for part in self.parts)

    @property
    def kinked(self) -> bool:
        """Whether one of the parts is."""
        return any(part.kinked for part in self.parts)

    def hyperparameter(self, name: str) -> Tensor | str:
        stem, _, place = name.rpartition("_")
        return self.parts[int(place)].hyperparameter(stem)

    def with_hyperparameters(self, **values: Any) -> Self:
        """The same with other hyperparameters of some parts."""
        return self._changed(lambda d, part: part.with_hyperparameters(**_of_part(values, d)))

    def in_unit(self, scale: Tensor) -> Self:
        """Each part in its own unit."""
        return self._changed(lambda d, part: part.in_unit(scale[d : d + 1]))

    def starting(self, y: Tensor) -> Self:
        return self._changed(lambda d, part: part.starting(y[:, d : d + 1]))

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
        """Each part with its own hyperparameters fitted; all of them together for the mean over draws."""
        if marginal:
            return super().fitted(names, f, y, total, marginal=True, steps=steps)

        def fitted(d: int, part: Likelihood) -> Likelihood:
            some = tuple(_of_part(dict.fromkeys(names), d))
            return part.fitted(some, f[..., d : d + 1], y[:, d : d + 1], total, steps=steps)

        return self._changed(fitted)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks the numbers of each part and returns them in float64, shape (N, D).

        Raises:
            InputError: if there are not as many columns and outputs as parts, or a number is not allowed.
        """
        if outputs != len(self.parts):
            raise InputError(
                f"outputs: expected {len(self.parts)}, one for each of {', '.join(part.name for part in self.parts)}, "
                f"got {outputs}. Give y a column, and a network an output, for each."
            )
        columns = numbers_in_columns(y, outputs, outputs).split(1, -1)
        return torch.cat([_checked(d, part, columns[d]) for d, part in enumerate(self.parts)], -1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_d log p_d(y_d∣f_d), shape (..., N).

        Raises:
            InputError: if a hyperparameter is still to be learnt; it names the part.
        """
        for name in self.learnable:
            self.known(name)
        return self.beside(lambda part, f, y: part.log_prob(f, y)[..., None], f, y).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return self.beside(lambda part, f, y: part.gradient(f, y), f, y)

    def observed(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self.beside(lambda part, f, y: part.observed(f, y).diagonal(), f, y))

    def expected(self, f: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self.beside(lambda part, f: part.expected(f).diagonal(), f))

    def ggn(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        """That of each part: the observed Λ, or the expected one where that may be negative."""
        return DiagonalLambdas(self.beside(lambda part, f, y: part.ggn(f, y).diagonal(), f, y))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of each part, float64, shape (..., N, D)."""
        return self.beside(lambda part, f: part.sample(f, generator), f)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y_d∣f_d) and Var(y_d∣f_d), each (..., N, D)."""
        mean = self.beside(lambda part, f: part.conditional(f)[0], f)
        return mean, self.beside(lambda part, f: part.conditional(f)[1], f)

    def constant(self, y: Tensor) -> Tensor:
        return self.beside(lambda part, y: part.constant(y), y)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {"quadrature": _SideBySide(self)}

    def beside(self, answer: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """What each part answers of its own one of some columns (..., D), side by side in the last dimension."""
        pieces = zip(self.parts, *(each.split(1, -1) for each in columns), strict=True)
        return torch.cat([answer(*piece) for piece in pieces], -1)

    def _changed(self, change: Callable[[int, Likelihood], Likelihood]) -> Self:
        return Joint([change(d, part) for d, part in enumerate(self.parts)])


@final
@dataclass(frozen=True)
class _SideBySide(Integral):
    """What each part makes of its own output; log p(y) is that of all numbers together."""

    likelihood: Joint

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        found = [integral.moments(m, v) for integral, m, v in self._each(mean, cov)]
        columns = zip(*((each.mean, each.aleatoric, each.epistemic) for each in found), strict=True)
        return Moments(*(torch.cat(each, -1) for each in columns))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log ∫ p(y∣f) N(f; mean, cov) df, shape (N,)."""
        columns = zip(self._each(mean, cov), y.split(1, -1), strict=True)
        log_prob = torch.stack([integral.log_prob(m, v, column) for (integral, m, v), column in columns]).sum(0)
        rows = correlated(cov)
        if rows.any():
            log_prob = log_prob.index_put((rows,), self._together(mean[rows], cov[rows], y[rows]))
        return log_prob

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        return torch.stack([integral.information(m, v) for integral, m, v in self._each(mean, cov)]).sum(0)

    def _each(self, mean: Tensor, cov: Tensor) -> list[tuple[Integral, Tensor, Tensor]]:
        """The integral of each part, with the mean and the variance of its output, (N, 1) and (N, 1, 1)."""
        columns = zip(self.likelihood.parts, mean.split(1, -1), variances(cov).split(1, -1), strict=True)
        return [(_first(part), m, v[..., None]) for part, m, v in columns]

    def _together(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log p(y) of correlated outputs: the Gaussian parts in closed form, the others given what they are."""
        parts = self.likelihood.parts
        normal = [d for d, part in enumerate(parts) if isinstance(part, Gaussian)]
        rest = [d for d in range(len(parts)) if d not in normal]
        log_prob, centre, spread = mean.new_zeros(len(mean)), mean[:, rest], cov[:, rest][..., rest]
        if normal:
            noise = torch.cat([parts[d].noise(mean[:, :1]) for d in normal])
            factor = torch.linalg.cholesky(cov[:, normal][..., normal] + torch.diag(noise))
            density = MultivariateNormal(mean[:, normal], scale_tril=factor, validate_args=False)
            log_prob = density.log_prob(y[:, normal])
            shared = cov[:, normal][..., rest]
            gain = torch.cholesky_solve(shared, factor).mT
            centre = centre + (gain @ (y[:, normal] - mean[:, normal])[..., None])[..., 0]
            spread = spread - gain @ shared
        if len(rest) == 1:
            return log_prob + _first(parts[rest[0]]).log_prob(centre, spread.clamp_min(0.0), y[:, rest])
        if rest:
            root = principal_root(spread, variances(cov).amax(-1))
            log_prob = log_prob + log_expected(Joint([parts[d] for d in rest]), centre, root, y[:, rest])
        return log_prob


def _part(given: LikelihoodName | Likelihood) -> Likelihood:
    """A part, of which a name has hyperparameters that are to be learnt.

    Raises:
        UnsupportedError: if it is not of one number and one output.
    """
    part = resolve(given)
    if not isinstance(part, Elementwise | Gaussian):
        raise UnsupportedError(
            f"parts: expected likelihoods of one number with one output, got {part.name!r}. Take Binomial(1) for 0 and "
            "1; fit a model of its own to a column of another kind."
        )
    if not isinstance(given, str):
        return part
    return part.with_hyperparameters(**dict.fromkeys(part.hyperparameters, "evidence"))


def _first(part: Likelihood) -> Integral:
    """The most accurate integral over its output."""
    return next(iter(part.integrals.values()))


def _of_part(values: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The hyperparameters of a part, by their names in it."""
    end = f"_{place}"
    return {name.removesuffix(end): value for name, value in values.items() if name.endswith(end)}


def _checked(place: int, part: Likelihood, column: Tensor) -> Tensor:
    """The canonical targets of a part, shape (N, 1).

    Raises:
        LabelError: if a number is not allowed; it names the column.
    """
    try:
        return part.targets(column, 1)
    except LabelError as error:
        expected, got, row, advice, _ = error.args
        raise LabelError(expected, got, row, advice, f"row {row}, column {place}") from None
