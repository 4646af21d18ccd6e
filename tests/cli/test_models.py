"""Models by name, and their parameters as typed."""

from pathlib import Path

import pytest

from bayescope.cli.models import MODELS, SET_BY_OPTIONS, build, value_of
from bayescope.errors import InputError
from bayescope_command.app import FitOptions


def options(**given):
    return FitOptions(table=Path("table.csv"), target="y", out=Path("y.bayes"), **given)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_model_is_built_with_its_seed_and_a_learnt_prior(model, task):
    parameters = build(options(model=model, seed=5), task).get_params()
    assert (parameters["random_state"], parameters["prior_precision"]) == (5, "evidence")
    assert parameters.get("standardize", True)
    assert parameters.get("progress", True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("1e-3", 1e-3),
        ("50,50", (50, 50)),
        ("(50, 50)", (50, 50)),
        ('{"age": "quantile"}', {"age": "quantile"}),
        ("true", True),
        ("None", None),
        ("quantile", "quantile"),
        ("a b", "a b"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_values_are_read_in_pythons_notation_and_never_run(text, value):
    assert value_of(text) == value


def test_parameters_may_hold_signs():
    given = ["numeric_transform={'a=b': 'quantile'}", "hidden=7"]
    parameters = build(options(given=given), "regression").get_params()
    assert parameters["numeric_transform"] == {"a=b": "quantile"}
    assert parameters["hidden"] == 7


@pytest.mark.parametrize("name", SET_BY_OPTIONS)
def test_what_has_an_option_is_set_by_that_alone(name):
    with pytest.raises(InputError, match="expected a parameter that no option sets"):
        build(options(given=[f"{name}=1"]), "regression")
