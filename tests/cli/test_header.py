"""Names that nobody has: the one that was probably meant is asked after, and no other."""

import pytest

from bayescope.cli.header import MOST_COLUMNS, check_header, hint
from bayescope.cli.opening import closest
from bayescope.errors import InputError

COLUMNS = ["age", "blood pressure", "Kind", "state", "cost"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("ages", "age"), ("stat", "state"), ("KIND", "Kind"), ("blood_pressure", "blood pressure"),
        ("rate", None), ("dates", None), ("target", None), ("cause", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_is_asked_after_where_it_is_a_slip(wanted, meant):
    told = hint(wanted, COLUMNS)
    assert told.startswith("its columns are 'age'")
    assert told.endswith("." if meant is None else f"Did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("wanted", "meant"), [("tabel.csv", "table.csv"), ("table.cvs", "table.csv"), ("costs.csv", None)]
)
def test_a_file_is_asked_after_where_it_is_a_slip(wanted, meant, tmp_path):
    for name in ("table.csv", "report.html"):
        (tmp_path / name).touch()
    assert closest(tmp_path / wanted) == ("" if meant is None else f" Did you mean {meant!r}?")


def test_more_columns_than_are_read_in_seconds_are_refused():
    names = [f"x{place}" for place in range(MOST_COLUMNS + 1)]
    check_header("t.csv", names[1:], ",")
    with pytest.raises(InputError, match=r"t\.csv: expected at most 100,000 columns, got 100,001"):
        check_header("t.csv", names, ",")


def test_all_that_is_wrong_with_the_names_is_told():
    with pytest.raises(InputError) as refusal:
        check_header("t.csv", ["a", "", "a", " "])
    assert [message.partition(",")[2][:22] for message in refusal.value.problems] == [
        " got none for column 2",
        " got 'a' more than onc",
    ]
