"""Hyperparameters by held-out NLL: the grid against predictions one by one, and one reading of the Jacobians."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope import laplace
from bayescope.errors import BayescopeWarning, ConvergenceWarning, InputError, UnsupportedError
from bayescope.laplace import LaplaceFit, tune_prior
from bayescope.likelihoods import Gaussian, resolve
from bayescope.posterior import GaussianPosterior
from bayescope.priors import Prior
from bayescope.training import fit_map
from tests.laplace.problems import mlp, normal, nothing_written, penalty, seeded, train

X, XV = normal(40, 2, seed=1), normal(30, 2, seed=2)
STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")


def labels(x: Tensor, seed: int) -> Tensor:
    """Three classes that x tells of, with some noise."""
    f = torch.stack([x[:, 0], x[:, 1], -x.sum(1)], 1) + 0.7 * normal(len(x), 3, seed=seed)
    return f.argmax(1)


def targets(x: Tensor, seed: int) -> Tensor:
    return x[:, :1].sin() + 0.5 * normal(len(x), 1, seed=seed)


Y, YV = labels(X, 3), labels(XV, 4)
R, RV = targets(X, 5), targets(XV, 6)


@functools.lru_cache
def _trained(outputs: int, seed: int) -> nn.Module:
    module = mlp(outputs, seed=seed)
    likelihood = resolve("categorical" if outputs == 3 else "gaussian")
    y = Y if outputs == 3 else R
    train(module, lambda: -likelihood.log_prob(module(X), y).sum() + penalty(module, 0.1))
    return module


def trained(outputs: int = 3, seed: int = 0) -> nn.Module:
    """A network that knows its training data too well."""
    return copy.deepcopy(_trained(outputs, seed))


def fitted(model: Any = None, y: Any = None, **options: Any) -> Any:
    options = {"likelihood": "categorical", "prior_precision": 1.0, **options}
    if options.get("structure") == "low_rank":
        options |= {"rank": 15, "generator": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)
        return laplace(trained() if model is None else model, (X, Y if y is None else y), **options)


def validated(q: Any, data: Any = (XV, YV), **options: Any) -> Any:
    """Tuned, with the word on optima at the end of their range left out: a small network may want no prior at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return tune_prior(q, method="validation", data=data, **options)


def nll(q: Any, x: Tensor = XV, y: Tensor = YV, integral: str | None = "mackay") -> float:
    return -float(q.predict(x, integral=integral).log_prob(y).mean())


def at(q: GaussianPosterior, diagonal: Any, noise: float | None = None, temperature: float = 1.0) -> GaussianPosterior:
    """The posterior under other hyperparameters, made without any grid."""
    fit = q.fit
    assert isinstance(fit, LaplaceFit)
    moved = replace(fit, prior=Prior(diagonal), temperature=temperature)
    return (moved if noise is None else moved.at_noise(noise)).posterior()


def reported(q: Any) -> float:
    return float(q.record.notes["tuned"].split(", ")[-1].split(" ")[0])


# The grid: so many values a decade, so many decades to either side.
PER_DECADE, DECADES = 4, 5
STEP = math.log(10.0) / PER_DECADE
GRID = [math.exp(STEP * u) for u in range(-PER_DECADE * DECADES, PER_DECADE * DECADES + 1)]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("integral", ["mackay", "quadrature"])
def test_a_scalar_is_the_best_of_the_grid(structure: str, integral: str) -> None:
    q = fitted(structure=structure)
    every = 1 if integral == "mackay" else 4
    each = {delta: nll(at(q, delta), integral=integral) for delta in GRID[::every]}
    q2 = validated(q, integral=integral)
    found = float(q2.fit.prior.precision)
    assert reported(q2) <= min(each.values()) + 1e-3 * min(each.values())
    if integral == "mackay":
        best = min(each, key=each.__getitem__)
        assert reported(q2) == pytest.approx(each[best], rel=3e-3)
        assert abs(math.log(found / best)) <= 0.5 * STEP + 1e-9
        # between the grid's points the parabola's vertex is no worse
        assert nll(q2) <= each[best] + 1e-6
    assert nll(q2, integral=integral) <= nll(q, integral=integral) + 1e-9


@pytest.mark.parametrize("structure", ["block", "diagonal", "kfac", "ekfac"])
def test_one_a_layer_is_the_best_of_the_neighbourhood(structure: str) -> None:
    q = fitted(structure=structure)
    q2 = validated(q, share_prior="layer")
    diagonal = q2.fit.prior.diagonal(27)
    rungs = [round(math.log(float(diagonal[i])) / STEP) for i in (0, -1)]
    assert torch.equal(diagonal, diagonal[[0] * 12 + [-1] * 15])

    def value(u: int, v: int) -> float:
        logs = torch.tensor([u] * 12 + [v] * 15, dtype=torch.float64) * STEP
        return nll(at(q, logs.exp()))

    best = value(*rungs)
    assert reported(q2) == pytest.approx(best, rel=3e-3)
    reach = PER_DECADE * DECADES
    for a, b in itertools.product((-1, 0, 1), repeat=2):
        if max(abs(rungs[0] + a), abs(rungs[1] + b)) <= reach:
            assert value(rungs[0] + a, rungs[1] + b) >= best - 1e-9
    assert best <= min(nll(at(q, delta)) for delta in GRID) + 1e-9


def test_noise_and_prior_of_a_regression_are_the_best_of_both_grids() -> None:
    q = fitted(trained(1), R, likelihood="gaussian")
    q2 = validated(q, (XV, RV))
    steps = range(-12, 13, 4)
    each = [
        nll(at(q, math.exp(STEP * u), math.exp(STEP * s)), XV, RV)
        for u, s in itertools.product(range(-12, 13, 2), steps)
    ]
    assert reported(q2) <= min(each) + 1e-3
    assert nll(q2, XV, RV) <= min(each) + 1e-6
    kept = validated(fitted(trained(1), R, likelihood=Gaussian(1.0)), (XV, RV))
    assert float(kept.likelihood.noise_variance) == 1.0
    assert nll(q2, XV, RV) < nll(kept, XV, RV)


@pytest.mark.parametrize("likelihood", ["categorical", Gaussian(1.0)])
def test_the_temperature_is_tuned_on_request_alone(likelihood: str | Gaussian) -> None:
    classes = likelihood == "categorical"
    model, y, yv = (trained(), Y, YV) if classes else (trained(1), R, RV)
    q = fitted(model, y, likelihood=likelihood, structure="diagonal")
    q2 = validated(q, (XV, yv), temperature=True)
    assert validated(q, (XV, yv)).fit.temperature == 1.0
    assert q2.fit.temperature != 1.0
    each = [
        nll(at(q, math.exp(STEP * u), temperature=math.exp(STEP * t)), XV, yv)
        for u, t in itertools.product(range(-16, 17, 4), range(-12, 13, 4))
    ]
    assert nll(q2, XV, yv) <= min(each) + 1e-6
    assert reported(q2) == pytest.approx(nll(q2, XV, yv), abs=2e-3)


def test_a_temperature_that_was_there_counts() -> None:
    q = fitted(temperature=0.3)
    q2 = validated(q)
    found = float(q2.fit.prior.precision)
    assert q2.fit.temperature == 0.3
    assert reported(q2) == pytest.approx(nll(q2), rel=1e-3)
    each = {delta: nll(at(q, delta, temperature=0.3)) for delta in GRID}
    assert abs(math.log(found / min(each, key=each.__getitem__))) <= 0.5 * STEP + 1e-9


class Counted(nn.Module):
    """A network whose copies all count the rows that any of them reads."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = trained(seed=seed)

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.rows += len(x)
        out: Tensor = self.body(x)
        return out


@pytest.mark.parametrize("options", [{}, {"temperature": True}, {"share_prior": "layer"}, {"integral": "quadrature"}])
def test_jacobians_of_the_held_out_data_are_read_once(options: Any) -> None:
    q = fitted(Counted())
    Counted.rows = 0
    validated(q, **options)
    assert 0 < Counted.rows <= 2 * len(XV)  # for the latent and for its covariances


@pytest.mark.global_rng
def test_batches_do_not_matter() -> None:
    q = fitted()
    whole = float(validated(q).fit.prior.precision)
    loader = DataLoader(TensorDataset(XV, YV), batch_size=7)
    assert float(validated(q, loader).fit.prior.precision) == pytest.approx(whole, rel=1e-9)
    assert float(validated(q, (XV.numpy(), YV.numpy()), batch_size=4).fit.prior.precision) == pytest.approx(whole)


def test_modes_of_a_mixture_are_judged_together() -> None:
    q = fitted([Counted(), Counted(seed=7)])
    Counted.rows = 0
    q2 = validated(q)
    assert 0 < Counted.rows <= 2 * 2 * len(XV)
    assert reported(q2) == pytest.approx(nll(q2), rel=2e-3)
    assert nll(q2) <= nll(q) + 1e-9
    first, second = (float(part.fit.prior.precision) for part in q2.components)
    assert first == second
    assert torch.equal(q2.weights, q.weights)


def test_dense_outputs_count_each_position() -> None:
    model = seeded(lambda: nn.Conv2d(1, 2, 3, padding=1))
    images = normal(6, 1, 4, 4, seed=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        y = (images[:, 0] > 0).long()
        permuted = nn.Sequential(model, Last()).double()
        q = laplace(permuted, (images, y), likelihood="categorical")
        q2 = validated(q, (images, y))
    assert reported(q2) == pytest.approx(nll(q2, images, y, None), abs=2e-3)
    assert "96 held-out rows" in q2.record.notes["tuned"]


class Last(nn.Module):
    """Classes on the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


def test_q_and_its_network_are_left_as_they_were() -> None:
    q = fitted()
    before = (q.summary(), q.log_evidence())
    with nothing_written(q.fit.function.module):
        q2 = validated(q)
    assert (q.summary(), q.log_evidence()) == before
    assert torch.equal(q2.mean, q.mean)
    assert "by the NLL of 30 held-out rows, 'scalar' groups, mackay integral" in q2.record.notes["tuned"]
    assert {"prior precision", "effective parameters", "Newton decrement"} <= set(q2.record.notes)


def test_a_loss_that_is_flat_at_the_end_of_the_range_is_no_reason_to_go_on() -> None:
    train, held_out = (make_moons(rows, noise=0.25, random_state=rows) for rows in (60, 100))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        network = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    point = fit_map(network, train, likelihood="bernoulli", prior_precision=0.1, progress=False)
    q = laplace(point, train, likelihood="bernoulli")
    tuned = tune_prior(q, method="validation", data=held_out)  # a warning would be an error
    before, after = (-float(np.mean(each.predict(held_out[0]).log_prob(held_out[1]))) for each in (q, tuned))
    assert after <= before + 1e-9


def test_an_optimum_at_the_end_of_the_range_is_told() -> None:
    q = fitted(prior_precision=1e-9)
    with pytest.warns(ConvergenceWarning, match=r"tune_prior: .*end of the range for prior precision.*Tune again"):
        tune_prior(q, method="validation", data=(XV, YV))
    sure = fitted()
    with pytest.warns(ConvergenceWarning, match=r"end of the range.*closes onto the mode: its predictions are those"):
        closed = tune_prior(sure, method="validation", data=(XV, sure.predict(XV).probs.argmax(1)))
    assert "leaves out a slope" in closed.record.notes["no mode of this prior"]


def test_the_noise_is_refined_where_the_prior_is_at_its_end() -> None:
    q = fitted(trained(1), R, likelihood="gaussian", prior_precision=1e-8)
    q2 = validated(q, (XV, RV))
    noise, precision = float(q2.likelihood.noise_variance), float(q2.fit.prior.precision)
    steps = math.log(noise) / STEP
    assert abs(steps - round(steps)) > 1e-3
    each = {side: nll(at(q, precision, noise * math.exp(side)), XV, RV) for side in (-0.3, 0.0, 0.3)}
    assert each[0.0] < min(each[-0.3], each[0.3])


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"share_prior: expected 'scalar' .* structure 'full'"):
        validated(fitted(structure="full"), share_prior="layer")
    with pytest.raises(UnsupportedError, match=r"share_prior: expected 'scalar' .*'tensor', which shares"):
        validated(fitted(), share_prior="tensor")
    with pytest.raises(InputError, match=r"data: expected held-out data .* got None\. Give data=\(X, y\)"):
        validated(fitted(), data=None)
    with pytest.raises(InputError, match="integral: expected one that draws nothing"):
        validated(fitted(), integral="monte_carlo")
    with pytest.raises(InputError, match="y: expected class labels"):
        validated(fitted(), (XV, YV + 5))
