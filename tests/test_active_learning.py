"""Which rows to have labelled: the largest mutual information, ties by index, and power sampling."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from bayescope.errors import InputError, InputTypeError
from bayescope.latent import DrawsLatent
from bayescope.likelihoods import Bernoulli
from bayescope.predictive import Predictive, most_informative

# Two draws that disagree by this much, row by row.
GAPS = torch.tensor([0.0, 3.0, 1.0, 3.0, 0.0, 8.0], dtype=torch.float64)


def pool(arrays: bool = False) -> Predictive:
    return Predictive(DrawsLatent(torch.stack([GAPS, -GAPS])[..., None]), Bernoulli(), arrays)


def test_the_largest_come_first_and_ties_by_index():
    assert most_informative(pool(), 6).tolist() == [5, 1, 3, 2, 0, 4]
    assert most_informative(pool()).tolist() == [5]
    assert isinstance(most_informative(pool(arrays=True), 2), np.ndarray)
    assert most_informative(pool(arrays=True), 2).dtype == np.int64


def test_uncertain_rows_that_all_draws_call_uncertain_are_not_asked_for():
    """Row 0 has the larger entropy and nothing to tell."""
    f = torch.tensor([[[0.0], [3.0]], [[0.0], [1.0]]], dtype=torch.float64)
    p = Predictive(DrawsLatent(f), Bernoulli())
    assert p.entropy[0] > p.entropy[1]
    assert most_informative(p, 1).tolist() == [1]


def test_diverse_rows_are_drawn_in_proportion_to_their_information():
    """2,000 first draws; five standard errors. Rows that tell nothing come last, by index."""
    source = torch.Generator().manual_seed(0)
    drawn = torch.stack([most_informative(pool(), 6, diverse=True, generator=source) for _ in range(2000)])
    information = pool().mutual_information
    share = torch.bincount(drawn[:, 0], minlength=6) / 2000
    expected = information / information.sum()
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / 2000).sqrt()).all()
    assert (drawn[:, 4:] == torch.tensor([0, 4])).all()
    assert (drawn.sort(1).values == torch.arange(6)).all()
    # Of the rest, given that row 5 came first, row 1 and 3 are as likely
    second = drawn[drawn[:, 0] == 5, 1]
    rest = information[[1, 3, 2]] / information[[1, 3, 2]].sum()
    got = torch.stack([(second == row).double().mean() for row in (1, 3, 2)])
    assert ((got - rest).abs() <= 5 * (rest * (1 - rest) / len(second)).sqrt()).all()


def test_the_same_generator_draws_the_same_rows():
    first, again = (most_informative(pool(), 3, diverse=True, generator=4) for _ in range(2))
    assert torch.equal(first, again)


def test_dense_rows_count_all_their_positions():
    p = dataclasses.replace(pool(), shape=(3, 2))
    assert most_informative(p, 3).tolist() == [2, 1, 0]


@pytest.mark.parametrize("diverse", [False, True])
def test_predictions_of_one_draw_tell_nothing_and_are_refused(diverse):
    p = Predictive(DrawsLatent(GAPS[None, :, None]), Bernoulli())
    with pytest.raises(InputError, match="predictive: expected mutual information above 0 in some row"):
        most_informative(p, 2, diverse=diverse)


def test_misuse_is_refused():
    for n in (0, 7, 2.5):
        with pytest.raises(InputError, match="n: expected"):
            most_informative(pool(), n)
    with pytest.raises(InputError, match="expected None where nothing is drawn"):
        most_informative(pool(), 2, generator=0)
    with pytest.raises(InputTypeError, match="diverse: expected True or False"):
        most_informative(pool(), 2, diverse="yes")
