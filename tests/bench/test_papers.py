"""Ours beside the published figures: errors, sentences, what a run goes on with, and pages from the numbers."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.papers.common import Estimate, Log, made_text, origin_of, run, save
from bench.papers.compared import HEADING, UNKNOWN, Comparison, section
from bench.papers.dropout_published import HIGHEST, NOISE_PRECISION, beside_dropout
from bench.papers.sets import DATA, published_dropout, text
from bench.record import RESULTS, ROOT

PAPERS = RESULTS / "papers"
RUNS = (
    "uci_regression",
    "uci_regression_5_modes",
    "uci_regression_dropout",
    "uci_regression_variational",
    "uci_classification",
    "mnist",
    "additive",
    "additive_icu",
)
# The site links to it.
UNSHOWN = {"uci_regression_5_modes"}
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no reference data")


# --- ours beside theirs -----------------------------------------------------------------------------------------------


def test_paired_differences_have_the_error_of_their_mean() -> None:
    """Splits that are hard for both cancel: sd of the differences over √N, and not the root of both errors squared."""
    rng = np.random.default_rng(0)
    hard, noise = 10.0 * rng.standard_normal(7), rng.standard_normal(7)
    ours, theirs = (hard + 0.5 + noise).tolist(), hard.tolist()
    compared = Comparison.paired("yacht", "NLL", ours, theirs, higher_is_better=False)
    assert compared.difference.mean == pytest.approx(0.5 + noise.mean())
    assert compared.difference.error == pytest.approx(noise.std(ddof=1) / math.sqrt(7))
    assert compared.z == pytest.approx((0.5 + noise.mean()) / (noise.std(ddof=1) / math.sqrt(7)))
    with pytest.raises(ValueError, match="zip"):
        Comparison.paired("yacht", "NLL", ours, theirs[:-1], higher_is_better=False)


def test_errors_of_means_alone_add_as_squares() -> None:
    ours = [1.0, 2.0, 6.0]
    compared = Comparison.apart("heart", "NLL", ours, Estimate(2.0, 0.4), higher_is_better=False)
    own = np.std(ours, ddof=1) / math.sqrt(3)
    assert compared.difference.mean == pytest.approx(1.0)
    assert compared.difference.error == pytest.approx(math.sqrt(own**2 + 0.4**2))


def test_a_single_value_is_told_without_an_error() -> None:
    assert Estimate.of([1.5]).text() == "1.500"
    assert Estimate.of([1.5]).text(1, signed=True) == "+1.5"
    assert Estimate.of([1.0, 2.0]).text(1) == "1.5 ± 0.5"


@pytest.mark.parametrize(
    ("shift", "higher_is_better", "told"),
    [
        (+3.0, True, "above the published figure, which is better"),
        (-3.0, True, "below the published figure, which is worse"),
        (+3.0, False, "above the published figure, which is worse"),
        (-3.0, False, "below the published figure, which is better"),
    ],
)
def test_a_difference_of_more_than_two_errors_has_a_sentence(shift: float, higher_is_better: bool, told: str) -> None:
    theirs = Estimate(0.0, 1.0)

    def compared(name: str, z: float) -> Comparison:
        return Comparison(name, "NLL", higher_is_better, 5, Estimate(z, 0.0), theirs, Estimate(z, 1.0))

    lines = section([compared("near", 1.9), compared("far", shift), compared("alike", shift)], {}, ["Theirs."])
    sentences = [line for line in lines if line.startswith("- ")]
    assert sentences == [
        f"- **NLL**: ours is {told}, on far (3.0 standard errors), alike (3.0 standard errors). {UNKNOWN}"
    ]
    known = section([compared("far", shift), compared("alike", shift)], {("NLL", "far"): "The noise."}, [])
    assert [line.endswith("The noise.") for line in known if line.startswith("- ")].count(True) == 1
    assert sum(UNKNOWN in line for line in known) == 1


@needs_data
def test_what_is_said_of_the_published_noise_is_so() -> None:
    """With a noise precision τ, no Gaussian density is above √(τ/2π); the published log-likelihoods stay below."""
    for name in ("yacht", "energy"):
        chosen = text(DATA / "uci_regression" / name / "results" / "test_tau_100_xepochs_1_hidden_layers.txt")
        assert set(chosen.tolist()) == {NOISE_PRECISION}
        assert len(chosen) == 20
        assert published_dropout(name, "test_ll").max() < HIGHEST
    assert pytest.approx(math.log(math.sqrt(NOISE_PRECISION / (2 * math.pi)))) == HIGHEST


@pytest.mark.parametrize("name", RUNS)
def test_every_page_has_its_comparison_and_how_it_was_made(name: str) -> None:
    page = (PAPERS / f"{name}.md").read_text(encoding="utf-8")
    assert HEADING in page
    assert "Results: " in page.splitlines()[-1]
    # As many sets in sentences as the count of them says, none without a direction.
    counted = re.search(r"More than 2 standard errors apart: (\d+) of", page)
    told = [line for line in page.splitlines() if line.startswith("- **")]
    assert sum(len(re.findall(r"\(\d+\.\d standard errors\)", line)) for line in told) == int(
        counted[1] if counted else 0
    )
    assert all("above the published figure" in line or "below the published figure" in line for line in told)


# --- pages from the numbers -------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("name", RUNS)
def test_a_page_is_what_its_numbers_give(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--show` writes the committed page from the committed numbers, computes nothing and leaves these alone."""
    for path in PAPERS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    benchmark = importlib.import_module(f"bench.papers.{name}")
    benchmark.main(["--show", "--out", str(tmp_path)])
    shown = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert shown == capsys.readouterr().out == (PAPERS / f"{name}.md").read_text(encoding="utf-8")
    assert (tmp_path / f"{name}.json").read_bytes() == (PAPERS / f"{name}.json").read_bytes()
    assert not list(tmp_path.glob("*.jsonl"))


def test_the_docs_show_the_comparison_of_every_page() -> None:
    """The site puts the part of a page of results in place of the mark that names it."""
    page = (ROOT / "docs" / "evidence" / "published.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- results: papers/(\w+)\.md, (.+) -->", page)
    assert {name for name, title in shown if f"## {title}" == HEADING} == set(RUNS) - UNSHOWN
    for name, title in shown:
        assert f"\n## {title}\n" in (PAPERS / f"{name}.md").read_text(encoding="utf-8")


@needs_data
def test_dropout_is_near_the_published_figures_where_laplace_is_said_to_differ_as_a_method() -> None:
    laplace = importlib.import_module("bench.papers.uci_regression")
    records = json.loads((PAPERS / "uci_regression_dropout.json").read_text(encoding="utf-8"))["records"]
    near = {(each.score, each.name) for each in beside_dropout(records) if not each.differs}
    said = {key for key, cause in laplace.CAUSES.items() if "within two standard errors" in " ".join(cause.split())}
    assert said
    assert said <= near


# --- what a run goes on with ------------------------------------------------------------------------------------------


def squared(_name: str, seed: int) -> dict[str, float]:
    """A task: it must lie at module level, for the processes."""
    return {"nll": float(seed**2)}


def asked(**changed: object) -> argparse.Namespace:
    """The options of a run."""
    return argparse.Namespace(**{"module": "bench.papers.additive", "jobs": 0, "again": False, "show": False} | changed)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Threads of torch as before: a run without other processes computes in one thread of the present process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Where three results are committed of a peer, and one is in the log."""
    committed = [{"settings": {"model": "ebm"}, "set": "yacht", "seed": seed, "nll": -1.0} for seed in (0, 1, 9)]
    whole = {"records": {"ebm": committed, "other": [{**committed[0], "settings": {"model": "other"}}]}}
    (tmp_path / "additive.json").write_text(json.dumps(whole))
    own = Log(tmp_path / "additive.jsonl", {"model": "ebm"}, lasting=True)
    own.append({"set": "yacht", "seed": 1, "nll": -2.0})
    return own


KEYS = [("yacht", seed) for seed in range(4)]


def numbers(log: Log) -> dict[int, float]:
    """The results by seed."""
    return {seed: record["nll"] for (_, seed), record in log.results().items()}


def test_a_run_goes_on_where_the_log_and_a_peers_committed_results_end(log: Log) -> None:
    run(squared, KEYS, log, asked())
    assert numbers(log) == {0: -1.0, 1: -2.0, 2: 4.0, 3: 9.0, 9: -1.0}
    assert all(record["code"] and record["when"] for (_, seed), record in log.results().items() if seed in (2, 3))


def test_results_of_our_own_models_are_shown_until_they_are_made_anew(log: Log) -> None:
    """Of another version of our code they prove nothing of this one; a run of one set loses none of the others."""
    own = Log(log.path, log.settings, lasting=False)
    run(squared, KEYS[:1], own, asked())
    assert numbers(own) == {0: 0.0, 1: -2.0, 9: -1.0}


def test_processes_compute_the_same(log: Log) -> None:
    run(squared, KEYS, log, asked(jobs=1))
    assert numbers(log) == {0: -1.0, 1: -2.0, 2: 4.0, 3: 9.0, 9: -1.0}


def test_nothing_is_computed_for_a_page_that_is_shown(log: Log) -> None:
    before = log.results()
    assert run(squared, KEYS, log, asked(show=True)) == 0
    assert log.results() == before


def test_again_computes_what_is_there(log: Log) -> None:
    run(squared, KEYS[:2], log, asked(again=True))
    assert numbers(log) == {0: 0.0, 1: 1.0, 9: -1.0}


def test_committed_results_without_settings_have_those_of_the_file(tmp_path: Path) -> None:
    whole = {"made": {"when": "then"}, "rows": 5, "records": [{"set": "mnist", "seed": 1}]}
    (tmp_path / "mnist.json").write_text(json.dumps(whole))
    assert len(Log(tmp_path / "mnist.jsonl", {"rows": 5}).results()) == 1
    assert Log(tmp_path / "mnist.jsonl", {"rows": 6}).results() == {}


# --- how results were made --------------------------------------------------------------------------------------------

MNIST = "bench.papers.mnist"
OLD, NEW = {"set": "a", "seed": 0}, {"set": "a", "seed": 1, "code": "abc", "when": "2030-01-02 03:04"}


def test_results_that_do_not_say_how_they_were_made_are_said_not_to() -> None:
    assert made_text([OLD, OLD], None) == "Results: of an earlier version of the code; how it was made was not kept."


def test_results_count_as_made_when_the_last_was() -> None:
    origin = origin_of([OLD, NEW], None, MNIST, show=False)
    assert origin is not None
    assert (origin["when"], origin["code"]) == ("2030-01-02 03:04", "several")
    told = made_text([NEW, OLD], origin)
    assert f"2030-01-02 03:04 UTC, load {origin['load']}, by code several. Results: 1 of code abc; 1 of an ear" in told
    assert told.endswith("how it was made was not kept.")
    # Nothing new was computed: what was said before stays, and is not dated anew.
    before = origin | {"processor": "another"}
    assert origin_of([OLD, NEW], before, MNIST, show=False) == before
    older = before | {"when": "2029-01-02 03:04"}
    assert origin_of([OLD, NEW], older, MNIST, show=True) == older
    assert origin_of([OLD], None, MNIST, show=False) is None


def test_a_page_that_is_shown_leaves_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "mnist", ["# Title", "", "Text."], {"records": [OLD]}, MNIST, show=False)
    written = (tmp_path / "mnist.json").read_bytes()
    assert "made" not in json.loads(written)
    save(tmp_path / "mnist", ["# Other", "", "Text."], {"records": []}, MNIST, show=True)
    assert (tmp_path / "mnist.json").read_bytes() == written
    assert (tmp_path / "mnist.md").read_text().startswith("# Other")
    assert "Other" in capsys.readouterr().out


def test_the_additive_pages_need_no_peer_to_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed results are shown where interpret is not installed."""
    monkeypatch.setitem(sys.modules, "interpret", None)
    monkeypatch.delitem(sys.modules, "bench.papers.additive_models", raising=False)
    assert importlib.import_module("bench.papers.additive_models").MODELS


@needs_data
def test_a_quick_run_of_the_additive_models_fits_and_leaves_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    additive = importlib.import_module("bench.papers.additive")
    additive.main(["--quick", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "additive.json").read_text())
    assert {model: len(own) for model, own in written["records"].items()} == {"linear": 1, "la_nam": 1}
    assert "of code" in (tmp_path / "additive.md").read_text().splitlines()[-1]
    assert "failed" not in capsys.readouterr().err
