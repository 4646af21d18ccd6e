"""Outputs in the unit of the targets."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError
from bayescope.layers.outputs import Rescaled


def test_it_shifts_and_scales_and_learns_nothing():
    layer = Rescaled.of([1.0, -2.0], [3.0, 0.5])
    torch.testing.assert_close(layer(torch.ones(4, 2, dtype=torch.float64))[0], torch.tensor([4.0, -1.5]).double())
    assert not list(layer.parameters())


@pytest.mark.parametrize("numbers", [([0.0], [0.0]), ([0.0, 1.0], [1.0]), (0.0, 1.0)])
def test_what_is_no_scale_is_told(numbers):
    with pytest.raises(InputError, match="scale"):
        Rescaled.of(*numbers)
