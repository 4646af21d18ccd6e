"""Prior precisions of a network, by number, weight and name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.network import Weights, network_prior, prior_diagonal
from bayescope.precision import DensePrecision
from bayescope.priors import Prior


def weights(choice: Any = "all") -> Weights:
    with torch.random.fork_rng(devices=[]):
        body = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        return Weights.select(nn.ModuleDict({"body": body, "head": nn.Linear(1, 2)}), choice)


ORDER = ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias"]


def spread(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor([6, 3, 3, 1, 2, 2]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (dict(zip(ORDER, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], strict=True)), [1, 2, 3, 4, 5, 6]),
        ({"*.weight": 1.0, "*.bias": 2}, [1, 2, 1, 2, 1, 2]),
        ({"body": 1.0, "head": 2.0}, [1, 1, 1, 1, 2, 2]),
        ({"body.0": 1.0, "body.2": torch.tensor(3.0), "head.*": 2.0}, [1, 1, 3, 3, 2, 2]),
        ({"*": 7.0}, [7] * 6),
    ],
)
def test_names_globs_and_modules(given: dict[str, Any], expected: list[float]) -> None:
    assert torch.equal(prior_diagonal(given, weights()), spread(expected))
    assert torch.equal(network_prior(given, weights()).diagonal(17), spread(expected))


def test_numbers_and_arrays() -> None:
    assert prior_diagonal(2, weights()) == 2.0
    each = torch.rand(17, generator=torch.Generator().manual_seed(0)) + 0.1
    assert torch.equal(prior_diagonal(each.numpy(), weights()), each.double())
    prior = Prior(DensePrecision(torch.eye(17)), 0.3)
    assert network_prior(prior, weights()) is prior


def test_masked_weights_have_no_entry() -> None:
    mask = torch.zeros(17, dtype=torch.bool)
    mask[[0, 1, 6, 15]] = True
    some = weights(mask)
    found = prior_diagonal({"*.weight": 1.0, "*.bias": 2.0}, some)
    assert found.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_tensors_stay_in_their_graph() -> None:
    value = torch.tensor(2.0, requires_grad=True)
    prior_diagonal({"*.weight": value, "*.bias": 1.0}, weights()).sum().backward()
    assert value.grad == 11.0


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [
        (OptionError, "'body.0.weight'", {"boddy": 1.0}),
        (InputError, "Name each parameter once", {"body": 1.0, "*.bias": 1.0, "head.weight": 1.0}),
        (InputError, r"none for \['head.weight', 'head.bias'\]", {"body": 1.0}),
        (InputError, "expected one number", {"*": [1.0, 2.0]}),
        (InputError, r"prior_precision\['\*'\]: expected positive", {"*": 0.0}),
        (InputTypeError, "names of parameters", {1: 1.0}),
        (InputError, r"shape \(17,\)", [1.0, 2.0]),
        (InputError, "positive", -1.0),
        (OptionError, r"'body', 'head', 'body\.0'|'body', .*got 'boddy'.* Did you mean 'body'.* glob", {"boddy": 1.0}),
        (InputTypeError, "expected a positive number, .* a Prior, got None", None),
        (InputTypeError, r"prior_precision\['\*'\]: .*got None", {"*": None}),
        (InputTypeError, "got True", True),
        (InputTypeError, "got 'weak'", "weak"),
        (InputError, "17", Prior([1.0, 2.0])),
    ],
)
def test_what_is_no_prior(error: type[Exception], message: str, given: Any) -> None:
    with pytest.raises(error, match=message):
        network_prior(given, weights())
