"""Numbers in few digits, with a real minus sign."""

import math

import pytest

from bayescope.plots import numbers, style


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (-12.345, "−12.3"),
        (1975.0, "1975"),
        (12345.6, "12\u202f346"),
        (1.5e-7, "1.50e−7"),
        (math.nan, "–"),
        (-math.inf, "−∞"),
    ],
)
def test_plain(value, text):
    assert numbers.plain(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [((0.81234, 0.9449), "0.81 to 0.94"), ((-1.3, 2.44), "−1.3 to 2.4"), ((0.5, 0.5), "0.500 to 0.500")],
)
def test_ends_of_an_interval_are_written_alike(ends, text):
    assert numbers.alike(*ends) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(204.0, "204"), (0.650, "0.65"), (None, "missing"), (math.nan, "missing"), ((1.0, "x"), "1, x"), (True, "True")],
)
def test_cell(value, text):
    assert numbers.cell(value) == text


def test_a_value_and_its_interval_share_their_digits():
    assert numbers.around(0.5, 0.25, 0.75, 12.0) == ("0.5", "0.2 to 0.8")
    assert numbers.around(0.5, 0.25, 0.75, 0.75, sign=True) == ("+0.500", "0.250 to 0.750")


def test_a_long_text_keeps_its_ends():
    assert style.shorten("a" * 20 + "end", 10) == "aaaaaa…end"
    assert numbers.count(1, "row") == "1 row"
    assert numbers.count(20000, "row") == "20\u202f000 rows"
