"""What a pair's features do alone is told as theirs, and the sum stays what it was."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from bayescope.additive import (
    AdditiveOptions,
    EncodedRows,
    Functions,
    RowsInMemory,
    contributions,
    effect,
    explain,
    fit_additive,
    position_of,
    read,
    surface,
)
from bayescope.likelihoods import Gaussian
from bayescope.tables import TableEncoding, read_table
from tests.additive.fitted import DOUBLE, encoded, fitted, frame, weights

PAIR = 3


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_what_is_left_of_a_pair_has_nothing_of_its_features(kind):
    additive, rows = fitted(kind), encoded(frame())
    shown = explain(additive, rows)
    left = shown.contributions[:, PAIR]
    columns = additive.model.terms[PAIR].columns
    for column in columns:
        values = Functions.of(column, rows, weights()).at(rows).numpy()
        assert np.abs((values * weights().numpy()[:, None]).T @ left).max() < 1e-4 * np.abs(left).max() * len(rows)


def test_the_sum_of_all_terms_is_what_it_was():
    additive, rows = fitted(), encoded(frame(25, seed=8))
    raw = additive.model.contributions(rows, additive.posterior.location).sum(0)[:, 0].numpy()
    shown = explain(additive, rows).contributions
    np.testing.assert_allclose(shown.sum(1), raw, rtol=0, atol=1e-12)
    assert (
        np.abs(
            shown[:, PAIR] - additive.model.contributions(rows, additive.posterior.location)[PAIR, :, 0].numpy()
        ).max()
        > 0.01
    )


def test_a_pair_that_took_over_an_effect_gives_it_back():
    """Two features that are independent, y = 2 sin(u) + u v: whichever term fits sin, it is told as u's."""
    source = np.random.default_rng(0)
    table = pd.DataFrame(source.uniform(-2, 2, size=(800, 2)), columns=["u", "v"])
    u, v = table.to_numpy().T
    y = 2 * np.sin(u) + 0.4 * u * v + 0.1 * source.normal(size=800)
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    one = torch.ones(1, dtype=DOUBLE)
    targets = torch.from_numpy((y - y.mean()) / y.std())[:, None]
    data = RowsInMemory(
        EncodedRows.of(encoding.encode(columns)), targets, torch.ones(800, dtype=DOUBLE), y.std() * one, y.mean() * one
    )
    additive = fit_additive(
        encoding, data, Gaussian(0.1), AdditiveOptions(hidden=16, pair_hidden=16, interactions=[(0, 1)])
    )
    own, other = effect(additive, "u"), effect(additive, "v")
    assert np.abs(own.mean - (2 * np.sin(own.grid) - (2 * np.sin(u)).mean())).mean() < 0.12
    assert np.abs(other.mean).mean() < 0.12
    grid = (np.linspace(-1.5, 1.5, 7), np.linspace(-1.5, 1.5, 7))
    both = surface(additive, ("u", "v"), grid=grid)
    assert np.abs(both.mean - 0.4 * np.outer(*grid)).mean() < 0.12


def test_an_effect_takes_nothing_from_pairs_of_other_features():
    rows = encoded(frame(9))
    of_dose, of_kind = (next(iter(read(fitted(), rows, [term]))).jacobians[0] for term in (1, 2))
    assert [sorted(of_dose), sorted(of_kind)] == [[1, PAIR], [2]]


def test_functions_are_centred_and_smooth_or_of_categories():
    rows = encoded(frame())
    for column in fitted().model.terms[PAIR].columns:
        functions = Functions.of(column, rows, weights())
        values = functions.at(rows)
        np.testing.assert_allclose(weights() @ values, 0, atol=1e-10)
        assert values.shape == (len(rows), contributions.STEPS + 1)


def test_terms_are_found_in_either_order():
    assert position_of(fitted(), (1, 0)) == position_of(fitted(), (0, 1)) == PAIR


def test_blocks_come_in_the_order_of_the_rows():
    blocks = list(read(fitted(), encoded(frame(9)), [2]))
    assert [block.rows for block in blocks] == [slice(0, 9)]
    assert blocks[0].means.shape == (9, 1, 1)


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("term", [0, 2, PAIR])
def test_a_term_by_itself_is_what_it_is_among_all(kind, term):
    additive, rows = fitted(kind), encoded(frame(15, seed=4))
    [among], [alone] = (list(read(additive, rows, terms)) for terms in (range(4), [term]))
    torch.testing.assert_close(alone.means[:, 0], among.means[:, term], rtol=0, atol=1e-12)
    assert list(alone.jacobians[0]) == list(among.jacobians[term])
    for by, jacobian in alone.jacobians[0].items():
        torch.testing.assert_close(jacobian, among.jacobians[term][by], rtol=0, atol=1e-12)
