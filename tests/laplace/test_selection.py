"""`select`: the ranking is that of the evidences, and what cannot be ranked is told."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from bayescope import laplace
from bayescope.errors import BayescopeWarning, ConvergenceWarning, InputError, InputTypeError, UndefinedQuantityError
from bayescope.laplace import Selection, select, tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.posterior import GaussianPosterior, PointPosterior, Record
from bayescope.precision import DiagonalPrecision
from tests.laplace.problems import DTYPE, mlp, normal, nothing_written, penalty, seeded, train

X = normal(50, 1, seed=1)
Y = (2 * X).sin() + 0.2 * normal(50, 1, seed=2)


@functools.lru_cache
def _trained(hidden: int) -> nn.Module:
    module = mlp(inputs=1, hidden=hidden) if hidden else seeded(lambda: nn.Linear(1, 1))
    train(module, lambda: 12.5 * (module(X) - Y).square().sum() + penalty(module, 0.5))
    return module


def trained(hidden: int) -> nn.Module:
    return copy.deepcopy(_trained(hidden))


def posterior(hidden: int = 3, *, x: Any = X, y: Any = Y, **options: Any) -> Any:
    options = {"likelihood": Gaussian(0.04), "prior_precision": 0.5, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return laplace(trained(hidden), (x, y), **options)


def quiet(models: Any, data: Any = None, **options: Any) -> Selection:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return select(models, data, **options)


def test_modules_are_ranked_by_their_tuned_evidence() -> None:
    models = {"line": trained(0), "narrow": trained(1), "wide": trained(6)}
    with nothing_written(models["wide"]):
        selection = quiet(models, (X, Y), likelihood=Gaussian("evidence"), structure="full")
    assert selection.names[0] == "wide"  # a line and one hidden unit cannot follow the sine
    assert selection.names[-1] == "line"
    for name, module in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayescopeWarning)
            q = tune_prior(laplace(module, (X, Y), likelihood="gaussian", structure="full"))
        assert selection.log_evidences[name] == pytest.approx(float(q.log_evidence()), abs=1e-6)
    assert list(selection.log_evidences.values()) == sorted(selection.log_evidences.values(), reverse=True)
    assert selection.best is selection["wide"] is selection.posteriors["wide"]
    assert len(selection) == 3


def test_occams_razor_prefers_the_model_that_the_data_need() -> None:
    x = normal(60, 1, seed=3)
    line = 1.5 * x - 0.5 + 0.3 * normal(60, 1, seed=4)
    simple, flexible = seeded(lambda: nn.Linear(1, 1)), mlp(inputs=1, hidden=10)
    for module in (simple, flexible):
        train(module, lambda at=module: (at(x) - line).square().sum() / 0.18 + penalty(at, 0.3))
    selection = quiet({"a line": simple, "a curve": flexible}, (x, line), likelihood=Gaussian(0.09), structure="full")
    assert selection.names[0] == "a line"
    fits = {name: q.fit.curvature.log_likelihood for name, q in selection.posteriors.items()}  # type: ignore[union-attr]
    assert fits["a curve"] > fits["a line"]  # which fits worse


def test_posteriors_are_taken_as_they_are() -> None:
    models = {"three": posterior(3), "six": posterior(6)}
    selection = select(models)
    assert selection.log_evidences == {name: float(models[name].log_evidence()) for name in selection.names}
    assert selection["three"] is models["three"]
    in_order = select(list(models.values()))
    assert set(in_order.names) == {"model 0", "model 1"}
    bare = GaussianPosterior(
        torch.zeros(2, dtype=DTYPE),
        DiagonalPrecision(torch.ones(2, dtype=DTYPE)),
        Record("laplace", evidence=torch.tensor(-3.0, dtype=DTYPE)),
    )
    assert select({"bare": bare, **models}).log_evidences["bare"] == -3.0
    mixed = laplace([trained(3), trained(3)], (X, Y), likelihood=Gaussian(0.04), prior_precision=0.5)
    assert select([mixed]).log_evidences["model 0"] == pytest.approx(float(mixed.log_evidence()))


def test_the_table_has_what_a_reader_asks_for() -> None:
    models = {"three": posterior(3), "six": posterior(6)}
    selection = select(models)
    table = selection.table
    assert list(table.index) == list(selection.names)
    for name, q in models.items():
        row = table.loc[name]
        assert row["log_evidence"] == float(q.log_evidence())
        assert row["log_likelihood"] == pytest.approx(float(q.fit.curvature.log_likelihood))
        assert row["parameters"] == q.mean.shape[0]
        assert row["effective_parameters"] == pytest.approx(float(q.fit.effective_parameters()))
        assert row["newton_decrement"] == pytest.approx(float(q.fit.newton_decrement()))
    gap = table["log_evidence"].iloc[0] - table["log_evidence"].iloc[1]
    assert table["behind"].tolist() == pytest.approx([0.0, gap])
    assert table["probability"].iloc[0] == pytest.approx(1.0 / (1.0 + math.exp(-gap)))
    lines = selection.summary().splitlines()
    assert lines[0] == "Selection among 2 models by their evidence"
    assert len({len(line) for line in lines[1:]}) == 1
    assert f"{table['log_evidence'].iloc[0]:.2f}" in lines[2]
    assert repr(selection) == selection.summary()


def test_the_result_is_frozen() -> None:
    selection = select([posterior()])
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.posteriors = {}  # type: ignore[misc]
    table = selection.table
    table.loc["model 0", "log_evidence"] = 7.0
    selection.log_evidences["model 0"] = 7.0
    assert selection.log_evidences["model 0"] != 7.0
    assert selection.table.loc["model 0", "log_evidence"] != 7.0


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"y": Y + 1.0}, "different data, or data preprocessed in other ways"),
        ({"x": 2.0 * X}, "different data, or data preprocessed in other ways"),
        ({"x": X[:-1], "y": Y[:-1]}, r"different numbers of rows \(a: 50, b: 49\)"),
        ({"weights": "last_layer"}, r"different choices of random weights \(a: all, b: 4 of 10 in 2.weight, 2.bias\)"),
        ({"weights": "*.weight"}, "different choices of random weights"),
        ({"temperature": 0.5}, r"different temperatures \(a: 1, b: 0.5\)"),
        ({"structure": "full"}, r"different approximations \(a: ggn kfac, b: ggn full\)"),
        ({"y": (Y > 0).long(), "likelihood": "bernoulli"}, r"different .*likelihoods \(a: gaussian, b: bernoulli\)"),
    ],
)
def test_evidences_that_do_not_compare_are_told(other: dict[str, Any], said: str) -> None:
    with pytest.warns(BayescopeWarning, match=f"select: expected evidences of one set of data, .*{said}"):
        select({"a": posterior(), "b": posterior(**other)})


def test_the_same_rows_in_another_order_compare() -> None:
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    select([posterior(), posterior(x=X[order], y=Y[order]), posterior(6, batch_size=7)])


def test_subsets_of_all_models_compare_where_they_are_the_same() -> None:
    select([posterior(weights="last_layer"), posterior(weights="last_layer", prior_precision=0.1)])


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(InputTypeError, match="models: expected a dict by name or a list"):
        select(trained(3), (X, Y), likelihood="gaussian")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="models: expected at least one model"):
        select([])
    with pytest.raises(InputTypeError, match="expected trained modules or posteriors, got str under 'a'"):
        select({"a": "resnet"})
    with pytest.raises(InputError, match=r"data: expected what the modules were trained with, for \['model 0'\]"):
        select([trained(3)], likelihood="gaussian")
    with pytest.raises(InputError, match="likelihood: expected what the modules were trained with"):
        select([trained(3)], (X, Y))
    with pytest.raises(InputError, match="data: expected with modules alone"):
        select([posterior()], (X, Y))
    with pytest.raises(UndefinedQuantityError, match="log_evidence: a posterior by map does not define it"):
        select([PointPosterior(torch.zeros(2, dtype=DTYPE), Record("map"))])


@pytest.mark.parametrize(
    "option", [{"weights": "last_layer"}, {"structure": "full"}, {"prior_precision": 7.0}, {"batch_size": 3}]
)
def test_options_of_modules_are_not_ignored_beside_posteriors(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(option))}: expected with modules alone"):
        select([posterior(), posterior(1)], **option)


def test_the_evidence_of_new_data_given_old_is_another_one() -> None:
    first = posterior(x=X[:25], y=Y[:25])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        given, afresh = first.condition((X[25:], Y[25:])), posterior(x=X[25:], y=Y[25:])
    with pytest.warns(BayescopeWarning, match="priors .*a posterior of earlier data"):
        select({"given": given, "afresh": afresh})


def test_the_signature_lists_the_options_of_the_curvature_and_an_unknown_one_is_refused_by_its_name() -> None:
    assert inspect.signature(select).parameters["structure"].default == "kfac"
    with pytest.raises(TypeError, match=r"select\(\) got an unexpected keyword argument 'structur'"):
        select([posterior(), posterior()], structur="full")
    assert len(select([posterior(), posterior()], structure="kfac")) == 2  # the default
