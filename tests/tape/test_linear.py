"""The tape of a linear model."""

import torch
from torch.nn import functional

from bayescope.tape import LinearTape
from tests.tape.autograd import draw, rows_of


def test_the_flat_order_is_the_weight_then_the_bias():
    x, w, b = draw(4, 3), draw(2, 3), draw(2)
    identity = torch.eye(2, dtype=torch.float64)[:, None].expand(-1, 4, -1)
    weight, bias = rows_of(functional.linear, x, identity, w, b)
    assert torch.allclose(LinearTape(x, 2, bias=True).jacobian(slice(None)), torch.cat([weight, bias], -1))
    assert torch.allclose(LinearTape(x, 2, bias=False).jacobian(slice(None)), weight)
