"""What a comparison shows and writes."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from sklearn.datasets import make_moons

from bayescope.comparison import FILES, compare, measures
from bayescope.errors import InputError
from bayescope.estimators import BayesianLogisticRegression
from tests.conditions import file_limit

# The classes of these tables are nearly separable: "laplace" warns of its predictions.
pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(80, noise=0.3, random_state=0)
    names = ["map", "map_temperature", "variational"]
    return compare(BayesianLogisticRegression(), X, y, posteriors=names, reference="laplace")


def column(name, reference="laplace"):
    return next(column for column in measures.columns("classes", reference) if column.name == name)


def test_saves_a_table_and_pictures_that_can_be_read_again(moons, tmp_path):
    paths = moons.save(tmp_path / "results")
    names = [
        "agreement.png",
        "comparison.csv",
        "comparison.md",
        "decision_surface.png",
        "marginals.png",
        "reliability.png",
    ]
    assert [path.name for path in paths] == names
    assert sorted(file.name for file in (tmp_path / "results").iterdir()) == names
    assert set(FILES) == {*names, "calibration.png"}
    table = pd.read_csv(
        tmp_path / "results" / "comparison.csv", index_col="posterior", keep_default_na=False, na_values=[""]
    )
    numbers = table.columns.drop("evidence_kind")
    np.testing.assert_allclose(table[numbers].astype(float), moons.table[numbers].astype(float))
    for path in paths:
        if path.suffix == ".png":
            picture = image.imread(path)
            assert picture[..., :3].std() > 0.01, "an empty picture"


def test_a_failure_while_saving_leaves_nothing(moons, tmp_path):
    with file_limit(8000), pytest.raises(InputError, match="File too large"):  # the tables have room, pictures do not
        moons.save(tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused(moons, tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(InputError, match="expected a folder"):
        moons.save(tmp_path / "results")


def test_markdown_holds_the_table_with_its_bounds_bests_and_footnotes(moons):
    lines = moons.to_markdown().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["MAP", "MAP + temperature", "VI", "Laplace"]
    assert {len(row) for row in rows} == {len(moons.measures) + 1}
    cells = dict(zip(rows[0], rows[4], strict=True))
    assert cells["log evidence"] == f"≥ −{-moons.table.loc['variational', 'log_evidence']:.2f}"
    best = f"{moons.table['nll'].min():.4f}"
    assert [dict(zip(rows[0], row, strict=True))["NLL"] for row in rows[2:]].count(f"**{best}**") >= 1
    assert all(f"- {note}" in lines for note in moons.footnotes)


def test_the_best_is_the_lowest_or_highest_as_written_and_all_that_tie():
    table = pd.DataFrame({"nll": [0.30001, 0.30002, 0.4], "auroc": [0.7, 0.9, 0.8]}, index=["a", "b", "laplace"])
    assert measures.best_cells(table, column("nll"), "laplace") == [True, True, False]
    assert measures.best_cells(table, column("auroc"), "laplace") == [False, True, False]


def test_the_reference_does_not_win_in_the_distance_to_itself():
    table = pd.DataFrame({"tv_to_laplace": [0.1, 0.2, 0.0]}, index=["a", "b", "laplace"])
    assert measures.best_cells(table, column("tv_to_laplace"), "laplace") == [True, False, False]


def test_no_evidence_is_best_and_blanks_stay_blank():
    table = pd.DataFrame(
        {"log_evidence": [-3.0, -2.0, np.nan], "evidence_kind": ["estimate", "lower bound", ""]}, index=["a", "b", "c"]
    )
    assert measures.best_cells(table, column("log_evidence"), "c") == [False, False, False]
    assert measures.written(table, column("log_evidence")) == ["−3.00", "≥ −2.00", ""]


def test_figures_are_there_for_two_features_and_for_more(moons):
    assert set(moons.figures()) == {"reliability", "agreement", "marginals", "decision_surface"}
    source = np.random.default_rng(0)
    X, y = source.normal(size=(60, 3)), source.integers(3, size=60)
    wider = compare(BayesianLogisticRegression(), X, y, posteriors=["map"], reference="laplace")
    assert set(wider.figures()) == {"reliability", "agreement", "marginals"}


def test_one_posterior_alone_has_its_reliability():
    X, y = make_moons(60, noise=0.3, random_state=0)
    alone = compare(BayesianLogisticRegression(), X, y, posteriors=["laplace"], reference="laplace")
    assert set(alone.figures()) == {"reliability", "decision_surface"}
