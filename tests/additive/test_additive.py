"""Fits of whole tables: their laws, whatever the likelihood, and odd tables."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bayescope.additive import (
    Additive,
    AdditiveOptions,
    EncodedRows,
    RowsInMemory,
    fit_additive,
    laplace_at,
)
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayescope.posterior import PointPosterior
from bayescope.tables import TableEncoding, read_table

OPTIONS = AdditiveOptions(hidden=6, pair_hidden=6, epochs=12)


def frame(n: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(50.0, 10.0, n).round()
    age[rng.random(n) < 0.1] = np.nan
    kind = rng.choice(np.array(["red", "green", "blue", None], dtype=object), n, p=[0.5, 0.3, 0.1, 0.1])
    return pd.DataFrame({"age": age, "dose": rng.exponential(2.0, n), "kind": kind})


def latent(table: pd.DataFrame) -> np.ndarray:
    age = table["age"].fillna(70.0).to_numpy()
    return np.sin(age / 8.0) + np.log1p(table["dose"].to_numpy()) + 0.7 * (table["kind"] == "red").to_numpy()


def noise(n: int, columns: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, columns))


LIKELIHOODS: dict[str, tuple[Likelihood, int]] = {
    "gaussian": (Gaussian(0.5), 1),
    "gaussian, two outputs": (Gaussian(0.5), 2),
    "bernoulli": (Bernoulli(), 1),
    "multilabel": (Bernoulli(), 2),
    "categorical": (Categorical(), 3),
    "heteroscedastic": (HeteroscedasticGaussian(), 2),
}


def targets(name: str, table: pd.DataFrame) -> torch.Tensor:
    likelihood, outputs = LIKELIHOODS[name]
    f = latent(table)[:, None] - 1.8
    if name == "categorical":
        y: Any = np.digitize(f[:, 0] + 0.3 * noise(len(f))[:, 0], [-0.3, 0.5])
    elif name in ("bernoulli", "multilabel"):
        y = (f + 0.5 * noise(len(f), outputs) > 0.0).astype(int)
    else:
        y = f + 0.3 * noise(len(f), 1 if name == "heteroscedastic" else outputs)
    return likelihood.targets(y if y.ndim == 1 or y.shape[1] > 1 or not likelihood.discrete else y[:, 0], outputs)


def fitted(
    name: str, table: pd.DataFrame, options: AdditiveOptions = OPTIONS, *, y: torch.Tensor | None = None,
    weights: np.ndarray | None = None, offset: np.ndarray | None = None, scale: float = 1.0, shift: float = 0.0,
    seed: int = 0,
) -> Additive:  # fmt: skip
    likelihood, outputs = LIKELIHOODS[name]
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    rows = EncodedRows.of(encoding.encode(columns), None if offset is None else torch.from_numpy(offset))
    data = RowsInMemory(
        rows,
        targets(name, table) if y is None else y,
        torch.ones(len(table), dtype=torch.float64) if weights is None else torch.from_numpy(weights),
        torch.full((outputs,), scale, dtype=torch.float64),
        torch.full((outputs,), shift, dtype=torch.float64),
        float(np.log(scale)),
    )
    return fit_additive(encoding, data, likelihood, options, seed=seed)


@functools.cache
def usual(name: str) -> Additive:
    """The fit of the usual table with the usual options, which many tests read and none writes to."""
    return fitted(name, frame())


def encoded(additive: Additive, table: pd.DataFrame) -> EncodedRows:
    return EncodedRows.of(additive.encoding.encode(read_table(table)))


@pytest.fixture(params=LIKELIHOODS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_fit_explains_the_table(name: str) -> None:
    table, additive = frame(), usual(name)
    likelihood, outputs = LIKELIHOODS[name]
    posterior = additive.posterior
    rows, y = encoded(additive, table), targets(name, table)
    assert additive.model.outputs == outputs
    assert {term.name for term in additive.model.terms} == {"age", "dose", "kind"}
    predicted = float(np.mean(posterior.predict(rows).log_prob(y)))
    empty = torch.zeros(len(y), outputs, dtype=torch.float64)
    assert predicted > float(likelihood.log_prob(empty, y).mean()) + 0.05
    covariance = additive.model.covariance(rows, posterior.location, posterior.precision)
    assert (torch.linalg.eigvalsh(covariance) > 0).all()
    assert float(posterior.log_evidence()) == additive.fit.log_evidence


def test_the_model_is_the_training_model_at_the_mode(name: str) -> None:
    table = frame()
    additive = fitted(name, table, replace(OPTIONS, interactions=[(0, 1)]))
    f = additive.model.forward(encoded(additive, table), additive.posterior.location)
    torch.testing.assert_close(f, additive.fit.linear.f, rtol=1e-9, atol=1e-9)


def test_blocks_bound_the_full_ggns_evidence(name: str) -> None:
    block = usual(name)
    full = laplace_at(block.fit, block.model, "full", 0.0)
    assert float(full.log_evidence()) >= float(block.posterior.log_evidence())
    assert torch.equal(full.location, block.posterior.location)


def test_the_structure_changes_nothing_but_the_posterior() -> None:
    block, full = usual("gaussian"), fitted("gaussian", frame(), replace(OPTIONS, structure="full"))
    assert torch.equal(full.posterior.location, block.posterior.location)
    told = laplace_at(block.fit, block.model, "full", 0.0)
    assert torch.equal(full.posterior.precision.to_dense(), told.precision.to_dense())
    assert torch.equal(full.posterior.log_evidence(), told.log_evidence())


def test_the_same_seed_is_the_same_fit_and_another_is_not() -> None:
    here = usual("bernoulli")
    again, other = (fitted("bernoulli", frame(), seed=seed) for seed in (0, 1))
    assert torch.equal(here.posterior.location, again.posterior.location)
    assert torch.equal(here.posterior.log_evidence(), again.posterior.log_evidence())
    assert not torch.equal(here.posterior.location, other.posterior.location)


def apart(here: Additive, there: Additive, table: pd.DataFrame) -> float:
    means = [some.model.forward(encoded(some, table), some.posterior.location) for some in (here, there)]
    return float((means[0] - means[1]).abs().max())


def test_the_rows_order_changes_nothing_but_rounding(name: str) -> None:
    table = frame()
    order = np.random.default_rng(3).permutation(len(table))
    moved = table.iloc[order].reset_index(drop=True)
    here, there = usual(name), fitted(name, moved, y=targets(name, table)[order])
    assert apart(here, there, table) < 2e-3


def test_a_weight_is_so_many_rows(name: str) -> None:
    """The encoding is fitted to the rows: that of the repeated ones would differ, so that all have one scale here."""
    table = frame(40)
    times = np.random.default_rng(3).integers(1, 4, len(table))
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    rows, y = EncodedRows.of(encoding.encode(columns)), targets(name, table)
    again = torch.arange(len(table)).repeat_interleave(torch.from_numpy(times))
    likelihood, outputs = LIKELIHOODS[name]
    unit = torch.ones(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    weighted = fit_additive(
        encoding, RowsInMemory(rows, y, torch.from_numpy(times).double(), *unit), likelihood, OPTIONS
    )
    ones = torch.ones(len(again), dtype=torch.float64)
    repeated = fit_additive(encoding, RowsInMemory(rows[again], y[again], ones, *unit), likelihood, OPTIONS)
    assert apart(weighted, repeated, table) < 2e-3
    assert weighted.fit.log_evidence == pytest.approx(repeated.fit.log_evidence, abs=2e-3)


def test_an_offset_in_fit_and_prediction() -> None:
    table = frame()
    offset = 3.0 * noise(len(table), seed=5)
    y = targets("gaussian", table)
    beside = fitted("gaussian", table, y=y + torch.from_numpy(offset), offset=offset)
    without = usual("gaussian")
    assert apart(beside, without, table) < 1e-3
    rows = replace(encoded(beside, table), offset=torch.from_numpy(offset))
    shifted = beside.posterior.predict(rows).mean - beside.posterior.predict(encoded(beside, table)).mean
    np.testing.assert_allclose(shifted, offset, atol=1e-12)


def test_an_offset_is_in_the_unit_of_the_outputs() -> None:
    table = frame()
    offset = 3.0 * noise(len(table), seed=5)
    y = targets("gaussian", table) + torch.from_numpy(offset / 10.0)
    beside = fitted("gaussian", table, y=y, offset=offset, scale=10.0, shift=2.0)
    plain = fitted("gaussian", table, y=y, offset=offset / 10.0)
    here, there = (some.model.forward(encoded(some, table), some.posterior.location) for some in (beside, plain))
    torch.testing.assert_close(here, 2.0 + 10.0 * there)
    lost = len(table) * np.log(10.0)
    assert float(plain.posterior.log_evidence() - beside.posterior.log_evidence()) == pytest.approx(lost)


# --- options ---------------------------------------------------------------------------------------------------------


def test_given_pairs_are_terms() -> None:
    additive = fitted("gaussian", frame(), replace(OPTIONS, interactions=[(0, 1), (2, 0)]))
    assert additive.pairs == ((0, 1), (0, 2))
    assert [term.name for term in additive.model.terms][3:] == ["age & dose", "age & kind"]
    assert additive.ranking is None
    assert additive.fit.log_evidence > usual("gaussian").fit.log_evidence - 3.0


def test_as_many_pairs_as_were_asked_for() -> None:
    additive = fitted("gaussian", frame(), replace(OPTIONS, interactions=2))
    assert additive.ranking is not None
    assert additive.pairs == additive.ranking.pairs[:2]
    assert len(additive.model.terms) == 5


def test_map_is_the_same_mode_without_spread() -> None:
    point = fitted("bernoulli", frame(), replace(OPTIONS, posterior="map"))
    assert isinstance(point.posterior, PointPosterior)
    torch.testing.assert_close(point.posterior.mean, usual("bernoulli").posterior.mean)


def test_a_fixed_precision_stays() -> None:
    additive = fitted("bernoulli", frame(), replace(OPTIONS, prior_precision=0.7))
    assert all(set(part.flatten().tolist()) == {0.7} for part in additive.fit.at.precisions)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden": 0}, InputError, "hidden"),
        ({"pair_hidden": 0}, InputError, "pair_hidden"),
        ({"posterior": "vi"}, OptionError, "posterior"),
        ({"structure": "diagonal"}, OptionError, "structure"),
        ({"prior_precision": "cv"}, InputError, "prior_precision"),
        ({"prior_precision": -1.0}, InputError, "prior_precision"),
        ({"intercept_prior_precision": 0.0}, InputError, "intercept_prior_precision"),
        ({"interactions": "all"}, OptionError, "interactions"),
        ({"interactions": -1}, InputError, "interactions"),
        ({"epochs": 0}, InputError, "epochs"),
        ({"share_prior": "weight"}, OptionError, "share_prior"),
        ({"ranking": "chance"}, OptionError, "ranking"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted("gaussian", frame(), replace(OPTIONS, **options))


@pytest.mark.parametrize("pair", [(0, 0), (0, 3), (-1, 0)])
def test_pairs_that_are_none_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="interactions: expected"):
        fitted("gaussian", frame(), replace(OPTIONS, interactions=[pair]))


# --- odd tables ------------------------------------------------------------------------------------------------------


def test_one_row(name: str) -> None:
    additive = fitted(name, frame().iloc[:1])
    mean = additive.posterior.predict(encoded(additive, frame())).mean
    assert np.isfinite(mean).all()


def test_columns_that_tell_nothing_have_no_effect() -> None:
    table = frame().assign(constant=3.0, nothing=np.nan, one="k")
    additive = fitted("gaussian", table)
    parts = additive.model.contributions(encoded(additive, table), additive.posterior.location)
    names = [term.name for term in additive.model.terms]
    for name in ("constant", "nothing", "one"):
        assert float(parts[names.index(name)].abs().max()) < 1e-8
    assert apart(additive, additive, table) == 0.0


def test_what_was_not_seen_has_its_priors_spread() -> None:
    """A label that was not there, and a gap in a column without any: wider than anything that was seen."""
    additive = usual("gaussian")
    model, posterior = additive.model, additive.posterior
    new = pd.DataFrame({"age": [50.0, 50.0, 50.0], "dose": [1.0, 1.0, np.nan], "kind": ["red", "violet", "red"]})
    seen, unseen, gap = model.variance(encoded(additive, new), posterior.location, posterior.precision)[:, 0]
    assert float(unseen) > float(seen)
    assert float(gap) > float(seen)


def test_categories_alone_and_numbers_alone() -> None:
    for columns in (["kind"], ["age", "dose"]):
        additive = fitted("gaussian", frame()[columns], y=targets("gaussian", frame()))
        assert [term.name for term in additive.model.terms] == columns


def test_numbers_are_grouped_only_while_a_model_is_fitted() -> None:
    table = frame(1500)
    additive = fitted("gaussian", table, replace(OPTIONS, epochs=6))
    assert "numbers grouped while fitting: dose" in additive.posterior.summary()
    f = additive.model.forward(encoded(additive, table), additive.posterior.location)
    grouped = additive.fit.linear.f
    assert not torch.equal(f, grouped)
    assert float((f - grouped).square().mean().sqrt()) < 0.02 * float(f.std())
