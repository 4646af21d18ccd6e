"""The default prior precision keeps predictions as good as the network's, and a warning says where they are not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import ConvergenceWarning
from bayescope.laplace import judgement, training_rows
from bayescope.laplace.judgement import MARGIN, compared
from bayescope.laplace.laplace import laplace
from bayescope.laplace.mode import read_slope
from bayescope.laplace.training_rows import TrainingRows
from bayescope.laplace.tuning import tune_prior
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.network.batches import Batches
from bayescope.network.weights import Weights
from tests.laplace.problems import flat, mlp, normal, nothing_written, seeded, set_flat

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


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_default_is_no_worse_than_the_network(structure: str, table: str, seed: int, steps: int) -> None:
    module, train, (x, y) = trained(table, seed, steps)
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


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("table", TABLES)
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


def test_without_its_guard_the_evidence_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above would notice."""
    module, train, (x, y) = trained("digits", 0, STEPS[1])
    guarded = laplace(module, train, likelihood="categorical").predict(x).log_prob(y).mean()
    monkeypatch.setattr(judgement, "MARGIN", float("inf"))
    q = laplace(module, train, likelihood="categorical")
    assert q.predict(x).log_prob(y).mean() < guarded - 0.05
    assert "auto: by the evidence; " in q.summary()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("likelihood", [Gaussian("evidence"), Gaussian(0.3)])
def test_where_the_guard_is_idle_the_evidence_is_largest(
    likelihood: Gaussian, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgement, "MARGIN", float("inf"))
    x, options = normal(60, 2, seed=1), {"temperature": temperature, "structure": "full"}
    y = torch.sin(2.0 * x[:, :1]) + 0.5 * normal(60, 1, seed=2)
    q = laplace(mlp(1), (x, y), likelihood=likelihood, **options)
    start = Gaussian(1.0) if likelihood.learnable else likelihood
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        numbers = laplace(mlp(1), (x, y), likelihood=start, prior_precision=1.0, **options)
        best = tune_prior(numbers, groups="scalar", noise=likelihood.learnable)
    assert float(q.log_evidence()) == pytest.approx(float(best.log_evidence()), abs=2e-3 * 17)
    assert float(q.log_evidence()) <= float(best.log_evidence()) + 1e-6
    found, wanted = (float(each.fit.prior.precision.mean()) for each in (q, best))  # type: ignore[union-attr]
    assert abs(np.log(found / wanted)) < 2.0 * judgement.CLOSE
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


def test_weights_at_their_prior_mean_keep_a_precision() -> None:
    module = mlp(2)
    set_flat(module, 0.0 * flat(module))
    q = laplace(module, (normal(12, 2, seed=1), torch.arange(12) % 2), likelihood="categorical")
    assert torch.isfinite(q.precision.diagonal()).all()  # type: ignore[attr-defined]


# --- the sample of training rows --------------------------------------------------------------------------------------


def sample(data: Any, module: nn.Module, batch_size: int = 7) -> TrainingRows:
    batches = Batches(data, module, batch_size=batch_size)
    return read_slope(module, Weights.select(module, "all"), batches, Categorical()).sample


def in_order(rows: TrainingRows) -> Tensor:
    x, y = (torch.cat(parts) for parts in zip(*rows.batches, strict=True))
    table = torch.cat([x, y[:, None].to(x)], 1)
    return table[table[:, 0].argsort()]


def test_the_sample_is_the_same_in_any_order_and_any_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "ROWS", 20)
    module, x, y = mlp(2), normal(90, 2, seed=1), torch.arange(90) % 2
    first = in_order(sample((x, y), module))
    assert first.shape == (20, 3)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    assert torch.equal(in_order(sample((x[order], y[order]), module, 50)), first)
    loader = DataLoader(TensorDataset(x, y), 13, shuffle=True, generator=torch.Generator().manual_seed(1))
    assert torch.equal(in_order(sample(loader, module)), first)
    # no part of the table is preferred
    places = (x[:, None, 0] == first[:, 0]).any(1).nonzero()[:, 0].double()
    assert abs(float(places.mean()) - 44.5) < 4.0 * 26.0 / 20**0.5


def test_the_sample_keeps_to_its_memory_and_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "BYTES", 5 * 16)
    module, x, y = mlp(2), normal(90, 2, seed=1), torch.arange(90) % 2
    found = sample((x, y), module)
    assert sum(len(targets) for _, targets in found.batches) == 5
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
    assert sorted(inputs["tokens"].shape for inputs, _ in found.batches) == [(6, 5), (12, 4)]
    with nothing_written(module):
        q = laplace(module, batches, likelihood="categorical")
    assert "on 18 training rows" in q.summary()
