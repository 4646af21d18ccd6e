"""A table that streams, or is shared, sums to what one in memory does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Gaussian
from bayescope.linear.conjugate import conjugate_at, tune_scales
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import maximise_evidence
from bayescope.linear.table import Batch, HeldTable, SharedTable, StreamedTable, Table
from bayescope.linear.variational import variational_of
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.processes import Processes

ROWS, COLUMNS = 400, 3


def batch(weighted: bool) -> Batch:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, dtype=torch.float64, generator=source)
    y = (torch.rand(ROWS, 1, dtype=torch.float64, generator=source) < torch.sigmoid(x[:, :1] - 0.3)).double()
    weights = 0.5 + torch.rand(ROWS, dtype=torch.float64, generator=source) if weighted else None
    return Batch(x, y, weights)


def streamed(rows: Batch, size: int = 70) -> StreamedTable:
    def batches() -> Iterator[Batch]:
        for start in range(0, ROWS, size):
            part = slice(start, start + size)
            weights = None if rows.weights is None else rows.weights[part]
            yield Batch(rows.features[part], rows.targets[part], weights)

    return StreamedTable(batches, ROWS, HeldTable(rows).total)


def tables(weighted: bool) -> tuple[HeldTable, list[Table]]:
    rows = batch(weighted)
    return HeldTable(rows), [streamed(rows), SharedTable.of(streamed(rows), Processes())]


def density(table: Table) -> LinearDensity:
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
        assert ours.largest_output(theta) == expected.largest_output(theta)


@pytest.mark.parametrize("weighted", [False, True])
def test_every_so_manieth_row_is_the_same_one_wherever_the_rows_lie(weighted: bool):
    held, others = tables(weighted)
    whole = held.every(7).scaled(3.0)
    for table in others:
        some = table.every(7).scaled(3.0).own if isinstance(table, SharedTable) else table.every(7).scaled(3.0)
        for ours, theirs in zip(some.held(), whole.held(), strict=True):
            if theirs is not None:
                assert torch.equal(ours, theirs)
    later = HeldTable(Batch(*(None if part is None else part[5:] for part in held.batch)))
    assert torch.equal(later.every(7, start=5).batch.features, held.batch.features[7::7])


@pytest.mark.parametrize("weighted", [False, True])
def test_posteriors_are_those_of_rows_in_memory(weighted: bool):
    held, others = tables(weighted)
    for table in others:
        ours, theirs = (maximise_evidence(density(rows), intercept_prior_precision=1e-4) for rows in (table, held))
        assert ours.prior_precision == pytest.approx(theirs.prior_precision, rel=1e-8)
        assert_close(ours.mode.theta, theirs.mode.theta, rtol=1e-8, atol=1e-10)
        for family in ("full", "mean_field"):
            assert_same_posterior(*(variational_of(density(rows), family=family) for rows in (table, held)))


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
            *(conjugate_at(LinearDensity(model, likelihood, Prior(1.0), rows), likelihood) for rows in (table, held))
        )


def test_scaled_columns_are_those_of_a_scaled_table():
    held, _ = tables(True)
    model, scale = LinearModel(COLUMNS, 1, True), torch.tensor([1.0, 2.0, 0.1], dtype=torch.float64)
    scaled = HeldTable(held.batch._replace(features=held.batch.features * scale))
    ours = tune_scales(LinearDensity(model, Gaussian(), Prior(), held), intercept_prior_precision=0.1, scale=scale)
    theirs = tune_scales(LinearDensity(model, Gaussian(), Prior(), scaled), intercept_prior_precision=0.1)
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, rel=1e-12)
    assert ours.prior_precision == pytest.approx(theirs.prior_precision, rel=1e-8)


def test_no_rows_have_sums():
    rows = batch(False)
    none = HeldTable(Batch(rows.features[:0], rows.targets[:0]))
    reading = density(none).read(torch.zeros(4, dtype=torch.float64))
    assert float(reading.log_likelihood) == 0.0
    assert torch.equal(reading.curvature, torch.zeros(4, 4, dtype=torch.float64))


def test_what_needs_all_rows_in_memory_is_refused():
    _, others = tables(False)
    for table in others:
        with pytest.raises(UnsupportedError, match="'laplace'"):
            density(table).latent_variance(DensePrecision(torch.eye(4, dtype=torch.float64)))


def test_a_target_for_each_row_is_asked_for():
    def short(y: Tensor) -> HeldTable:
        return HeldTable(Batch(torch.zeros(3, 2, dtype=torch.float64), y))

    with pytest.raises(InputError, match="y: expected 3 rows as X has, got 4"):
        short(torch.zeros(4, 1))


def test_a_small_table_in_memory_is_read_at_once_and_a_large_one_in_blocks():
    def counts(rows: int) -> list[int]:
        seen: list[int] = []
        table = HeldTable(Batch(torch.zeros(rows, 200), torch.zeros(rows)))
        table.sum(lambda part: (seen.append(len(part.features)) or torch.zeros(()),), size=200)
        return seen

    assert counts(2_000) == [2_000]
    assert len(counts(3_000)) > 1
