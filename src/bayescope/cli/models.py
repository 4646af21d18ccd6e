"""What `bayescope fit` was asked for, and the estimator that this makes, which checks its options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from bayescope import checks, estimators
from bayescope.cli.target import Task
from bayescope.cli.training_table import Roles
from bayescope.errors import InputError, OptionError, UnsupportedError

MODELS: Mapping[str, Mapping[Task, str]] = {
    "additive": {"classification": "NeuralAdditiveClassifier", "regression": "NeuralAdditiveRegressor"},
    "linear": {"classification": "BayesianLogisticRegression", "regression": "BayesianLinearRegression"},
    "mlp": {"classification": "BayesianMLPClassifier", "regression": "BayesianMLPRegressor"},
}
# What the command line sets by options of its own.
OWN = {
    "random_state": "--seed",
    "categorical": "--categorical",
    "progress": "the terminal: it shows a bar, a pipe none",
    "checkpoint": "--out and --resume",
}
WORDS = {"true": True, "false": False, "none": None}


@final
@dataclass(frozen=True)
class FitSettings:
    """The options of the command, as typed; ``None`` leaves an option to the estimator.

    Attributes:
        roles: of the columns.
        task: "auto", "classification" or "regression".
        model: "additive", "linear" or "mlp".
        posterior: the approximation.
        prior_precision: a number, "evidence", or Python's notation of what else the estimator takes.
        interactions: of an additive model: how many pairs, or "auto".
        given: parameters of the estimator as name=value.
        seed: of everything random.
        missing: further spellings of a missing value.
        test_size: the share of the rows that are held out for scores; 0 for none.
        refit: whether the model that is saved is fitted to all rows, those held out among them.
        resume: whether to go on from the checkpoint of an interrupted fit.
        as_json: whether to answer in JSON.
        stream: whether to read the table a block of rows at a time; ``None`` for what its size asks for.
    """

    roles: Roles
    task: str = "auto"
    model: str = "additive"
    posterior: str | None = None
    prior_precision: str | None = None
    interactions: str | None = None
    given: Sequence[str] = ()
    seed: int = 0
    missing: Sequence[str] = ()
    test_size: float = 0.2
    refit: bool = True
    resume: bool = False
    as_json: bool = False
    stream: bool | None = None


def build(settings: FitSettings, task: Task, categorical: Sequence[str] = ()) -> Any:
    """The estimator, not fitted.

    Args:
        settings: of the command.
        task: what it is to do.
        categorical: columns of numbers that are labels.

    Raises:
        OptionError: if there is no such model or parameter.
        UnsupportedError: if an option is none of this estimator's.
        InputError: if a parameter is no name=value, or the command line sets it by another option.
    """
    kind: Any = getattr(estimators, MODELS[checks.choice("--model", settings.model, MODELS)][task])
    known = inspect.signature(kind).parameters
    chosen: dict[str, Any] = {"random_state": settings.seed, "categorical": list(categorical) or None}
    if "progress" in known:
        chosen["progress"] = True
    for name in ("posterior", "prior_precision", "interactions"):
        text = getattr(settings, name)
        if text is not None:
            if name not in known:
                raise UnsupportedError(_not_its_own(name, kind.__name__, settings.model))
            chosen[name] = text if name == "posterior" else value_of(text)
    for text in settings.given:
        name, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"--set: expected name=value, got {text!r}. Write for example --set hidden=16.")
        if name in OWN:
            raise InputError(
                f"--set: expected a parameter that no option sets, got {name!r}. It is set by {OWN[name]}."
            )
        if name not in known:
            raise OptionError.unknown(f"--set, a parameter of {kind.__name__}", name, sorted(known.keys() - OWN.keys()))
        chosen[name] = value_of(value)
    return kind(**chosen)


def value_of(text: str) -> Any:
    """A value in Python's notation: 16, 1e-3, (50, 50), {"age": "quantile"}, true, none; anything else is text."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _not_its_own(name: str, kind: str, model: str) -> str:
    option = f"--{name.replace('_', '-')}"
    if name == "posterior":
        return f"{option}: expected none for {kind}, whose posterior is exact. Leave it out."
    return f"{option}: expected none for --model {model}; it is for --model additive. Leave it out."
