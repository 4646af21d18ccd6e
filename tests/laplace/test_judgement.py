"""The default prior precision keeps predictions as good as the network's, and a warning says where they are not."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bayescope import fit_map, laplace
from bayescope.ensembles import ensemble
from bayescope.errors import BayescopeWarning, ConvergenceWarning
from bayescope.laplace import (
    MARGIN,
    ROWS,
    SPENT,
    WORSE,
    LaplaceFit,
    Limits,
    RowSample,
    TrainingRows,
    automatic,
    compared,
    read_slope,
    tune_prior,
)
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.models import Model
from bayescope.network import Batches, Fingerprint, ReadingLimits, Weights, network_prior
from bayescope.posterior import DrawsPosterior
from bayescope.precision import Precision
from bayescope.tape import Tape
from tests.laplace.problems import flat, gaussian, mlp, normal, nothing_written, seeded, set_flat

TABLES: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "moons": lambda seed: make_moons(400, noise=0.3, random_state=seed),
    "digits": lambda seed: tuple(part[seed::3] for part in load_digits(return_X_y=True)),  # type: ignore[return-value]
    "wine": lambda seed: load_wine(return_X_y=True),
    "breast cancer": lambda seed: load_breast_cancer(return_X_y=True),
}
# Steps of Adam over all rows: stopped early, and until the training rows are fitted.
STEPS = (40, 400)
STRUCTURES: dict[str, dict[str, Any]] = {
    "kfac": {},
    "diagonal": {"structure": "diagonal"},
    "last layer": {"weights": "last_layer", "structure": "full"},
}


class Trained(NamedTuple):
    module: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def trained(table: str, seed: int, steps: int) -> Trained:
    """A network that was stopped after some steps, and rows that it was not trained on."""
    return copy.deepcopy(_trained(table, seed, steps))


@functools.lru_cache
def _trained(table: str, seed: int, steps: int) -> Trained:
    x, y = TABLES[table](seed)
    parts = train_test_split((x - x.mean(0)) / (x.std(0) + 1e-9), y, random_state=seed, stratify=y)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in parts)
    module = seeded(
        lambda: nn.Sequential(nn.Linear(x.shape[1], 20), nn.ReLU(), nn.Linear(20, int(y.max()) + 1)), seed, scale=0.2
    )
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(module(x_train), y_train).backward()
        optimiser.step()
    return Trained(module, (x_train, y_train), (x_test, y_test))


# Every structure on every table, and each of both after few steps and after many.
WITH_STEPS = [
    (structure, table, STEPS[(row + column) % 2])
    for row, structure in enumerate(STRUCTURES)
    for column, table in enumerate(TABLES)
]


@pytest.mark.parametrize(("structure", "table", "steps"), WITH_STEPS)
def test_the_default_is_no_worse_than_the_network(structure: str, table: str, steps: int) -> None:
    module, train, (x, y) = trained(table, 0, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q = laplace(module, train, likelihood="categorical", **STRUCTURES[structure])
    p, f = q.predict(x), module(x).detach()
    worse = F.log_softmax(f, 1)[torch.arange(len(y)), y] - p.log_prob(y)
    # The test rows are a sample: twice the standard error of the mean of the differences, row by row.
    assert worse.mean() <= 0.005 + 2.0 * worse.std() / len(worse) ** 0.5
    right = (p.probs.argmax(1) == y).double() - (f.argmax(1) == y).double()
    assert right.mean() >= -2.0 / len(y)  # a tie or two that the integral turns
    found = compared(q, q.fit)  # type: ignore[arg-type]
    assert found is not None
    assert found.excess <= MARGIN + 1e-12
    assert "auto: " in q.summary()


@pytest.mark.parametrize(
    ("structure", "table"), [(structure, table) for structure, table, steps in WITH_STEPS if steps == STEPS[0]]
)
def test_a_warning_comes_if_and_only_if_the_predictions_are_worse(structure: str, table: str) -> None:
    module, (x, y), _ = trained(table, 0, STEPS[0])
    options = {**STRUCTURES[structure], "likelihood": "categorical"}
    own = F.cross_entropy(module(x), y).item()
    for prior_precision in (1e-4, 1e4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            q = laplace(module, (x, y), prior_precision=prior_precision, **options)
        worse = -q.predict(x).log_prob(y).mean().item() - own
        assert bool(caught) == (worse > 0.05)
    assert not caught


def test_the_warning_begins_with_what_it_means_and_then_says_what_to_do() -> None:
    module, train, _ = trained("digits", 0, STEPS[0])
    with pytest.warns(ConvergenceWarning) as caught:
        laplace(module, train, likelihood="categorical", structure="diagonal", prior_precision=1e-4)
    sentences = str(caught[0].message).split(". ")
    assert sentences[0] == "Predictions of this posterior are likely worse than the network's own"
    for advice in ("prior_precision at 'auto'", "bs.tune_prior(q, method='validation', data=...)", "bs.fit_map"):
        assert advice in sentences[1]


def test_without_its_guard_the_evidence_is_worse() -> None:
    """The law above would notice."""
    module, train, (x, y) = trained("digits", 0, STEPS[1])
    guarded = laplace(module, train, likelihood="categorical").predict(x).log_prob(y).mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)
        fit = laplace(module, train, likelihood="categorical", prior_precision=1.0).fit
    assert isinstance(fit, LaplaceFit)
    found, note = automatic(fit, noise=False, margin=float("inf"))
    assert found.posterior().predict(x).log_prob(y).mean() < guarded - 0.05
    assert note.startswith("auto: by the evidence; ")


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("likelihood", [Gaussian("evidence"), Gaussian(0.3)])
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
def test_where_the_guard_is_idle_the_evidence_is_largest(likelihood: Gaussian, temperature: float) -> None:
    x, options = normal(60, 2, seed=1), {"temperature": temperature, "structure": "full"}
    y = torch.sin(2.0 * x[:, :1]) + 0.5 * normal(60, 1, seed=2)
    module = seeded(lambda: nn.Linear(2, 1))
    start: Any = "gaussian" if likelihood.learnable else likelihood
    for _ in range(20):  # Newton's steps to the mode under the prior precision and the noise that are found there
        numbers = laplace(module, (x, y), likelihood=start, prior_precision=1.0, **options)
        assert isinstance(numbers.fit, LaplaceFit)
        fit, _ = automatic(numbers.fit, noise=likelihood.learnable, margin=float("inf"))
        set_flat(module, fit.mode + fit.precision().solve(fit.joint_gradient()))
    assert fit.distance is not None
    assert fit.distance.squared < 1e-6
    q, best = fit.posterior(), tune_prior(numbers, share_prior="scalar")
    assert float(q.log_evidence()) == pytest.approx(float(best.log_evidence()), abs=2e-3 * 17)
    assert float(q.log_evidence()) <= float(best.log_evidence()) + 1e-6
    found, wanted = (float(each.fit.prior.precision.mean()) for each in (q, best))  # type: ignore[union-attr]
    assert abs(np.log(found / wanted)) < 0.1
    found, wanted = (float(each.fit.noise_variance) for each in (q, best))  # type: ignore[union-attr]
    assert found == pytest.approx(wanted, rel=0.05)


def test_modes_and_draws_have_the_default_too() -> None:
    module, train, (x, y) = trained("wine", 0, STEPS[1])
    other = trained("wine", 1, STEPS[1]).module
    own = F.cross_entropy(module(x), y).item()
    mixed = laplace([module, other], train, likelihood="categorical")
    assert len(mixed.components) == 2  # type: ignore[attr-defined]
    drawn = laplace(module, train, likelihood="categorical", structure="samples", generator=0)
    assert "auto: " in drawn.summary()
    for q in (mixed, drawn):
        assert -q.predict(x).log_prob(y).mean() < own + 0.05


def averages(q: Any, point: Any, x: Tensor, y: Tensor) -> float:
    """How much larger the log loss of a posterior is than that of the network, in nats a row."""
    return float((point.predict(x).log_prob(y) - q.predict(x).log_prob(y)).mean())


@pytest.mark.parametrize(("seed", "prior_precision"), [(1, 0.1), (0, 1.0), (1, {"0": 1.0, "2": 0.5, "4": 0.3})])
def test_a_posterior_of_fit_map_brings_the_prior_that_it_was_trained_with(seed: int, prior_precision: Any) -> None:
    x, y = (torch.from_numpy(part) for part in make_moons(60, noise=0.3, random_state=seed))
    x_test, y_test = (torch.from_numpy(part) for part in make_moons(400, noise=0.3, random_state=seed + 50))
    module = seeded(
        lambda: nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2)), seed
    )
    point = fit_map(module, (x, y), likelihood="categorical", prior_precision=prior_precision, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q = laplace(point, (x, y), likelihood="categorical")
    assert "the prior that the network was trained with" in q.summary()
    given = network_prior(prior_precision, q.fit.function.weights).diagonal(q.fit.function.dim)  # type: ignore[union-attr]
    ratio = q.fit.prior.diagonal(q.fit.function.dim) / given  # type: ignore[union-attr]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio))  # the guard raises all of it by one factor
    assert ratio[0] >= 1.0 - 1e-12
    found = compared(q, q.fit)  # type: ignore[arg-type]
    assert found is not None
    assert found.excess <= WORSE + 1e-12
    assert ratio[0] < 1.0 + 1e-12 or found.excess >= SPENT * WORSE
    plain = laplace(point.model, (x, y), likelihood="categorical")
    assert "by the evidence" in plain.summary() or "of the evidence" in plain.summary()
    assert averages(q, point, x_test, y_test) <= WORSE
    if prior_precision == 0.1:  # a network that has overfitted gains by a wider posterior
        assert averages(q, point, x_test, y_test) < averages(plain, point, x_test, y_test) - 0.01


def test_a_prior_under_which_the_weights_are_no_mode_is_not_taken() -> None:
    module, (x, y), _ = trained("wine", 0, STEPS[1])
    point = fit_map(module, (x, y), likelihood="categorical", epochs=1, lr=1e-6, optimizer="adam", progress=False)
    q = laplace(point, (x, y), likelihood="categorical")
    assert "trained with" not in q.summary()


@pytest.mark.parametrize("alike", [True, False])
def test_the_members_of_an_ensemble_bring_their_prior(alike: bool) -> None:
    x, y = (torch.from_numpy(part) for part in make_moons(60, noise=0.3, random_state=0))
    widths = iter((5, 5) if alike else (5, 7))

    def make() -> nn.Module:
        width = next(widths)
        return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)).double()

    members = ensemble(make, (x, y), likelihood="categorical", members=2, prior_precision=0.7, progress=False)
    q = laplace(members, (x, y), likelihood="categorical")
    assert len(q.components) == 2  # type: ignore[attr-defined]
    for k, component in enumerate(q.components):  # type: ignore[attr-defined]
        assert "the prior that the network was trained with" in component.summary()
        assert float(component.fit.prior.precision.min()) >= 0.7 - 1e-12
        own = members.flat[k] if alike else members.components[k].location  # type: ignore[union-attr]
        assert torch.allclose(component.location, own)


def regression(seed: int, rows: int, steps: int, lr: float) -> Trained:
    """A network of 100 units after so many steps of Adam on a smooth function with noise of variance 0.25."""
    x = normal(rows + 4000, 3, seed=seed)
    y = torch.sin(2.0 * x[:, :1]) + x[:, 1:2] * x[:, 2:] + 0.5 * normal(rows + 4000, 1, seed=seed + 100)
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 100), nn.ReLU(), nn.Linear(100, 1)), seed, scale=0.3)
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        F.mse_loss(module(x[:rows]), y[:rows]).backward()
        optimiser.step()
    return Trained(module, (x[:rows], y[:rows]), (x[rows:], y[rows:]))


@pytest.mark.parametrize("structure", ["kfac", "diagonal"])
@pytest.mark.parametrize(("steps", "lr"), [(100, 0.003), (60, 0.01), (600, 0.01)])
@pytest.mark.parametrize("seed", range(1))
def test_a_regression_is_no_worse_than_the_network_with_its_own_noise(
    seed: int, steps: int, lr: float, structure: str
) -> None:
    module, (x, y), (x_test, y_test) = regression(seed, 300, steps, lr)
    with torch.no_grad():
        own = Gaussian(float(F.mse_loss(module(x), y)))
        at_network = own.log_prob(module(x_test), y_test)
    q = laplace(module, (x, y), likelihood=Gaussian("evidence"), structure=structure)
    worse = at_network - q.predict(x_test).log_prob(y_test)
    assert worse.mean() <= 0.005 + 2.0 * worse.std() / len(worse) ** 0.5


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_rows_without_a_label_change_nothing(seed: int, structure: str) -> None:
    """They add neither curvature nor loss: the default is that of the labelled rows alone, however few these are."""
    module, (x, y), _ = trained("digits", seed, STEPS[1])
    few, options = slice(0, 20), {"weights": "last_layer", "structure": structure}
    alone = laplace(module, (x[few], y[few]), likelihood="categorical", **options)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    y = torch.where(torch.arange(len(y)) < 20, y, -100)
    among = laplace(module, (x[order], y[order]), likelihood=Categorical(ignored=-100), **options)
    found, expected = (compared(q, q.fit) for q in (among, alone))  # type: ignore[arg-type]
    assert found is not None
    assert expected is not None
    assert found.observations == expected.observations == 20
    assert found.network == pytest.approx(expected.network, rel=1e-8)
    torch.testing.assert_close(among.precision.diagonal(), alone.precision.diagonal(), rtol=0.05, atol=0)  # type: ignore[attr-defined]


def test_rows_without_a_label_take_no_place_in_the_sample() -> None:
    x, y = normal(2000, 3, seed=0), torch.full((2000,), -100)
    y[::3] = torch.arange(667) % 3
    module = seeded(lambda: nn.Linear(3, 3).double())
    fit = laplace(module, (x, y), likelihood=Categorical(ignored=-100), prior_precision=1.0, batch_size=50).fit
    ((_, kept),) = fit.sample  # type: ignore[union-attr]
    assert len(kept) == ROWS
    assert (kept >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_positions_that_are_padding_do_not_hide_those_with_labels(seed: int) -> None:
    """Of 40 positions two have labels: both are read, where a few random ones would hardly meet them."""
    source = torch.Generator().manual_seed(seed)
    x, y = normal(8, 40, 3, seed=seed), torch.full((8, 40), -100)
    y[:, torch.randperm(40, generator=source)[:2]] = torch.randint(3, (8, 2), generator=source)
    likelihood = Categorical(ignored=-100)
    q = laplace(dense(3), (x, y), likelihood=likelihood, prior_precision=9.0, curvature="ggn", structure="diagonal")
    found = compared(q, q.fit, Limits(places=4))  # type: ignore[arg-type]
    assert found is not None
    assert found.observations == 16


def test_weights_at_their_prior_mean_keep_a_precision() -> None:
    module = mlp(2)
    set_flat(module, 0.0 * flat(module))
    q = laplace(module, (normal(12, 2, seed=1), torch.arange(12) % 2), likelihood="categorical")
    assert torch.isfinite(q.precision.diagonal()).all()  # type: ignore[attr-defined]


# --- what the comparison with the network takes ---


def dense(outputs: int) -> nn.Module:
    """Outputs at each of several positions, whose random weights lie below the last layer."""
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)))


def labelled(positions: int, outputs: int) -> tuple[Tensor, Tensor]:
    x, y = normal(12, positions, 3, seed=0), torch.randint(outputs, (12, positions), generator=torch.Generator())
    return (x[:, 0], y[:, 0]) if positions == 1 else (x, y)


class Counted:
    """A precision that counts the derivatives it is asked about: in all, and the most of a row at once."""

    def __init__(self, precision: Precision) -> None:
        self.precision, self.read, self.largest = precision, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.precision, name)

    def _count(self, tape: Tape) -> None:
        self.read += tape.rows * tape.outputs
        self.largest = max(self.largest, tape.outputs)

    def covariance_of(self, tape: Tape) -> Tensor:
        self._count(tape)
        return self.precision.covariance_of(tape)

    def variance_of(self, tape: Tape) -> Tensor:
        self._count(tape)
        return self.precision.variance_of(tape)


@pytest.mark.parametrize("positions", [1, 7])
@pytest.mark.parametrize("outputs", [3, 100])
def test_the_comparison_reads_few_derivatives(outputs: int, positions: int) -> None:
    data = labelled(positions, outputs)
    options: dict[str, Any] = {"likelihood": "categorical", "weights": "0.bias", "structure": "full"}
    q = laplace(dense(outputs), data, prior_precision=9.0, **options)
    counted: Any = Counted(gaussian(q).precision)
    function = q.fit.function  # type: ignore[union-attr]
    network = replace(function.network, limits=ReadingLimits(cotangents=16, variance_bytes=0))
    fit: Any = replace(q.fit, function=replace(function, network=network))  # type: ignore[type-var]
    found = compared(replace(gaussian(q), precision=counted), fit, Limits(cotangents=30, least=4, places=5))
    assert found is not None
    assert found.observations >= 4
    assert 0 < counted.read <= max(30, 4 * outputs)
    assert counted.largest <= 16


class Measured:
    """A network's function that knows the largest of its answers."""

    def __init__(self, function: Model) -> None:
        self.function, self.largest = function, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def forward(self, x: Any, theta: Tensor) -> Tensor:
        f = self.function.forward(x, theta)
        self.largest = max(self.largest, f.numel())
        return f


def test_draws_of_dense_outputs_are_compared_by_few() -> None:
    module, data = dense(20), labelled(7, 20)
    q = laplace(module, data, likelihood="categorical", weights="0.bias", structure="full", prior_precision=9.0)
    measured: Any = Measured(q.function)
    draws = DrawsPosterior(q.sample(64, generator=0)[None], q.record, measured, q.likelihood)
    fit: Any = replace(q.fit, function=measured)  # type: ignore[type-var]
    assert compared(draws, fit, Limits(draws=4, numbers=200, places=1)) is not None
    assert 0 < measured.largest <= 2 * 4 * 200


def test_rows_at_some_positions_are_compared_as_at_all() -> None:
    """The chosen positions are a sample of all: with as many as there are, both losses are those of predictions."""
    x = normal(20, 6, 3, seed=0)
    y = torch.randint(3, (20, 6), generator=torch.Generator().manual_seed(0))
    module = dense(3)
    options: dict[str, Any] = {"likelihood": "categorical", "weights": "0.*", "structure": "full"}
    q = laplace(module, (x, y), prior_precision=1.0, **options)
    every = compared(q, q.fit, Limits(least=20))  # type: ignore[arg-type]
    assert every is not None
    assert every.observations == 120
    assert every.posterior == pytest.approx(-float(q.predict(x).log_prob(y).mean()), abs=2e-3)
    assert every.network == pytest.approx(
        float(F.cross_entropy(module(x).detach().flatten(0, 1), y.flatten())), rel=1e-6
    )
    some = compared(q, q.fit, Limits(least=20, places=2))  # type: ignore[arg-type]
    assert some is not None
    assert some.observations == 40
    assert some.excess == pytest.approx(every.excess, abs=0.05)


# --- the sample of training rows --------------------------------------------------------------------------------------


def sample(data: Any, module: nn.Module, batch_size: int = 7) -> TrainingRows:
    batches = Batches(data, module, batch_size=batch_size)
    return read_slope(module, Weights.select(module, "all"), batches, Categorical()).sample


def in_order(rows: TrainingRows) -> Tensor:
    x, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
    table = torch.cat([x, y[:, None].to(x)], 1)
    return table[table[:, 0].argsort()]


def test_the_sample_is_the_same_in_any_order_and_any_batches() -> None:
    module, x, y = mlp(2), normal(900, 2, seed=1), torch.arange(900) % 2
    first = in_order(sample((x, y), module, 70))
    assert first.shape == (ROWS, 3)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(0))
    assert torch.equal(in_order(sample((x[order], y[order]), module, 500)), first)
    loader = DataLoader(TensorDataset(x, y), 130, shuffle=True, generator=torch.Generator().manual_seed(1))
    assert torch.equal(in_order(sample(loader, module)), first)
    # no part of the table is preferred
    places = (x[:, None, 0] == first[:, 0]).any(1).nonzero()[:, 0].double()
    assert abs(float(places.mean()) - 449.5) < 4.0 * 260.0 / ROWS**0.5


def test_the_sample_keeps_to_its_memory_and_is_a_copy() -> None:
    kept, x, y = RowSample(size=5 * 16), normal(90, 2, seed=1), torch.arange(90) % 2
    for some in torch.arange(90).split(7):
        kept.add(Fingerprint().add(x[some], y[some]), x[some], y[some], None)
    found = kept.over_all()
    assert sum(len(targets) for _, targets in found) == 5
    before = in_order(found)
    x.zero_()
    assert torch.equal(in_order(found), before)


def test_rows_of_several_shapes_and_named_inputs_are_kept() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
            return self.head(self.table(tokens).mean(1) * scale)

    module = seeded(Named)
    generator = torch.Generator().manual_seed(0)
    batches = [
        ({"tokens": torch.randint(0, 9, (6, length), generator=generator), "scale": normal(6, 1, seed=length)}, y)
        for length, y in ((4, torch.arange(6) % 2), (5, torch.arange(6) % 2), (4, torch.ones(6, dtype=torch.int64)))
    ]
    found = sample(batches, module)
    assert sorted(inputs["tokens"].shape for inputs, _ in found) == [(6, 5), (12, 4)]
    with nothing_written(module):
        q = laplace(module, batches, likelihood="categorical")
    assert "on 18 training rows" in q.summary()
