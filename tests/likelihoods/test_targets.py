"""Labels beside outputs: what fits, and the row of the data that does not, wherever its batch begins."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescope.errors import BayescopeWarning, InputError
from bayescope.likelihoods import (
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    LabelError,
    place_of,
    read_targets,
    warn_of_probabilities,
)

labels = torch.tensor([0, 2, 1, 1])


def test_labels_come_in_canonical_form_one_for_each_position() -> None:
    assert torch.equal(read_targets(Categorical(), labels, (4, 3)), labels)
    assert torch.equal(read_targets(Categorical(), labels.reshape(2, 2), (2, 2, 3)), labels)
    assert read_targets(Gaussian(), torch.zeros(2, 5, 3), (2, 5, 3)).shape == (10, 3)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "wrong"), [(Categorical(), 3, 3), (Bernoulli(), 1, 2), (BradleyTerry(), 2, 2)]
)
@pytest.mark.parametrize("first", [0, 100])
def test_a_label_outside_the_domain_is_found_in_the_data(likelihood: Any, outputs: int, wrong: int, first: int) -> None:
    y = torch.tensor([0, 1, wrong, 1])
    with pytest.raises(InputError, match=f"got {wrong} in row {first + 2}"):
        read_targets(likelihood, y, (4, outputs), first)


def test_positions_are_counted_within_their_row() -> None:
    y = torch.zeros(3, 2, 2, dtype=torch.int64)
    y[1, 1, 0] = 7
    with pytest.raises(InputError, match="got 7 in row 11, position 2"):
        read_targets(Categorical(), y, (3, 2, 2, 5), first=40)
    assert place_of(42, 1) == "row 42"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_label_that_is_no_number_is_found_in_the_data(value: float) -> None:
    y = torch.zeros(4, 2)
    y[3, 1] = value
    with pytest.raises(InputError, match=f"y: expected finite numbers, got {value} in row 53"):
        read_targets(Gaussian(), y, (4, 2), first=50)


@pytest.mark.parametrize(
    ("y", "shape", "message"),
    [
        (labels, (4,), r"outputs of shape \(N, C\) or \(N, …, C\), got \(4,\)"),
        (labels, (3, 3), "expected 3 labels, one for each output, got 4"),
        (2 * torch.eye(3)[labels], (4, 3), "probabilities of the 3 classes that sum to 1"),
        (torch.zeros(4, 5), (4, 3), r"got \(4, 5\)\. Give one a row\.$"),
        (
            torch.zeros(2, 6, 7),
            (2, 3, 6, 7),
            r"classes last, got \(2, 3, 6, 7\) for .* \(2, 6, 7\)\. .*classes_dim=1",
        ),
        (torch.zeros(2, 6), (2, 6, 7, 3), r"one label for each of the positions \(2, 6, 7\) .* got shape \(2, 6\)"),
    ],
)
def test_labels_that_do_not_fit_the_outputs(y: Tensor, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_targets(Categorical(), y, shape)


def test_the_error_goes_from_process_to_process() -> None:
    error = LabelError("labels 0 and 1", "2", 3, "Encode.").at(10, 2)
    assert str(pickle.loads(pickle.dumps(error))) == "y: expected labels 0 and 1, got 2 in row 6, position 1. Encode."


def test_probabilities_are_told_from_logits() -> None:
    f = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(BayescopeWarning, match="softmax off"):
        warn_of_probabilities(Categorical(), f.softmax(-1))
    one_off = f.softmax(-1)
    one_off[5] *= 1.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (f, f.log_softmax(-1), one_off, torch.zeros(3, 2)):
            warn_of_probabilities(Categorical(), given)
        warn_of_probabilities(Gaussian(), f.softmax(-1))
