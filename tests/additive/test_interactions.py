"""Rankings of pairs, against the dense evidence of a linear model and autograd's Hessian of output scales."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from bayescope.additive import (
    AdditiveFit,
    AdditiveOptions,
    EncodedRows,
    FeatureInput,
    Grids,
    HiddenNets,
    Margin,
    Ranking,
    RowPasses,
    RowsInMemory,
    evidence_gains,
    fit_additive,
    mutual_information,
    pair_term,
    rank,
)
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.tables import TableEncoding, read_table
from tests.additive.problems import seeded

# How pairs are judged: the hidden units of a candidate, the precisions tried for their weights, the prior precision of
# the features' own functions as a share of the largest curvature, and the groups that numbers are cut into.
UNITS, GROUPS, FEATURE_PRECISION = 32, 24, 1e-6
PRECISIONS = torch.logspace(-4, 3, 22, dtype=torch.float64)
QUICK = AdditiveOptions(hidden=8, epochs=12, burn_in=3)


def fitted(
    table: object, y: object, likelihood: Likelihood, outputs: int = 1, weights: Tensor | None = None,
    options: AdditiveOptions = QUICK,
) -> tuple[AdditiveFit, TableEncoding, EncodedRows]:  # fmt: skip
    """The effects of the features alone."""
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    rows = EncodedRows.of(encoding.encode(columns))
    weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
    unit = torch.ones(outputs, dtype=torch.float64)
    data = RowsInMemory(rows, likelihood.targets(y, outputs), weights, unit, 0.0 * unit)
    return fit_additive(encoding, data, likelihood, options).fit, encoding, rows


def standardized(y: np.ndarray) -> np.ndarray:
    return (y - y.mean()) / y.std()


def coarse(n: int, *, seed: int = 0) -> pd.DataFrame:
    """Two columns of few numbers, with gaps, and one of labels."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 6, (n, 2)).astype(float)
    numbers[rng.random((n, 2)) < 0.1] = np.nan
    return pd.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "kind": rng.choice(["x", "y", "z"], n)})


def held(fit: AdditiveFit, rows: EncodedRows) -> RowsInMemory:
    """The rows of a fit, with the weights that it has for them."""
    one = torch.ones(1, dtype=torch.float64)
    return RowsInMemory(rows, fit.problem.targets, fit.problem.weights, one, 0.0 * one)


# --- the gain in evidence --------------------------------------------------------------------------------------------


def read_plainly(
    fit: AdditiveFit, encoding: TableEncoding, rows: EncodedRows, pair: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """B and φ of each row, with the draws that `evidence_gains` makes of the same generator."""
    generator, term = seeded(), pair_term(encoding, pair)
    first, second = (Margin.of(column, rows, fit.problem.weights, generator) for column in term.columns)
    grids = Grids.of([(first, second)], fit.problem.weights[:, None], RowPasses())
    net = HiddenNets.of([term], UNITS, 1)
    units = net.units(net.start(grids.points, grids.share, generator), grids.points)[0]
    cell = first.group * max(len(first.share), len(second.share)) + second.group
    inputs, gone = term.read(rows)
    torch.testing.assert_close(grids.points.inputs[0, cell][~gone], inputs[~gone])
    assert torch.equal(grids.points.levels[0, cell] != -1, gone)
    return grids.basis[0, cell], units[cell].masked_fill(gone[:, None], 0.0)


def gains_plainly(own: Tensor, units: Tensor, slope: Tensor, curvature: Tensor, weak: Tensor) -> Tensor:
    """log Z of f = B u + φ V less that of f = B u for each precision, with the weights of C outputs in one vector.

    For a quadratic log likelihood gᵀf − ½ fᵀΛf and a prior N(0, diag(τ)⁻¹): ½ bᵀA⁻¹b − ½ log∣A∣ + ½ log∣τ∣ with
    A = JᵀΛJ + diag(τ) and b = Jᵀg.
    """
    identity = torch.eye(slope.shape[1], dtype=torch.float64)

    def log_evidence(features: Tensor, precision: Tensor) -> Tensor:
        jacobian = torch.einsum("nm,cd->ncmd", features, identity).flatten(2)
        matrix = torch.einsum("ncp,nce,neq->pq", jacobian, curvature, jacobian) + torch.diag(precision)
        right = torch.einsum("ncp,nc->p", jacobian, slope)
        return 0.5 * (right @ torch.linalg.solve(matrix, right) - torch.logdet(matrix) + precision.log().sum())

    alone = weak.repeat(own.shape[1])
    without = log_evidence(own, alone)
    both = torch.cat([own, units], 1)
    fill = torch.ones(units.shape[1] * slope.shape[1], dtype=torch.float64)
    return torch.stack([log_evidence(both, torch.cat([alone, p * fill])) - without for p in PRECISIONS])


def weakness(own: Tensor, curvature: Tensor) -> Tensor:
    """The prior precision of B's weights, of each output."""
    return FEATURE_PRECISION * torch.einsum("nm,nc,nm->mc", own, curvature, own).amax(0)


@pytest.mark.parametrize("pair", [(0, 1), (0, 2)])
def test_gain_is_the_difference_of_two_dense_evidences(pair: tuple[int, int]) -> None:
    table = coarse(80)
    y = table["a"].fillna(1.0) * np.where(table["kind"] == "x", table["b"].fillna(2.0), -1.0)
    weights = torch.linspace(0.5, 2.0, len(table), dtype=torch.float64)
    fit, encoding, rows = fitted(table, standardized(y.to_numpy()), Gaussian(0.5), weights=weights)
    own, units = read_plainly(fit, encoding, rows, pair)
    slope, curvature = fit.linear.slope, fit.linear.curvature
    truth = gains_plainly(own, units, slope, curvature, weakness(own, curvature[:, :, 0])).max()
    got = evidence_gains(fit, [pair_term(encoding, pair)], held(fit, rows), seeded())
    assert truth > 1.0  # there is something to be found
    assert float(got[0]) == pytest.approx(float(truth), rel=1e-6)


def test_gain_with_several_outputs_is_at_most_the_exact_one() -> None:
    table = coarse(150, seed=1)
    a, b = table["a"].fillna(2.0).to_numpy(), table["b"].fillna(2.0).to_numpy()
    logits = np.stack([(a - 2.5) * (b - 2.5), 0.5 * a, np.zeros_like(a)], 1)
    noise = np.random.default_rng(0).gumbel(size=logits.shape)
    fit, encoding, rows = fitted(table, (logits + noise).argmax(1), Categorical(), 3)
    own, units = read_plainly(fit, encoding, rows, (0, 1))
    slope, curvature = fit.linear.slope, fit.linear.curvature
    bound = curvature.abs().sum(2)
    weak = weakness(own, bound)
    exact = gains_plainly(own, units, slope, curvature, weak).max()
    bounded = gains_plainly(own, units, slope, torch.diag_embed(bound), weak).max()
    got = float(evidence_gains(fit, [pair_term(encoding, (0, 1))], held(fit, rows), seeded())[0])
    assert got == pytest.approx(float(bounded), rel=1e-6)
    assert 0.3 * float(exact) < got < float(exact)


def test_what_the_features_could_do_alone_is_not_counted() -> None:
    table = coarse(200)
    y = table["a"].fillna(1.0) * table["b"].fillna(2.0)
    fit, encoding, rows = fitted(table, standardized(y.to_numpy()), Gaussian(0.5))
    terms = [pair_term(encoding, (0, 1))]
    alone = torch.from_numpy(np.sin(table["a"].fillna(-7.0).to_numpy()) + table["b"].isna().to_numpy())
    linear = replace(fit.linear, slope=fit.linear.slope + fit.linear.curvature[:, 0] * alone[:, None])
    got = evidence_gains(replace(fit, linear=linear), terms, held(fit, rows), seeded())
    torch.testing.assert_close(got, evidence_gains(fit, terms, held(fit, rows), seeded()), rtol=1e-3, atol=0.0)


def planted(seed: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Ten independent features, of which four make two pairs, and the mean of y."""
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, (n, 10))
    mean = np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + x[:, 2] + 2 * x[:, 0] * x[:, 4] + 1.5 * np.sin(3 * x[:, 5]) * x[:, 6]
    return x, mean


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_planted_pairs_come_first(seed: int, kind: str) -> None:
    x, mean = planted(seed)
    rng = np.random.default_rng(seed + 100)
    if kind == "regression":
        y, likelihood = standardized(mean + 0.5 * rng.normal(size=len(x))), Gaussian(0.5)
    else:
        y, likelihood = (1.5 * (mean - 0.3) + rng.logistic(size=len(x)) > 0).astype(int), Bernoulli()
    fit, encoding, rows = fitted(x, y, likelihood)
    ranking = rank(fit, encoding, held(fit, rows), "evidence", seeded(seed))
    assert set(ranking.pairs[:2]) == {(0, 4), (5, 6)}
    assert ranking.scores[1] > 5.0 > ranking.scores[2]


def test_a_pair_of_categories_and_one_of_a_category_and_a_number() -> None:
    rng = np.random.default_rng(0)
    n = 500
    table = pd.DataFrame(
        {
            "shop": rng.choice(list("abcdefghijkl"), n),
            "day": rng.choice(["mo", "tu", "we"], n),
            "price": rng.normal(size=n),
            "age": rng.normal(size=n),
            "idle": rng.choice(["p", "q"], n),
        }
    )
    mean = (
        2.0 * ((table["shop"] < "g") == (table["day"] == "mo")) + np.where(table["idle"] == "p", 1, -1) * table["age"]
    )
    fit, encoding, rows = fitted(table, standardized((mean + rng.normal(size=n)).to_numpy()), Gaussian(0.5))
    ranking = rank(fit, encoding, held(fit, rows), "evidence", seeded())
    assert set(ranking.pairs[:2]) == {(0, 1), (3, 4)}


def test_rows_that_are_repeated_count_as_weights() -> None:
    x, mean = planted(0, 120)
    y = standardized(mean + 0.3 * np.random.default_rng(0).normal(size=len(x)))
    times = np.random.default_rng(1).integers(1, 4, len(x))
    fit, encoding, rows = fitted(x[:, :7], y, Gaussian(0.5), weights=torch.from_numpy(times.astype(float)))
    # The same weights of the nets, whatever a fit of the repeated rows would have found.
    again = torch.from_numpy(np.repeat(np.arange(len(x)), times))
    problem = replace(fit.problem, weights=torch.ones(len(again), dtype=torch.float64))
    each = 1.0 / fit.problem.weights
    linear = replace(
        fit.linear, problem=problem, slope=(fit.linear.slope * each[:, None])[again],
        curvature=(fit.linear.curvature * each[:, None, None])[again],
    )  # fmt: skip
    repeated = replace(fit, problem=problem, linear=linear)
    terms = [pair_term(encoding, pair) for pair in combinations(range(7), 2)]
    torch.testing.assert_close(
        evidence_gains(fit, terms, held(fit, rows), seeded()),
        evidence_gains(repeated, terms, held(repeated, rows[again]), seeded()),
    )


def test_columns_without_a_number_or_with_one_alone_gain_nothing() -> None:
    x, mean = planted(0, 100)
    table = np.column_stack([x[:, :2], np.full(100, np.nan), np.full(100, 3.0)])
    fit, encoding, rows = fitted(table, standardized(mean), Gaussian(0.5))
    ranking = rank(fit, encoding, held(fit, rows), "evidence", seeded())
    found = dict(zip(ranking.pairs, ranking.scores.tolist(), strict=True))
    assert all(found[pair] == 0.0 for pair in [(0, 2), (1, 2), (2, 3)])
    assert max(found[0, 3], found[1, 3]) < 0.5  # what a second net of x0 or x1 alone would add


# --- mutual information ----------------------------------------------------------------------------------------------


def information_plainly(fit: AdditiveFit, features: int) -> Tensor:
    """−½ log(1 − ρ²) from autograd's Hessian of the log joint in the scales: the GGN's, for canonical links."""
    linear = [
        torch.tensor([name != "inner" for name in family.layers])[family.layer] for family in fit.problem.families
    ]

    def loss(scales: Tensor) -> Tensor:
        weights, intercept = fit.problem.split(fit.theta)
        scaled = [
            torch.where(outer, theta * scales[[term.features[0] for term in family.terms], None], theta).flatten()
            for family, outer, theta in zip(fit.problem.families, linear, weights, strict=True)
        ]
        return -fit.problem.log_joint(torch.cat([*scaled, intercept]), fit.at)

    hessian = torch.autograd.functional.hessian(loss, torch.ones(features, dtype=torch.float64))
    covariance = torch.linalg.inv(hessian)
    root = covariance.diagonal().sqrt()
    return -0.5 * torch.log1p(-((covariance / torch.outer(root, root)).fill_diagonal_(0.0) ** 2))


@pytest.mark.parametrize(("likelihood", "outputs"), [(Gaussian(0.5), 1), (Bernoulli(), 1), (Categorical(), 3)])
def test_mutual_information_is_that_of_autograds_hessian(likelihood: Likelihood, outputs: int) -> None:
    table = coarse(200, seed=2)
    table["copy"] = table["a"].fillna(0.0) + np.random.default_rng(0).normal(size=200)
    score = standardized((table["a"].fillna(1.0) + (table["kind"] == "x") * 2 - table["b"].fillna(3.0)).to_numpy())
    noisy = score + 0.5 * np.random.default_rng(1).normal(size=200)
    y = (
        noisy
        if outputs == 1 and likelihood.name == "gaussian"
        else np.digitize(noisy, [-0.5, 0.5] if outputs == 3 else [0])
    )
    fit, *_ = fitted(table, y, likelihood, outputs)
    torch.testing.assert_close(mutual_information(fit, 4), information_plainly(fit, 4), rtol=1e-6, atol=1e-7)


def test_mutual_information_sees_features_that_stand_in_for_each_other_and_not_a_product() -> None:
    x, _ = planted(0)
    x[:, 9] = x[:, 8] + 0.05 * np.random.default_rng(0).normal(size=len(x))
    y = x[:, 8] + x[:, 9] + 3.0 * x[:, 0] * x[:, 1]
    fit, encoding, rows = fitted(x, standardized(y), Gaussian(0.5))
    assert rank(fit, encoding, held(fit, rows), "mutual_information", seeded()).pairs[0] == (8, 9)
    assert rank(fit, encoding, held(fit, rows), "evidence", seeded()).pairs[0] == (0, 1)


def test_an_effect_that_is_nothing_has_no_information() -> None:
    x, mean = planted(0, 100)
    x[:, 3] = 1.0
    fit, _, _ = fitted(x, standardized(mean), Gaussian(0.5))
    information = mutual_information(fit, 10)
    assert torch.equal(information[3], torch.zeros(10, dtype=torch.float64))
    assert information.isfinite().all()


# --- rankings and margins --------------------------------------------------------------------------------------------


def test_a_ranking_is_sorted_and_keeps_the_tables_order_of_equals() -> None:
    ranking = Ranking.of([(0, 1), (0, 2), (1, 2)], np.array([1.0, 3.0, 1.0]), "evidence")
    assert ranking.pairs == ((0, 2), (0, 1), (1, 2))
    assert ranking.scores.tolist() == [3.0, 1.0, 1.0]


@pytest.mark.parametrize("method", ["evidence", "mutual_information"])
def test_all_pairs_are_ranked_and_the_same_again(method: str) -> None:
    x, mean = planted(0, 60)
    fit, encoding, rows = fitted(x[:, :4], standardized(mean), Gaussian(0.5))
    first, second = (rank(fit, encoding, held(fit, rows), method, seeded(7)) for _ in range(2))
    assert sorted(first.pairs) == list(combinations(range(4), 2))
    assert first.pairs == second.pairs
    assert np.array_equal(first.scores, second.scores)
    assert first.scores.dtype == np.float64
    assert first.method == method


@pytest.mark.parametrize("method", ["evidence", "mutual_information"])
def test_one_feature_has_no_pairs(method: str) -> None:
    x, mean = planted(0, 40)
    fit, encoding, rows = fitted(x[:, :1], standardized(mean), Gaussian(0.5))
    ranking = rank(fit, encoding, held(fit, rows), method, seeded())
    assert ranking.pairs == ()
    assert ranking.scores.shape == (0,)


def test_numbers_are_cut_into_groups_of_like_size_that_keep_equal_numbers_together() -> None:
    numbers = torch.cat([torch.randn(900, generator=seeded(), dtype=torch.float64), torch.zeros(100)])
    rows = EncodedRows(numbers[:, None], torch.full((1000, 1), -1))
    margin = Margin.of(FeatureInput(0), rows, torch.ones(1000, dtype=torch.float64), seeded())
    assert len(margin.share) <= GROUPS + 1  # the last is the missing values', of which there are none
    assert margin.share[-1] == 0.0
    assert len(margin.group[900:].unique()) == 1
    others = margin.share[:-1][margin.share[:-1] < 0.1]
    assert 0.5 / GROUPS < others.min() <= others.max() < 2.0 / GROUPS
    told = torch.stack([numbers[margin.group == group].mean() for group in range(len(margin.share) - 1)])
    torch.testing.assert_close(margin.inputs[:-1, 0], told)
    assert (told.diff() > 0).all()


def test_a_features_own_functions_are_uncorrelated() -> None:
    numbers = torch.randn(300, 1, generator=seeded(), dtype=torch.float64)
    margin = Margin.of(
        FeatureInput(0),
        EncodedRows(numbers, torch.full((300, 1), -1)),
        torch.ones(300, dtype=torch.float64),
        seeded(),
    )
    functions = margin.basis[:, :-1]
    second = functions.mT @ (margin.share[:, None] * functions)
    torch.testing.assert_close(second, torch.eye(functions.shape[1], dtype=torch.float64))
    torch.testing.assert_close(margin.share @ functions, torch.zeros(functions.shape[1], dtype=torch.float64))
    assert margin.basis[:, -1].tolist() == [0.0] * (len(margin.share) - 1) + [1.0]
