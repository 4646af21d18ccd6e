"""What a user of a notebook sees while and after a cell runs."""

from importlib.util import find_spec

import pytest

nbclient = pytest.importorskip("nbclient", reason="runs a notebook")
nbformat = pytest.importorskip("nbformat", reason="writes a notebook")
pytest.importorskip("ipykernel", reason="the kernel of the notebook")
without_widgets = pytest.mark.skipif(find_spec("ipywidgets") is not None, reason="with ipywidgets rich draws the bar")

CELL = """
from bayescope.progress import progress_bar
with progress_bar("fitting") as report:
    report(0, 2, "laplace")
    report(1, None, "nuts")
    for done in range(1000):
        report(done, 1000, "nuts")
"""

PICTURES = (
    """
from bayescope import plots
trace = {"map": {"nll": [3.0, 2.0, 1.0]}}
plots.training_curves(trace)
""",
    """
import matplotlib.pyplot as plt
figure = plots.training_curves(trace)
figure
""",
    """
_, ax = plt.subplots()
plots.training_curves(trace, ax=ax)
""",
)


@without_widgets
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq")
def test_a_notebook_shows_progress_without_a_warning():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert {output.get("name") for output in outputs} == {"stderr"}
    text = "".join(output.text for output in outputs)
    assert "warn" not in text.lower()
    first, *lines = text.split("\r")[1:]
    assert (first, lines[0]) == ("fitting laplace 0/2", "fitting nuts 1/?   ")
    assert len(lines) < 20  # and not one for each of the 1,000 steps, ten a second at most
    assert not lines[-2].strip()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq")
def test_a_picture_appears_once_whether_pyplot_is_there_or_not():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in PICTURES])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    for cell in notebook.cells:
        assert sum("image/png" in output.get("data", {}) for output in cell.outputs) == 1
