"""What a model remembers of its data: the values of features and pairs with their weights, and no row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayescope.additive import TrainingValues, Values, importance
from bayescope.errors import InputError
from tests.additive.fitted import encoded, fitted, frame, weights

DOUBLE = torch.float64


def tally(columns: list[torch.Tensor]) -> dict[tuple[float, ...], float]:
    """How often each combination of numbers counts, from the rows themselves."""
    found: dict[tuple[float, ...], float] = {}
    for key, weight in zip(zip(*[column.tolist() for column in columns], strict=True), weights().tolist(), strict=True):
        rounded = tuple(round(value, 9) for value in key)
        found[rounded] = found.get(rounded, 0.0) + weight
    return found


def told(values: Values) -> dict[tuple[float, ...], float]:
    keys = torch.cat([values.numbers, values.levels.to(DOUBLE)], 1)
    return {
        tuple(round(value, 9) for value in key): weight
        for key, weight in zip(keys.tolist(), values.weights.tolist(), strict=True)
    }


def test_each_feature_has_its_values_with_their_weights():
    additive, rows = fitted(), encoded(frame())
    for feature, values in enumerate(additive.seen.features):
        levels = rows.levels[:, feature].to(DOUBLE)
        assert told(values) == tally([rows.values[:, feature], levels])


def test_each_pair_has_the_values_that_occur_together():
    additive, rows = fitted(), encoded(frame())
    [values] = additive.seen.pairs
    assert values is additive.seen.values((1, 0))
    levels = rows.levels.to(DOUBLE)
    assert told(values) == tally([rows.values[:, 0], rows.values[:, 1], levels[:, 0], levels[:, 1]])


def test_many_cells_are_represented_by_some_rows():
    additive = fitted()
    [some] = TrainingValues.of(additive.fit.problem, 3, most=80).pairs
    assert len(some.weights) <= 80
    assert float(some.weights.sum()) == pytest.approx(float(weights().sum()), rel=1e-12)


def test_importance_is_over_what_was_seen_alone():
    additive = fitted()
    shown = importance(additive)
    rows, mass = additive.seen.features[2].rows(additive.encoding), additive.seen.features[2].weights
    own = additive.model.contributions(rows, additive.posterior.location)[2, :, 0]
    assert shown.at_mean[2] == pytest.approx(float(mass @ own.abs() / mass.sum()), rel=1e-12)
    np.testing.assert_array_equal(importance(additive).mean, shown.mean)


def test_values_that_do_not_go_together_are_refused():
    one = torch.ones(2, 1, dtype=DOUBLE)
    with pytest.raises(InputError, match="values: expected numbers and levels of shape"):
        Values((0, 1), one, one.long(), torch.ones(2, dtype=DOUBLE))
