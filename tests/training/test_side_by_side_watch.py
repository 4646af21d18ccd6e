"""The validation of networks side by side: each has its own best epoch and its own patience."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescope.errors import ConvergenceError
from bayescope.likelihoods import Gaussian
from bayescope.network import Weights
from bayescope.priors import Prior
from bayescope.training import Minibatches, NegativeLogJoint, Stack, Validation
from tests.training.members import MEMBERS, made, plain
from tests.training.toys import line

# The error of each network after each epoch: their best are after epochs 1, 2 and 4.
ERRORS = torch.tensor([[1.0, 3.0, 4.0], [2.0, 1.0, 3.0], [3.0, 2.0, 2.0], [0.5, 2.0, 1.0]], dtype=torch.float64)


def watched(patience: int | None) -> tuple[Stack, Validation]:
    """Networks whose answer is their last bias, and zeros to be told."""
    stack = Stack(made(plain), vectorized=True)
    x, _ = line()
    rows = Minibatches((x, torch.zeros(40, 2)), made(plain, 1)[0], Gaussian(1.0), 16, torch.Generator())
    with torch.no_grad():
        stack.values[stack.names.index("2.weight")].zero_()
    weights = Weights.select(made(plain, 1)[0], "all")
    objective = NegativeLogJoint(stack, weights, 40, Gaussian(1.0), Prior(1.0))
    return stack, Validation.of(stack, rows, objective, patience)


def answer(stack: Stack, values: Tensor) -> None:
    with torch.no_grad():
        stack.values[stack.names.index("2.bias")].copy_(values[:, None])


def test_each_has_its_best_epoch_and_its_patience() -> None:
    stack, watch = watched(2)
    for epoch, errors in enumerate(ERRORS, 1):
        answer(stack, errors)
        verdict = watch.judge(epoch)
        nll = 40 * (errors.square() + math.log(2 * math.pi))
        left = epoch <= torch.tensor([3, 4, 4])  # the last epochs; a network that had ended is counted no more
        assert verdict.trace["validation_nlls"] == pytest.approx(nll.where(left, math.nan).tolist(), nan_ok=True)
        assert verdict.trace["validation_nll"] == pytest.approx(float(nll[left].mean()))
        assert not verdict.best
        assert not verdict.stop
    assert watch.kept.tolist() == [1, 2, 4], "what is better after the patience is over does not count"
    assert watch.last.tolist() == [3, 4, 4]
    assert watch.ended.tolist() == [True, True, False]
    watch.restore_best()
    torch.testing.assert_close(stack.values[stack.names.index("2.bias")][:, 0], torch.ones(MEMBERS).double())


def test_a_run_goes_on_from_its_state() -> None:
    stack, watch = watched(2)
    answer(stack, ERRORS[0])
    watch.judge(1)
    other_stack, other = watched(2)
    other.restore(watch.state())
    for epoch, errors in enumerate(ERRORS[1:], 2):
        for each, judge in ((stack, watch), (other_stack, other)):
            answer(each, errors)
            judge.judge(epoch)
    assert torch.equal(watch.kept, other.kept)
    assert torch.equal(watch.ended, other.ended)


def test_an_answer_that_is_not_finite_is_loud() -> None:
    stack, watch = watched(None)
    answer(stack, torch.tensor([1.0, math.inf, 1.0], dtype=torch.float64))
    with pytest.raises(ConvergenceError, match="validation"):
        watch.judge(1)
