"""What cannot be trained on or by is said before it is: options, data, inputs and labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import BayescopeWarning, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods import Gaussian
from bayescope.network import largest_variance
from bayescope.training import fit_map
from tests.training.toys import classes, flat, line, perceptron, seeded

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer": "adamm"}, OptionError, "Did you mean 'adam'"),
    ({"optimizer": lambda p: 3}, InputTypeError, "Optimizer, got int"),
    ({"optimizer": torch.optim.Adam, "lr": 0.1}, UnsupportedError, "of your own"),
    ({"optimizer": "lbfgs", "batch_size": 8}, UnsupportedError, "steps on all rows"),
    ({"schedule": "linear"}, OptionError, "cosine"),
    ({"schedule": lambda o: 3}, InputTypeError, "lr_scheduler, got int"),
    ({"epochs": 0}, InputError, "epochs"),
    ({"lr": -1.0}, InputError, "lr"),
    ({"patience": 3}, InputError, "validation="),
    ({"patience": 0, "validation": line()}, InputError, "patience"),
    ({"prior_precision": "evidence"}, InputTypeError, "prior_precision"),
    ({"prior_precision": [1.0, 2.0]}, InputError, "prior_precision"),
    ({"likelihood": Gaussian("evidence")}, InputError, "not been learnt"),
    ({"likelihood": "categorical"}, InputError, "at least 2"),
    ({"inplace": 1}, InputTypeError, "inplace"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_map(perceptron(), line(), **{"likelihood": "gaussian", "epochs": 2, **arguments})


def test_data_that_do_not_fit_are_refused() -> None:
    x, y = line()
    with pytest.raises(InputTypeError, match=r"torch\.nn\.Module, got str"):
        fit_map("model", (x, y), likelihood="gaussian")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="as many targets as inputs"):
        fit_map(perceptron(), (x, y[:3]), likelihood="gaussian")
    with pytest.raises(UnsupportedError, match="Give the arrays"):
        fit_map(perceptron(), [(x, y)], likelihood="gaussian", optimizer="lbfgs")


def test_weights_by_their_variance_are_for_trained_networks() -> None:
    with pytest.raises(UnsupportedError, match=r"largest_variance.* laplace\(trained"):
        fit_map(perceptron(), line(), likelihood="gaussian", epochs=1, weights=largest_variance(3))


def test_inputs_that_the_network_cannot_take_are_described() -> None:
    x, y = line()
    with pytest.raises(InputError, match=r"run on inputs of shape \(40, 1\) and dtype float64: mat1"):
        fit_map(perceptron(), (x[:, :1], y), likelihood="gaussian")
    with pytest.raises(InputError, match=r"run on inputs of shape \(20, 1\)"):  # of a later batch
        fit_map(perceptron(), [(x[:20], y[:20]), (x[20:, :1], y[20:])], likelihood="gaussian")
    with pytest.raises(InputError, match=r"dtype int64: .*give X\.astype\(float\)"):
        fit_map(perceptron(), (x.long().numpy(), y), likelihood="gaussian")
    with pytest.raises(InputError, match=r"keyword arguments, forward\(x=…\)"):
        fit_map(perceptron(), ({"x": x}, y), likelihood="gaussian")


def test_inputs_that_are_not_finite_are_found_before_they_are_trained_on() -> None:
    x, y = line()
    x[[23, 31], 1] = torch.nan
    module = perceptron()
    with pytest.raises(InputError, match="expected finite inputs, got NaN or infinity, first in row 23"):
        fit_map(module, (x, y), likelihood="gaussian", inplace=True)
    assert torch.equal(flat(module), flat(perceptron()))
    with pytest.raises(InputError, match="first in row 23"):
        fit_map(perceptron(), [(x[:15], y[:15]), (x[15:], y[15:])], likelihood="gaussian")


class Filled(nn.Linear):
    """A network that knows what to do with NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.nan_to_num())


def test_a_network_that_takes_nan_is_given_it() -> None:
    x, y = line()
    x[23, 1] = torch.nan
    q = fit_map(seeded(0, (Filled, (2, 1))).double(), (x, y), likelihood="gaussian", epochs=2)
    assert q.mean.isfinite().all()


def test_wrong_labels_are_found_in_the_data() -> None:
    x, y = classes(count=3)
    with pytest.raises(InputError, match=r"probabilities of the 3 classes that sum to 1, got .* in row 0"):
        fit_map(perceptron(outputs=3), (x, 2 * torch.eye(3)[y]), likelihood="categorical")
    y = y.clone()
    y[17] = 5
    for data in ((x, y), [(x[:7], y[:7]), (x[7:14], y[7:14]), (x[14:], y[14:])]):
        with pytest.raises(InputError, match="got 5 in row 17"):
            fit_map(perceptron(outputs=3), data, likelihood="categorical")


def test_probabilities_in_the_place_of_logits_are_told_of() -> None:
    with pytest.warns(BayescopeWarning, match="expected logits .* Take the softmax off"):
        fit_map(
            nn.Sequential(perceptron(outputs=3), nn.Softmax(-1)), classes(count=3), likelihood="categorical", epochs=1
        )  # fmt: skip
