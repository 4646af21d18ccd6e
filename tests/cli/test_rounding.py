"""Predictions keep the digits that are known, and no row becomes another."""

import numpy as np
import pandas as pd
import pytest

from bayescope.cli.rounding import rounded
from tests.cli.tables import refused, run


def test_a_mean_keeps_the_decimal_places_of_its_standard_error():
    rows = pd.DataFrame(
        {
            "mean": [1234.56789, 1234.56789, -0.000123456789, 3.0, np.pi * 1e9],
            "sd": [12.3456789, 12.3456789, 1.0, np.nan, 1e8],
            "epistemic_sd": [1.23456789, 0.00123456789, 0.5, 0.0, 1.23456789e7],
            "imputed": [0, 1, 2, 3, 4],
        }
    )
    found = rounded(rows, False)
    assert found["mean"].tolist() == [1234.568, 1234.567890, -0.0001235, 3.0, 3141590000.0]
    assert found["sd"].tolist()[:3] == [12.35, 12.35, 1.0]
    assert np.isnan(found["sd"][3])
    assert found["epistemic_sd"].tolist() == [1.235, 0.001235, 0.5, 0.0, 12350000.0]
    assert found["imputed"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [0.0, 0.1, 1e-9])
def test_probabilities_keep_their_distance_to_both_ends(error):
    """None becomes 0 or 1, and log loss stays: to four digits of p and of 1 − p."""
    p = np.array([1e-200, 1e-30, 1.23456789e-7, 0.3, 0.9999998765, 1 - 2**-53, 0.0, 1.0])
    found = rounded(pd.DataFrame({"p(a: b)": p, "low": p, "epistemic_sd": np.full(len(p), error)}), True)
    for name in ("p(a: b)", "low"):
        q = found[name].to_numpy()
        np.testing.assert_allclose(q, p, rtol=5e-4)
        np.testing.assert_allclose(1 - q, 1 - p, rtol=5e-4)


def test_rows_that_are_known_to_differ_stay_apart():
    """What is dropped is below a thousandth of the standard error, over all magnitudes; each cell is short."""
    source = np.random.default_rng(0)
    mean = source.standard_normal(999) * 10.0 ** source.uniform(-12, 12, 999)
    error = 10.0 ** source.uniform(-12, 12, 999)
    found = rounded(pd.DataFrame({"mean": mean, "epistemic_sd": error}), False)
    assert (np.abs(found["mean"] - mean) <= 1e-3 * error + 1e-15 * np.abs(mean)).all()
    assert max(len(repr(cell).partition("e")[0].strip("0.").replace(".", "")) for cell in found["epistemic_sd"]) == 4
    assert rounded(found, False).equals(found)


def test_the_command_rounds_unless_told_otherwise(classes, table, tmp_path):
    files = {}
    for digits in ([], ["--digits", "full"]):
        out = tmp_path / f"{len(digits)}.csv"
        assert run("predict", classes, table, "--out", out, *digits).exit_code == 0
        files[len(digits)] = out
    short, full = (pd.read_csv(files[n]) for n in (0, 2))
    assert files[0].stat().st_size < 0.6 * files[2].stat().st_size
    pd.testing.assert_frame_equal(short, rounded(full, True), check_exact=True)
    assert (short["predicted"] == full["predicted"]).all()
    assert refused(
        run("predict", classes, table, "--out", tmp_path / "p.csv", "--digits", "3"), "--digits: expected one"
    )
