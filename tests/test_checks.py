import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bayescope as bs
from bayescope import checks
from bayescope.errors import InputError, InputTypeError, MissingDependencyError, OptionError
from bayescope.module_copies import module_copy


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        np.asfortranarray(np.array([[1.0, 2.0], [3.0, 4.0]])),
        pd.DataFrame({"a": [1, 3], "b": [2.0, 4.0]}),
        torch.tensor([[1, 2], [3, 4]]),
    ],
)
def test_float64_accepts_what_holds_numbers(value):
    assert torch.equal(checks.float64("X", value), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))


def test_float64_does_not_copy_a_float64_array():
    array = np.zeros((3, 2))
    tensor = checks.float64("X", array)
    array[1, 1] = 5.0
    assert tensor[1, 1] == 5.0


def test_float64_leaves_read_only_arrays_alone():
    array = np.ones(3)
    array.setflags(write=False)
    assert checks.float64("X", array).sum() == 3.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_float64_names_the_first_bad_entry(bad):
    array = np.zeros((4, 3))
    array[2, 1] = bad
    with pytest.raises(InputError, match=r"X: expected finite numbers.*\[2, 1\]"):
        checks.float64("X", array)


def test_float64_knows_an_overflowing_sum_from_an_infinite_entry():
    assert checks.float64("X", np.full(4, 1e308)).shape == (4,)


@pytest.mark.parametrize("bad", [["a", "b"], np.array([1 + 2j]), [object()], torch.tensor([1j])])
def test_float64_refuses_what_holds_no_real_numbers(bad):
    with pytest.raises(InputTypeError, match="expected real numbers"):
        checks.float64("X", bad)


@pytest.mark.parametrize("bad", [0, -1.0, [1.0, 0.0], []])
def test_positive_refuses(bad):
    with pytest.raises(InputError, match="expected positive numbers"):
        checks.positive("prior_precision", bad)


@pytest.mark.parametrize("bad", [0, -3, 1.5, True, "4"])
def test_count_refuses(bad):
    with pytest.raises(InputError, match="whole number"):
        checks.count("draws", bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, 1.5, True, "a"])
def test_fraction_refuses(bad):
    with pytest.raises(InputError, match="between 0 and 1"):
        checks.fraction("level", bad)


def test_flag_knows_a_word_from_a_truth_value():
    assert checks.flag("standardize", np.True_) is True
    with pytest.raises(InputTypeError, match="expected True or False, got 'no'"):
        checks.flag("standardize", "no")


def test_choice_returns_or_lists():
    assert checks.choice("link", "logit", ("logit", "probit")) == "logit"
    with pytest.raises(OptionError, match="'logit', 'probit'"):
        checks.choice("link", "cloglog", ("logit", "probit"))


def test_generators_repeat_by_seed_differ_without_and_pass_through():
    own = torch.Generator()
    assert checks.generator(own) is own
    assert checks.seed_from(checks.generator(3)) == checks.seed_from(checks.generator(3))
    assert checks.seed_from(checks.generator(None)) != checks.seed_from(checks.generator(None))
    with pytest.raises(InputTypeError, match=r"torch\.Generator, an int or None"):
        checks.generator("seed")


def test_generators_of_a_gpu_are_refused():
    class OnGpu(torch.Generator):
        device = torch.device("cuda:0")

    with pytest.raises(InputError, match="on the CPU, got one on cuda:0"):
        checks.generator(OnGpu())


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), torch.tensor(2.0)])
def test_positive_number_of_any_scalar_type(value):
    found = checks.positive_number("t", value)
    assert (type(found), found) == (float, 2.0)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, np.True_, "2", [2.0], torch.ones(1), None])
def test_positive_number_refuses(bad):
    with pytest.raises(InputError, match="t: expected a positive number"):
        checks.positive_number("t", bad)


def test_a_missing_package_names_the_extra():
    with pytest.raises(MissingDependencyError, match=r"bayescope\[nuts\]"):
        checks.optional_package("a_package_that_is_not_there", extra="nuts")


def nested() -> nn.Module:
    """Containers that hold nothing but one another, as many as torch can just run."""
    module: nn.Module = nn.utils.skip_init(nn.Linear, 2, 1)
    for _ in range(sys.getrecursionlimit() // 5):
        module = nn.Sequential(module)
    return module


@pytest.mark.parametrize("fit", [bs.laplace, bs.fit_map, bs.variational, bs.mc_dropout, bs.nuts])
def test_layers_nested_too_deeply_are_told(fit):
    with pytest.raises(InputError, match="model: expected layers that are nested less deeply"):
        fit(nested(), (torch.ones(3, 2), torch.ones(3, 1)), likelihood="gaussian")


def test_a_copy_has_no_gradients_and_what_is_given_for_a_part():
    layer = nn.utils.skip_init(nn.Linear, 2, 1)
    layer.weight.grad = torch.zeros(1, 2)
    other = nn.Identity()
    copied = module_copy(nn.Sequential(layer, nn.Tanh()), {id(layer): other})
    assert copied[0] is other
    assert module_copy(layer).weight.grad is None
    assert layer.weight.grad is not None
