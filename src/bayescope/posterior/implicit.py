"""The implicit posterior: a network whose passes are random, as with dropout; no density of its weights is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, final

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior.missing import TableReader
from bayescope.posterior.posterior import Answer, Options, Posterior, in_rows
from bayescope.posterior.record import Record
from bayescope.priors import Prior
from bayescope.storage import stored

DEFAULT_PASSES = 100


class Passes(Protocol):
    """Random passes through a network."""

    def __call__(self, x: Any, n: int, generator: torch.Generator) -> Tensor:
        """f in n passes, shape (n, N, *positions, C), float64; what is random is the same for all rows of a pass.

        So each pass is one function, and the answer for a row does not depend on the others.
        """


@stored("implicit_posterior")
@final
@dataclass(frozen=True, eq=False, repr=False)
class ImplicitPosterior(Posterior):
    """q(θ) that can be drawn functions from, and nothing else.

    Attributes:
        location: E[θ], the weights with nothing random, shape (P,).
        passes: draws functions.
        record: how it was made.
        function: f(x, θ) with nothing random.
        likelihood: p(y∣f).
        reader: makes the model's inputs of an estimator's tables; ``None`` where x is given as the model takes it.
    """

    location: Tensor
    passes: Passes
    record: Record
    function: Model
    likelihood: Likelihood
    reader: TableReader | None = None

    @property
    def mean(self) -> Tensor:
        """E[θ], shape (P,): the weights with nothing random."""
        return self.location.clone()

    @property
    def covariance(self) -> Tensor:
        """Not known.

        Raises:
            UndefinedQuantityError: always.
        """
        self._refuse("covariance")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of weights, in a tuple of one."""
        return (self.location.shape[0],)

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """Not known.

        Raises:
            UndefinedQuantityError: always; `sample_functions` draws what there is.
        """
        self._refuse("sample")

    def _latent(self, x: Any, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        options.refuse_integration(f"passes by {self.record.method}")
        if options.differentiable:
            raise UnsupportedError(
                f"differentiable: expected False for a posterior by {self.record.method}, got True. Take a Gaussian "
                "posterior, such as laplace's or variational's."
            )
        n = options.samples or DEFAULT_PASSES
        values, shape = in_rows(self.passes(function.inputs(x), n, options.generator), 1)
        return Answer(DrawsLatent(values), f"{n} random passes", shape)

    def _functions(self, x: Any, function: Model, n: int, generator: torch.Generator) -> Tensor:
        return self.passes(function.inputs(x), n, generator)

    def _as_prior(self) -> Prior:
        self._refuse("condition")

    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        self._refuse("to_arviz")

    def _refuse(self, quantity: str) -> NoReturn:
        raise self.record.undefined(quantity, "draws functions, not weights. Ask for predict or sample_functions.")
