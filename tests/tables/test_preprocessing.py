from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OrdinalEncoder, QuantileTransformer, StandardScaler

from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.tables import Preprocessing, read_table


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [1.0, 2.0, np.nan, 4.0, 5.0, 6.0],
            "colour": ["red", "green", None, "red", "green", "blue"],
            "member": [True, False, True, True, False, False],
            "rank": [1, 2, 3, 4, 5, 6],
        }
    )


def fit(table: object, targets: np.ndarray | None = None, **options: object) -> tuple[Preprocessing, np.ndarray]:
    return Preprocessing.fit(read_table(table), targets, **{"scaling": None, "encoding": "one_hot", **options})


def encoded(preprocessing: Preprocessing, table: object) -> np.ndarray:
    return preprocessing(read_table(table))


def test_outputs_come_in_order_of_the_columns():
    preprocessing, table = fit(frame())
    assert preprocessing.names == (
        "age", "age missing", "colour=blue", "colour=green", "colour=red", "colour missing", "member=True", "rank",
    )  # fmt: skip
    np.testing.assert_allclose(table[2], [3.6, 1, 0, 0, 0, 1, 1, 3])
    np.testing.assert_allclose(table[3], [4.0, 0, 0, 0, 1, 0, 1, 4])
    np.testing.assert_array_equal(encoded(preprocessing, frame()), table)
    notes = preprocessing.notes()
    assert notes["inputs"] == "as given"
    assert notes["labels"] == "colour, member: a column of 0 and 1 for each label"
    assert notes["missing numbers"] == "age: the mean, and a column that is 1 there"


@pytest.mark.parametrize(
    ("scaling", "encoding"),
    [
        *((scaling, encoding) for scaling in (None, "standard", "quantile") for encoding in ("one_hot", "ordinal")),
        (None, "target"),
    ],
)
def test_a_row_of_weight_two_is_the_row_twice(scaling: str | None, encoding: str):
    weights, targets = np.array([2.0, 1.0, 3.0, 4.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0, 50.0, 4.0, 2.0])
    again = np.repeat(np.arange(6), weights.astype(int))
    one, _ = fit(frame(), targets, scaling=scaling, encoding=encoding, weights=weights)
    other, _ = fit(frame().iloc[again], targets[again], scaling=scaling, encoding=encoding)
    assert one.names == other.names
    new = frame().drop(3).assign(age=[0.0, np.nan, 3.0, 9.0, 5.0])
    np.testing.assert_allclose(encoded(one, new), encoded(other, new), rtol=1e-12, atol=1e-12)


def test_standard_scaling_is_that_of_the_numbers_that_are_there():
    _, table = fit(frame(), scaling="standard")
    seen = frame()["age"].dropna()
    np.testing.assert_allclose(table[[0, 1, 3, 4, 5], 0], (seen - seen.mean()) / seen.std(ddof=0))
    assert abs(table[2, 0]) < 1e-12
    assert set(np.unique(table[:, 1:7])) == {0.0, 1.0}
    np.testing.assert_allclose(table[:, 7], StandardScaler().fit_transform(frame()[["rank"]])[:, 0])


def test_quantile_scaling_makes_normal_scores():
    x = np.random.default_rng(0).lognormal(size=500)
    preprocessing, table = fit(pd.DataFrame({"x": x}), scaling="quantile")
    scores = QuantileTransformer(output_distribution="normal", n_quantiles=500).fit_transform(x[:, None])[:, 0]
    inner = np.abs(scores) < 2.0
    np.testing.assert_allclose(table[inner, 0], scores[inner], atol=0.03)
    far = encoded(preprocessing, pd.DataFrame({"x": [100.0, 200.0]}))
    assert far[1, 0] > far[0, 0] > table.max()  # scikit-learn's own scores end at 5.2
    assert preprocessing.notes()["inputs"] == "as normal scores"


def test_a_label_that_was_never_seen():
    new = pd.DataFrame({"age": [np.nan], "colour": ["mauve"], "member": [None], "rank": [np.nan]})
    targets = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    at = {encoding: encoded(fit(frame(), targets, encoding=encoding)[0], new)[0] for encoding in ("one_hot", "ordinal")}
    np.testing.assert_allclose(at["one_hot"], [3.6, 1, 0, 0, 0, 0, 0, 3.5])
    np.testing.assert_allclose(at["ordinal"], [3.6, 1, 1.5, 0.5, 3.5])  # the means of 0, 1, 1, 2, 2, 3 and of 0, 1
    preprocessing, _ = fit(frame(), targets, encoding="target")
    np.testing.assert_allclose(encoded(preprocessing, new)[0], [3.6, 1, 2.5, 2.5, 3.5])


def test_ordinal_codes_are_those_of_scikit_learn():
    _, table = fit(frame(), encoding="ordinal")
    codes = OrdinalEncoder(encoded_missing_value=3).fit_transform(frame()[["colour", "member"]])
    np.testing.assert_array_equal(table[:, [2, 3]], codes)


def test_target_means_are_shrunk_towards_that_of_all():
    preprocessing, _ = fit(frame(), np.arange(6.0), encoding="target")
    green = encoded(preprocessing, frame().iloc[[1]])[0, 2]
    assert green == pytest.approx((1.0 + 4.0 + 10.0 * 2.5) / (2.0 + 10.0))


def test_targets_of_three_classes_have_a_mean_each():
    preprocessing, table = fit(frame(), np.array([0, 1, 2, 0, 1, 2]), encoding="target")
    assert preprocessing.names[2:5] == ("colour, mean 0", "colour, mean 1", "colour, mean 2")
    np.testing.assert_allclose(table[:, 2:5].sum(1), 1.0)
    two, _ = fit(frame(), np.array([0, 1, 1, 0, 1, 0]), encoding="target")
    assert two.names == ("age", "age missing", "colour", "member", "rank")


def test_a_rows_own_target_is_no_part_of_its_code():
    """Labels that tell nothing seem to tell much where each row's own target is in its label's mean."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": rng.integers(0, 200, 600).astype(str)})
    targets = rng.standard_normal(600)
    preprocessing, codes = fit(table, targets, encoding="target")
    assert abs(np.corrcoef(codes[:, 0], targets)[0, 1]) < 0.1
    assert np.corrcoef(encoded(preprocessing, table)[:, 0], targets)[0, 1] > 0.4
    np.testing.assert_array_equal(fit(table, targets, encoding="target")[1], codes)


def test_codes_of_labels_that_tell_nothing_are_not_blown_up():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"c": rng.choice(["a", "b", "c"], 50)})
    preprocessing, codes = fit(table, rng.standard_normal(50), encoding="target", scaling="standard")
    assert codes.std() == pytest.approx(1.0)
    assert encoded(preprocessing, table).std() < 1.0


def test_numbers_alone_are_not_copied():
    X = np.random.default_rng(0).standard_normal((20, 3))
    preprocessing, table = Preprocessing.fit(X, None, scaling=None, encoding="one_hot")
    assert table is X
    assert preprocessing(X) is X
    assert preprocessing.names == ("x0", "x1", "x2")
    X.flags.writeable = False
    gaps = X.copy()
    gaps[3, 1] = np.nan
    with_gaps, _ = Preprocessing.fit(read_table(gaps), None, scaling="standard", encoding="one_hot")
    np.testing.assert_array_equal(with_gaps(X), with_gaps(read_table(X)))
    np.testing.assert_allclose(preprocessing(read_table(gaps))[3], [X[3, 0], X[:, 1].mean(), X[3, 2]])


@settings(max_examples=40)
@given(st.data())
def test_whatever_the_columns_are_the_numbers_are_finite(data: st.DataObject):
    rows = data.draw(st.integers(1, 6))
    cells = st.one_of(st.none(), st.sampled_from(["a", "b", ""]))
    numbers = st.one_of(st.just(np.nan), st.floats(-1e100, 1e100))
    table = pd.DataFrame(
        {
            "label": pd.Series(data.draw(st.lists(cells, min_size=rows, max_size=rows)), dtype=object),
            "number": data.draw(st.lists(numbers, min_size=rows, max_size=rows)),
            "flag": pd.Series(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), dtype=bool),
        }
    )
    scaling = data.draw(st.sampled_from([None, "standard", "quantile"]))
    encoding = data.draw(st.sampled_from(["one_hot", "ordinal", "target"]))
    preprocessing, numbers_of = fit(table, np.arange(float(rows)), scaling=scaling, encoding=encoding)
    assert numbers_of.shape == (rows, len(preprocessing.names))
    assert np.isfinite(numbers_of).all()
    assert np.isfinite(encoded(preprocessing, table)).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.drop(columns="age"), InputError, "no column 'age'"),
        (lambda t: t.assign(extra=1.0), InputError, "the unknown column 'extra'"),
        (lambda t: t.assign(age="old"), InputTypeError, "column 'age': expected numbers, as fitted, got labels"),
        (lambda t: t.assign(colour=1.0), InputTypeError, "column 'colour': expected labels, as fitted, got numbers"),
        (lambda t: t.assign(colour=pd.Categorical([1] * 6)), InputTypeError, "column 'colour': expected labels such"),
        (lambda t: t.assign(age=1e200), InputError, "column 'age': expected numbers near those that were fitted"),
        (lambda t: t.iloc[:0].drop(columns="age"), InputError, "no column 'age'"),
    ],
)
def test_errors_name_the_column(change: object, error: type[Exception], message: str):
    preprocessing, _ = fit(frame(), scaling="standard")
    with pytest.raises(error, match=message):
        encoded(preprocessing, change(frame()))  # type: ignore[operator]


def test_what_cannot_be_learnt_is_refused():
    with pytest.raises(OptionError, match="scaling: expected one of 'standard', 'quantile', got 'minmax'"):
        fit(frame(), scaling="minmax")
    with pytest.raises(OptionError, match="encoding"):
        fit(frame(), encoding="hash")
    with pytest.raises(UnsupportedError, match="expected y for 'target'"):
        fit(frame(), encoding="target")
    with pytest.raises(InputError, match=r"column .age.: expected numbers whose squares are floats"):
        fit(frame().assign(age=1e200), scaling="standard")
    with pytest.raises(InputError, match="0 sample"):
        fit(frame().iloc[:0])
