"""Runs that are made once more say how far the page's own are from them."""

from __future__ import annotations

import json
from pathlib import Path

from bench.papers.causes import VARIANTS, repeated


def test_a_repeated_run_tells_its_largest_departure_on_the_splits_of_both(tmp_path: Path) -> None:
    stored = [{"set": "energy", "seed": seed, "log_likelihood": -2.0 - seed, "rmse": 1.0} for seed in range(4)]
    (tmp_path / "uci_regression_dropout.json").write_text(json.dumps({"records": stored}))
    again = [{"set": "energy", "seed": seed, "log_likelihood": -2.0 - seed, "rmse": 1.0} for seed in (1, 2, 7)]
    again[1]["log_likelihood"] -= 0.25
    told = repeated(VARIANTS["page_dropout"], again, tmp_path)
    assert told[1].endswith("by at most: log-likelihood 0.2; RMSE 0.")
    assert repeated(VARIANTS["longer_dropout"], again, tmp_path) == []
    pairs = [{"set": "yacht", "seed": 0, "nll": 1.0, "rmse": 1.0}]
    for variant, records in (("page_variational", again), ("page_pairs", pairs)):  # pages that are not there
        assert repeated(VARIANTS[variant], records, tmp_path) == []
    (tmp_path / "additive.json").write_text(json.dumps({"records": {"la_nam": [], "la_nam_pairs": []}}))
    assert repeated(VARIANTS["page_pairs"], pairs, tmp_path) == []
