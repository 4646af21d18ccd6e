"""Text that is mostly numbers is told; codes, words and what is named are not."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from bayescope.errors import BayescopeWarning
from bayescope.tables import read_table, warn_of_text

MEASURED = [f"{value:.1f}" for value in np.linspace(18.0, 40.0, 49)]


def silent(table: object, **options: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_text(read_table(table, **options))


def test_numbers_with_a_word_among_them_are_told_with_the_word() -> None:
    frame = pd.DataFrame({"bmi": [*MEASURED, "?", None], "sd": [*MEASURED, "30.0", "31"], "fine": range(51)})
    with pytest.warns(BayescopeWarning) as told:
        warn_of_text(read_table(frame))
    [message] = [str(one.message) for one in told]
    assert "column 'bmi': 98 % of its labels are numbers, such as '18.0', and '?' is not:" in message
    assert "turns it into NaN" in message
    assert "column 'sd': 100 % of its labels are numbers, such as '18.0'." in message
    assert "fine" not in message


@pytest.mark.parametrize(
    ("cells", "warned"),
    [
        ([str(place) for place in range(10)], True),
        ([str(place) for place in range(9)] * 5, False),
        ([*map(str, range(18)), "a", "b"], True),
        ([*map(str, range(17)), "a", "b"], False),
        ([*map(str, range(9)), "nan", "inf"], False),
        ([*map(str, range(9)), "nan"], True),
    ],
    ids=["ten", "nine different", "nine in ten", "fewer", "words that floats read", "nine and nan"],
)
def test_nine_in_ten_of_ten_different_labels_are_told(cells: list[str], warned: bool) -> None:
    if warned:
        with pytest.warns(BayescopeWarning, match="column 'x0'"):
            warn_of_text(read_table([[cell] for cell in cells]))
    else:
        silent([[cell] for cell in cells])


def test_what_is_named_or_typed_is_meant() -> None:
    silent(pd.DataFrame({"zip": MEASURED}), categorical=["zip"])
    silent(pd.DataFrame({"zip": MEASURED}, dtype="category"))
    polars = pytest.importorskip("polars")
    silent(polars.DataFrame({"zip": MEASURED}, schema={"zip": polars.Categorical}))


def test_dates_as_text_are_labels_and_a_warning_says_how_they_become_numbers() -> None:
    days = [f"2024-01-{day:02d}" for day in range(1, 11)] * 5
    with pytest.warns(BayescopeWarning, match="column 'sold': its 10 labels are dates, such as '2024-01-01'") as told:
        warn_of_text(read_table(pd.DataFrame({"sold": [*days, None]})))
    assert "(pandas.to_datetime(column) - pandas.Timestamp('2000-01-01')).dt.days" in str(told[0].message)
    silent(pd.DataFrame({"sold": [*days, "later"]}))
    silent(pd.DataFrame({"sold": days}), categorical=["sold"])
