"""Rows that are held out of a training: they choose the weights to keep and when it ends, and change nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import ConvergenceError, InputError
from bayescope.likelihoods import Gaussian
from bayescope.training import Cycles, fit_map
from tests.training.toys import classes, line, noisy_network, perceptron, seeded


def test_validation_keeps_the_best_weights_and_stops() -> None:
    x, y = line(30)
    held = line(30, seed=7)  # another slope: the longer the training, the worse
    q = fit_map(
        perceptron(), (x, y), likelihood=Gaussian(0.5), lr=0.05, epochs=200, validation=held, patience=10, generator=0
    )
    losses = q.trace["validation_nll"]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 10 < 200
    nll = -q.predict(held[0]).log_prob(held[1]).sum()
    assert float(nll) == pytest.approx(losses[best])
    assert f"after epoch {best + 1} kept" in q.summary()
    assert "no better validation" in q.summary()

    patient = fit_map(
        perceptron(), (x, y), likelihood=Gaussian(0.5), lr=0.05, epochs=best + 30, validation=held, generator=0
    )
    assert len(patient.trace["loss"]) == best + 30
    torch.testing.assert_close(patient.mean, q.mean)


@pytest.mark.parametrize("form", ["loader", "shuffling loader", "dataset", "batches"])
def test_validation_in_every_form(form: str) -> None:
    x, y = line(30)
    held = line(20, seed=7)
    rows = TensorDataset(*held)
    forms: dict[str, Any] = {
        "loader": DataLoader(rows, batch_size=7, generator=torch.Generator()),
        "shuffling loader": DataLoader(rows, batch_size=7, shuffle=True),
        "dataset": rows,
        "batches": [(held[0][:7], held[1][:7]), (held[0][7:], held[1][7:])],
    }
    expected, found = (
        fit_map(
            noisy_network(), (x, y), likelihood="gaussian", epochs=3, batch_size=8, generator=3, validation=validation
        )
        for validation in (held, forms[form])
    )
    assert found.trace["validation_nll"] == pytest.approx(expected.trace["validation_nll"], rel=1e-12)
    assert torch.equal(found.mean, expected.mean)


def test_validation_changes_nothing_in_the_training() -> None:
    x, y = line(30)
    plain = fit_map(noisy_network(), (x, y), likelihood="gaussian", epochs=4, batch_size=8, generator=3)
    watched = fit_map(
        noisy_network(), (x, y), likelihood="gaussian", epochs=4, batch_size=8, generator=3, validation=(x, y)
    )
    assert plain.trace["loss"] == watched.trace["loss"]


def test_validation_does_not_tell_when_a_training_has_converged() -> None:
    """A sum over the validation rows differs in size from a sum over the training rows."""
    x, y = classes(100)
    common: dict[str, Any] = {"likelihood": "bernoulli", "optimizer": "adam", "batch_size": 1, "generator": 0}
    plain, watched = (
        fit_map(seeded(0, (nn.Linear, (2, 1))).double(), (x, y), validation=validation, **common)
        for validation in (None, (x[:10], y[:10]))
    )
    assert plain.trace["loss"] == watched.trace["loss"]


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_cycles_are_judged_by_the_training_rows_alone(size: float, seed: int) -> None:
    """Losses that fall slowly with noise, and a validation of any size that rises."""

    def moves(*, validated: bool) -> list[str]:
        source = np.random.default_rng(seed)
        cycles = Cycles(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 150, 100, rising=True)
        losses = 50.0 + 1000.0 / np.arange(1, cycles.epochs + 1) + source.standard_normal(cycles.epochs)
        return [cycles.step(loss, size * epoch if validated else None) for epoch, loss in enumerate(losses.tolist())]

    assert moves(validated=True) == moves(validated=False)


def test_validation_that_holds_nan_is_refused() -> None:
    x, y = line(30)
    broken = x.clone()
    broken[3, 1] = float("nan")
    with pytest.raises(InputError, match=r"validation: .*NaN|data: .*[Nn]a[Nn]"):
        fit_map(perceptron(), (x, y), likelihood="gaussian", epochs=2, validation=(broken, y))

    class Overflowing(nn.Module):
        """Finite in train mode alone, as a batch norm may be."""

        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out if self.training else out / 0.0 - out / 0.0

    with pytest.raises(ConvergenceError, match=r"validation: expected a finite likelihood, got .*nan after epoch 1"):
        fit_map(Overflowing(), (x, y), likelihood="gaussian", epochs=2, validation=(x, y))


def test_plateau_schedule_sees_the_validation() -> None:
    fit_map(
        perceptron(), line(), likelihood="gaussian", epochs=3, validation=line(seed=4),
        schedule=torch.optim.lr_scheduler.ReduceLROnPlateau,
    )  # fmt: skip


@pytest.mark.parametrize("judged", [0, 1, 3])
def test_an_interrupt_in_a_validation_leaves_its_epoch_uncounted(judged: int) -> None:
    class Interrupting(nn.Linear):
        trained = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).trained += self.training
            if type(self).trained > judged and not self.training:
                raise KeyboardInterrupt
            return super().forward(x)

    def ended() -> Any:
        """Afterwards the network is only read."""
        Interrupting.trained = -1000

    module, (x, y) = seeded(0, (Interrupting, (2, 1))).double(), line()
    q = fit_map(module, (x, y), likelihood="gaussian", validation=(x, y), epochs=50, generator=0, lr=0.1)
    ended()
    assert {len(values) for values in q.trace.values()} == ({judged} if judged else set())
    assert f"{judged} epochs, ended by an interrupt" in q.summary()
    if judged:
        fit = fit_map(seeded(0, (nn.Linear, (2, 1))).double(), (x, y), likelihood="gaussian", validation=(x, y),
                      epochs=judged, generator=0, lr=0.1)  # fmt: skip
        assert torch.equal(q.mean, fit.mean), "the best of the epochs that were judged"


def test_the_loss_in_the_summary_is_that_of_the_weights_that_are_kept() -> None:
    x, y = line()
    held = (x[30:], -y[30:])
    q = fit_map(perceptron(), (x[:30], y[:30]), likelihood="gaussian", validation=held, lr=0.05, epochs=15)
    best = q.trace["validation_nll"].index(min(q.trace["validation_nll"]))
    assert best < 14, "the last epoch is the best, and tells nothing"
    assert f"loss: {q.trace['loss'][best]:.4f} " in q.summary()
