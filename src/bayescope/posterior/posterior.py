"""What a posterior is: q(θ), with everything that is the same for all its forms written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UndefinedQuantityError
from bayescope.latent import Latent
from bayescope.likelihoods import Likelihood
from bayescope.models import Model
from bayescope.posterior.record import Record
from bayescope.predictive import Predictive
from bayescope.priors import Prior


class Options(NamedTuple):
    """How outputs are to be integrated: the arguments of `Posterior.predict`."""

    method: str | None
    integral: str | None
    samples: int | None
    generator: torch.Generator

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


def as_points(theta: Any, dim: int) -> Tensor:
    """Points θ in float64, shape (..., P); a tensor keeps its graph, so that a density can be differentiated.

    Raises:
        InputError: if the last dimension is not P = ``dim``.
    """
    points = theta.to(torch.float64) if isinstance(theta, Tensor) else checks.float64("theta", theta)
    if points.ndim == 0 or points.shape[-1] != dim:
        raise InputError(f"theta: expected shape (..., {dim}), got {tuple(points.shape)}.")
    return points


class Posterior(ABC):
    """q(θ) over P weights: a Gaussian, a mixture of Gaussians, draws, or a point.

    The forms are final; this class holds what all of them share. A query never writes.

    Attributes:
        record: how the posterior was made.
        model: f(x, θ), for predictions; ``None`` for a bare log density.
        likelihood: p(y∣f); ``None`` for a bare log density.
        infer: the inference that made it, as a function of (prior, X, y), where it is one.
    """

    record: Record
    model: Model | None
    likelihood: Likelihood | None
    infer: Callable[[Prior, Any, Any], Posterior] | None = None

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E_q[θ], shape (P,), in the user's coordinates."""

    @property
    @abstractmethod
    def covariance(self) -> Tensor:
        """Cov_q[θ], shape (P, P), in the user's coordinates."""

    @abstractmethod
    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n draws of θ, shape (n, P), in the user's coordinates."""

    @abstractmethod
    def _latent(self, x: Tensor, model: Model, likelihood: Likelihood, options: Options) -> tuple[Latent, str]:
        """The distribution of f at checked inputs, and a note of how it was found."""

    @abstractmethod
    def _as_prior(self) -> Prior:
        """This posterior as the prior of the next inference.

        Raises:
            UndefinedQuantityError: if it is no Gaussian.
        """

    @abstractmethod
    def _chains(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draws for diagnosis, shape (chains, draws, P)."""

    def predict(
        self,
        x: Any,
        *,
        method: str | None = None,
        integral: str | None = None,
        samples: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """The predictive distribution at the inputs x.

        Args:
            x: inputs as the model takes them, N rows.
            method: "linearized" (f is Gaussian: exact for a linear model) or "sampled" (f at drawn weights).
                The default is "linearized" for Gaussians and mixtures; draws and points are always "sampled".
            integral: over a Gaussian f: "mackay", "quadrature", "monte_carlo" or "laplace_bridge". The default is
                the likelihood's most accurate; a closed form, where there is one, is always used.
            samples: how many draws, for "sampled" and "monte_carlo" (default 1000) and for posteriors that are draws
                (default all of them).
            generator: a ``torch.Generator`` or an int.

        Returns:
            An immutable `Predictive`, in NumPy arrays where x is not a tensor.

        Raises:
            UndefinedQuantityError: if the posterior is of a bare log density, which predicts nothing.
            InputError: if x or an option cannot be used.
        """
        if self.model is None or self.likelihood is None:
            raise UndefinedQuantityError("predict: this posterior is of a log density, with no model to predict with.")
        if method is not None:
            checks.choice("method", method, ("linearized", "sampled"))
        if samples is not None:
            checks.count("samples", samples)
        inputs = self.model.inputs(x)
        options = Options(method, integral, samples, checks.generator(generator))
        latent, note = self._latent(inputs, self.model, self.likelihood, options)
        notes = {"posterior": self.record.method, "latent": note}
        return Predictive(latent, self.likelihood, arrays=not isinstance(x, Tensor), notes=notes)

    def sample_functions(self, x: Any, n: int = 1, *, generator: torch.Generator | int | None = None) -> Tensor:
        """n functions f at the inputs, joint over them, shape (n, N, C): one draw of the weights a function.

        For a Gaussian posterior of a linear model, Cov = J Σ Jᵀ across all rows.

        Args:
            x: inputs as the model takes them, N rows.
            n: how many functions.
            generator: a ``torch.Generator`` or an int.

        Raises:
            UndefinedQuantityError: if the posterior is of a bare log density.
        """
        if self.model is None:
            raise UndefinedQuantityError("sample_functions: this posterior is of a log density, with no model.")
        return self.model.forward(self.model.inputs(x), self.sample(n, generator=generator))

    def condition(self, data: tuple[Any, Any]) -> Posterior:
        """The posterior after more data: this one becomes the prior of the same inference.

        Args:
            data: (X, y), as the model and the likelihood take them.

        Raises:
            UndefinedQuantityError: if this posterior cannot serve as a prior, or its inference needs more than one.
        """
        prior = self._as_prior()
        if self.infer is None:
            raise UndefinedQuantityError(f"condition: a posterior by {self.record.method} cannot be updated with data.")
        return self.infer(prior, *data)

    def log_evidence(self) -> Tensor:
        """log p(data), a float64 scalar.

        Raises:
            UndefinedQuantityError: where the approximation defines none.
        """
        return self.record.log_evidence()

    @property
    def elbo(self) -> Tensor:
        """A lower bound on log p(data), a float64 scalar.

        Raises:
            UndefinedQuantityError: where the approximation gives no bound.
        """
        return self.record.elbo()

    @property
    def elbo_terms(self) -> Mapping[str, Tensor]:
        """The terms whose sum is `elbo`.

        Raises:
            UndefinedQuantityError: where the approximation gives no bound.
        """
        self.record.elbo()
        return dict(self.record.elbo_terms or {})

    @property
    def trace(self) -> Mapping[str, Sequence[float]]:
        """Numbers per iteration of the fit, such as the objective."""
        return self.record.trace

    def summary(self) -> str:
        """What the posterior is and how it was made, in a few lines."""
        lines = [f"Posterior by {self.record.method} over {self.mean.shape[0]} weights"]
        if self.record.evidence is not None:
            lines.append(f"  log evidence: {float(self.record.evidence):.4f}")
        if self.record.elbo_terms is not None:
            lines.append(f"  evidence lower bound: {float(self.elbo):.4f}")
        lines += [f"  {name}: {value}" for name, value in self.record.notes.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def to_arviz(
        self, *, data: tuple[Any, Any] | None = None, draws: int = 1000, generator: torch.Generator | int | None = None
    ) -> Any:
        """The draws as ArviZ's ``InferenceData``: PSIS-LOO, R-hat, plots.

        Args:
            data: (X, y); with it, the log likelihood of each row stands in the group ``log_likelihood``.
            draws: how many, for posteriors that are not draws themselves.
            generator: a ``torch.Generator`` or an int.

        Raises:
            MissingDependencyError: if ArviZ is not installed.
            UndefinedQuantityError: if data are given to the posterior of a bare log density.
        """
        arviz = checks.optional_package("arviz", extra="nuts")
        theta = self._chains(checks.count("draws", draws), checks.generator(generator))
        groups: dict[str, Any] = {"posterior": {"theta": theta.numpy()}}
        if data is not None:
            if self.model is None or self.likelihood is None:
                raise UndefinedQuantityError("to_arviz: the posterior of a log density has no rows. Pass no data.")
            x = self.model.inputs(data[0])
            targets = self.likelihood.targets(data[1], self.model.outputs)
            rows = torch.stack([self.likelihood.log_prob(self.model.forward(x, chain), targets) for chain in theta])
            groups["log_likelihood"] = {"y": rows.numpy()}
        return arviz.from_dict(**groups)
