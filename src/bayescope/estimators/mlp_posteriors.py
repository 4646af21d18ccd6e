"""Each posterior of a network by its name: the function of the library, and how it is called for a table."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, final

from torch import Tensor, nn

from bayescope import checks
from bayescope.dropout.mc_dropout import mc_dropout
from bayescope.ensembles.ensemble import ensemble
from bayescope.errors import ConvergenceWarning, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators.mlp_learning import TrainingPace
from bayescope.gaussian_process.function_space import function_space
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Likelihood
from bayescope.network.weights import Choice, Weights, by_variance
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.sampling.nuts import nuts
from bayescope.sampling.sgmcmc import sgmcmc
from bayescope.sampling.swag import swag
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

PosteriorName: TypeAlias = Literal[
    "map", "laplace", "last_layer", "function_space", "variational", "mc_dropout", "ensemble", "swag", "sgmcmc", "nuts"
]

# What the estimators say themselves; the rest is for posterior_options.
_OWN = (
    "model", "make_model", "data", "likelihood", "prior_precision", "generator", "progress", "checkpoint", "inplace",
    "members", "rate", "draws", "output", "classes_dim",
)  # fmt: skip
# Draws of the weights that a prediction averages over.
DRAWS = 200
# The weight of KL(q∥p) for independent weights. At the bound's own maximum, weight 1, a network of thousands of weights
# is nearly linear on some hundred rows. Test accuracy at 300 rows, weight 1 and 0.1: moons 0.91 and 0.97, exclusive or
# 0.93 and 0.94, spirals 0.60 and 0.99.
KL_WEIGHT = 0.1


@final
@dataclass(frozen=True, eq=False)
class Setting:
    """What a posterior is found from.

    Attributes:
        network: with outputs in the targets' unit; belongs to nobody else. It is trained if the posterior needs it
            trained, or if something of the prior or the noise was learnt.
        make: another network to begin with, by its seed.
        data: inputs and targets, or a loader of such.
        likelihood: p(y∣f).
        precisions: of the prior, by layer.
        schedule: how networks are trained.
        members: of an ensemble.
        rate: of dropout.
        draws: of the weights, that were asked for.
        seed: of everything.
        checkpoint: where a training is saved to.
        progress: whether a bar is drawn.
        noise: the noise variance of standardised targets, 1 for classes: steps along plain gradients are scaled by it.
    """

    network: nn.Sequential
    make: Callable[[int], nn.Sequential]
    data: Any
    likelihood: Likelihood
    precisions: Mapping[str, float]
    schedule: TrainingPace
    members: Any
    rate: Any
    draws: int | None
    seed: int
    checkpoint: Path | None
    progress: bool
    noise: float

    def rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A pass over the rows, with canonical targets."""
        for inputs, targets in [self.data] if isinstance(self.data, tuple) else self.data:
            yield inputs, targets.reshape(len(inputs), 1, *targets.shape[1:])


@final
@dataclass(frozen=True)
class Kind:
    """A posterior.

    Attributes:
        infer: the function of the library.
        options: those that it is called with, unless the caller says otherwise.
        model: what it is given: the network, or a list of several.
        trains: whether it trains a network, and can go on from a checkpoint.
        from_trained: whether it begins at a trained network even if no hyperparameter has to be learnt.
        sampled: whether predictions draw weights, as many as are asked for.
        drawn: whether it is made of draws, as many as are asked for.
        streams: whether it is found from rows that are read in batches.
    """

    infer: Callable[..., Posterior]
    options: Callable[[Setting], dict[str, Any]] = lambda _: {}
    model: Callable[[Setting], Any] = lambda setting: setting.network
    trains: bool = True
    from_trained: bool = False
    sampled: bool = False
    drawn: bool = False
    streams: bool = True

    @property
    def expands(self) -> bool:
        """Whether it is an expansion at the trained network, which stays unchanged."""
        return self.from_trained and not self.trains and not self.drawn

    def supported(self) -> list[str]:
        """The names of the options that a caller may give."""
        return [name for name in inspect.signature(self.infer).parameters if name not in _OWN]


def _several(setting: Setting) -> list[nn.Sequential]:
    others = range(1, checks.count("members", setting.members))
    return [setting.network, *(setting.make(setting.seed + member) for member in others)]


def _last_layer(setting: Setting) -> dict[str, Any]:
    name = list(setting.precisions)[-1]
    return {"weights": f"{name}.*", "prior_precision": setting.precisions[name]}


def _gradient_steps(setting: Setting, **options: Any) -> dict[str, Any]:
    """Steps along plain gradients, whose size is scaled by the noise."""
    return {"lr": 1e-2 * setting.noise, "batch_size": setting.schedule.batch_size, **options}


POSTERIORS: dict[str, Kind] = {
    "map": Kind(fit_map, lambda setting: setting.schedule.last),
    "laplace": Kind(laplace, trains=False, from_trained=True),
    "last_layer": Kind(laplace, _last_layer, trains=False, from_trained=True),
    "function_space": Kind(function_space, trains=False, from_trained=True, streams=False),
    "variational": Kind(
        variational, lambda setting: {**setting.schedule.options, "kl_weight": KL_WEIGHT}, sampled=True
    ),
    "mc_dropout": Kind(
        mc_dropout,
        lambda setting: {**setting.schedule.options, "rate": setting.rate, "before": "hidden"},
        sampled=True,
    ),
    "ensemble": Kind(ensemble, lambda setting: setting.schedule.options, _several),
    "swag": Kind(swag, lambda setting: _gradient_steps(setting, epochs=40, burn_in=0), from_trained=True, sampled=True),
    "sgmcmc": Kind(
        sgmcmc,
        lambda setting: _gradient_steps(setting, draws=DRAWS if setting.draws is None else setting.draws),
        from_trained=True,
        drawn=True,
        streams=False,
    ),
    "nuts": Kind(
        nuts,
        lambda setting: {} if setting.draws is None else {"draws": setting.draws},
        trains=False,
        from_trained=True,
        drawn=True,
        streams=False,
    ),
}


def chosen(
    posterior: PosteriorName, options: Mapping[str, Any] | None, draws: int | None
) -> tuple[Kind, dict[str, Any]]:
    """The posterior of a name, and the options for it.

    Raises:
        OptionError: if the posterior, or an option, is unknown.
        InputTypeError: if the options are no dictionary.
        UnsupportedError: if draws are asked for where there are none, or weights where they are the last layer's.
    """
    kind = POSTERIORS[checks.choice("posterior", posterior, POSTERIORS)]
    if options is not None and not isinstance(options, Mapping):
        raise InputTypeError(f"posterior_options: expected a dictionary or None, got {options!r}.")
    given = dict(options or {})
    for name in given:
        if name not in (supported := kind.supported()):
            raise OptionError.unknown("posterior_options", name, supported)
    if posterior == "last_layer" and "weights" in given:
        raise UnsupportedError(
            f"posterior_options: expected no weights for posterior='last_layer', which are the last layer's, got "
            f"{given['weights']!r}. Take posterior='laplace'."
        )
    if draws is not None:
        checks.count("draws", draws)
        if not (kind.drawn or kind.sampled):
            drawing = ", ".join(repr(name) for name, each in POSTERIORS.items() if each.drawn or each.sampled)
            raise UnsupportedError(
                f"draws: expected None for posterior={posterior!r}, which draws no weights, got {draws!r}. It is for "
                f"{drawing}."
            )
    return kind, given


def _precisions(setting: Setting, weights: Choice) -> dict[str, float]:
    """The prior precisions of those layers that have a random weight.

    Raises:
        UnsupportedError: if the weights are found by the fit itself, which cannot tell beforehand whose they are.
        BayescopeError: if the weights are not the network's.
    """
    if by_variance(weights):
        raise UnsupportedError(
            "posterior_options: expected weights that are known before the fit, as the prior has a precision for each "
            "of their layers, got largest_variance. Take largest_magnitude, names or a mask."
        )
    *_, last = setting.precisions
    random = Weights.select(setting.network, weights, lambda: [f"{last}.weight", f"{last}.bias"]).names
    return {
        layer: precision
        for layer, precision in setting.precisions.items()
        if any(name.startswith(f"{layer}.") for name in random)
    }


def infer(kind: Kind, setting: Setting, given: Mapping[str, Any]) -> Posterior:
    """The posterior, with the likelihood of a row that counts once.

    Args:
        kind: the entry in `POSTERIORS`.
        setting: what it is found from.
        given: the caller's options.

    Raises:
        BayescopeError: what the function of the library raises.
    """
    options = {"prior_precision": _precisions(setting, given.get("weights", "all")), **kind.options(setting)}
    if kind.trains:
        options["checkpoint"] = setting.checkpoint
    call = {
        **options, "likelihood": setting.likelihood, "generator": setting.seed, "progress": setting.progress, **given,
    }  # fmt: skip
    with warnings.catch_warnings():
        if kind.expands:
            # At what distance from the mode the network is: the summary says so.
            warnings.simplefilter("ignore", ConvergenceWarning)
        q = kind.infer(kind.model(setting), setting.data, **call)
    plain = setting.likelihood.unweighted
    if plain is setting.likelihood:
        return q
    # Weights are for the fit: rows to come count once, also those of `condition`.
    gaussian = {"infer": None} if isinstance(q, GaussianPosterior) else {}
    return replace(cast(Any, q), likelihood=plain, **gaussian)
