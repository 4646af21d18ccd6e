"""Each curve is the trace it was given, in the panel of its quantity."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.errors import InputError
from bayescope.plots import style, training_curves

EPOCHS = np.arange(1, 41)
TRACES = {
    "map": {"loss": list(60.0 / EPOCHS), "nll": list(50.0 / EPOCHS), "penalty": list(10.0 / EPOCHS)},
    "mean_field": {
        "nll": list(500.0 / EPOCHS[:20]),
        "kl": list(EPOCHS[:20] / 2.0),
        "elbo": list(-500.0 / EPOCHS[:20] - EPOCHS[:20] / 2.0),
    },
}


def panels(**options: float) -> dict[str, tuple]:
    figure = training_curves(TRACES, **options)
    figure.draw_without_rendering()
    return {panel.get_title("left"): panel for panel in figure.axes}


def test_panels_are_those_that_any_trace_has_in_their_order() -> None:
    assert list(panels()) == ["−log p(y∣f)", "penalty", "KL(q∥p)", "ELBO"]


def test_a_line_is_the_trace_by_epoch() -> None:
    shown = panels()
    for title, quantity, names in (("−log p(y∣f)", "nll", ("map", "mean_field")), ("ELBO", "elbo", ("mean_field",))):
        drawn = {line.get_color(): line for line in shown[title].lines}
        assert set(drawn) == {style.colour(name) for name in names}
        for name in names:
            values = TRACES[name][quantity]
            np.testing.assert_allclose(drawn[style.colour(name)].get_ydata(), values)
            np.testing.assert_allclose(drawn[style.colour(name)].get_xdata(), np.arange(1, len(values) + 1))


def test_limits_follow_all_but_the_first_epochs() -> None:
    low, high = panels()["−log p(y∣f)"].get_ylim()
    assert 166 < high < 200  # the third epoch of twenty has 166.7
    assert -20 < low < 50 / 40


def test_the_evidence_is_a_line_over_the_bounds() -> None:
    panel = panels(log_evidence=-20.0)["ELBO"]
    assert list(panel.lines[-1].get_ydata()) == [-20.0, -20.0]
    assert panel.get_ylim()[1] > -20.0


def test_without_a_quantity_there_is_no_picture() -> None:
    with pytest.raises(InputError, match="got lengths"):
        training_curves({"nuts": {"lengths": [1, 2]}})
    with pytest.raises(InputError, match="got nothing"):
        training_curves({})
