"""What a comparison shows and writes."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from sklearn.datasets import make_moons

from bayescope import metrics
from bayescope.comparison import FILES, compare, measures
from bayescope.comparison.answers import ClassAnswers
from bayescope.errors import InputError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.plots import style
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
    for measure in moons.measures:
        bold = [f"**{cell}**" for cell in measures.written(moons.table, measure)]
        lead = moons.leads.get(measure.name)
        shown = [dict(zip(rows[0], row, strict=True))[measure.label] for row in rows[2:]]
        expected = [lead is not None and lead.clear and name == lead.best for name in moons.table.index]
        assert [cell == strong for cell, strong in zip(shown, bold, strict=True)] == expected
    assert all(f"- {note}" in lines for note in moons.footnotes)


def outcomes(*probs, y):
    """Contenders "a", "b" and so on with these probabilities of the second class, the last of them the reference."""
    answered = [ClassAnswers(np.log(np.column_stack([1 - p, p])), y) for p in probs]
    return {
        name: measures.ContenderOutcome(None, each, None, 0.0, 0.0) for name, each in zip("abc", answered, strict=True)
    }


def led(name, found, reference="c"):
    one = column(name, reference)
    values = {who: one.value(each, found[reference]) for who, each in found.items()}
    table = pd.DataFrame({one.name: values})
    return measures.lead_of(one, table, found, reference), table


@pytest.mark.parametrize("name", ["nll", "brier", "auroc", "ece", "tv_to_c"])
def test_a_lead_has_the_interval_of_the_paired_difference(name):
    """By a slow loop over resampled rows; what leads by chance alone is not bold, what leads surely is."""
    generator = np.random.default_rng(0)
    y = generator.integers(2, size=83)
    signal = (2 * y - 1) + generator.normal(size=83)
    right, near, bad = (1 / (1 + np.exp(-z)) for z in (signal, signal + 0.05 * generator.normal(size=83), -signal))
    found = outcomes(right, bad, near, y=y)
    lead, table = led(name, found)
    others = [who for who in table.index if who != lead.best and not (name == "tv_to_c" and who == "c")]
    draws = np.random.default_rng(1).integers(83, size=(400, 83))
    scores = {"nll": metrics.nll, "brier": metrics.brier, "auroc": metrics.auroc, "ece": metrics.ece}

    def value(who, rows):
        if name == "tv_to_c":
            return np.abs(found[who].answers.probs[rows, 1] - near[rows]).mean()
        return scores[name](found[who].answers.probs[rows], y[rows])

    sign = -1 if name == "auroc" else 1
    slow = {
        who: np.quantile([sign * (value(who, r) - value(lead.best, r)) for r in draws], [0.025, 0.975])
        for who in others
    }
    rival = min(slow, key=lambda who: slow[who][0])
    assert lead.rival == rival
    assert (lead.low, lead.high) == pytest.approx(tuple(slow[rival]), abs=0.25 * np.ptp(slow[rival]))
    assert lead.difference == pytest.approx(sign * (table.loc[rival].item() - table.loc[lead.best].item()))
    assert measures.best_cells(table, lead) == [lead.clear and who == lead.best for who in table.index]


def test_what_leads_by_chance_is_not_bold_and_what_leads_surely_is():
    y = np.arange(60) % 2
    sure = np.where(y == 1, 0.9, 0.1)
    lead, table = led("nll", outcomes(sure, np.full(60, 0.5), 1 - sure, y=y))
    assert measures.best_cells(table, lead) == [True, False, False]
    twin = np.where(np.arange(60) < 30, sure + 0.01, sure - 0.01)
    lead, table = led("nll", outcomes(sure, twin, np.full(60, 0.5), y=y))
    assert measures.best_cells(table, lead) == [False, False, False]
    assert lead.low <= 0 <= lead.high
    lead, table = led("nll", outcomes(sure, sure, np.full(60, 0.5), y=y))
    assert not lead.clear


def test_the_reference_does_not_win_in_the_distance_to_itself():
    y = np.arange(40) % 2
    lead, table = led("tv_to_c", outcomes(np.full(40, 0.52), np.full(40, 0.9), np.full(40, 0.5), y=y))
    assert (lead.best, lead.rival) == ("a", "b")
    assert measures.best_cells(table, lead) == [True, False, False]


def test_footnotes_have_the_leads_with_their_intervals(moons):
    (note,) = [note for note in moons.footnotes if note.startswith("Bold")]
    for name, lead in moons.leads.items():
        assert f"{column(name).label}: {style.label(lead.best)} before {style.label(lead.rival)} by" in note
    assert "sd_error" not in moons.leads  # of weights, not of rows: nothing is known of its chance


def test_no_evidence_is_best_and_blanks_stay_blank():
    table = pd.DataFrame(
        {"log_evidence": [-3.0, -2.0, np.nan], "evidence_kind": ["estimate", "lower bound", ""]}, index=["a", "b", "c"]
    )
    assert measures.lead_of(column("log_evidence"), table, {}, "c") is None
    assert measures.best_cells(table, None) == [False, False, False]
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
