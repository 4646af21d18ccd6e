"""Weights and hyperparameters learnt together: training that climbs Laplace's evidence as it goes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack, cast, final

import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.curvature import CurvatureOptions
from bayescope.curvature.options import Kind, check_structure
from bayescope.errors import ConvergenceError, ConvergenceWarning, InputError, UnsupportedError
from bayescope.keywords import picked, takes
from bayescope.laplace.constant import warn_if_constant
from bayescope.laplace.distance import GO_ON
from bayescope.laplace.evidence import EvidenceOfModes
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.groups import SharePrior
from bayescope.laplace.laplace import conditionable, leaves_noise_open, own_copy
from bayescope.laplace.likelihood_fit import refitted
from bayescope.laplace.options import LaplaceOptions
from bayescope.laplace.tuning import learnt_posterior
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName, resolve
from bayescope.logs import logged
from bayescope.network.batches import Data, row_totals
from bayescope.network.guard import with_output
from bayescope.network.priors import PriorPrecision, network_prior
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.network.weights import Choice
from bayescope.posterior import GaussianPosterior
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.processes import alone, collective, same
from bayescope.training.checkpoint import resumable
from bayescope.training.fit_map import fit_map
from bayescope.training.learnt_likelihood import first_likelihood
from bayescope.training.loop import Outcome
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import NegativeLogJoint
from bayescope.training.options import MakeOptimizer, ScheduleKeywords, TrainingOptions
from bayescope.training.training import Training, prepared
from bayescope.training.watch import Verdict

# A low rank would leave out directions that the evidence has to weigh.
STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac")
# What to do where the network predicts the same for all rows.
TELL = (
    "To tell which, train it under a low prior that stays, bs.fit_map(..., prior_precision=0.1), and compare both on "
    "rows that were held out. If that network is better, give those rows to fit_evidence as validation=, with "
    "starts=[0.1, 1.0]."
)


class ClimbKeywords(ScheduleKeywords, total=False):
    """The keywords of `TrainingOptions` and `Climbs` that `fit_evidence` takes."""

    optimizer: Literal["adam", "sgd", "lbfgs"] | MakeOptimizer | None
    every: int
    burn_in: int | None
    steps: int
    step_size: float
    keep: Literal["best", "last"]


@final
@dataclass(frozen=True)
class Climbs:
    """When there is a climb, how far it goes, and which weights count; see `fit_evidence`."""

    every: int = 5
    burn_in: int | None = None
    steps: int = 20
    step_size: float = 0.1
    keep: str = "best"

    def check(self, epochs: int) -> None:
        """Refuses values that cannot be used, and a burn-in that takes all epochs."""
        checks.count("every", self.every)
        checks.count("steps", self.steps)
        checks.positive("step_size", self.step_size)
        checks.choice("keep", self.keep, ("best", "last"))
        if self.burn_in is not None and checks.count("burn_in", self.burn_in) > epochs:
            raise InputError(f"burn_in: expected at most epochs={epochs}, got {self.burn_in}: nothing would be learnt.")

    @property
    def first(self) -> int:
        """The epoch that the first climb follows."""
        return 1 if self.burn_in is None else self.burn_in

    def after(self, epoch: int) -> bool:
        """Whether there is a climb after this epoch, if more epochs follow."""
        return epoch >= self.first and (epoch - self.first) % self.every == 0


@logged
@outside_inference_mode
@resumable
@collective
@takes(ClimbKeywords, TrainingOptions, Climbs, OutputChoice, epochs=100)
def fit_evidence(
    model: nn.Module,
    data: Data,
    *,
    likelihood: LikelihoodName | Likelihood,
    structure: Literal["full", "block", "diagonal", "kfac", "ekfac"] = "kfac",
    curvature: Kind = "ggn",
    share_prior: SharePrior = "layer",
    prior_precision: PriorPrecision = 1.0,
    starts: Sequence[Any] | None = None,
    prior: bool = True,
    noise_variance: float | None = None,
    weights: Choice = "all",
    inplace: bool = False,
    **options: Unpack[ClimbKeywords],
) -> GaussianPosterior:
    """Trains a network while it learns the prior's precisions, and the noise, from the evidence of the training data.

    The network learns first, as `fit_map` trains it until converged, under the hyperparameters to start from. Then
    epochs alternate with climbs: every ``every`` epochs, Laplace's log evidence at the present weights is raised by
    Adam in the logarithms of the hyperparameters, and training goes on under the new ones (Immer et al. 2021b,
    "Scalable marginal likelihood estimation for model selection in deep learning", algorithm 1). Weights are judged
    before each climb and after the last epoch, by the evidence under the hyperparameters that they were trained with;
    the best are returned with those. No data are held out, unless there is a ``validation``.

    The evidence of a network that has not learnt yet is highest at infinite precisions, which switch the network off.
    For few rows the evidence can prefer the network that is switched off also to one that has learnt, which ends in a
    warning. Rows of a ``validation`` do not, and several ``starts`` keep the best of what is found from a low precision
    and from a high one.

    The evidence judges weights at a mode: a few hundred rows take many epochs of small minibatches, or "lbfgs", until
    the Newton decrement in the summary is small beside the root of the number of effective parameters.

    Args:
        model: any module with outputs f of shape (N, C) or (N, …, C). It is left unchanged unless ``inplace=True``.
        data: a DataLoader, a Dataset, or (X, y).
        likelihood: a name or a likelihood. The noise variance of `Gaussian(σ²)` is held; that of
            `Gaussian("evidence")`, for which "gaussian" is short, is learnt, and the posterior's likelihood has it.
        structure: of the curvature, as in `laplace`: "kfac", "ekfac", "diagonal", "block" (by layer) or "full",
            which takes a module in float64 where noise and prior precisions become small.
        curvature: its kind, as in `laplace`.
        share_prior: which weights share a prior precision: "scalar", "layer", "tensor", "weight" or "feature".
        prior_precision: where the precisions start, in any form that `fit_map` takes.
        starts: several such, in place of ``prior_precision``: each is a run of its own, and the best one is returned.
        prior: whether they are learnt; with False they stay there, and the noise alone is.
        noise_variance: where the noise variance starts, if it is learnt; by default at the variance of the targets.
        weights: which weights are random; see `fit_map` for the others.
        inplace: whether the caller's own module is trained, and left in eval mode.
        options: of the training, as `TrainingOptions` describes them: ``epochs``, ``lr``, ``optimizer`` (``None`` for
            that of `fit_map` while the network learns first, and then "adam"), ``schedule``, ``batch_size``,
            ``validation`` (which then judges the weights in place of the evidence, by the log likelihood of the
            linearised predictive), ``checkpoint``, ``generator`` (which also seeds what the curvature draws) and
            ``progress``. A run that goes on to more epochs begins with the climb that the last epoch is spared. Several
            starts have a checkpoint each, under the name with "-1", "-2" and so on; what a network learns first has one
            under the name with "-first".
            And of the climbs: ``every``, the epochs between two; ``burn_in``, the epochs before the first one (with a
            number the network does not learn before these; ``None`` trains it until converged, as `fit_map` does with
            ``epochs=None`` and no schedule, and climbs after one epoch more); ``steps`` of each climb; ``step_size`` of
            Adam, in the logarithms, about the relative change of a hyperparameter in one step; and ``keep``, the
            weights to return: "best", of the highest evidence that was met, or "last". The highest may be met on the
            way, while weights have not caught up with a climb; the last are closest to a mode.
            ``output`` and ``classes_dim`` say which part of what the module returns is f: see `OutputChoice`.

    Returns:
        Laplace's posterior at the weights that are kept. ``.trace`` has lists of "loss", "nll" and "penalty", one entry
        an epoch, and of "judged" (after which epoch), "log_evidence", "prior_precision" (one number a group),
        "noise_variance" and "validation_nll", one entry a judgement.

    Raises:
        ConvergenceError: if the loss stops being a finite number.
        InputError: if the data do not fit the model or the likelihood, or no climb would take place.
        OptionError: if a name is unknown.
        UnsupportedError: if two arguments do not go together.

    Warns:
        ConvergenceWarning: if the weights are far from a mode under the prior that was learnt, or if the network
            predicts the same for every row.
    """
    chosen, climbs = picked(TrainingOptions, options), picked(Climbs, options)
    climbs.check(checks.count("epochs", chosen.epochs))
    check_structure(structure, STRUCTURES)
    inplace = checks.flag("inplace", inplace)
    model = with_output(model, options, inplace=inplace)
    prior, noise = checks.flag("prior", prior), leaves_noise_open(likelihood)
    names = tuple(name for name in resolve(likelihood).learnable if name != "noise_variance")
    _check_start_of_noise(noise_variance, learnt=noise)
    given = _starts(starts, prior_precision, inplace=inplace)
    likelihood = likelihood_of_rows(likelihood, data)
    curved = CurvatureOptions(curvature=curvature, structure=structure)
    best: tuple[EvidenceClimber, Outcome, LaplaceFit, Minibatches] | None = None
    for place, start in enumerate(given):
        file = _with_stem(chosen.checkpoint, f"-{place + 1}" if len(given) > 1 else "")
        run = replace(chosen, checkpoint=file)
        with prepared(run, model, data, likelihood, weights, inplace=inplace) as training:
            first = _starting(likelihood, noise_variance, training, noise=noise)
            climber = EvidenceClimber(
                LaplaceOptions(first, training.weights, curved=curved), data, training,
                network_prior(start, training.weights, training.module), share_prior, climbs, prior=prior, noise=noise,
                names=names,
            )  # fmt: skip
            if climbs.burn_in is None:
                _learn_first(training, data, first, start, weights)
            outcome = training.run(climber.objective, climber)
            if best is None or climber.score > best[0].score:
                module = own_copy(training.module) if inplace else training.module
                best = climber, outcome, climber.final(module), training.rows
    assert best is not None
    return _posterior(*best)


def _learn_first(
    training: Training, data: Data, likelihood: Likelihood, prior_precision: PriorPrecision, weights: Choice
) -> None:
    """Trains the network until converged, as `fit_map` does, under the hyperparameters to start from."""
    options = training.options
    with warnings.catch_warnings():
        # That it has not converged: the epochs to come go on from there.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit_map(
            training.module, data, likelihood=likelihood, prior_precision=prior_precision, weights=weights,
            inplace=True, lr=options.lr, optimizer=cast(Any, options.optimizer), batch_size=options.batch_size,
            checkpoint=_with_stem(options.checkpoint, "-first"), generator=training.order, progress=options.progress,
        )  # fmt: skip


def _posterior(climber: EvidenceClimber, outcome: Outcome, fit: LaplaceFit, rows: Minibatches) -> GaussianPosterior:
    """Laplace's posterior at the weights that are kept, with a warning where they are no mode or learnt nothing."""
    warn_if_constant(fit.function.module, fit.likelihood, rows.in_order, TELL)
    if fit.distance is not None:
        fit.distance.warn(GO_ON)
    return learnt_posterior(fit, climber.groups, {"training": outcome.summary()}, outcome.trace)


@final
class EvidenceClimber:
    """Climbs the evidence at the weights of the moment, and keeps the best ones' hyperparameters.

    Args:
        options: how curvatures are read.
        data: the training data.
        training: the module, its weights and the generator.
        start: the prior that it begins with.
        share_prior: which weights share a precision, as `PriorGroups.of` takes it.
        climbs: when and how far.
        prior: whether the precisions are climbed.
        noise: whether a Gaussian's noise variance is climbed too, where there is one.
        names: of other hyperparameters of the likelihood, which are fitted after each climb.

    Attributes:
        objective: of the training, under the present hyperparameters.
        groups: of weights that share a prior precision.

    Raises:
        OptionError: if a name is unknown.
        UnsupportedError: if the prior is not diagonal, the noise is one number for each output, or options do not go
            together.
    """

    def __init__(
        self,
        options: LaplaceOptions,
        data: Data,
        training: Training,
        start: Prior,
        share_prior: SharePrior,
        climbs: Climbs,
        *,
        prior: bool,
        noise: bool,
        names: tuple[str, ...] = (),
    ) -> None:
        if not isinstance(start.precision, Tensor):
            raise UnsupportedError("prior_precision: expected numbers to begin with, got a full precision.")
        self._options, self._data, self._training, self._climbs = options, data, training, climbs
        self._epochs, self._held_out = training.options.epochs or 0, training.held_out()
        if not prior and not noise and not names:
            raise UnsupportedError(
                "prior: expected True where there is no noise to be learnt, got False: nothing would be. Use fit_map."
            )
        # A few rows tell whether the options go together, before any training.
        with alone():
            few = options.fit(training.module, training.rows.few, start, gradient=False)
        trial = EvidenceOfModes([few], share_prior, noise=noise)
        (self.groups,), self._noise, self._mean = trial.groups, trial.noise, start.mean
        logs = trial.start()
        self._names, self._logs = names, len(logs)  # the names' own coordinates are the last ones
        self._point = torch.cat([logs, options.likelihood.unconstrained(names).to(logs)])
        self._climbed = torch.ones_like(logs)
        self._climbed[: len(self.groups)] = float(prior)
        self._adam = torch.optim.Adam([self._point], lr=climbs.step_size, maximize=True)
        self._best: tuple[float, Tensor] = (-math.inf, self._point.clone())
        self._spared = 0  # the last epoch, where a climb would have followed
        self.objective = NegativeLogJoint(
            training.module, training.weights, training.rows.rows, options.likelihood, self._at(self._point)[1]
        )

    @property
    def score(self) -> float:
        """Of the weights that are kept: the log evidence, or the log likelihood of the validation rows."""
        return self._best[0]

    def judge(self, epoch: int) -> Verdict:
        """The evidence under the hyperparameters that these weights were trained with, and then the climb.

        Under those, and not those that the climb is about to find, are the weights near a mode, where alone Laplace's
        expansion is what it claims to be.

        Raises:
            ConvergenceError: if the evidence is no finite number.
        """
        if not (self._climbs.after(epoch) or self._climbs.first <= epoch == self._epochs):
            return Verdict({})
        # Passes that differ, as random augmentation makes them, are refused when the first gradient is read.
        first = self._best[0] == -math.inf
        fit = self._fit(self._training.module, self._point, gradient=first)
        evidence = EvidenceOfModes([fit], self.groups.kind, noise=self._noise)
        value = float(same(evidence.value(self._point[: self._logs]).detach())[0])
        if not math.isfinite(value):
            raise ConvergenceError(
                f"log_evidence: expected a finite number, got {value} after epoch {epoch}. Take a smaller step_size."
            )
        entries: dict[str, Any] = {"judged": epoch, "log_evidence": value}
        entries["prior_precision"], score = self._point[: len(self.groups)].exp().tolist(), value
        if self._noise:
            entries["noise_variance"] = float(self._point[self._logs - 1].exp())
        entries |= {name: fit.likelihood.known(name).tolist() for name in self._names}
        if self._held_out is not None:
            entries["validation_nll"] = held_out_nll(fit, self._held_out)
            score = -entries["validation_nll"]
        better = self._climbs.keep == "last" or score > self._best[0]
        if better:
            self._best = score, self._point.clone()
        verdict = Verdict(entries, better)
        if epoch < self._epochs:
            self._climb(evidence, fit)
        elif self._climbs.after(epoch):
            self._spared = epoch
        return verdict

    def _climb(self, evidence: EvidenceOfModes, fit: LaplaceFit) -> None:
        for _ in range(self._climbs.steps):
            gradient = torch.zeros_like(self._point)
            gradient[: self._logs] = evidence.value_and_gradient(self._point[: self._logs])[1] * self._climbed
            self._point.grad = gradient
            self._adam.step()
        if self._names:
            rows = ((inputs, targets.flatten(0, 1)) for inputs, targets in self._training.rows.in_order())
            found = refitted(fit, rows, self._names).unconstrained(self._names)
            self._point.detach()[self._logs :] = found.to(self._point)
        self._point.detach().copy_(same(self._point.detach())[0])
        self.objective.move(*self._at(self._point))

    def facts(self) -> dict[str, Any]:
        """What a run that goes on has to have in common, but for the number of epochs."""
        climbs, options = self._climbs, self._options
        return {
            **vars(climbs),
            "curvature": options.curved.curvature,
            "structure": options.curved.structure,
            "share_prior": self.groups.kind,
            "climbed": self._climbed.tolist(),
            "noise": self._noise,
            "validation": None if self._held_out is None else self._held_out.fingerprint(),
        }

    def state(self) -> dict[str, Any]:
        """The present hyperparameters, the best ones and Adam's moments."""
        value, point = self._best
        return {
            "point": self._point.clone(), "adam": self._adam.state_dict(), "best": value, "best_point": point,
            "spared": self._spared,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from there, with the module as it was; the climb that is made up for comes first."""
        self._point.copy_(state["point"])
        self._adam.load_state_dict(state["adam"])
        self._best = state["best"], state["best_point"]
        self.objective.move(*self._at(self._point))
        if 0 < state["spared"] < self._epochs:
            fit = self._fit(self._training.module, self._point, gradient=False)
            self._climb(EvidenceOfModes([fit], self.groups.kind, noise=self._noise), fit)
        else:
            self._spared = state["spared"]

    def final(self, module: nn.Module) -> LaplaceFit:
        """The fit at the best hyperparameters and a module with the weights that belong to them.

        Args:
            module: nobody else's from now on.
        """
        fit = self._fit(module, self._best[1], gradient=True)
        return conditionable(replace(fit, learns_noise=self._noise), self._options)

    def _fit(self, module: nn.Module, point: Tensor, *, gradient: bool) -> LaplaceFit:
        likelihood, prior = self._at(point)
        options = replace(self._options, likelihood=likelihood)
        return options.fit(module, self._data, prior, generator=self._training.order, gradient=gradient)

    def _at(self, point: Tensor) -> tuple[Likelihood, Prior]:
        """The likelihood and the prior, of the logs of the prior precisions and the noise variance if it is climbed."""
        values, likelihood, size = point.exp(), self._options.likelihood, len(self.groups)
        if self._noise:
            likelihood = likelihood.with_noise_variance(values[size])
        likelihood = likelihood.at_unconstrained(self._names, point.detach()[self._logs :].cpu())
        return likelihood, Prior(self.groups.diagonal(values[:size]), self._mean)


def held_out_nll(fit: LaplaceFit, rows: Minibatches) -> float:
    """The sum of −log ∫ p(y∣f) q(f) df over rows that were not used for training, q(f) linearised at the fit's weights.

    Args:
        fit: Laplace's approximation.
        rows: with canonical targets.
    """
    outputs, total = fit.function.outputs, 0.0
    # Of many classes all integrals but this one draw or cost more than the fit.
    integral = fit.likelihood.integral("mackay" if outputs > 2 and fit.likelihood.discrete else None, outputs)
    q = fit.predicting()
    for inputs, targets in rows.in_order():
        latent = q.predict(inputs, integral=integral).latent
        total -= float(latent.log_prob(fit.likelihood, targets.flatten(0, 1)).sum())
    return row_totals(total)[0]


def _starts(starts: Sequence[Any] | None, prior_precision: PriorPrecision, *, inplace: bool) -> list[Any]:
    """The precisions to start from, one or several."""
    if starts is None:
        return [prior_precision]
    if not isinstance(starts, Sequence) or isinstance(starts, str) or not len(starts):
        raise InputError(f"starts: expected a list of prior precisions, got {starts!r}.")
    if inplace:
        raise UnsupportedError("inplace: expected False for several starts, which train several copies, got True.")
    return list(starts)


def _with_stem(checkpoint: str | Path | None, more: str) -> Path | None:
    """The file under a longer name."""
    return None if checkpoint is None else Path(checkpoint).with_stem(Path(checkpoint).stem + more)


def _starting(likelihood: Likelihood, noise_variance: float | None, training: Training, *, noise: bool) -> Likelihood:
    """The likelihood to begin with: hyperparameters to be learnt begin where the targets alone suggest."""
    if noise_variance is not None:
        return likelihood.with_noise_variance(noise_variance)
    if noise and likelihood.unweighted.noise_variance is not None:  # by the name alone it has a value
        likelihood = likelihood.with_noise_variance("evidence")
    return first_likelihood(likelihood, training.rows.targets)


def _check_start_of_noise(noise_variance: float | None, *, learnt: bool) -> None:
    if noise_variance is not None:
        checks.positive_number("noise_variance", noise_variance)
        if not learnt:
            raise UnsupportedError(
                "noise_variance: expected with a noise that is learnt, got a likelihood without one. Take "
                "likelihood=bs.Gaussian('evidence'), or leave noise_variance out."
            )
