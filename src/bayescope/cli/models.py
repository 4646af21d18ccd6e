"""What `bayescope fit` was asked for, and the estimator that this makes, which checks its options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from bayescope import checks, estimators
from bayescope.cli.target import Task
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope_command.app import FitOptions

MODELS: Mapping[str, Mapping[Task, str]] = {
    "additive": {"classification": "NeuralAdditiveClassifier", "regression": "NeuralAdditiveRegressor"},
    "linear": {"classification": "BayesianLogisticRegression", "regression": "BayesianLinearRegression"},
    "mlp": {"classification": "BayesianMLPClassifier", "regression": "BayesianMLPRegressor"},
}
# What the command line sets by options of its own.
SET_BY_OPTIONS = {
    "random_state": "--seed",
    "categorical": "--categorical",
    "progress": "the terminal: it shows a bar, a pipe none",
    "checkpoint": "--out and --resume",
}
WORDS = {"true": True, "false": False, "none": None}


def build(options: FitOptions, task: Task, categorical: Sequence[str] = ()) -> Any:
    """The estimator, not fitted.

    Args:
        options: of the command.
        task: what it is to do.
        categorical: columns of numbers that are labels.

    Raises:
        OptionError: if there is no such model or parameter.
        UnsupportedError: if an option is not one of this estimator's.
        InputError: if a parameter is no name=value, or the command line sets it by another option.
    """
    kind: Any = getattr(estimators, MODELS[checks.choice("--model", options.model, MODELS)][task])
    known = inspect.signature(kind).parameters
    chosen: dict[str, Any] = {"random_state": options.seed, "categorical": list(categorical) or None}
    if "progress" in known:
        chosen["progress"] = True
    for name in ("posterior", "prior_precision", "interactions"):
        text = getattr(options, name)
        if text is not None:
            if name not in known:
                raise UnsupportedError(_not_taken(name, kind.__name__, options.model))
            chosen[name] = text if name == "posterior" else value_of(text)
    for text in options.given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"--set: expected name=value, got {text!r}. Write for example --set hidden=16.")
        if name in SET_BY_OPTIONS:
            raise InputError(
                f"--set: expected a parameter that no option sets, got {name!r}. It is set by {SET_BY_OPTIONS[name]}."
            )
        if name not in known:
            raise OptionError.unknown(
                f"--set, a parameter of {kind.__name__}", name, sorted(known.keys() - SET_BY_OPTIONS.keys())
            )
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


def _not_taken(name: str, kind: str, model: str) -> str:
    option = f"--{name.replace('_', '-')}"
    if name == "posterior":
        return f"{option}: expected none for {kind}, whose posterior is exact. Leave it out."
    return f"{option}: expected none for --model {model}; it is for --model additive. Leave it out."
