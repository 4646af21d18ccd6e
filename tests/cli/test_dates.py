"""Columns of dates: their parts are features, and the model's file keeps how they are read."""

import json

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli import open_source
from bayescope.cli.dates import dated, learnt_dates
from bayescope.errors import InputError
from tests.cli.tables import refused, run, written

DAYS = pd.date_range("2024-01-29", periods=60, freq="31h")


def source(tmp_path, cells, name="t.csv"):
    return open_source(written(tmp_path / name, pd.DataFrame({"x": range(len(cells)), "on": cells})))


@pytest.mark.parametrize(
    ("form", "written_as"),
    [
        ("ISO8601", "%Y-%m-%d"),
        ("ISO8601", "%Y-%m-%dT%H:%M:%S"),
        ("%d.%m.%Y", "%d.%m.%Y"),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
        ("%d/%m/%Y", "%d/%m/%Y"),
        ("%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"),
        ("%d.%m.%y", "%d.%m.%y"),
    ],
)
def test_dates_are_read_whatever_their_format(tmp_path, form, written_as):
    opened = source(tmp_path, DAYS.strftime(written_as))
    dates = learnt_dates(opened, ["on"])
    with_time = "%H" in written_as
    assert dates == {"on": [form, "days", "month", "weekday", *(["hour"] if with_time else [])]}
    table = dated(opened, dates)
    assert table.header == ("x", "on days", "on month", "on weekday", *(["on hour"] if with_time else []))
    kinds = table.kinds(table.header)
    assert [name for name, kind in kinds.items() if kind == "categorical"] == ["on weekday"]
    read = pd.to_datetime(pd.Series(DAYS.strftime(written_as)), format=written_as)
    parts = {name: np.concatenate([block.read(kinds)[name] for block in table.blocks(7)]) for name in kinds}
    np.testing.assert_allclose(parts["on days"], (read - pd.Timestamp("1970-01-01")).dt.total_seconds() / 86400)
    np.testing.assert_array_equal(parts["on month"], read.dt.month)
    np.testing.assert_array_equal(parts["on weekday"], read.dt.day_name())
    if with_time:
        np.testing.assert_allclose(parts["on hour"], read.dt.hour + read.dt.minute / 60)


def test_parts_that_do_not_vary_are_left_out(tmp_path):
    assert learnt_dates(source(tmp_path, ["2024-05-01", "2024-05-08"]), ["on"]) == {"on": ["ISO8601", "days"]}


def test_dates_that_can_be_read_in_two_ways_are_asked_for(tmp_path):
    opened = source(tmp_path, ["03/04/2024", "05/06/2024"])
    with pytest.raises(
        InputError, match=r"read in one way, got '03/04/2024'.*--dates on=%d/%m/%Y or --dates on=%m/%d/%Y"
    ):
        learnt_dates(opened, ["on"])
    assert learnt_dates(opened, ["on=%m/%d/%Y"])["on"][0] == "%m/%d/%Y"
    assert learnt_dates(source(tmp_path, ["04/04/2024", "05/05/2024"]), ["on"])["on"][0] == "%d/%m/%Y"


def test_missing_dates_are_missing_parts(tmp_path):
    opened = source(tmp_path, ["2024-05-01", None, "2024-06-08"])
    table = dated(opened, learnt_dates(opened, ["on"]))
    (block,) = table.blocks(9)
    parts = block.read(table.kinds(table.header))
    assert all(pd.isna(parts[name]).tolist() == [False, True, False] for name in table.header[1:])
    assert block.copied(["on"])["on"].tolist() == ["2024-05-01", "", "2024-06-08"]


def test_what_is_no_date_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a date such as 2024-05-31, got 'soon'.*--missing soon"):
        learnt_dates(source(tmp_path, ["2024-05-01", "soon"]), ["on"])
    with pytest.raises(InputError, match="--dates: expected a column of"):
        learnt_dates(source(tmp_path, ["2024-05-01"]), ["onn"])


def test_new_rows_may_have_iso_dates(tmp_path):
    """A spreadsheet has dates of its own, whatever the text looked like that was fitted."""
    form = {"on": ["%d.%m.%Y", "days"]}
    cells = ["31.12.2024", "2024-12-31", "2024-12-31 12:00:00", None]
    table = dated(source(tmp_path, cells), form)
    (block,) = table.blocks(9)
    np.testing.assert_array_equal(block.read({"on days": "numeric"})["on days"], [20088, 20088, 20088.5, np.nan])
    for wrong in ("2024-31-12", "2024", "20241231", "12/31/2024"):
        (block,) = dated(source(tmp_path, [*cells, wrong]), form).blocks(9)
        with pytest.raises(InputError, match=f"line 6, column 'on': expected a date as .*got '{wrong}'"):
            block.read({"on days": "numeric"})


def test_dates_of_several_files(tmp_path):
    """They are read into memory; --stream says so."""
    pytest.importorskip("pyarrow", reason="reads directories")
    (tmp_path / "parts").mkdir()
    frame = pd.DataFrame({"on": DAYS.strftime("%d.%m.%Y"), "y": np.arange(60.0) ** 2})
    for part in (0, 1):
        written(tmp_path / "parts" / f"{part}.csv", frame[30 * part : 30 * part + 30])
    given = ["--target", "y", "--dates", "on", "--model", "linear", "--test-size", "0", "--json"]
    facts = [
        json.loads(run("fit", each, *given, "--out", tmp_path / "m.bayes").stdout)
        for each in (tmp_path / "parts", written(tmp_path / "t.csv", frame))
    ]
    assert facts[0]["features"] == 3
    assert facts[0]["log_evidence"] == pytest.approx(facts[1]["log_evidence"])
    streamed = run("fit", tmp_path / "parts", *given, "--stream", "--out", tmp_path / "s.bayes")
    assert refused(streamed, "--dates: expected none with --stream")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_the_saved_model_does_the_same_for_new_rows(tmp_path, name):
    """The file of the model knows the format of the dates, which a few new rows would not show."""
    if name == "t.parquet":
        pytest.importorskip("pyarrow", reason="reads Parquet")
    noise = np.random.default_rng(0)
    frame = pd.DataFrame({"sold on": DAYS.normalize(), "size": noise.standard_normal(60).round(2)})
    weekend = frame["sold on"].dt.day_name().isin(["Saturday", "Sunday"])
    frame["price"] = (frame["size"] + 5.0 * weekend + 0.1 * noise.standard_normal(60)).round(3)
    if name == "t.csv":
        frame["sold on"] = frame["sold on"].dt.strftime("%m/%d/%Y")
    table, model = written(tmp_path / name, frame), tmp_path / "m.bayes"
    assert refused(run("fit", table, "--target", "price", "--out", model), "got dates", "--dates 'sold on'")
    given = ["--target", "price", "--dates", "sold on", "--model", "linear", "--no-refit"]
    facts = run("fit", table, *given, "--out", model, "--json")
    assert facts.exit_code == 0, facts.output
    assert json.loads(facts.stdout)["features"] == 4
    described = [line.split() for line in run("info", model).stdout.splitlines()]
    assert ["sold", "on", "dates", "as", "%m/%d/%Y" if name == "t.csv" else "ISO8601"] in described
    assert not [words for words in described if words[:4] == ["sold", "on", "month", "numbers"]]
    assert list(bs.load(model).feature_names_in_) == ["sold on days", "sold on month", "sold on weekday", "size"]
    new = frame[3:8] if name == "t.parquet" else frame[3:8][frame["sold on"][3:8].str[3:5] < "13"]
    out = tmp_path / "p.csv"
    done = run("predict", model, written(tmp_path / f"new{table.suffix}", new), "--out", out, "--keep", "sold on")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(out)
    assert np.abs(found["mean"] - new["price"].to_numpy()).max() < 1.0
    assert found["sold on"].astype(str).str[:10].tolist() == new["sold on"].astype(str).str[:10].tolist()
    page = run("report", model, table, "--out", tmp_path / "r.html", "--reference", "none")
    assert page.exit_code == 0, page.output
    wrong = written(tmp_path / "wrong.csv", "sold on,size\n02/03/2024,1\n31/03/2024,1\n")
    if name == "t.csv":
        refusal = run("predict", model, wrong, "--out", tmp_path / "q.csv")
        assert refused(
            refusal, "line 3, column 'sold on': expected a date as %m/%d/%Y, such as 05/31/2024, got '31/03/2024'"
        )
    assert refused(
        run("predict", model, written(tmp_path / "w.csv", "size\n1\n"), "--out", out), "expected a column of"
    )
