"""Separators, decimal commas and encodings: the table is the same, however it is written, and guesses are told."""

import numpy as np
import pandas as pd
import pytest

from bayescope.cli import open_source
from bayescope.cli.text_format import TextFormat
from bayescope.errors import InputError
from tests.cli.tables import mixed, run, written

FRAME = mixed(70).assign(colour=lambda t: t["colour"].replace("red", "rød"), note="one, two; or three")


def text(sep=",", decimal=".", **options):
    return FRAME.to_csv(index=False, sep=sep, decimal=decimal, **options)


def columns(source):
    kinds = source.kinds(source.header)
    (block,) = source.blocks(1000)
    return kinds, block.read(kinds)


FORMS = {
    "semicolons": (text(";").encode(), "separated by ';'"),
    "european": (text(";", ",").encode("latin-1"), "separated by ';', with decimal commas, in cp1252"),
    "tabs": (text("\t").encode("utf-8-sig"), "separated by tab"),
    "tabs and commas": (text("\t", ",").encode("utf-16"), "separated by tab, with decimal commas, in utf-16"),
    "bars": (text("|").encode("utf-32"), "separated by '|', in utf-32"),
    "spaces": (text(" ").encode(), "separated by space"),
    "windows": (text().encode("cp1252"), "in cp1252"),
    "line ends": (text(";", ",", lineterminator="\r\n").encode(), "separated by ';', with decimal commas"),
    "usual": (text().encode(), None),
    "usual with a mark": (text().encode("utf-8-sig"), None),
}


@pytest.mark.parametrize(("content", "told"), FORMS.values(), ids=FORMS.keys())
def test_a_table_is_the_same_however_it_is_written(tmp_path, content, told):
    kinds, expected = columns(open_source(written(tmp_path / "plain.csv", text())))
    source = open_source(written(tmp_path / "t.csv", content))
    assert source.header == tuple(FRAME.columns)
    found_kinds, found = columns(source)
    assert found_kinds == kinds
    for name in kinds:
        np.testing.assert_array_equal(found[name], expected[name], strict=True)
    assert source.notes == (
        ()
        if told is None
        else (f"{source.name} was taken for text {told}; --sep, --decimal and --encoding decide otherwise",)
    )


@pytest.mark.parametrize("decimal", [".", ","])
def test_options_decide(tmp_path, decimal):
    """Beside a decimal comma 1.500 is no number, and never 1.5."""
    path = written(tmp_path / "t.csv", "a;b;c\n1,500;1.500;x\n2,000;2.000;y\n")
    source = open_source(path, form=TextFormat(decimal=decimal))
    assert source.kinds(["a", "b", "c"]) == {
        "a": "numeric" if decimal == "," else "categorical",
        "b": "numeric" if decimal == "." else "categorical",
        "c": "categorical",
    }
    (block,) = source.blocks(9)
    assert block.read({"a" if decimal == "," else "b": "numeric"}).popitem()[1].tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("content", "sep", "decimal"),
    [
        ("a;b\n1,500;2\n", ";", "."),  # thousands, or not: nobody guesses
        ("a;b\n0,500;2\n", ";", ","),
        ("a;b\n1,5;1.5\n", ";", "."),
        ('a,b\n"1,5","2,5"\n', ",", "."),  # beside commas between cells a decimal comma is named by an option
        ("a;b,c\n1;2,3\n", ",", "."),  # as usual, where both cut alike
        ("name, first;y\nx, y;1\n", ",", "."),
        ("a b;c\n1 2;3\n", ";", "."),
        ("age\n1\n", ",", "."),
        ("a;b;c\n1;2\n" + "1;2;3\n" * 20, ";", "."),  # one line is short
        ("a;b\n1;2\n3\n4;5;6\n", ";", "."),  # no line is right; the header tells
    ],
)
def test_what_is_guessed(content, sep, decimal):
    known, _ = TextFormat().recognised("t", content.encode(), ",", whole=True)
    assert (known.sep, known.decimal) == (sep, decimal)


def test_a_separator_that_does_not_separate_is_told_with_one_that_may(tmp_path):
    path = written(tmp_path / "t.csv", "a;b\n1;2\n")
    with pytest.raises(InputError, match=r"one column whose name holds ';'. Name the separator: --sep ';'"):
        open_source(path, form=TextFormat(sep=","))


def test_a_decimal_comma_in_quotes_is_read_where_an_option_says_so(tmp_path):
    path = written(tmp_path / "t.csv", 'a,b\n"1,5",x\n"2,5",y\n')
    (block,) = open_source(path, form=TextFormat(decimal=",")).blocks(9)
    assert block.read({"a": "numeric"})["a"].tolist() == [1.5, 2.5]


def test_labels_and_gaps_beside_decimal_commas(tmp_path):
    content = "a;b\n" + "".join(f"{row},5;{'?' if row == 3 else f'{row},25'}\n" for row in range(9))
    source = open_source(written(tmp_path / "t.csv", content), missing=["?"])
    kinds, found = columns(source)
    assert set(kinds.values()) == {"numeric"}
    np.testing.assert_array_equal(found["b"], [np.nan if row == 3 else row + 0.25 for row in range(9)])
    source = open_source(written(tmp_path / "t.csv", content))
    (block,) = source.blocks(99)
    assert block.read({"b": "categorical"})["b"][2:4].tolist() == ["2.25", "?"]


@pytest.mark.parametrize("name", ["t.txt", "t.dat", "t.data", "t.tab", "t.csv.gz", "t.txt.gz"])
def test_every_ending_of_text_is_read(tmp_path, name):
    import gzip

    content = FORMS["european"][0]
    path = written(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    assert open_source(path).header == tuple(FRAME.columns)


def test_fit_and_predict_tell_their_guess_in_one_line_and_agree(tmp_path):
    """Whatever the formats of the two tables."""
    frame = FRAME.drop(columns="note")
    plain = written(tmp_path / "plain.csv", frame)
    odd = written(tmp_path / "odd.csv", frame.to_csv(index=False, sep=";", decimal=",").encode("latin-1"))
    given = ["--target", "cost", "--drop", "id,state", "--model", "linear", "--test-size", "0"]
    files = []
    for table, new in ((plain, odd), (odd, plain)):
        model, out = tmp_path / f"{table.stem}.bayes", tmp_path / f"{table.stem}.out.csv"
        fitted = run("fit", table, *given, "--out", model)
        predicted = run("predict", model, new, "--out", out)
        assert (fitted.exit_code, predicted.exit_code) == (0, 0), (fitted.output, predicted.output)
        told = "with decimal commas, in cp1252; --sep, --decimal and --encoding decide otherwise"
        assert [told in fitted.stdout, told in predicted.stdout] == [table is odd, new is odd]
        files.append(out.read_bytes())
        piped = run("predict", model, "-", "--out", "-", stdin=new.read_bytes())
        assert (piped.stdout.encode(), told in piped.stderr) == (files[-1], new is odd)
        checked = run("check", "-", "--target", "cost", stdin=new.read_bytes())
        assert (checked.exit_code, told in checked.stdout) == (0, new is odd)
    assert files[0] == files[1]
    assert len(pd.read_csv(tmp_path / "odd.out.csv")) == 70
