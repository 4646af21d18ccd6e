"""Posteriors as models of BoTorch, for its acquisition functions and their optimisation."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.posterior import GaussianPosterior, JointLatent, Posterior
from bayescope.posterior.missing import require_no_reader


def botorch_model(q: Posterior) -> Any:
    """Return a ``botorch.models.model.Model`` whose posterior over f is that of q, with gradients in the points.

    ``model.posterior(X)`` takes points of shape (*batch, q, d) and returns a ``GPyTorchPosterior`` over f at them: the
    mean f(x, θ̂), and the covariance J Σ Jᵀ across the q points and all outputs of each batch. ``optimize_acqf`` and
    acquisition functions such as ``qExpectedImprovement`` take the model as they take a Gaussian process.

    ``posterior(X, observation_noise=True)`` adds the noise variance of a Gaussian likelihood;
    ``condition_on_observations(X, Y)`` is `Posterior.condition`. BoTorch maximises: give a network of the objective, or
    ``objective=`` to the acquisition function.

    Args:
        q: a Gaussian posterior of a network or of a linear model, such as `laplace` or `function_space` returns;
            `item_rewards` makes one of preferences. Its inputs are rows of d numbers.

    Raises:
        MissingDependencyError: if botorch is not installed.
        InputTypeError: if q is no posterior.
        UnsupportedError: if q is not Gaussian, is not linearised, or reads tables.
    """
    if not isinstance(q, Posterior):
        raise InputTypeError(f"q: expected a posterior, got {type(q).__name__}. Take the one that bs.laplace returns.")
    if not isinstance(q, GaussianPosterior) or q.method != "linearized" or q.function is None:
        raise UnsupportedError(
            f"q: expected a Gaussian posterior of a linearised model, got one by {q.record.method}. Take bs.laplace, "
            "or draws of functions: q.sample_functions(x, n, differentiable=True)."
        )
    require_no_reader("q", q.reader)
    return _model_class()(q)


@cache
def _model_class() -> Any:
    base: Any = checks.optional_package("botorch.models.model", extra="botorch").Model
    posteriors = checks.optional_package("botorch.posteriors.gpytorch", extra="botorch")
    distributions = checks.optional_package("gpytorch.distributions", extra="botorch")
    operators = checks.optional_package("linear_operator", extra="botorch")

    class PosteriorModel(base):  # type: ignore[misc]
        """A posterior of bayescope as BoTorch has models."""

        def __init__(self, q: GaussianPosterior) -> None:
            super().__init__()
            self.q = q

        @property
        def num_outputs(self) -> int:
            """The number of outputs, C."""
            assert self.q.function is not None
            return self.q.function.outputs

        @property
        def batch_shape(self) -> torch.Size:
            """The batches of the model itself: none."""
            return torch.Size([])

        def posterior(
            self,
            X: Tensor,
            output_indices: list[int] | None = None,
            observation_noise: bool | Tensor = False,
            posterior_transform: Any = None,
        ) -> Any:
            """The posterior over f at points of shape (*batch, q, d)."""
            mean, covariance = _moments(self.q, X)
            chosen = torch.tensor(_places(output_indices, self.num_outputs), device=mean.device)
            noise = _noise(self.q, observation_noise, mean)
            points, outputs = X.shape[-2], self.num_outputs
            kept = (torch.arange(points, device=mean.device)[:, None] * outputs + chosen).flatten()
            mean, noise = mean[..., chosen], None if noise is None else noise[..., chosen]
            covariance = covariance[..., kept, :][..., kept]
            if noise is not None:
                covariance = covariance + torch.diag_embed(noise.flatten(-2))
            # As an operator it is factorised when it is sampled from, by GPyTorch's rules for singular matrices: there
            # are more points than weights, or equal ones.
            covariance = operators.to_linear_operator(covariance)
            if len(chosen) == 1:
                normal = distributions.MultivariateNormal(mean[..., 0], covariance)
            else:
                normal = distributions.MultitaskMultivariateNormal(mean, covariance)
            found = posteriors.GPyTorchPosterior(normal)
            return found if posterior_transform is None else posterior_transform(found)

        def condition_on_observations(self, X: Tensor, Y: Tensor) -> Any:
            """The model after n more observations, X of shape (n, d) and Y of shape (n, C)."""
            if X.ndim != 2:
                raise UnsupportedError(
                    f"X: expected observations of shape (n, d), got {tuple(X.shape)}. Condition on one batch at a time."
                )
            return botorch_model(self.q.condition((X, Y)))

    return PosteriorModel


def _moments(q: GaussianPosterior, x: Tensor) -> JointLatent:
    """The mean, shape (*batch, q, C), and the covariance, shape (*batch, q C, q C), in the graph of x if it has one."""
    if not isinstance(x, Tensor) or x.ndim < 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"X: expected points of shape (*batch, q, d), got {got}. One point is X[None].")
    batch, points = x.shape[:-2], x.shape[-2]
    joint = q.joint_latent(
        x.reshape(-1, x.shape[-1]),
        differentiable=x.requires_grad and torch.is_grad_enabled(),
        blocks=batch.numel(),
    )
    mean = joint.mean.reshape(*batch, points, -1)
    return JointLatent(mean, joint.covariance.reshape(*batch, mean.shape[-1] * points, -1))


def _places(asked: list[int] | None, outputs: int) -> list[int]:
    """Which of C outputs are asked for; negative numbers count from the last one."""
    if asked is None:
        return list(range(outputs))
    if not asked or not all(-outputs <= place < outputs for place in asked):
        raise InputError(
            f"output_indices: expected at least one number from {-outputs} to {outputs - 1}, for {outputs} outputs, "
            f"got {asked}."
        )
    return [place % outputs for place in asked]


def _noise(q: GaussianPosterior, asked: bool | Tensor, like: Tensor) -> Tensor | None:
    """The noise variances at the points, of the mean's shape, or ``None`` where none is added."""
    if isinstance(asked, Tensor):
        return asked.to(like).expand(like.shape)
    if not asked:
        return None
    noise = None if q.likelihood is None else q.likelihood.noise_variance
    if not isinstance(noise, Tensor):
        raise UnsupportedError(
            "observation_noise: expected False for a posterior without a Gaussian likelihood, got True: its outcomes "
            "are not f plus noise. Leave it out, or give the noise variances as a tensor."
        )
    return noise.to(like).expand(like.shape)
