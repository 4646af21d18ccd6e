"""What `fit` and `compare` were asked for, and the estimator that this makes, which checks its options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from bayescope import checks, estimators
from bayescope.cli.target import BINOMIAL, ORDERED, Task
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.likelihoods import NumberLikelihoodName
from bayescope_command.app import CompareOptions, FitOptions

MODELS: Mapping[str, Mapping[Task, str]] = {
    "additive": {"classification": "NeuralAdditiveClassifier", "regression": "NeuralAdditiveRegressor"},
    "linear": {"classification": "BayesianLogisticRegression", "regression": "BayesianLinearRegression"},
    "mlp": {"classification": "BayesianMLPClassifier", "regression": "BayesianMLPRegressor"},
}
# With --likelihood, in the place of the model that is Gaussian.
GENERALIZED = {"BayesianLinearRegression": "BayesianGeneralizedLinearModel"}
# The values of --likelihood.
LIKELIHOODS = (*get_args(NumberLikelihoodName), *ORDERED)
# What the command line sets by options of its own.
SET_BY_OPTIONS = {
    "likelihood": "--likelihood",
    "random_state": "--seed",
    "categorical": "--categorical",
    "progress": "the terminal: it shows a bar, a pipe none",
    "checkpoint": "--out and --resume",
}
WORDS = {"true": True, "false": False, "none": None}


def build(options: FitOptions | CompareOptions, task: Task, categorical: Sequence[str] = ()) -> Any:
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
    added = [role for role in ("offset", "exposure") if getattr(options, role, None) is not None]
    kind = _kind_of(options, task, plain=options.likelihood is None and not added)
    known = inspect.signature(kind).parameters
    strange = [role for role in added if role not in inspect.signature(kind.fit).parameters]
    if strange:
        raise UnsupportedError(f"--{strange[0]}: expected none for {kind.__name__}, which takes none. Leave it out.")
    chosen: dict[str, Any] = {"random_state": options.seed, "categorical": list(categorical) or None}
    if "progress" in known:
        chosen["progress"] = True
    for name in ("likelihood", "posterior", "prior_precision", "interactions", "link", "features"):
        text = getattr(options, name, None)
        if text is not None:
            if name not in known:
                raise UnsupportedError(_not_taken(name, kind.__name__))
            chosen[name] = value_of(text) if name in ("prior_precision", "interactions") else text
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


def _kind_of(options: FitOptions | CompareOptions, task: Task, *, plain: bool) -> Any:
    """The class of the estimator: for a likelihood of ordered classes that of a regression, which then classifies."""
    model = checks.choice("--model", options.model, MODELS)
    name = MODELS[model]["regression" if options.likelihood in ORDERED else task]
    return getattr(estimators, name if plain else GENERALIZED.get(name, name))


def task_of(options: FitOptions | CompareOptions) -> str:
    """The task that the options name: with a likelihood that of its outcomes, unless ``--task`` says otherwise.

    Raises:
        OptionError: if there is no such likelihood.
        InputError: if one of --trials and --likelihood binomial is there without the other.
        UnsupportedError: if trials are to be compared.
    """
    if options.likelihood == BINOMIAL and isinstance(options, CompareOptions):
        raise UnsupportedError(
            "--likelihood: expected one of a single column for compare, got 'binomial', whose target has two. Fit each "
            "model, and compare the log evidence."
        )
    trials = getattr(options, "trials", None)
    if options.likelihood == BINOMIAL and trials is None:
        raise InputError(
            "--trials: expected the column with the number of trials of each row for --likelihood binomial, got none. "
            "Name it."
        )
    if options.likelihood != BINOMIAL and trials is not None:
        raise InputError(
            f"--trials: expected none without --likelihood binomial, got {trials!r}. Leave it out, or add that."
        )
    if options.likelihood is None:
        return options.task
    checks.choice("--likelihood", options.likelihood, LIKELIHOODS)
    if options.task != "auto":
        return options.task
    return "classification" if options.likelihood in ORDERED else "regression"


def value_of(text: str) -> Any:
    """A value in Python's notation: 16, 1e-3, (50, 50), {"age": "quantile"}, true, none; anything else is text."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _not_taken(name: str, kind: str) -> str:
    option = f"--{name.replace('_', '-')}"
    if name == "likelihood":
        return f"{option}: expected none for {kind}, which predicts classes. Leave it out, or give --task regression."
    takes = {"interactions": "--model additive", "link": "--model linear and classes"}.get(name, "--model linear")
    return f"{option}: expected none for {kind}; it is for {takes}. Leave it out."
