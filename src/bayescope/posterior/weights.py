"""q(θ) alone: moments, intervals and names of the weights, draws of them, and copies elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UndefinedQuantityError
from bayescope.memory import require_memory
from bayescope.models import Model
from bayescope.posterior.answer import as_points
from bayescope.posterior.moving import moved
from bayescope.posterior.record import Record
from bayescope.posterior.weight_tables import layer_table, weight_table

# What a name of a weight takes, as text and in a tuple; and the most rows of a table of weights.
NAME_BYTES, MOST_ROWS = 100, 1_000_000


class WeightDistribution(ABC):
    """What a posterior says of its P weights, whatever they are the weights of.

    Attributes:
        location: a point in the middle, shape (P,), where there is one.
        record: how the posterior was made.
        function: the model whose weights these are; ``None`` for a bare log density.
    """

    location: Tensor
    record: Record
    function: Model | None

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E_q[θ], shape (P,), in the user's coordinates."""

    @property
    @abstractmethod
    def covariance(self) -> Tensor:
        """Cov_q[θ], shape (P, P), in the user's coordinates."""

    @property
    @abstractmethod
    def sd(self) -> Tensor:
        """√Var_q[θ], shape (P,), in the user's coordinates, without a covariance matrix where none is needed."""

    @abstractmethod
    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        """For each weight the two points, each of shape (P,), that it is below and above with this probability."""

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds each weight by itself with this probability, in the user's coordinates.

        It is exact for a Gaussian, for a mixture of Gaussians, and where a transform changes each coordinate by itself.
        For other transforms, and weights that must not be negative, its ends are quantiles of 2¹⁴ draws, which are the
        same each time. A posterior of draws has their own quantiles. No covariance matrix is made.

        Args:
            level: the probability, in (0, 1).

        Returns:
            (low, high), each of shape (P,).

        Raises:
            InputError: if the level is outside (0, 1).
            UndefinedQuantityError: for a point, whose interval of no width would pass for certainty, and for a
                posterior that draws functions and no weights.
        """
        return self._ends(0.5 * (1.0 - checks.fraction("level", level)))

    @property
    def names(self) -> tuple[str, ...]:
        """What each of the P weights is called, in the order of `mean`.

        A linear model of a table has its columns ("age", "class a: age", "intercept"), a network the place in the
        parameter ("0.weight[2, 1]"), an additive model its terms ("age[3]"), a log density "theta[0]", unless its
        parameters have names.

        Raises:
            UndefinedQuantityError: if the components of a mixture are of models with unlike weights.
            MemoryBudgetError: if there are more weights than memory holds names of.
        """
        if self.record.parameters is not None:
            return self.record.parameters.names
        if self.record.names:
            return self.record.names
        dim = self.sizes[0]
        require_memory(NAME_BYTES * dim, f"the names of {dim:,} weights", "Ask for summary_frame(by='layer').")
        return tuple(f"theta[{k}]" for k in range(dim)) if self.function is None else self.function.weight_names

    def summary_frame(self, level: float = 0.95, *, by: Literal["weight", "layer"] = "weight") -> Any:
        """The weights as a table of pandas.

        Args:
            level: the probability of the intervals, which are central.
            by: "weight" for a row for each weight; "layer" for a row for each layer of a network.

        Returns:
            By weight the columns ``name``, ``mean``, ``sd``, ``low`` and ``high``, and of draws from several chains
            ``effective_draws`` and ``r_hat``. By layer ``layer``, ``weights`` (how many), ``mean_size`` (the root mean
            square of their means), ``sd`` (the root mean square of their standard deviations), and ``away_from_0``: the
            share of the weights whose interval does not hold 0. A point has no sd: NaN.

        Raises:
            InputError: if the level is outside (0, 1), or there are more than 1,000,000 rows.
            OptionError: for another ``by``.
            UnsupportedError: for layers of a model that is no network.
            UndefinedQuantityError: for a posterior that draws functions and no weights.
        """
        if checks.choice("by", by, ("weight", "layer")) == "layer":
            return layer_table(self._models(), self.mean, *self._spread(level))
        if self.sizes[0] > MOST_ROWS:
            raise InputError(
                f"summary_frame: expected at most {MOST_ROWS:,} weights for a row each, got {self.sizes[0]:,}. Take "
                "by='layer', or the arrays mean, sd and interval()."
            )
        return weight_table(self.names, self.mean, *self._spread(level), self._diagnosis())

    def state_dict(self) -> dict[str, Tensor]:
        """The weights at their mean as named tensors, to be used without bayescope.

        For a network it is the ``state_dict`` of its module, so that ``module.load_state_dict(q.state_dict())`` gives a
        module like the user's the weights of the posterior; for a linear model "weight" (C, D) and "bias" (C,), as an
        ``nn.Linear`` has them, for the inputs that the model takes; for an additive model the weights of each term; for
        a log density "theta". Uncertainty is not in it: `save` keeps the whole posterior.

        Raises:
            UndefinedQuantityError: for several networks, whose mean weights are no network: take one draw, or `save`.
        """
        if self._several_networks:
            raise self.record.undefined(
                "state_dict", "has several networks, and the mean of their weights is none of them. Take .sample(1), "
                "one of the components, or save(path)."
            )  # fmt: skip
        return {"theta": self.mean} if self.function is None else self.function.state(self.mean)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy of this posterior on another device, or with a network of another floating-point type.

        The precision, the weights and the evidence are float64 whatever the type of the network. Inputs of `predict`
        go where the network is. This posterior stays as it is.

        Args:
            device: such as "cuda" or "cpu"; ``None`` for where it is.
            dtype: of the network's parameters and buffers, in which passes are made and tensors are answered; ``None``
                for the one that it has.

        Raises:
            InputTypeError: if one of them is something else.
            InputError: if there is no such device.
            UnsupportedError: for the posterior of a model of tables, which is computed on the CPU, and for a type where
                there is no network.
        """
        return moved(self, self._models(), device, dtype)

    @abstractmethod
    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n draws of θ, shape (n, P), in the user's coordinates."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """P, the number of weights; several of them where the components have unlike models."""
        return (self.location.shape[0],)

    def _spread(self, level: float) -> tuple[Tensor, Tensor, Tensor]:
        """The sd and the interval of each weight, for tables."""
        return self.sd, *self.interval(level)

    def _diagnosis(self) -> Mapping[str, Tensor]:
        """Further columns of a table of the weights."""
        return {}

    def _models(self) -> Sequence[Model]:
        """The models whose weights these are."""
        return () if self.function is None else (self.function,)

    @property
    def _several_networks(self) -> bool:
        """Whether the mean weights are those of no one network: of draws and mixtures."""
        return False

    def named(self, theta: ArrayLike) -> dict[str, Tensor]:
        """The named parameters of a log density in flat vectors, such as the posterior's draws or its mean.

        Args:
            theta: shape (..., P), for example ``q.sample(10)`` or ``q.mean``.

        Returns:
            An array for each parameter, by its name, of shape (..., *the parameter's own).

        Raises:
            UndefinedQuantityError: if the parameters have no names.
            InputError: if the last dimension is not P.
        """
        if self.record.parameters is None:
            raise UndefinedQuantityError(
                "named: expected a posterior over named parameters, got one over a flat vector. Name them where it is "
                "made, such as start={'mean': 0.0, 'scale': 1.0}."
            )
        return self.record.parameters.split(as_points(theta, self.sizes[0]))

    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draws for diagnosis, shape (chains, draws, P)."""
        return self.sample(draws, generator=generator)[None]
