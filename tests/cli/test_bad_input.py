"""Bad input, whatever the command: one clear line of the library's own error, exit code 2, and nothing written."""

from pathlib import Path

import pytest

from tests.cli.tables import mixed, refused, run, written

FRAME = mixed(40)
CSV = FRAME.to_csv(index=False)
FIT = ["fit", "{table}", "--target", "state", "--drop", "id,cost", "--out", "{out}/m.bayes"]
PREDICT = ["predict", "{classes}", "{table}", "--out", "{out}/p.csv"]
COMPARE = ["compare", "{table}", "--target", "state", "--drop", "id,cost", "--out", "{out}"]
REPORT = ["report", "{classes}", "{table}", "--out", "{out}/r.html"]
EFFECTS = ["effects", "{classes}", "--out", "{out}"]
INFO = ["info", "{classes}"]

# Tables that no command can read; each is given to one that fits and to one that predicts.
TABLES = {
    "empty file": ("", "expected a header and rows, got an empty file"),
    "header only": (CSV.splitlines()[0] + "\n", "expected rows below the header, got none"),
    "binary": (b"\x89PNG\r\n\x1a\n\0\0\0", "expected text"),
    "zero byte": (CSV + "\0", "line 42: expected text, got binary data"),
    "utf-8 with a slip": (
        CSV.replace("red", "rød").encode() + b"\xf8",
        "line 42: expected text in UTF-8, got the byte 0xf8",
    ),
    "utf-16 without a mark": (CSV.encode("utf-16-le"), "expected text, got binary data"),
    "utf-16 cut in a letter": (CSV.encode("utf-16")[:-1], "expected text in utf-16"),
    "no header": (CSV.split("\n", 1)[1].replace("sick", "1").replace("well", "0"), "the first row looks like data"),
    "short row": (CSV + "41,50.0,1.0\n", "line 42: expected 6 cells, as in the header, got 3"),
    "long row": (CSV + "41,50.0,1.0,red,1,sick,9\n", "line 42: expected 6 cells, as in the header, got 7"),
    "several rows": (
        CSV + "41,50.0\n42,1,2,red,3,sick\n43\n44\n",
        "line 42: expected 6 cells, as in the header, got 2; other numbers of cells are also in lines 44, 45. Correct",
    ),
    "open quote": (CSV + '41,50.0,1.0,"red,1,sick\n', "line 42"),
    "open quote above": (
        CSV + '41,50.0,"1.0,red,1,sick\n' + "42,50.0,1.0,red,1,sick\n" * 3,
        "line 42: expected 6 cells, as in the header, got 3 up to line 45. Close the quotation mark",
    ),
    "same name twice": (CSV.replace("dose", "age", 1), "expected each column name once, got 'age' more than once"),
    "nameless column": (CSV.replace("dose", "", 1), "expected a name for every column, got none for column 3"),
    "infinite": (CSV + "41,inf,1.0,red,1,sick\n", "line 42, column 'age': expected a finite number, got inf"),
    "beyond all numbers": (
        CSV + f"41,{9 * 10**399},1.0,red,1,sick\n",
        "line 42, column 'age': expected a finite number",
    ),
}

# Commands with one thing wrong; "{bad}" is a file with the content beside it.
COMMANDS = {
    "fit: no file": ([*FIT[:1], "{out}.csv", *FIT[2:]], None, "expected a file, got nothing there"),
    "fit: folder": ([*FIT[:1], "{folder}", *FIT[2:]], None, "expected a directory with .parquet"),
    "fit: spreadsheet": (["fit", "{bad}", *FIT[2:]], ("t.xls", b"\xd0\xcf\x11\xe0"), "ends in .csv, .tsv, .txt"),
    "fit: separator": ([*FIT, "--sep", "::"], None, "--sep: expected one character, such as ';'"),
    "fit: decimal": ([*FIT, "--decimal", "·"], None, "--decimal: expected a point or a comma"),
    "fit: encoding": ([*FIT, "--encoding", "base64"], None, "--encoding: expected the name of an encoding"),
    "fit: sheet of text": ([*FIT, "--sheet", "1"], None, "--sheet: expected none for"),
    "fit: sheet of files": (
        ["fit", "{folder}", *FIT[2:], "--sheet", ";"],
        ("folder/t.csv", CSV),
        "--sheet: expected none for",
    ),
    "fit: no parquet": (["fit", "{bad}", *FIT[2:]], ("t.parquet", CSV), "expected a table that can be read"),
    "fit: cut gzip": (["fit", "{bad}", *FIT[2:]], ("t.csv.gz", b"\x1f\x8b\x08"), "can be read to its end"),
    "fit: no gzip": (["fit", "{bad}", *FIT[2:]], ("t.csv.gz", CSV), "can be read to its end"),
    "fit: unknown target": ([*FIT, "--target", "stat"], None, "Did you mean 'state'?"),
    "fit: unknown drop": ([*FIT, "--drop", "ages"], None, "--drop: expected a column of"),
    "fit: target dropped": ([*FIT, "--drop", "state"], None, "--drop: expected a column with no other role"),
    "fit: unknown weight": ([*FIT, "--weight", "w"], None, "--weight: expected a column of"),
    "fit: text weight": ([*FIT, "--weight", "colour"], None, "column 'colour': expected a number, got"),
    "fit: negative weight": (
        ["fit", "{table}", "--target", "state", "--weight", "cost", "--out", "{out}/m.bayes"],
        None,
        "column 'cost': expected a weight of at least 0, got a negative one",
    ),
    "fit: all dropped": ([*FIT, "--drop", "age,dose,colour"], None, "expected features beside the target, got none"),
    "fit: unknown task": ([*FIT, "--task", "clustering"], None, "--task: expected one of"),
    "fit: text regression": ([*FIT, "--task", "regression"], None, "expected a number in every row"),
    "fit: measured classes": (
        ["fit", "{table}", "--target", "cost", "--drop", "id", "--task", "classification", "--out", "{out}/m.bayes"],
        None,
        "expected classes, got a number with",
    ),
    "fit: unknown model": ([*FIT, "--model", "forest"], None, "--model: expected one of 'additive', 'linear', 'mlp'"),
    "fit: unknown posterior": ([*FIT, "--posterior", "laplas"], None, "Did you mean 'laplace'?"),
    "fit: posterior of the exact": (
        ["fit", "{table}", "--target", "cost", "--model", "linear", "--posterior", "ep", "--out", "{out}/m.bayes"],
        None,
        "posterior: expected 'auto' under a Gaussian prior, whose posterior is exact, got 'ep'",
    ),
    "fit: unknown likelihood": ([*FIT, "--likelihood", "poison"], None, "Did you mean 'poisson'?"),
    "fit: likelihood of text": ([*FIT, "--likelihood", "poisson"], None, "expected a number in every row"),
    "fit: likelihood of classes": (
        [*FIT, "--likelihood", "poisson", "--task", "classification"],
        None,
        "--likelihood: expected none for NeuralAdditiveClassifier, which predicts classes",
    ),
    "compare: negative count": (
        ["compare", "{table}", "--target", "cost", "--drop", "id", "--likelihood", "poisson", "--out", "{out}"],
        None,
        "column 'cost': expected whole numbers of at least 0 for --likelihood poisson, got",
    ),
    "fit: prior of words": (
        [*FIT, "--prior-precision", "weak"],
        None,
        "a positive number for all weights or 'evidence', got 'weak'",
    ),
    "fit: negative prior": ([*FIT, "--prior-precision", "-1"], None, "prior_precision: expected a positive number"),
    "fit: pairs of a linear model": (
        [*FIT, "--model", "linear", "--interactions", "3"],
        None,
        "it is for --model addi",
    ),
    "fit: unknown parameter": ([*FIT, "--set", "hiden=3"], None, "Did you mean 'hidden'?"),
    "fit: no parameter": ([*FIT, "--set", "hidden"], None, "--set: expected name=value, got 'hidden'"),
    "fit: parameter's value": ([*FIT, "--set", "hidden=many"], None, "hidden: expected a whole number"),
    "fit: seed by parameter": ([*FIT, "--set", "random_state=3"], None, "set by --seed"),
    "fit: test size": ([*FIT, "--test-size", "1.5"], None, "--test-size: expected a number from 0 to below 1"),
    "fit: too few to test": ([*FIT, "--test-size", "0.01"], None, "--test-size: expected at least 2 rows on either"),
    "fit: rare class": (
        ["fit", "{bad}", "--target", "y", "--out", "{out}/m.bayes"],
        ("t.csv", "x,y\n" + "".join(f"{row},{'abc'[row % 2 + (row == 9)]}\n" for row in range(30))),
        "expected at least 2 rows of each class",
    ),
    "fit: one class": (
        ["fit", "{bad}", *FIT[2:]],
        ("t.csv", CSV.replace("sick", "well")),
        "at least two classes, got one, 'well'",
    ),
    "fit: dates": (
        ["fit", "{bad}", *FIT[2:]],
        ("t.csv", CSV.replace("red", "2024-05-01").replace("blue", "2024-05-02").replace("green", "2024-05-03")),
        "got dates such as '2024-05-0",
    ),
    "fit: numbers and a word": (["fit", "{bad}", *FIT[2:]], ("t.csv", CSV + "9,fifty,1,red,1,sick\n"), "--missing"),
    "fit: out is a folder": ([*FIT, "--out", "{folder}"], None, "--out: expected to write the file"),
    "fit: out in a file": ([*FIT, "--out", "{table}/m.bayes"], None, "--out: expected a folder"),
    "fit: out is the table": (
        [*FIT, "--out", "{table}"],
        None,
        "--out: expected another file, got the one that is read",
    ),
    "predict: no model": (["predict", "{out}.bayes", *PREDICT[2:]], None, "expected the file of a model, got nothing"),
    "predict: table as model": (["predict", "{table}", *PREDICT[2:]], None, "table.csv: "),
    "predict: cut model": (["predict", "{cut}", *PREDICT[2:]], None, "cut.bayes: "),
    "predict: no column": (
        ["predict", "{classes}", "{bad}", *PREDICT[3:]],
        ("t.csv", "age,dos\n1,2\n"),
        "expected the 3 columns that the model was fitted to, got none named 'dose', 'colour'; its columns",
    ),
    "predict: text for a number": (
        ["predict", "{classes}", "{bad}", *PREDICT[3:]],
        ("t.csv", "age,dose,colour\n50,1,red\n51,lots,red\n"),
        "t.csv: line 3, column 'dose': expected a number, got 'lots'",
    ),
    "predict: level": ([*PREDICT, "--level", "95"], None, "between 0 and 1, got 95.0. Write 0.95 for 95 %."),
    "predict: abstain": ([*PREDICT, "--abstain", "1.5"], None, "--abstain: expected a number strictly between 0 and 1"),
    "predict: numbers abstain": (["predict", "{numbers}", *PREDICT[2:], "--abstain", "0.9"], None, "got a regression"),
    "predict: chunk": ([*PREDICT, "--chunk-rows", "0"], None, "--chunk-rows: expected a whole number of at least 1"),
    "predict: keep": ([*PREDICT, "--keep", "name"], None, "--keep: expected a column of"),
    "predict: out": ([*PREDICT, "--out", "{out}/p.xlsx"], None, "expected a file name that ends in .csv"),
    "predict: out is a folder": ([*PREDICT, "--out", "{folder}"], None, "got a folder of that name"),
    "predict: json to data": ([*PREDICT, "--out", "-", "--json"], None, "--json: expected predictions in a file"),
    "predict: twice the table": ([*PREDICT, "--out", "{table}"], None, "--out: expected another file, got the one"),
    "compare: numbers as classes": (
        ["compare", "{table}", "--target", "cost", "--drop", "id", "--task", "classification", "--out", "{out}"],
        None,
        "Cut it into classes, or fit a regression",
    ),
    "compare: link of numbers": (
        ["compare", "{table}", "--target", "cost", "--drop", "id", "--link", "probit"],
        None,
        "--link: expected none for BayesianLinearRegression; it is for --model linear and classes",
    ),
    "compare: no such model": ([*COMPARE, "--model", "linaer"], None, "Did you mean 'linear'?"),
    "compare: unknown posterior": ([*COMPARE, "--posteriors", "map,laplase"], None, "Did you mean 'laplace'?"),
    "compare: constant": (
        ["compare", "{bad}", *COMPARE[2:]],
        ("t.csv", FRAME.assign(colour="red").to_csv(index=False)),
        "expected more than one value, got red in every row",
    ),
    "compare: twins": (
        ["compare", "{bad}", *COMPARE[2:]],
        ("t.csv", FRAME.assign(age2=FRAME["age"]).to_csv(index=False)),
        "expected different columns, got 'age' and 'age2' equal in every row",
    ),
    "compare: folder": ([*COMPARE, "--out", "{table}"], None, "--out: expected a folder"),
    "report: no target": (
        ["report", "{classes}", "{bad}", *REPORT[3:]],
        ("t.csv", "age,dose,colour\n50,1,red\n"),
        "TABLE: expected a column of",
    ),
    "report: unknown class": (
        ["report", "{classes}", "{bad}", *REPORT[3:]],
        ("t.csv", "age,dose,colour,state\n50,1,red,sick\n50,1,red,dead\n"),
        "line 3, column 'state': expected one of the",
    ),
    "report: out": ([*REPORT, "--out", "{out}/r.pdf"], None, "--out: expected a file name that ends in .html"),
    "report: reference": ([*REPORT, "--reference", "mcmc"], None, "--reference: expected one of"),
    "effects: linear model": (["effects", "{numbers}", *EFFECTS[2:]], None, "expected an additive model"),
    "effects: unknown feature": ([*EFFECTS, "--feature", "ages"], None, "Did you mean 'age'?"),
    "effects: level": ([*EFFECTS, "--level", "0"], None, "--level: expected a number strictly between 0 and 1"),
    "effects: out is a file": ([*EFFECTS, "--out", "{table}"], None, "--out: expected a folder"),
    "info: no model": (["info", "{table}"], None, "table.csv: "),
    "info: folder": (["info", "{folder}"], None, "expected the file of a model, got a folder"),
    "gallery: unknown picture": (["gallery", "--out", "{out}", "--only", "sigmoid"], None, "expected one of"),
}


def ended(place: Path, arguments: list[str], names: dict[str, object], *messages: str) -> None:
    """Runs a command that has to be refused, and sees that it left nothing behind."""
    before = sorted(place.rglob("*"))
    content = {path: path.read_bytes() for path in before if path.is_file()}
    assert refused(run(*(argument.format(**names) for argument in arguments)), *messages)
    assert sorted(place.rglob("*")) == before
    assert {path: path.read_bytes() for path in before if path.is_file()} == content


@pytest.fixture
def names(tmp_path, table, classes, numbers):
    """What stands for the words in braces; the models lie elsewhere, and are none of this test's."""
    (tmp_path / "folder").mkdir()
    copies = {
        name: tmp_path / path.name for name, path in (("table", table), ("classes", classes), ("numbers", numbers))
    }
    for name, path in (("table", table), ("classes", classes), ("numbers", numbers)):
        copies[name].write_bytes(path.read_bytes())
    cut = written(tmp_path / "cut.bayes", classes.read_bytes()[:-500])
    return {**copies, "cut": cut, "folder": tmp_path / "folder", "out": tmp_path / "out"}


@pytest.mark.parametrize(("content", "message"), TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("command", [FIT, PREDICT, COMPARE, REPORT], ids=["fit", "predict", "compare", "report"])
def test_tables_that_nobody_can_read(tmp_path, names, command, content, message):
    names["table"] = written(tmp_path / "bad.csv", content)
    ended(tmp_path, command, names, "bad.csv: ", message)


@pytest.mark.parametrize(("arguments", "bad", "message"), COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_that_cannot_be_run(tmp_path, names, arguments, bad, message):
    if bad is not None:
        names["bad"] = written(tmp_path / bad[0], bad[1])
    ended(tmp_path, arguments, names, message)


def test_standard_input_is_named_in_messages(classes, tmp_path):
    given = "age,dose,colour\n50,1,red\nold,1,red\n"
    result = run("predict", classes, "-", "--out", tmp_path / "p.csv", stdin=given)
    assert refused(result, "standard input: line 3, column 'age': expected a number, got 'old'")
    assert refused(
        run("fit", "-", "--target", "y", "--out", tmp_path / "m.bayes", stdin=""), "standard input: expected a"
    )
    assert list(tmp_path.iterdir()) == []
