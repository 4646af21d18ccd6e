import math
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope import errors
from bayescope.linear import evidence, regression, variational_bound


def test_an_unknown_option_lists_the_supported_ones_and_the_closest():
    error = errors.OptionError.unknown("curvature", "gnn", ["ggn", "hessian"])
    assert "'ggn', 'hessian'" in str(error)
    assert "Did you mean 'ggn'?" in str(error)
    assert "Did you mean" not in str(errors.OptionError.unknown("curvature", "zzz", ["ggn", "hessian"]))


def test_a_name_in_another_case_or_another_word_is_known():
    assert "Did you mean 'ggn'?" in str(errors.OptionError.unknown("curvature", "GGN", ["ggn", "hessian"]))
    assert "Did you mean 'GGN'?" in str(errors.OptionError.unknown("curvature", "ggn", ["GGN", "Hessian"]))
    assert "Did you mean 'kfac'?" in str(errors.OptionError.unknown("structure", "x", ["full", "kfac"], meant="kfac"))
    assert "Did you mean" not in str(errors.OptionError.unknown("structure", "x", ["full"], meant="kfac"))


def test_errors_are_caught_where_users_expect_builtin_ones():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.InputTypeError, TypeError)
    assert issubclass(errors.MissingDependencyError, ImportError)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning):
            assert issubclass(kind, errors.BayescopeError), name


def test_not_positive_definite_carries_its_evidence_across_processes():
    error = errors.NotPositiveDefiniteError("bad", -1.5, torch.tensor([1.0, 0.0]))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "bad"
    assert again.smallest_eigenvalue == -1.5
    assert again.direction.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [errors.InputError, errors.OptionError, errors.UndefinedQuantityError])
def test_errors_pickle(kind):
    assert str(pickle.loads(pickle.dumps(kind("what")))) == "what"


X = np.linspace(-2.0, 2.0, 40)[:, None]
Y = (X[:, 0] + np.sin(9.0 * X[:, 0]) > 0).astype(int)


def logistic(**options: Any) -> Any:
    return bs.BayesianLogisticRegression(**options).fit(X, Y)


def short_variational(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(variational_bound, "USABLE", math.inf)
    patch.setattr(variational_bound, "_climb", lambda fit, *_: fit)
    return logistic(posterior="variational", prior_precision=1.0)


def two_peaks(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(torch.stack([-0.5 * (x - 5).square().sum(), -0.5 * (x + 5).square().sum()]), 0)


def off_by_a_little() -> Any:
    q = bs.density.laplace(lambda x: -0.5 * x.square().sum(), [0.5])
    return bs.density.kl(q, lambda x: -x.abs().sum())


WARNED: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a flat evidence": lambda patch: (
        patch.setattr(evidence, "BOUNDS", (0.5, 1e6)),
        logistic(prior_precision="evidence"),
    ),
    "a flat bound": lambda patch: (
        patch.setattr(evidence, "BOUNDS", (0.5, 1e6)),
        logistic(prior_precision="evidence", posterior="variational"),
    ),
    "an exact fit": lambda patch: (
        patch.setattr(regression, "NOISE_BOUNDS", (10.0, 100.0)),
        bs.BayesianLinearRegression().fit(X, X[:, 0]),
    ),
    "a bound not reached": short_variational,
    "a constant": lambda patch: bs.BayesianLinearRegression().fit(X, np.ones(len(X))),
    "missing modes": lambda patch: bs.density.laplace(two_peaks, [4.0], modes=3),
    "a divergence": lambda patch: off_by_a_little(),
}


@pytest.mark.parametrize("case", WARNED)
def test_warnings_are_at_the_line_of_the_caller(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        WARNED[case](monkeypatch)
    assert {Path(warning.filename).name for warning in told} == {Path(__file__).name}, [str(w.message) for w in told]
    assert {warning.category for warning in told} <= {errors.ConvergenceWarning, errors.BayescopeWarning}


@pytest.mark.parametrize("passed_on", [False, True])
def test_recorded_warnings_are_ours_each_once_and_those_of_others_go_on(passed_on: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with errors.recorded_warnings(passed_on=passed_on) as recorded:
            for message in ("second", "first", "second"):
                errors.warn(message, errors.ConvergenceWarning)
            warnings.warn("theirs", RuntimeWarning, stacklevel=1)
            assert recorded == []  # the list is there when the block ends
    assert recorded == ["second", "first"]
    ours = ["second", "first", "second"] if passed_on else []
    assert [str(warning.message) for warning in told] == [*ours, "theirs"]
    assert {Path(warning.filename).name for warning in told} == {Path(__file__).name}


def test_a_filter_of_the_caller_does_not_empty_the_record() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with errors.recorded_warnings(passed_on=True) as recorded:
            errors.warn("kept", errors.BayescopeWarning)
    assert recorded == ["kept"]
