"""The curvature of a network's loss: what a fit returns, before any prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.curvature.fallbacks import Fallback
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.network.network import Network
from bayescope.precision import STRUCTURES, BlockPrecision, Precision
from bayescope.priors import Prior


@final
@dataclass(frozen=True, eq=False)
class Curvature:
    """The curvature of −Σ log p(y∣f) in the random weights of a network at their present values.

    Attributes:
        precision: the curvature of the data alone, shape (P, P): without a prior it is semidefinite at best.
        network: how the network was read; it holds the module.
        kind: "ggn", "fisher", "empirical_fisher" or "hessian".
        structure: "full", "block", "diagonal", "kfac", "ekfac" or "low_rank".
        rows: N, the number of rows read.
        log_likelihood: Σ log p(y∣f) over all of them, a float64 scalar.
        passes: how many times the data were read.
        fallbacks: by the name of the part, what the structure could not treat.
        at_once: the most rows that were read together; ``None`` for those of a batch.
        output_factors: by the name of the part, the output factor of a Kronecker structure where it is not dense.
    """

    precision: Precision
    network: Network
    kind: str
    structure: str
    rows: int
    log_likelihood: Tensor
    passes: int
    fallbacks: Mapping[str, Fallback]
    at_once: int | None = None
    output_factors: Mapping[str, str] = field(default_factory=dict)

    def with_prior(self, prior_precision: Any) -> Precision:
        """The posterior precision: the curvature plus the prior's precision.

        Args:
            prior_precision: a number; an array of shape (P,); a dict with a number for each part of the network, by
                its name; or a `Prior`. Tensors that require a gradient stay in the graph.

        Raises:
            InputTypeError: if it is no number or array of numbers.
            InputError: if a precision is not positive, or there is not one for each part.
            OptionError: if a name in the dict is no part's.
            UnsupportedError: if the structure cannot take the prior's diagonal; the message lists those that can.
        """
        if isinstance(prior_precision, Prior):
            if isinstance(prior_precision.precision, Tensor):
                return self.with_prior(prior_precision.precision)
            return self.precision + prior_precision.structured(self.network.dim)
        if isinstance(prior_precision, Mapping):
            return self._with_parts(prior_precision)
        values = _positive("prior_precision", prior_precision)
        if values.ndim and values.shape != (self.network.dim,):
            raise InputError(
                f"prior_precision: expected a number or shape ({self.network.dim},), got {tuple(values.shape)}."
            )
        return self.precision.add_diagonal(values)

    def _with_parts(self, by_name: Mapping[str, Any]) -> Precision:
        parts = self.network.parts
        names = [part.name for part in parts]
        for name in by_name:
            if name not in names:
                raise OptionError.unknown("prior_precision", name, names)
        missing = [name for name in names if name not in by_name]
        if missing:
            raise InputError(f"prior_precision: expected a number for each part, got none for {missing}.")
        values = torch.stack([_one_positive(f"prior_precision[{name!r}]", by_name[name]) for name in names])
        if isinstance(self.precision, BlockPrecision) and STRUCTURES[self.structure].rotates:
            return self.precision.add_per_block(values)  # the blocks are the parts, each eigenbasis stays
        diagonal = values.new_zeros(self.network.dim)
        for value, index in zip(values, self.network.indices, strict=True):
            diagonal = diagonal.index_fill(0, index, value)
        return self.precision.add_diagonal(diagonal)

    def summary(self) -> str:
        """Which part of the network is treated how, and why where it is not as asked."""
        rows = [("part", "kind", "weights", "structure")]
        for part, index in zip(self.network.parts, self.network.indices, strict=True):
            fallback = self.fallbacks.get(part.name)
            factor = self.output_factors.get(part.name)
            own = self.structure if factor is None else f"{self.structure}, {factor} output factor"
            treated = own if fallback is None else str(fallback)
            rows.append((part.name, part.kind, f"{len(index):,}", treated))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {count:>{widths[2]}}  {treated}"
            for name, kind, count, treated in rows
        ]
        head = f"Curvature {self.kind!r} in the structure {self.structure!r} over {self.network.dim:,} weights"
        passes = f"{self.passes} {'pass' if self.passes == 1 else 'passes'}"
        data = f"  {self.rows:,} rows read in {passes}, log likelihood {float(self.log_likelihood):.4f}"
        return "\n".join([head, data, "", *lines])

    def __repr__(self) -> str:
        return self.summary()


def _positive(name: str, value: Any) -> Tensor:
    """Positive numbers in float64, still in the graph where they come as a tensor."""
    if isinstance(value, bool):
        raise InputTypeError(f"{name}: expected a positive number, got {value!r}.")
    checks.positive(name, value)
    return value.to(torch.float64) if isinstance(value, Tensor) else checks.float64(name, value)


def _one_positive(name: str, value: Any) -> Tensor:
    values = _positive(name, value)
    if values.numel() != 1:
        raise InputError(f"{name}: expected one number for the whole part, got shape {tuple(values.shape)}.")
    return values.reshape(())
