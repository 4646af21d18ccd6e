"""The symmetric product, by panels and whole."""

import pytest
import torch

from bayescope.tape.gram import PANEL, sum_of_grams
from tests.tape.autograd import draw


@pytest.mark.parametrize("width", [0, 1, 5, 2 * PANEL - 1, 2 * PANEL, 3 * PANEL + 7])
@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_the_product_with_the_transpose(width, groups):
    x = draw(groups, 9, width).mT
    assert torch.allclose(sum_of_grams([x], None), x @ x.mT, rtol=1e-13, atol=1e-13)


def test_no_columns_give_zero():
    assert torch.equal(
        sum_of_grams([draw(1, 2 * PANEL, 0)], None), torch.zeros(1, 2 * PANEL, 2 * PANEL, dtype=torch.float64)
    )
