"""What a posterior remembers of how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from bayescope.errors import UndefinedQuantityError
from bayescope.posterior.parameters import Parameters
from bayescope.priors import Prior
from bayescope.storage import stored


@stored("record")
@final
@dataclass(frozen=True)
class Record:
    """How a posterior was made, and the numbers that came with it.

    Attributes:
        method: the approximation, such as "laplace" or "nuts".
        evidence: log p(data) as the approximation defines it, a float64 scalar, or ``None``.
        elbo_terms: the terms whose sum is a lower bound on log p(data), or ``None``.
        notes: lines for the summary: the prior, the units of the inputs, what an option resolved to.
        trace: numbers per iteration, such as the objective; of several members also lists of them.
        instead: what to do for a quantity that the approximation does not define, as a sentence of its refusal.
        prior: p(θ) that a network was trained with, where its weights are the mode; else ``None``.
        names: what each of the P weights is called, where it is more than the model knows, such as the columns of a
            table; else empty.
        parameters: the names and shapes of what θ is made of, where a log density has named parameters.
    """

    method: str
    evidence: Tensor | None = None
    elbo_terms: Mapping[str, Tensor] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    instead: str = ""
    prior: Prior | None = None
    names: tuple[str, ...] = ()
    parameters: Parameters | None = None

    def log_evidence(self) -> Tensor:
        """The log evidence.

        Raises:
            UndefinedQuantityError: where the approximation defines none.
        """
        if self.evidence is None:
            bound = " It has a lower bound, elbo." if self.elbo_terms is not None else ""
            raise self.undefined("log_evidence", f"does not define it.{bound}")
        return self.evidence

    def elbo(self) -> Tensor:
        """The evidence lower bound.

        Raises:
            UndefinedQuantityError: where the approximation gives no bound.
        """
        if self.elbo_terms is None:
            raise self.undefined("elbo", "has no lower bound on the evidence.")
        return sum(self.elbo_terms.values(), start=next(iter(self.elbo_terms.values())).new_zeros(()))

    def undefined(self, quantity: str, why: str) -> UndefinedQuantityError:
        """The error for what the approximation does not define, with what to do.

        Args:
            quantity: what was asked for.
            why: the end of the sentence that begins with the posterior.
        """
        instead = f" {self.instead}" if self.instead else ""
        return UndefinedQuantityError(f"{quantity}: a posterior by {self.method} {why}{instead}")
