"""`bayescope check`: everything at once, each with the option that helps, and a command that can be pasted."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from bayescope.cli.findings import flag, shell_word
from bayescope.cli.header import split_names
from bayescope.cli.suspicious import code, leak, looked_up, multiples, row_number, stand_in, zeros
from bayescope.cli.target import Target
from tests.cli.tables import mixed, refused, run, written
from tests.test_prose import ROOT, blocks

ROWS = 120


def untidy():
    """A table with one thing of each kind wrong with it, and a column whose name needs quotes."""
    source = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "it's, odd": [f"n{row}" for row in range(ROWS)],
            "post code": [f"0{each}" for each in source.integers(1, 9, ROWS)],
            "sold on": pd.date_range("2023-01-01", periods=ROWS).strftime("%d.%m.%Y"),
            "constant": 1,
            "age": source.normal(50, 9, ROWS).round(1),
            "weight": np.where(source.random(ROWS) < 0.1, -999, source.normal(70, 9, ROWS).round(1)),
            "site": source.choice(["a", "A", "b"], ROWS),
            "shop": source.choice(["x", "y", "-"], ROWS),
            "dose": ["?" if row == 5 else row * 0.25 % 21 for row in range(ROWS)],
            "pain": source.integers(1, 5, ROWS),
            "nothing": None,
        }
    )
    frame["pounds"] = frame["age"] * 2.2 + 1
    frame["twin"] = frame["age"]
    frame["visits"] = source.poisson(np.exp(0.5 + 0.5 * np.array([0, 3, -3, 1, 2])[frame["pain"]]))
    frame["paid later"] = frame["visits"] * 3 + 7
    return frame


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("check") / "un tidy.csv", untidy())
    result = run("check", path, "--target", "visits", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return path, json.loads(result.stdout)


EXPECTED = {  # what is said of each column, and the option
    "id": ("counts the rows", "--drop id"),
    "it's, odd": ("labels that recur", "--drop 'it'\"'\"'s, odd'"),
    "post code": ("leading zeros", "--categorical 'post code'"),
    "sold on": ("got dates", "--dates 'sold on'"),
    "constant": ("more than one value", "--drop constant"),
    "weight": ("cells are -999", "--missing -999"),
    "site": ("differ in capitals", None),
    "shop": ("the label '-' probably stands for a missing value", "--missing -"),
    "dose": ("got '?' in line 7", "--missing '?'"),
    "pain": ("does not follow their order", "--categorical pain"),
    "nothing": ("got none in", "--drop nothing"),
    "pounds": ("'age' in another unit", "--drop pounds"),
    "twin": ("equal in every row", "--drop twin"),
    "paid later": ("gives the target almost perfectly", "--drop 'paid later'"),
}


def test_everything_is_found_at_once(checked):
    _, facts = checked
    for name, (text, option) in EXPECTED.items():
        (found,) = [each for each in facts["findings"] if each["text"].startswith(f"column {name!r}: ")]
        assert text in found["text"], name
        assert found["flag"] == option, name
        if option is not None:
            assert option in found["text"]
    others = [
        each for each in facts["findings"] if not any(each["text"].startswith(f"column {n!r}: ") for n in EXPECTED)
    ]
    assert [each["flag"] for each in others] == ["--likelihood negative_binomial"]
    assert not any("'age'" in each["text"][:14] for each in facts["findings"])


def test_what_a_fit_refuses_is_what_check_lists(checked, tmp_path):
    path, facts = checked
    result = run("fit", path, "--target", "visits", "--out", tmp_path / "m.bayes")
    assert result.exit_code == 2
    assert result.stdout == ""
    expected = [each["text"] for each in facts["findings"] if each["refused"]]
    assert result.stderr.splitlines() == [f"bayescope: {path}: {text}" for text in expected]
    assert len(expected) == 4
    assert list(tmp_path.iterdir()) == []


def test_the_command_works_as_it_is_pasted(checked, monkeypatch, tmp_path):
    path, facts = checked
    words = shlex.split(facts["command"])
    assert words[:5] == ["bayescope", "fit", str(path), "--target", "visits"]
    assert words[-1] == "un tidy.bayes"
    monkeypatch.chdir(tmp_path)
    result = run(*words[1:], "--model", "linear", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    # age, weight, site, shop, dose, pain, the post code, and three parts of the date
    assert json.loads(result.stdout)["features"] == 10
    shown = run("check", path, "--target", "visits").stdout
    pasted = shown[shown.index("  bayescope fit") :].replace("\\\n", " ")
    assert shlex.split(pasted) == words


def test_nothing_wrong_is_said_of_a_tidy_table(tmp_path):
    path = written(tmp_path / "t.csv", mixed(80).drop(columns=["id", "cost"]))
    result = run("check", path, "--target", "state")
    assert result.exit_code == 0
    assert "80 rows, 4 columns: 2 of numbers, 2 of labels" in result.stdout
    assert "missing values: 'dose' 2.5 %, 'colour' 2.5 %" in result.stdout
    assert "--drop" not in result.stdout
    assert shlex.split(result.stdout.rpartition(":\n")[2].replace("\\\n", ""))[:5] == [
        "bayescope",
        "fit",
        str(path),
        "--target",
        "state",
    ]


def test_rows_that_occur_twice_are_counted(tmp_path):
    frame = mixed(80).drop(columns=["id", "cost"])
    told = run("check", written(tmp_path / "t.csv", pd.concat([frame, frame[9:11]])), "--target", "state").stdout
    assert "rows: 2 of 82 are equal to an earlier row in every column" in told


def test_the_target_is_guessed_and_a_table_that_cannot_be_read_is_bad_input(tmp_path):
    told = run("check", written(tmp_path / "t.csv", mixed().rename(columns={"cost": "Y"}))).stdout
    assert "target 'Y' (a guess: name another with --target): regression" in told
    assert refused(run("check", written(tmp_path / "e.csv", "a,b\n1\n")), "line 2: expected 2 cells")
    assert refused(run("check", written(tmp_path / "e.csv", "a,b\n1,2\n"), "--target", "c"), "expected a target column")


@pytest.mark.parametrize(
    "name", ["a b", "a,b", "it's", '"q"', "$HOME", "a;b", "größe", "-x", " a", "a\nb", "back\\slash"]
)
def test_names_survive_a_shell(name):
    import subprocess

    line = f"printf '%s\\0' {flag('--drop', 'plain', name)}"
    words = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout.decode().split("\0")[:-1]
    options = [value for option, value in zip(words[::2], words[1::2], strict=True) if option == "--drop"]
    assert sorted(split_names(options, ["plain", name])) == sorted(["plain", name])
    assert shell_word(name).isprintable()


def classes(values):
    return Target("y", np.asarray(values), "classification", "")


def test_a_leak_is_found_and_a_good_feature_is_none():
    source = np.random.default_rng(0)
    x = source.standard_normal(400)
    y = (x > 0.3).astype(int)
    labels = np.array([f"group {value}" for value in y], dtype=object)
    noisy = np.where(source.random(400) < 0.03, 1 - y, y)
    assert leak("x", x, "numeric", classes(y))
    assert leak("x", np.where(source.random(400) < 0.3, np.nan, x), "numeric", classes(y)) is None
    assert leak("g", labels, "categorical", classes(y))
    assert leak("x", x, "numeric", classes(noisy)) is None
    assert leak("n", np.array([f"{row}" for row in range(400)], dtype=object), "categorical", classes(y)) is None
    for wrong, found in ((1, True), (8, False)):  # of 400 rows, in about 150 of which a guess is wrong
        column = np.array([f"group {value}" for value in np.where(np.arange(400) < wrong, 1 - y, y)], dtype=object)
        assert (leak("g", column, "categorical", classes(y)) is not None) is found
    for unlike in (np.exp(x), x**3, -2 * x + 1):
        assert leak("x", x, "numeric", Target("y", unlike, "regression", "")) is not None
    assert leak("x", x, "numeric", Target("y", x + 0.3 * source.standard_normal(400), "regression", "")) is None


def test_codes_are_told_from_counts_by_the_order_of_the_target():
    source = np.random.default_rng(1)
    v = source.integers(1, 6, 500).astype(float)
    for effect, sure in (
        ([0, 1, 2, 3, 4], False),
        ([0, 1, 4, 9, 16], False),
        ([4, 3, 2, 1, 0], False),
        ([0, 3, -3, 2, -2], True),
        ([0] * 5, False),
    ):
        y = np.array(effect, dtype=float)[v.astype(int) - 1] + source.standard_normal(500)
        for target in (Target("y", y, "regression", ""), classes(np.digitize(y, [0.0, 2.0]))):
            found = code("v", v, (), target)
            assert found is not None
            assert found.suggested is sure, effect
    target = classes(v > 2)
    assert code("v", source.standard_normal(500), (), target) is None
    assert code("v", np.arange(500.0), (), target) is None
    assert code("v", np.repeat([0.0, 1.0], 250), (), target) is None
    assert code("v", np.arange(500.0), ["007"], target).suggested


def test_numbers_of_rows_and_numbers_for_missing_values():
    shuffled = np.random.default_rng(0).permutation(50) + 7.0
    assert "from 7 on" in row_number("anything", shuffled).text
    assert row_number("anything", shuffled * 3) is None
    assert row_number("patient_id", shuffled * 3) is not None
    assert row_number("id", np.append(shuffled[:-1], shuffled[0])) is None
    assert row_number("width", shuffled + 0.5) is None
    normal = np.random.default_rng(0).standard_normal(50)
    assert stand_in("x", np.append(normal, [-999, -999])).values == ("-999",)
    assert stand_in("x", np.append(normal, [-999])) is None
    assert stand_in("x", np.append(normal * 600, [-999, -999])) is None
    assert not stand_in("x", np.append(normal, [99, 99])).suggested
    assert [each.values for each in multiples({"a": normal, "b": 3 - 2 * normal, "c": normal**2})] == [("b",)]


def test_zeros_for_missing_values_are_told_from_zeros_that_are_meant(tmp_path):
    source = np.random.default_rng(3)
    some = source.random(400) < 0.04
    pressure = np.where(some, 0, source.normal(72, 12, 400).round())
    assert zeros("pressure", pressure).flag == "--missing pressure=0"
    assert zeros("pressure", np.where(some, np.nan, pressure)) is None
    assert zeros("pressure", pressure - 60) is None
    meant = {
        "counts": source.poisson(4, 400),
        "many counts": source.poisson(source.gamma(3, 5, 400)),
        "a dummy": some,
        "a code": np.where(some, 0, source.integers(20, 25, 400)),
        "amounts": np.where(some, 0, source.lognormal(3, 0.6, 400)),
        "mostly none": np.where(source.random(400) < 0.5, 0, source.normal(72, 12, 400)),
        "signed": source.normal(0, 1, 400).round(1),
        "one": np.append(source.normal(72, 12, 400), 0),
        "grades": np.append(source.uniform(1, 100, 400).round(), [0, 0, 0]),
    }
    for name, values in meant.items():
        assert zeros(name, values.astype(float)) is None, name
    frame = pd.DataFrame({"pressure": pressure, "visits": source.poisson(2, 400), "y": source.normal(size=400)})
    path = written(tmp_path / "t.csv", frame)
    shown = run("check", path, "--target", "y").stdout
    assert "--missing" not in shown[shown.index("bayescope fit") : shown.index("options to add")]
    assert "--missing pressure=0" in shown[shown.index("options to add") :]
    after = run("check", path, "--target", "y", "--missing", "pressure=0").stdout
    assert f"missing values: 'pressure' {100 * some.mean():.2g} %" in after
    assert "--missing pressure=0" in after[after.index("bayescope fit") :]
    assert refused(run("check", path, "--missing", "presure=0"), "--missing: expected a column", "'pressure'?")


def test_dates_that_have_a_type_are_findings_with_an_option(tmp_path):
    pytest.importorskip("pyarrow", reason="writes Parquet")
    frame = mixed(80).drop(columns=["id", "cost"]).assign(on=pd.date_range("2024-01-01", periods=80))
    path = written(tmp_path / "t.parquet", frame)
    facts = json.loads(run("check", path, "--target", "state", "--json").stdout)
    assert [each["flag"] for each in facts["findings"] if each["refused"]] == ["--dates on"]
    result = run(*shlex.split(facts["command"])[1:-1], tmp_path / "m.bayes", "--model", "linear")
    assert result.exit_code == 0, result.output
    target = json.loads(run("check", path, "--target", "on", "--json").stdout)
    assert [each["flag"] for each in target["findings"] if each["refused"]] == [None]
    several = json.loads(run("check", tmp_path / "*.parquet", "--target", "state", "--json").stdout)
    assert several["command"].endswith("--dates on --out model.bayes")


def test_the_page_shows_what_the_command_says(tmp_path, monkeypatch):
    page = ROOT / "docs" / "how_to" / "any_table.md"
    table, command, *_ = blocks(page)
    monkeypatch.chdir(tmp_path)
    exec(table.code, {})
    assert run(*shlex.split(command.code)[2:]).stdout.rstrip() == command.shown.rstrip()


def test_the_first_look_for_leaks_agrees_with_a_tree_that_has_a_leaf_for_each_number() -> None:
    source = np.random.default_rng(4)
    x = np.where(source.random(120) < 0.2, np.nan, source.integers(0, 15, 120).astype(float))
    new = np.append(source.integers(-2, 18, 40) + 0.3, np.nan)
    y = np.nan_to_num(x) ** 2 + source.normal(size=120)
    # Trees place missing values on either side of a split; at a large number they have a leaf of their own
    filled, asked = (np.where(np.isnan(part), 100.0, part)[:, None] for part in (x, new))
    tree = DecisionTreeRegressor(random_state=0).fit(filled, y)
    np.testing.assert_allclose(looked_up(x, y, new, classes=False), tree.predict(asked))
    labels = np.array(["low", "middle", "high"], dtype=object)[np.digitize(y, [20.0, 90.0])]
    leaves = DecisionTreeClassifier(random_state=0).fit(filled, labels)
    np.testing.assert_array_equal(looked_up(x, labels, new, classes=True), leaves.predict(asked))


def test_the_command_for_more_columns_than_an_additive_model_takes_names_the_linear_one(tmp_path, monkeypatch):
    table = written(tmp_path / "t.csv", mixed())
    monkeypatch.setattr("bayescope.cli.checking.MOST_FEATURES", 2)
    found = run("check", table, "--target", "state", "--json")
    assert "--model linear" in json.loads(found.stdout)["command"]
    monkeypatch.setattr("bayescope.cli.checking.MOST_FEATURES", 10)
    assert "--model" not in json.loads(run("check", table, "--target", "state", "--json").stdout)["command"]
