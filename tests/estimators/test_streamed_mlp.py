"""Networks of tables on disk: in full batches they are those of rows in memory; minibatches have each row once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import bayescope as bs
from bayescope.errors import UnsupportedError
from bayescope.estimators import MappedRows, NetworkRows, TableRows
from tests.estimators.streamed import features, frame, opened, stored

Regressor, Classifier = bs.BayesianMLPRegressor, bs.BayesianMLPClassifier
# No two rows are equal: in memory those are merged, and a weight is not two rows for a Kronecker factor.
TABLE = frame(240).assign(dose=np.random.default_rng(5).uniform(size=240))
# Larger than the table: the order of the rows is only that of a sum.
WHOLE = 5000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("table"), TABLE)


def options(**more: object) -> dict[str, object]:
    return {"hidden": (4,), "epochs": 2, "batch_size": WHOLE, "random_state": 0, **more}


@pytest.mark.parametrize(
    ("make", "target", "weighted", "given"),
    [
        (Regressor, "y", True, options()),
        (Regressor, "y", False, options(posterior="map", prior_precision=2.0, noise_variance=5.0, encoding="ordinal")),
        (Classifier, "cls", True, options(class_weight={"low": 2.0}, scaling="quantile")),
        (Classifier, "two", False, options(posterior="last_layer")),
    ],
)
def test_rows_on_disk_have_the_fit_of_rows_in_memory(folder, make, target, weighted, given):
    table = opened(folder, target, weighted=weighted)
    streamed = make(**given).fit(table, target, sample_weight="w" if weighted else None)
    held = make(**given).fit(features(TABLE), TABLE[target], sample_weight=TABLE["w"] if weighted else None)
    some = features(TABLE)[:60]
    np.testing.assert_allclose(streamed.transform_inputs(some), held.transform_inputs(some), rtol=1e-12, atol=1e-12)
    ours, theirs = (model.predict_distribution(some) for model in (streamed, held))
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-5, atol=1e-6)
    if given.get("posterior") != "map":
        assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-8)
    if make is Classifier:
        assert streamed.classes_.tolist() == held.classes_.tolist()
    else:
        assert streamed.noise_variance_ == pytest.approx(held.noise_variance_, rel=1e-6)


def test_the_order_of_the_columns_on_disk_does_not_matter(folder):
    names = ["age", "dose", "kind", "new"]
    some, means, variances = features(TABLE)[:60], [], []
    for order in (names, names[::-1]):
        table = bs.open_table(str(folder), columns=[*order, "y"], block_rows=150)
        model = Regressor(**options(epochs=20, prior_precision=0.1)).fit(table, "y")
        predicted = model.predict_distribution(some[order])
        means.append(predicted.mean)
        variances.append(predicted.variance)
    np.testing.assert_allclose(means[1], means[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variances[1], variances[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("posterior", ["laplace", "variational", "mc_dropout", "ensemble", "swag"])
def test_each_posterior_that_trains_in_minibatches(folder, posterior):
    more = {"draws": 10} if posterior in ("variational", "mc_dropout", "swag") else {}
    short = {"posterior_options": {"epochs": 2}} if posterior == "swag" else {}
    given = options(
        posterior=posterior, hidden=(3,), epochs=1, batch_size=100, members=2, prior_precision=1.0, **more, **short
    )
    first, again = (Classifier(**given).fit(opened(folder, "two"), "two") for _ in range(2))
    probs = first.predict_proba(features(TABLE)[:20])
    assert np.isfinite(probs).all()
    np.testing.assert_array_equal(probs, again.predict_proba(features(TABLE)[:20]))
    assert "temporary files" in first.summary()


@pytest.mark.parametrize("posterior", ["nuts", "sgmcmc", "function_space"])
def test_posteriors_that_need_all_rows_in_memory_are_refused(folder, posterior):
    with pytest.raises(UnsupportedError, match=f"for a table on disk, got '{posterior}'"):
        Regressor(**options(posterior=posterior)).fit(opened(folder, "y"), "y")


def network_rows(folder: Path) -> NetworkRows:
    """Rows that are read in windows of 48: of three pieces of 16 neighbours."""
    source = TableRows.of(Regressor(), opened(folder, "y"), "y", None, target=lambda y, _: np.asarray(y))
    mapped = MappedRows.fit(source, scaling="standard", encoding="one_hot")
    rows = NetworkRows.of(mapped, lambda y: torch.tensor(y)[:, None])
    return replace(rows, piece_rows=16, window_pieces=3)


def test_each_pass_has_every_row_once_in_an_order_of_its_own(folder):
    rows = network_rows(folder)
    inputs, targets = rows.read(slice(0, rows.rows))
    known = {tuple(row): place for place, row in enumerate(torch.cat([inputs, targets], 1).tolist())}
    assert rows.rows == len(TABLE)
    loader = rows.data(7, 0).minibatches
    passes = []
    for _ in range(2):
        batches = [torch.cat(batch, 1).tolist() for batch in loader]
        assert {len(batch) for batch in batches} <= {6, 7}
        passes.append([known[tuple(row)] for batch in batches for row in batch])
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(known.values())
    assert passes[0] != passes[1]
    assert len({place // 16 for place in passes[0][:48]}) == 3
    assert passes[0][:48] != sorted(passes[0][:48])
    again = [known[tuple(row)] for batch in rows.data(7, 0).minibatches for row in torch.cat(batch, 1).tolist()]
    assert again == passes[0]
    in_order = list(rows.data(7, 0))
    assert len(in_order) == 1  # what sums over the rows reads thousands at once
    assert torch.equal(torch.cat(in_order[0], 1), torch.cat([inputs, targets], 1))


def test_some_rows_are_the_same_ones_in_memory_and_on_disk(folder):
    rows = network_rows(folder)
    whole = replace(rows, inputs=rows.inputs[:], targets=rows.targets[:])
    for most in (50, 240):
        for ours, theirs in zip(rows.some(most, 3), whole.some(most, 3), strict=True):
            assert len(ours) == most
            assert torch.equal(ours, theirs)


class Threads(TorchFunctionMode):
    """The threads that a network's products take."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.nn.functional.linear:
            self.taken.add(torch.get_num_threads())
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("hidden", "threads"), [((5,), 1), ((200,), 2)])
def test_operations_on_small_blocks_take_one_thread(folder, hidden, threads):
    # Two wait for each other at the end of each: on cores that other work shares longer than it runs.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Threads() as mode:
            Classifier(**options(hidden=hidden, epochs=20, prior_precision=0.1)).fit(opened(folder, "two"), "two")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert max(mode.taken) == threads  # other parts know their small operations
