"""The table in terminals: whole where it fits, in two parts where it does not, and never cut."""

import io
import re

import pytest
from rich.console import Console
from sklearn.datasets import make_moons

from bayescope.cli.comparing import show
from bayescope.comparison import compare
from bayescope.estimators import BayesianLogisticRegression

# The classes of these tables are nearly separable: "laplace" warns of its predictions.
pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")


@pytest.fixture(scope="module")
def comparison():
    X, y = make_moons(80, noise=0.3, random_state=0)
    names = ["map", "map_temperature", "variational"]
    return compare(BayesianLogisticRegression(), X, y, posteriors=names, reference="laplace")


def shown(comparison, width, **options):
    file = io.StringIO()
    show(comparison, Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize(("width", "parts"), [(80, 2), (160, 1)])
def test_nothing_is_cut(comparison, width, parts):
    text = shown(comparison, width, force_terminal=True, color_system=None)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("MAP + temperature  ") == parts
    for column in comparison.measures:
        assert column.label in text
    for note in comparison.footnotes:
        assert " ".join(note.split()) in " ".join(text.split())


def test_the_best_values_stand_out(comparison):
    text = shown(comparison, 160, force_terminal=True, color_system="standard")
    bold = re.findall(r"\*\*(.+?)\*\*", comparison.to_markdown())
    assert bold
    assert re.findall(r"\x1b\[1;32m *(\S+?) *\x1b", text) == bold
