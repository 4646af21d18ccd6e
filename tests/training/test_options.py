"""The options of a training are the same keywords for every function, and are checked before anything is read."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from tests.training.toys import line, perceptron

OPTIONS = {field.name: field.default for field in fields(bs.TrainingOptions)}
# The options that a function does without, and the defaults that it has in place of those of `TrainingOptions`.
OTHERWISE: dict[str, tuple[set[str], dict[str, Any]]] = {
    "fit_map": (set(), {}),
    "ensemble": (set(), {}),
    "mc_dropout": (set(), {"optimizer": "adam"}),
    "variational": (set(), {"optimizer": "adam"}),
    "fit_evidence": ({"patience"}, {"epochs": 100}),
    "swag": ({"patience", "validation"}, {"epochs": 100, "optimizer": "sgd"}),
    "sgmcmc": ({"patience", "validation", "epochs", "optimizer", "schedule"}, {}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_signatures_list_the_options_with_their_defaults(name: str) -> None:
    without, defaults = OTHERWISE[name]
    parameters = inspect.signature(getattr(bs, name)).parameters
    expected = {option: default for option, default in (OPTIONS | defaults).items() if option not in without}
    assert {option: each.default for option, each in parameters.items() if option in OPTIONS} == expected
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_unknown_option_is_refused_by_the_name_of_the_function(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'epoch'"):
        getattr(bs, name)(perceptron(), line(4), likelihood="gaussian", epoch=3)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"epochs": -1}, InputError, "epochs: expected a whole number of at least 0"),
        ({"lr": 0.0}, InputError, "lr: expected positive"),
        ({"optimizer": "adm"}, OptionError, "Did you mean 'adam'"),
        ({"optimizer": lambda _: None, "lr": 0.1}, UnsupportedError, "lr: expected None for an optimizer of your own"),
        ({"optimizer": "lbfgs", "batch_size": 8}, UnsupportedError, "batch_size: expected None"),
        ({"schedule": "cosinus"}, OptionError, "Did you mean 'cosine'"),
        ({"batch_size": 2.5}, InputError, "batch_size: expected a whole number"),
        ({"patience": 3}, InputError, "patience: expected validation= to go with it"),
        ({"patience": 0, "validation": line(4)}, InputError, "patience: expected a whole number"),
        ({"generator": "0"}, InputTypeError, "generator: expected"),
        ({"progress": "no"}, InputTypeError, "progress: expected True or False"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        bs.TrainingOptions(**options)
