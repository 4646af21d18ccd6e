"""Laplace's approximation for any network: `laplace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import CurvatureKeywords, CurvatureOptions
from bayescope.curvature.options import STRUCTURES, check_structure
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, ProcessError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.laplace.distance import TRAIN
from bayescope.laplace.evidence import has_noise, mean_square_residual
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.judgement import AUTO, at_fitted_noise, automatic, warn_if_worse
from bayescope.laplace.likelihood_fit import learnt_likelihood
from bayescope.laplace.mixture import mixture_of
from bayescope.laplace.mode import read_slope
from bayescope.laplace.options import LaplaceOptions
from bayescope.laplace.sampling import sample_posterior
from bayescope.laplace.tuning import fits_of, tune_prior
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName, resolve
from bayescope.logs import logged
from bayescope.module_copies import module_copy
from bayescope.network.batches import Batches, Data
from bayescope.network.guard import check_readable, unwrapped, with_output
from bayescope.network.model import NetworkModel
from bayescope.network.priors import PriorPrecision
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.network.shards import require_same_weights
from bayescope.network.weights import Choice
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Posterior, noted
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import collective, same, warn_once
from bayescope.storage import stored_function
from bayescope.training.lbfgs import Lbfgs

EVIDENCE = "evidence"
# The name of a Gaussian likelihood, which gives no noise variance.
GAUSSIAN = "gaussian"
# In place of a structure: draws.
SAMPLES = "samples"
# The mean square of the residuals is unlike a noise variance of 1 where it is further than this factor from it.
FAR = 10.0


@logged
@outside_inference_mode
@collective
@takes(CurvatureKeywords, CurvatureOptions, OutputChoice)
def laplace(
    model: nn.Module | Posterior | Sequence[nn.Module | Posterior],
    data: Data,
    *,
    likelihood: LikelihoodName | Likelihood,
    weights: Choice = "all",
    prior_precision: PriorPrecision | Literal["auto", "evidence"] = "auto",
    temperature: float = 1.0,
    samples: int | None = None,
    tolerance: float | None = None,
    mixture: Literal["equal", "evidence"] = "equal",
    generator: torch.Generator | int | None = None,
    progress: bool = False,
    **options: Unpack[CurvatureKeywords],
) -> Posterior:
    """Laplace's approximation at the weights θ* of a trained network: q(θ) = N(θ*, A⁻¹), A = H/T + P₀.

    H is the curvature of −Σ log p(y∣f) in the chosen weights and P₀ the prior's precision;
    log Z ≈ Σ log p(y∣f*)/T + log p(θ*) + ½ P log 2π − ½ log∣A∣ (MacKay 1992, "A practical Bayesian framework for
    backpropagation networks"; Daxberger et al. 2021, "Laplace redux"). Weights that are not chosen stay at their
    values, and everything conditions on them.

    The caller's module stays unchanged: the posterior holds a copy.

    Under an initialised process group of torch.distributed every process calls it and reads its share of the rows, as
    `fit_curvature` says; all of them get the same posterior.

    Args:
        model: a trained module with outputs f of shape (N, C) or (N, …, C); the posterior of `fit_map`, which knows
            the prior that its module was trained with; or a list of such, or the posterior of `ensemble`, trained
            apart, whose Laplace approximations are mixed.
        data: the training data: a DataLoader, a Dataset, a list of batches, (X, y), or (X, y, weights): a row of weight
            w counts as w equal rows. Targets of classes may be probabilities, shape (N, C).
        likelihood: a name or a likelihood. The noise variance of `Gaussian(σ²)` is held. `Gaussian("evidence")` learns
            it, and goes with the prior precisions "auto" and "evidence"; "gaussian" is short for it with "evidence",
            and has the noise variance 1 otherwise.
        weights: "all", "last_layer", names or globs ("*.weight"), a mask, `largest_magnitude` or `largest_variance`.
        prior_precision: a positive number, one per weight (P,), a dict by parameter, module or glob, a `Prior`, "auto"
            or "evidence". "auto" takes the prior that the posterior in `model` was trained with, where its weights are
            a mode under it, and raises it until the log loss of training rows is at most 0.05 nats above the network's
            own. Of a module it takes the one number for all weights that has the largest evidence, and raises it until
            that difference is at most 0.0015: the predictions are then hardly ever worse than the network's, and for a
            network that has overfitted they are better, though by less than the best prior precision would make them.
            `tune_prior(method="validation")` finds that one on held-out rows. "evidence" has no such guard:
            `tune_prior` learns one number per layer, and the noise. The unit is one over the weights' squared; a number
            is the optimiser's weight decay times N, for a loss that is a mean over the rows.
        temperature: T, by which the log likelihood is divided. 1 is Bayes; below it, the posterior is colder.
        samples: how many draws the structure "samples" makes, in pairs θ* ± z: an even number, 64 by default.
        tolerance: of the systems that the structure "samples" solves, a share of the right-hand side, 1e-4 by default.
        mixture: the weights of several modes: "equal", or "evidence", in proportion to their evidences.
        generator: draws the labels of "fisher", the first vectors of "low_rank", and "samples".
        progress: whether a bar is drawn.
        options: as `CurvatureOptions` describes them: ``curvature``, ``structure``, ``blocks``, ``rank``, ``cutoff``,
            ``sharing``, ``output_factor``, ``batch_size`` and ``memory``. ``structure="samples"`` makes
            draws by sample-then-optimise, which builds no matrix at all.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        A `GaussianPosterior`; a `MixturePosterior` for several modules; a `DrawsPosterior` for "samples".

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if options do not go together; the message lists what does.
        InputError: if the data do not fit, or passes over them differ (random augmentation).
        MemoryBudgetError: if the run would take more than the budget; nothing has been read then.
        NotPositiveDefiniteError: if A is not, as under the Hessian away from a mode.

    Warns:
        ConvergenceWarning: if the posterior predicts training rows worse than the network: by more than 0.05 nats a row
            where the weights are far from a mode for this prior, else by more than 0.5.
        BayescopeWarning: if the noise variance is 1 by the bare name "gaussian", is not learnt, and the mean square of
            the residuals is over 10 or under 0.1.
    """
    several, models = _networks(model)
    models = [with_output(each, options) for each in models]
    word = prior_precision if isinstance(prior_precision, str) else None
    curved = picked(CurvatureOptions, options)
    check_structure(structure := curved.structure, (*STRUCTURES, SAMPLES))
    if structure != SAMPLES:
        curved.checked()
    asked = LaplaceOptions(likelihood_of_rows(likelihood, data), weights, temperature, progress, curved, tolerance)
    source = checks.generator(generator)
    if checks.choice("mixture", mixture, ("equal", "evidence")) != "equal" and not several:
        raise UnsupportedError(f"mixture: expected with a list of modules, got {mixture!r} for one. Leave it out.")
    _check_samples(structure, samples, tolerance, alone=not several and word != EVIDENCE)
    if word is not None:
        checks.choice("prior_precision", word, (AUTO, EVIDENCE))
    noise = structure != SAMPLES and learns_noise(likelihood, word)
    if structure != SAMPLES:
        asked = replace(asked, likelihood=starting_likelihood(asked.likelihood, learnt=word is not None))
    if structure == SAMPLES:
        return sample_posterior(
            asked, own_copy(models[0]), data, prior_precision, samples=samples, generator=source, origin=models[0]
        )
    if asked.likelihood.learnable:
        asked = learnt_likelihood(asked, own_copy(models[0]), data, source)
    start = 1.0 if isinstance(prior_precision, str) else prior_precision
    fits = [conditionable(asked.fit(own_copy(each), data, start, generator=source), asked) for each in models]
    fits = [replace(fit, learns_noise=leaves_noise_open(likelihood)) for fit in fits]
    if likelihood == GAUSSIAN and word != EVIDENCE:
        _warn_of_noise(fits)
    return concluded(fits, models, word, mixture if several else None, noise=noise)


def concluded(
    fits: list[LaplaceFit], origins: Sequence[Any], word: str | None, mixture: str | None, *, noise: bool
) -> Posterior:
    """The posterior of fits under their own prior, or under the one that a word stands for.

    Args:
        fits: at one mode, or at several.
        origins: what the network of each was taken from.
        word: "auto", "evidence", or ``None`` for the prior of the fits.
        mixture: the weights of several modes; ``None`` for one.
        noise: whether the noise variance is learnt.

    Warns:
        ConvergenceWarning: if the posterior predicts training rows worse than the network.
    """
    if word == AUTO:
        return _automatic(fits, origins, mixture, noise=noise)
    q = fits[0].posterior() if mixture is None else mixture_of([fit.posterior() for fit in fits], mixture)
    if word == EVIDENCE:
        return tune_prior(q)
    for part, fit in zip(q.components if isinstance(q, MixturePosterior) else [q], fits, strict=True):
        warn_if_worse(part, fit, TRAIN)
    return q


def _automatic(fits: list[LaplaceFit], models: Sequence[Any], mixture: str | None, *, noise: bool) -> Posterior:
    """The posterior under prior_precision="auto": of one mode, or of several with their weights."""
    if mixture is not None and noise:  # the modes share one noise variance: that of the largest evidence of all
        start = mixture_of([fit.posterior() for fit in fits], mixture)
        tuned = fits_of(tune_prior(start, share_prior="scalar"))
        fits, noise = (at_fitted_noise(tuned) if has_noise(tuned[0]) else list(tuned)), False
    found = [automatic(fit, noise=noise, origin=each) for fit, each in zip(fits, models, strict=True)]
    posteriors = [noted(fit.posterior(), {"tuned": note}) for fit, note in found]
    return posteriors[0] if mixture is None else mixture_of(posteriors, mixture)


def _warn_of_noise(fits: Sequence[LaplaceFit]) -> None:
    """Warns where the noise variance 1 that the bare name "gaussian" stands for is far from that of the residuals."""
    found = sum(float(mean_square_residual(fit)) for fit in fits) / len(fits)
    if not 1.0 / FAR <= found <= FAR:
        warn_once(
            f"likelihood='gaussian' has noise variance 1, the residuals' is {found:,.4g}: the predictive sd of y has a "
            f"noise of 1 in it in place of {found**0.5:,.3g}. Give likelihood=bs.Gaussian('evidence'), which learns it "
            "with prior_precision='auto' or 'evidence', or bs.Gaussian(noise_variance), which holds it.",
            BayescopeWarning,
        )


def learns_noise(likelihood: LikelihoodName | Likelihood, word: str | None) -> bool:
    """Whether a Gaussian's noise variance is learnt with the prior precision.

    Args:
        likelihood: a name or a likelihood.
        word: that stands for the prior precision, or ``None`` for numbers.
    """
    named = likelihood == GAUSSIAN and word == EVIDENCE
    return word is not None and (named or "noise_variance" in resolve(likelihood).learnable)


def leaves_noise_open(likelihood: LikelihoodName | Likelihood) -> bool:
    """Whether the caller has given no noise variance, so that it is learnt where the prior is."""
    return likelihood == GAUSSIAN or bool(resolve(likelihood).unweighted.learnable)


def _check_samples(structure: str, samples: int | None, tolerance: float | None, *, alone: bool) -> None:
    if structure != SAMPLES:
        for name, value in (("samples", samples), ("tolerance", tolerance)):
            if value is not None:
                raise UnsupportedError(
                    f"{name}: expected with the structure 'samples', got {structure!r}. Leave it out."
                )
    elif not alone:
        raise UnsupportedError(
            "structure: 'samples' takes one module and a prior precision in numbers: draws have no evidence to mix "
            "modes or to tune a prior by. Tune with another structure, such as 'kfac', first."
        )


def own_copy(model: object) -> nn.Module:
    """A copy of a caller's module that is the posterior's own, without gradients.

    Raises:
        InputTypeError: if it is no module.
        InputError: if it cannot be copied, or processes that fit together have other weights.
    """
    copied = _copied(unwrapped(model))
    require_same_weights(copied, private=True)
    return copied


def _networks(model: object) -> tuple[bool, list[Any]]:
    """Whether there are several modes, and the module or the posterior of each."""
    if isinstance(model, MixturePosterior):
        return True, list(model.components)
    if isinstance(model, DrawsPosterior) and model.record.prior and isinstance(model.function, NetworkModel):
        return True, [PointPosterior(theta, model.record, model.function.at(theta)) for theta in model.flat]
    return (True, list(model)) if isinstance(model, Sequence) else (False, [model])


def _copied(model: object) -> nn.Module:
    if isinstance(model, PointPosterior | GaussianPosterior) and model.reader is None:
        model = model.model
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            "model: expected a torch.nn.Module or a list of them, or the posterior of `fit_map`, got "
            f"{type(model).__name__}. A posterior's .model is its module."
        )
    if isinstance(model, nn.ModuleList | nn.ModuleDict):
        raise InputTypeError(
            f"model: expected a module that can be called, got a {type(model).__name__}, which cannot. For several "
            "networks, give a plain list of modules."
        )
    check_readable(model)
    with torch.inference_mode(False):
        copied = module_copy(model)
    for part in copied.modules():  # one by one: `eval` may be overridden
        part.training = False
    return copied


def conditionable(fit: LaplaceFit, options: LaplaceOptions) -> LaplaceFit:
    """The fit with the inference that made it, for `Posterior.condition`."""
    return replace(fit, infer=partial(_inference, replace(options, weights=fit.function.weights)))


@stored_function("laplace_inference")
def _inference(options: LaplaceOptions, fit: LaplaceFit) -> Callable[..., Posterior]:
    """`condition` as it goes on from a fit, with the noise and the temperature that the fit has come to."""
    options = replace(options, likelihood=fit.likelihood, temperature=fit.temperature)
    return partial(condition, options, fit.function)


def starting_likelihood(likelihood: LikelihoodName | Likelihood, *, learnt: bool) -> Likelihood:
    """A caller's likelihood; a noise variance that is to be learnt starts at 1, a factor away from any other.

    Args:
        likelihood: a name or a likelihood.
        learnt: whether hyperparameters are learnt, where there are some.

    Raises:
        UnsupportedError: if one is to be learnt where nothing is.
    """
    found = resolve(likelihood)
    if not found.learnable:
        return found
    if not learnt:
        raise UnsupportedError(
            f"{found.learnable[0]}: 'evidence' goes with prior_precision='auto' or 'evidence', which learn both. "
            "Give its value, or take likelihood='gaussian' and learn a Gaussian's noise afterwards by tune_prior."
        )
    return found if found.unweighted.noise_variance is None else found.with_noise_variance(1.0)


# More data: the posterior becomes the prior, the mode moves, and Laplace's approximation is made anew.

# L-BFGS ends after twenty evaluations that gain no more than this, in nats, or after this many times twenty.
SETTLED, MOST = 1e-9, 50


@stored_function("laplace_condition")
@outside_inference_mode
@collective
def condition(asked: LaplaceOptions, function: NetworkModel, prior: Prior, *data: Any) -> GaussianPosterior:
    """Laplace's approximation of p(θ∣new data) under a given prior: what `Posterior.condition` calls.

    With the posterior N(θ*, A⁻¹) as the prior, the log joint density is Σ log p(y∣f)/T − ½ (θ − θ*)ᵀA(θ − θ*) over the
    new data alone, its mode θ** is climbed to from θ*, and the new precision is A + H(θ**)/T (Ritter et al. 2018,
    "Online structured Laplace approximations for overcoming catastrophic forgetting").

    Args:
        asked: how curvatures are read.
        function: the model at θ*.
        prior: p(θ), such as the last posterior.
        data: X and y, or a DataLoader or Dataset.

    Raises:
        UnsupportedError: if curvatures of the structure do not add up, before anything is trained.

    Warns:
        ConvergenceWarning: if the mode is not reached.
    """
    if asked.curved.structure == "ekfac" and not isinstance(prior.precision, Tensor):
        raise UnsupportedError(
            "condition: expected a structure whose curvatures add up, got 'ekfac': new data have other eigenvectors. "
            "Take structure='kfac'."
        )
    given = data[0] if len(data) == 1 else tuple(data)
    asked = replace(asked, likelihood=likelihood_of_rows(asked.likelihood.unweighted, given))
    fit = conditionable(asked.fit(_at_mode(asked, function, prior, given), given, prior), asked)
    if fit.distance is not None:
        fit.distance.warn("Give the new data in fewer, larger parts.")
    return fit.posterior()


def _at_mode(options: LaplaceOptions, function: NetworkModel, prior: Prior, data: Data) -> nn.Module:
    """A copy of the network at the mode of Σ log p(y∣f)/T + log p(θ), by L-BFGS over passes through all the data.

    It climbs in z, θ = θ* + R z with R Rᵀ = diag(P₀)⁻¹: the prior's units make the scales alike. All processes take the
    first one's steps: numbers that each of them rounds differently could lead them apart.
    """
    module, weights = module_copy(function.module), function.weights
    batches, parameters = Batches(data, module, batch_size=options.curved.batch_size), weights.parameters(module)
    start = function.flat
    scale = prior.diagonal(len(start)).rsqrt()
    z = nn.Parameter(torch.zeros_like(start))

    @torch.no_grad()
    def place() -> Tensor:
        for name, values in weights.unflat(start + scale * z, module).items():
            parameters[name].copy_(values)
        return weights.flat(module).to(torch.float64)  # as the module rounds them

    def loss() -> float:
        theta = place()
        try:
            slope = read_slope(module, weights, batches, options.likelihood)
        except (InputError, ProcessError):  # outputs that are not finite: the line search turns back
            z.grad = torch.zeros_like(z)
            return math.inf
        gradient = slope.gradient.to(theta) / options.temperature + prior.gradient(theta)
        value = slope.log_likelihood.to(theta) / options.temperature + prior.log_prob(theta)
        value, gradient = same(value, gradient)
        z.grad = -scale * gradient
        return -float(value)

    optimizer = Lbfgs([z])
    for _ in range(MOST):
        optimizer.step(loss)
        if optimizer.gained <= SETTLED:
            break
    place()
    return module
