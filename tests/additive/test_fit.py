"""Weights and hyperparameters learnt together: what a fit promises of its end, and of its course."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayescope.additive import (
    AdditiveFit,
    AdditiveHyperparameters,
    AdditiveOptions,
    AdditiveProblem,
    BlockEvidence,
    EncodedRows,
    TermFamily,
    climb,
    first_precisions,
    settled,
)
from bayescope.additive.selection import Begun
from bayescope.likelihoods import Bernoulli, Gaussian
from tests.additive.problems import (
    FIRST,
    LEVELS,
    OFF,
    PAIR,
    SECOND,
    labels,
    nets,
    normal,
    problem_of,
    seeded,
    table,
)

SHORT = AdditiveOptions(epochs=25)


def wave(n: int = 80, seed: int = 0) -> tuple[EncodedRows, torch.Tensor]:
    """y = sin 2a + an effect of the label + noise of sd 0.2: b does nothing."""
    rows = table(n, seed=seed)
    known = (rows.levels[:, 0] == -1).to(torch.float64)
    f = known * torch.sin(2.0 * rows.values[:, 0]) + 0.5 * (rows.levels[:, 2] == 1)
    return rows, (f + 0.2 * normal(n, seed=seed + 1))[:, None]


def fitted(
    rows: EncodedRows, y: torch.Tensor, families: list[TermFamily], options: AdditiveOptions = SHORT,
    weights: torch.Tensor | None = None, learns: tuple[str, ...] = ("noise_variance",),
) -> AdditiveFit:  # fmt: skip
    problem = problem_of(families, rows, y, weights)
    at = AdditiveHyperparameters(first_precisions(problem.families, inner=0.3, other=1.0), 1e-4, Gaussian(0.5))
    return climb(problem, problem.centre, at, options, learns=learns)


def everything() -> list[TermFamily]:
    return [nets(FIRST, SECOND, hidden=8), labels()]


@pytest.fixture(scope="module")
def fit() -> AdditiveFit:
    return fitted(*wave(), everything(), replace(SHORT, epochs=60))


def slope(fit: AdditiveFit) -> torch.Tensor:
    pull = fit.at.diagonal(fit.problem.families) * (fit.theta - fit.problem.centre)
    return fit.linear.transposed(fit.linear.slope) - pull


def test_it_ends_at_a_mode_of_its_hyperparameters(fit: AdditiveFit) -> None:
    start = fit.problem.linearized(fit.problem.centre, fit.at.likelihood)
    assert float(slope(fit).norm()) < 1e-3 * float(start.transposed(start.slope).norm())


def test_its_evidence_and_curvature_are_those_of_the_end(fit: AdditiveFit) -> None:
    again = fit.problem.linearized(fit.theta, fit.at.likelihood)
    assert torch.equal(again.f, fit.linear.f)
    evidence = BlockEvidence.of(fit.problem, fit.theta, fit.at, again)
    assert float(evidence.value) == fit.log_evidence
    for here, there in zip(fit.linear.blocks, again.blocks, strict=True):
        assert torch.equal(here, there)


def test_the_best_epoch_is_kept() -> None:
    """With its hyperparameters; the weights are settled after it."""
    kept = fitted(*wave(40), everything())
    values = kept.trace["log_evidence"][SHORT.burn_in :]
    best = SHORT.burn_in + values.index(max(values))
    assert best < len(kept.trace["log_evidence"]) - 1  # what came after it was worse
    assert float(kept.at.likelihood.noise_variance) == kept.trace["noise_variance"][best]
    assert kept.log_evidence > max(values) - 0.1


def test_it_finds_the_noise_and_what_does_nothing(fit: AdditiveFit) -> None:
    assert 0.15 < float(fit.at.likelihood.noise_variance) ** 0.5 < 0.28
    of_nets, _ = fit.at.precisions
    assert float(of_nets[1, 1]) > 20.0 * float(of_nets[0, 1])
    f, y = fit.linear.f, fit.problem.targets
    assert float((f - y).square().mean()) < 0.1


def test_the_trace_tells_each_epoch(fit: AdditiveFit) -> None:
    lengths = {len(values) for values in fit.trace.values()}
    assert set(fit.trace) == {"log_evidence", "log_joint", "noise_variance"}
    assert len(lengths) == 1
    assert lengths.pop() <= 60
    assert fit.trace["noise_variance"][0] == 0.5


def test_a_net_without_use_is_switched_off() -> None:
    rows, y = wave(200)
    (precisions,) = fitted(rows, y, [nets(FIRST, SECOND, hidden=6)], AdditiveOptions(epochs=100)).at.precisions
    assert float(precisions[1].max()) > 1e3
    assert float(precisions[0].max()) < 1e2


def test_the_same_start_is_the_same_fit(fit: AdditiveFit) -> None:
    again = fitted(*wave(), everything(), replace(SHORT, epochs=60))
    assert again.log_evidence == fit.log_evidence
    assert torch.equal(again.theta, fit.theta)
    assert again.trace == fit.trace


def test_the_rows_order_changes_nothing_but_rounding() -> None:
    rows, y = wave()
    order = torch.randperm(len(rows), generator=seeded())
    here, there = (fitted(some, target, everything()) for some, target in ((rows, y), (rows[order], y[order])))
    assert here.log_evidence == pytest.approx(there.log_evidence, abs=1e-3)
    torch.testing.assert_close(here.linear.f[order], there.linear.f, rtol=0.0, atol=1e-3)


def test_a_weight_is_so_many_rows() -> None:
    rows, y = wave(40)
    times = torch.randint(1, 4, (40,), generator=seeded())
    again = torch.arange(40).repeat_interleave(times)
    weighted = fitted(rows, y, everything(), weights=times.to(torch.float64))
    repeated = fitted(rows[again], y[again], everything())
    assert weighted.log_evidence == pytest.approx(repeated.log_evidence, abs=1e-3)
    torch.testing.assert_close(weighted.linear.f[again], repeated.linear.f, rtol=0.0, atol=1e-3)


def test_an_offset_is_added_and_not_learnt() -> None:
    """For a Gaussian y, an offset is the same as a y that is so much less."""
    rows, y = wave(50)
    offset = normal(50, 1, seed=9)
    beside = fitted(EncodedRows(rows.values, rows.levels, offset), y, everything())
    taken = fitted(rows, y - offset, everything())
    assert beside.log_evidence == pytest.approx(taken.log_evidence, abs=1e-3)
    torch.testing.assert_close(beside.linear.f - offset, taken.linear.f, rtol=0.0, atol=1e-3)


def test_what_is_not_learnt_stays() -> None:
    rows, y = wave(40)
    still = fitted(rows, y, everything(), replace(SHORT, prior_precision=1.0), learns=())
    assert all(set(part.flatten().tolist()) <= {0.3, 1.0} for part in still.at.precisions)
    assert float(still.at.likelihood.noise_variance) == 0.5
    noise = fitted(rows, y, everything(), replace(SHORT, prior_precision=1.0))
    assert all(set(part.flatten().tolist()) <= {0.3, 1.0} for part in noise.at.precisions)
    assert float(noise.at.likelihood.noise_variance) < 0.4
    shared = fitted(rows, y, everything(), replace(SHORT, share_prior="net"))
    assert torch.equal(shared.at.precisions[0][:, 0], shared.at.precisions[0][:, 1])


def test_before_the_burn_in_is_over_nothing_is_learnt() -> None:
    rows, y = wave(40)
    options = AdditiveOptions(epochs=12, burn_in=6, evidence_every=2)
    trace = fitted(rows, y, everything(), options).trace["noise_variance"]
    assert trace[:7] == [0.5] * 7
    assert trace[7] != 0.5
    assert trace[8] == trace[7]
    assert trace[9] != trace[8]


# --- a linear model, whose posterior is known -----------------------------------------------------------------------


def exact(
    problem: AdditiveProblem, rows: EncodedRows, at: AdditiveHyperparameters
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and covariance of (level effects, b) and the log evidence of the conjugate random-effects model."""
    one_hot = torch.nn.functional.one_hot(rows.levels[:, 2], LEVELS).to(torch.float64)
    z = torch.cat([one_hot - one_hot.mean(0), torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    noise = float(at.likelihood.noise_variance)
    prior = torch.tensor([float(at.precisions[0][0, 0])] * LEVELS + [at.intercept_precision], dtype=torch.float64)
    covariance = torch.linalg.inv(z.T @ z / noise + torch.diag(prior))
    y = problem.targets[:, 0]
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros_like(y), noise * torch.eye(len(y), dtype=torch.float64) + z @ torch.diag(1.0 / prior) @ z.T
    )
    return covariance @ z.T @ y / noise, covariance, float(marginal.log_prob(y))


def test_levels_with_gaussian_noise_are_the_conjugate_model() -> None:
    rows, y = wave(60)
    fit = fitted(rows, y, [labels()], AdditiveOptions(epochs=100))
    mean, _, log_evidence = exact(fit.problem, rows, fit.at)
    torch.testing.assert_close(fit.theta, mean, rtol=1e-4, atol=1e-5)
    assert fit.log_evidence == pytest.approx(log_evidence, abs=1e-6)
    # Learnt hyperparameters are those of the largest exact evidence.
    for factor in (0.7, 1.4):
        wider = replace(fit.at, precisions=(factor * fit.at.precisions[0],))
        assert exact(fit.problem, rows, wider)[2] < log_evidence
        noisier = replace(fit.at, likelihood=Gaussian(factor * float(fit.at.likelihood.noise_variance)))
        assert exact(fit.problem, rows, noisier)[2] < log_evidence


def test_a_level_without_data_keeps_its_prior() -> None:
    rows, y = wave(60)
    fit = fitted(rows, y, [labels()])
    unseen = LEVELS - 1
    assert not (rows.levels[:, 2] == unseen).any()
    assert abs(float(fit.theta[unseen])) < 1e-12
    precision = fit.linear.blocks[0][0] + torch.diag(fit.at.diagonal(fit.problem.families)[:-1])
    variance = torch.linalg.inv(precision)[unseen, unseen]
    torch.testing.assert_close(variance, 1.0 / fit.at.precisions[0][0, 0])


# --- odd tables -----------------------------------------------------------------------------------------------------


def test_one_row() -> None:
    fit = fitted(table(1), torch.tensor([[1.3]], dtype=torch.float64), everything(), AdditiveOptions(epochs=10))
    assert fit.linear.f.isfinite().all()
    assert fit.evidence.value.isfinite()


@pytest.mark.parametrize("missing", [False, True])
def test_columns_that_tell_nothing(missing: bool) -> None:
    rows, y = wave(50)
    rows.values[:, 1] = 0.0
    rows.levels[:, 1] = 0 if missing else -1
    fit = fitted(rows, y, everything())
    without = fitted(rows, y, [nets(FIRST, hidden=8), labels()])
    effect = fit.problem.families[0].values(fit.problem.split(fit.theta)[0][0], fit.problem.designs[0].points)[1]
    assert float(effect[fit.problem.designs[0].place[1]].std()) < 1e-9
    # Of a net that the data do not touch, nothing is told: neither how it looks nor how it is likely to.
    assert fit.at.precisions[0][1].tolist() == [0.3, 1.0]
    assert float(fit.evidence.determined[0][1].abs().max()) < 1e-9
    # Its kinks were drawn before the others', so that those ended elsewhere: not far.
    assert fit.log_evidence == pytest.approx(without.log_evidence, abs=6.0)


def test_labels_that_are_all_one_class() -> None:
    rows, _ = wave(30)
    problem = problem_of(everything(), rows, torch.ones(30, 1, dtype=torch.int64))
    at = AdditiveHyperparameters(first_precisions(problem.families, inner=0.3, other=1.0), 1e-4, Bernoulli())
    fit = climb(problem, problem.centre, at, SHORT)
    assert fit.linear.f.isfinite().all()
    assert float(fit.linear.f.min()) > 2.0


# --- pairs after features -------------------------------------------------------------------------------------------


def test_a_fit_is_carried_into_a_problem_with_more_families() -> None:
    rows, y = wave(50)
    before = fitted(rows, y, everything())
    wider = problem_of([*before.problem.families, nets(PAIR)], rows, y)
    more = Begun.of(before).beside(Begun.of(fitted(rows, y, [nets(PAIR)], replace(SHORT, epochs=6))))
    centre = torch.cat([*[part.flatten() for part in more.centre], before.problem.centre[-1:]])
    added = torch.zeros_like(more.theta[2]).flatten()
    state = torch.cat([before.theta[:-1], added, before.theta[-1:]])
    wider = replace(wider, centre=centre)
    at = replace(before.at, precisions=more.precisions)
    torch.testing.assert_close(wider.outputs(state), before.linear.f)
    after = climb(wider, state, at, SHORT)
    assert after.trace["log_joint"][0] >= float(wider.log_joint(state, at))


def test_settling_climbs_to_the_mode_and_learns_nothing() -> None:
    rows, y = wave(50)
    problem = problem_of(everything(), rows, y)
    at = AdditiveHyperparameters(first_precisions(problem.families, inner=0.3, other=1.0), 1e-4, Gaussian(0.1))
    fit = settled(problem, problem.centre, at, {}, ended="rest")
    assert fit.at is at
    assert float(fit.linear.problem.log_joint(fit.theta, at)) > float(problem.log_joint(problem.centre, at)) + 20
    assert fit.ended == "rest"
    assert all(float(part.max()) < OFF for part in fit.at.precisions)
