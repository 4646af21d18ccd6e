"""What a prediction asks of a posterior, and what it gets: the distribution of f, whose sizes are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.latent import Latent
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.top_classes import TopClasses


class Options(NamedTuple):
    """How outputs are to be integrated: the arguments of `Posterior.predict`."""

    method: str | None
    integral: str | None
    samples: int | None
    generator: torch.Generator
    differentiable: bool = False
    top: int | None = None
    before: int = 0  # rows of f that have been answered, of inputs that come in batches

    def view(self, function: Model) -> Model:
        """The model as these options read it."""
        return function.differentiable if self.differentiable else function

    def refuse_samples(self, reason: str) -> None:
        """Refuses ``samples=`` where nothing is drawn.

        Raises:
            InputError: if a number of samples is given.
        """
        if self.samples is not None:
            raise InputError(f"samples: expected None, got {self.samples}: {reason}. Leave it out.")

    def refuse_integration(self, form: str) -> None:
        """Refuses options that only a Gaussian over the weights can honour.

        Raises:
            InputError: if the method is "linearized" or an integral is named.
        """
        if self.method == "linearized" or self.integral is not None:
            raise InputError(
                f"predict: expected neither method='linearized' nor integral= for {form}, which has no Gaussian to "
                f"integrate, got method={self.method!r}, integral={self.integral!r}. Leave both out."
            )


class Answer(NamedTuple):
    """The distribution of f at some inputs, a note of how it was found, and the shape (N, *positions) of its rows.

    Where ``top`` is there, it is the latent of the classes that were asked for, found without that of all of them.
    """

    latent: Latent
    note: str
    shape: tuple[int, ...]
    top: TopClasses | None = None

    def joined(self, others: Sequence[Answer], generator: torch.Generator) -> Answer:
        """The answer for these rows and, after them, those of the others.

        Raises:
            InputError: if they have other positions.
        """
        if not others:
            return self
        parts = [self, *others]
        positions = {part.shape[1:] for part in parts}
        if len(positions) > 1:
            found = " and ".join(str(tuple(each)) for each in sorted(positions))
            raise InputError(
                f"x: expected batches whose outputs have the same positions, got {found}. Pad the inputs to one "
                "length, or predict a batch at a time."
            )
        latent = self.latent.joined([other.latent for other in others], generator)
        top = self.top and self.top.joined([other.top for other in others if other.top is not None])
        return Answer(latent, self.note, (sum(part.shape[0] for part in parts), *self.shape[1:]), top)


def check_top(top: int, likelihood: Likelihood, outputs: int) -> None:
    """Checks a number of classes.

    Raises:
        UnsupportedError: if the likelihood is not categorical.
        InputError: if there are no more classes than asked for.
    """
    if likelihood.domain.kind != "classes":
        raise UnsupportedError(f"top: expected the categorical likelihood, got {likelihood.name!r}. Leave it out.")
    if checks.count("top", top) >= outputs > 0:
        raise InputError(f"top: expected fewer than all {outputs} classes, got {top}. Leave it out for all of them.")


def in_rows(f: Tensor, leading: int) -> tuple[Tensor, tuple[int, ...]]:
    """Outputs (..., N, *positions, C) with each position as a row of its own, (..., M, C), and (N, *positions).

    Raises:
        InputError: if the square of an output is not finite.
    """
    check_sizes("outputs", f, leading)
    return f.flatten(leading, -2), tuple(f.shape[leading:-1])


def check_sizes(what: str, values: Tensor, leading: int = 0, limit: float = checks.FARTHEST) -> None:
    """Refuses NaN and values so large that their squares, or those of their roots, have no finite sum.

    Args:
        what: they are, for the message.
        values: shape (..., N, ...).
        leading: how many axes stand before that of the N rows.
        limit: of their sizes.

    Raises:
        InputError: if one is NaN or beyond the limit; the message has the rows.
    """
    values = values.detach()
    if values.numel() == 0 or (values.amin() > -limit and values.amax() < limit):  # which NaN is not
        return
    good = (values.abs() < limit).movedim(leading, 0).flatten(1).all(1)
    rows = torch.nonzero(~good).flatten().tolist()
    raise InputError(
        f"x: expected inputs with finite {what}, and these below {limit:g} in size, got others in {len(rows)} of "
        f"{len(good)} rows, first in row {rows[0]}. Check the inputs and their unit, and the weights of the model."
    )


def as_points(theta: ArrayLike, dim: int, device: torch.device | None = None) -> Tensor:
    """Points θ in float64, shape (..., P); a tensor keeps its graph: a density can be differentiated.

    Args:
        theta: numbers.
        dim: P.
        device: where they are to be; ``None`` for where they are.

    Raises:
        InputError: if the last dimension is not P.
    """
    given = theta if isinstance(theta, Tensor) else checks.float64("theta", theta)
    points = given.to(device=device, dtype=torch.float64)
    if points.ndim == 0 or points.shape[-1] != dim:
        raise InputError(f"theta: expected shape (..., {dim}), got {tuple(points.shape)}.")
    return points
