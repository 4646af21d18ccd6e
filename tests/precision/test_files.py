"""A precision of every structure comes back from the bytes that files and processes hold."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import NotPositiveDefiniteError
from bayescope.precision import BlockPrecision, DiagonalPrecision
from bayescope.storage import from_message, to_message
from tests.precision.cases import CASES, blocks


def nested() -> BlockPrecision:
    inner = blocks()
    one = DiagonalPrecision(torch.tensor([2.0], requires_grad=True), name="bias")
    return BlockPrecision([inner, one], [torch.arange(inner.dim), torch.tensor([inner.dim])], inner.dim + 1)


EVERY = {name: case.precision for name, case in CASES.items()}
EVERY |= {f"{name}, without a prior": case.data for name, case in CASES.items()}
EVERY |= {"block": blocks, "nested": nested}


@pytest.mark.parametrize("name", EVERY)
def test_what_was_packed_comes_back(name: str) -> None:
    precision = EVERY[name]()
    found = from_message(to_message(precision))
    assert type(found) is type(precision)
    torch.testing.assert_close(found.to_dense(), precision.to_dense().detach(), rtol=1e-15, atol=1e-15)
    again = found.add_diagonal(0.0 if "separable" in name else 0.5)
    if "without" not in name or "separable" not in name:
        torch.testing.assert_close(again.logdet(), torch.logdet(again.to_dense()))


def test_names_and_semidefiniteness_come_back() -> None:
    found = from_message(to_message(DiagonalPrecision(torch.zeros(3), name="the curvature", semidefinite=True)))
    with pytest.raises(NotPositiveDefiniteError, match="the curvature"):
        found.logdet()
