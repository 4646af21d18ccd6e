"""A table that streams, or is shared, sums to what one in memory does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.linear import (
    Batch,
    LinearDensity,
    RowTable,
    blocks,
    conjugate,
    maximise_evidence,
    tune_scales,
    variational,
)
from bayescope.linear import table as module
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior

ROWS, COLUMNS = 400, 3


def batch(weighted: bool) -> Batch:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, dtype=torch.float64, generator=source)
    y = (torch.rand(ROWS, 1, dtype=torch.float64, generator=source) < torch.sigmoid(x[:, :1] - 0.3)).double()
    weights = 0.5 + torch.rand(ROWS, dtype=torch.float64, generator=source) if weighted else None
    return Batch(x, y, weights)


def streamed(rows: Batch, size: int = 70) -> RowTable:
    count = len(rows.features)

    def batches() -> Iterator[Batch]:
        for start in range(0, count, size):
            yield rows.part(slice(start, start + size))

    return RowTable.streamed(batches, count, RowTable.of(rows).total)


def tables(weighted: bool) -> tuple[RowTable, list[RowTable]]:
    """A table in memory, and the same rows in batches of two sizes."""
    rows = batch(weighted)
    return RowTable.of(rows), [streamed(rows), streamed(rows, 399)]


def density(table: RowTable) -> LinearDensity:
    return LinearDensity(LinearModel(COLUMNS, 1, True), Bernoulli(), Prior(2.0), table)


def assert_same_posterior(ours, theirs) -> None:
    assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-10)
    assert_close(ours.precision.to_dense(), theirs.precision.to_dense(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_rows_in_memory(weighted: bool):
    held, others = tables(weighted)
    theta = torch.tensor([0.3, -0.2, 0.1, 0.5], dtype=torch.float64)
    thetas = torch.stack([theta, -theta])
    expected = density(held)
    for table in others:
        ours = density(table)
        assert (table.count, table.total) == (held.count, pytest.approx(held.total, rel=1e-15))
        for one, other in zip(vars(ours.read(theta)).values(), vars(expected.read(theta)).values(), strict=True):
            assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert_close(ours.log_likelihood(thetas), expected.log_likelihood(thetas), rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_every_kth_row_is_the_same_one_wherever_the_rows_lie(weighted: bool):
    held, others = tables(weighted)
    whole = held.every(7).scaled(3.0)
    for table in others:
        some = table.every(7).scaled(3.0)
        assert (some.count, some.total) == (whole.count, pytest.approx(whole.total, rel=1e-15))
        for ours, theirs in zip(some.held(), whole.held(), strict=True):
            assert theirs is None if ours is None else torch.equal(ours, theirs)


@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_processes_have_every_kth_row_of_all(weighted: bool):
    rows = batch(weighted)
    whole, taken = RowTable.of(rows).every(7).held(), []
    for first, last in ((0, 150), (150, 151), (151, ROWS)):
        part = replace(RowTable.of(rows.part(slice(first, last))), rows_here=range(first, last))
        spread = replace(streamed(rows.part(slice(first, last))), rows_here=range(first, last))
        for ours, theirs in zip(part.every(7).held(), spread.every(7).held(), strict=True):
            assert theirs is None if ours is None else torch.equal(ours, theirs)
        taken.append(part.every(7).held())
    assert torch.equal(torch.cat([part.features for part in taken]), whole.features)


@pytest.mark.parametrize("weighted", [False, True])
def test_posteriors_are_those_of_rows_in_memory(weighted: bool):
    held, others = tables(weighted)
    for table in others:
        ours, theirs = (maximise_evidence(density(rows), intercept_prior_precision=1e-4) for rows in (table, held))
        assert ours.prior_precision == pytest.approx(theirs.prior_precision, rel=1e-8)
        assert_close(ours.mode.theta, theirs.mode.theta, rtol=1e-8, atol=1e-10)
        for family in ("full", "mean_field"):
            assert_same_posterior(*(variational(density(rows), family=family) for rows in (table, held)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_regressions_are_those_of_rows_in_memory(weighted: bool, bias: bool):
    held, others = tables(weighted)
    model, scale = LinearModel(COLUMNS, 1, bias), torch.tensor([1.0, 2.0, 0.1], dtype=torch.float64)
    for table in others:
        ours, theirs = (
            tune_scales(LinearDensity(model, Gaussian(), Prior(), rows), intercept_prior_precision=1e-4, scale=scale)
            for rows in (table, held)
        )
        assert ours.noise_variance == pytest.approx(theirs.noise_variance, rel=1e-10)
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, rel=1e-12)
        likelihood = Gaussian(0.3)
        assert_same_posterior(
            *(conjugate(LinearDensity(model, likelihood, Prior(1.0), rows)) for rows in (table, held))
        )


def test_scaled_columns_are_those_of_a_scaled_table():
    held, _ = tables(True)
    model, scale = LinearModel(COLUMNS, 1, True), torch.tensor([1.0, 2.0, 0.1], dtype=torch.float64)
    scaled = RowTable.of(held.held()._replace(features=held.held().features * scale))
    ours = tune_scales(LinearDensity(model, Gaussian(), Prior(), held), intercept_prior_precision=0.1, scale=scale)
    theirs = tune_scales(LinearDensity(model, Gaussian(), Prior(), scaled), intercept_prior_precision=0.1)
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, rel=1e-12)
    assert ours.prior_precision == pytest.approx(theirs.prior_precision, rel=1e-8)


def test_no_rows_have_sums():
    rows = batch(False)
    none = RowTable.of(Batch(rows.features[:0], rows.targets[:0]))
    reading = density(none).read(torch.zeros(4, dtype=torch.float64))
    assert float(reading.log_likelihood) == 0.0
    assert torch.equal(reading.curvature, torch.zeros(4, 4, dtype=torch.float64))


def test_what_needs_all_rows_in_memory_is_refused():
    _, others = tables(False)
    for table in others:
        with pytest.raises(UnsupportedError, match="'laplace'"):
            density(table).latent_variance(DensePrecision(torch.eye(4, dtype=torch.float64)))


def test_a_target_for_each_row_is_asked_for():
    def short(y: Tensor) -> RowTable:
        return RowTable.of(Batch(torch.zeros(3, 2, dtype=torch.float64), y))

    with pytest.raises(InputError, match="y: expected 3 rows as X has, got 4"):
        short(torch.zeros(4, 1))


def test_a_small_table_in_memory_is_read_at_once_and_a_large_one_in_blocks():
    def counts(rows: int, columns: int) -> list[int]:
        seen: list[int] = []
        table = RowTable.of(Batch(torch.zeros(rows, columns), torch.zeros(rows)))
        table.sum(lambda part: (seen.append(len(part.features)) or torch.zeros(()),), size=200)
        return seen

    assert counts(2_000, 200) == [2_000]
    assert counts(16_384, 2) == [16_384]
    assert len(counts(3_000, 200)) > 1
    assert len(counts(100_000, 2)) > 1


def test_blocks_cover_every_row_once_and_in_order():
    covered = [index for block in blocks(100_003, 7, 2, 50) for index in (block.start, block.stop)]
    assert covered[0] == 0
    assert covered[-1] == 100_003
    assert covered[1:-1:2] == covered[2::2]


@pytest.mark.parametrize(("columns", "outputs", "copies"), [(2, 1, 1), (50, 1, 4000), (3, 300, 1), (4000, 2, 1)])
def test_a_block_takes_bounded_memory(columns: int, outputs: int, copies: int):
    block = next(blocks(10**7, columns, outputs, copies))
    count = block.stop - block.start
    assert count * 8 * outputs * max(outputs, copies) <= module.WORK_BYTES
    assert count <= module.LEAST_ROWS or count * 8 * columns <= module.CACHE_BYTES


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_sum_is_the_same_to_the_last_bit_for_any_number_of_threads():
    x = torch.randn(300_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table, used, answers = RowTable.of(Batch(x, x[:, :1])), set(), []

    def block(part: Batch) -> tuple[Tensor, Tensor]:
        used.add(threading.get_ident())
        return part.features.sum(), part.features.mT @ part.features

    for count in (1, 2, 3):
        torch.set_num_threads(count)
        used.clear()
        answers.append(table.sum(block, size=9))
        assert torch.get_num_threads() == count
        assert (threading.get_ident() in used) == (count == 1)
    for answer in answers[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(answer, answers[0], strict=True))
    assert float(answers[0][0]) == pytest.approx(float(x.sum()), rel=1e-10)


@pytest.mark.usefixtures("threads")
def test_sums_as_large_as_the_table_are_not_held_many_times():
    calls = set()

    def block(part: Batch) -> tuple[Tensor]:
        calls.add(threading.get_ident())
        return (torch.tensor(float(len(part.features))),)

    torch.set_num_threads(2)
    table = RowTable.of(Batch(torch.zeros(20_000, 100), torch.zeros(20_000)))
    assert float(table.sum(block, size=20_000 * 100)[0]) == 20_000
    assert calls == {threading.get_ident()}
