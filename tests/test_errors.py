import pickle

import pytest
import torch

from bayescope import errors


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
