"""Ensembles: each member is what training it alone gives, side by side or not, and all have the same say."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.ensembles import ensemble
from bayescope.ensembles.ensemble import resampled
from bayescope.errors import ConvergenceError, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.network import largest_magnitude
from bayescope.posterior import DrawsPosterior, MixturePosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import fit_map
from tests.training.toys import classes, line


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1)).double()


def full_prior() -> Prior:
    root = torch.randn(25, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Prior(DensePrecision(root @ root.mT / 25 + torch.eye(25, dtype=torch.float64)), 0.1)


def seeds_of(q: Any) -> list[int]:
    return [int(seed) for seed in q.record.notes["seeds"].split(",")]


def begun(make: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        return make()


SAME = begun(small, 0)

# By name: options of a training, beside the data and the likelihood.
TRAININGS: dict[str, dict[str, Any]] = {
    "adam": {"batch_size": 16},
    "all rows": {"lr": 0.01},
    "sgd": {"optimizer": "sgd", "schedule": "cosine", "batch_size": 7},
    "last layer": {"weights": "last_layer", "prior_precision": 5.0, "batch_size": 16},
    "full prior": {"prior_precision": full_prior(), "batch_size": 16},
}


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("name", TRAININGS)
def test_each_member_is_what_fit_map_gives_for_its_seed(name: str, *, side_by_side: bool) -> None:
    options = {"likelihood": "gaussian", "epochs": 8, "progress": False, **TRAININGS[name]}
    q = ensemble(small, line(), members=3, side_by_side=side_by_side, generator=4, **options)
    losses = []
    for member, seed in enumerate(seeds_of(q)):
        alone = fit_map(begun(small, seed), line(), generator=seed, **options)
        found = q.draws[0, member] if isinstance(q, DrawsPosterior) else q.components[member].mean
        torch.testing.assert_close(found, alone.mean, rtol=1e-9, atol=1e-10)
        losses.append(alone.trace["loss"])
    for epoch, row in enumerate(q.trace["losses"]):
        assert row == pytest.approx([loss[epoch] for loss in losses])
    assert q.trace["loss"][-1] == pytest.approx(sum(loss[-1] for loss in losses) / 3)
    assert ("side by side" in q.summary()) == side_by_side


@pytest.mark.parametrize("side_by_side", [True, False])
def test_bootstrapped_members_are_trained_on_rows_of_their_own(*, side_by_side: bool) -> None:
    x, y = line()
    options = {"likelihood": "gaussian", "epochs": 6, "batch_size": 16}
    q = ensemble(small, (x, y), members=2, bootstrap=True, side_by_side=side_by_side, generator=1, **options)
    chosen = [resampled(len(x), seed) for seed in seeds_of(q)]
    assert not torch.equal(*chosen)
    for member, (seed, rows) in enumerate(zip(seeds_of(q), chosen, strict=True)):
        alone = fit_map(begun(small, seed), (x[rows], y[rows]), generator=seed, **options)
        torch.testing.assert_close(q.draws[0, member], alone.mean, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("make", [small, normed])
def test_each_member_has_a_validation_and_patience_of_its_own(make: Any, patience: int | None) -> None:
    x, y = line(60)
    options: dict[str, Any] = {
        "likelihood": "gaussian", "epochs": 25, "batch_size": 8, "lr": 0.1, "validation": (x[40:], y[40:]),
        "patience": patience,
    }  # fmt: skip
    data = x[:40], y[:40]
    together = ensemble(make, data, members=3, side_by_side=True, generator=2, **options)
    apart = ensemble(make, data, members=3, side_by_side=False, generator=2, **options)
    torch.testing.assert_close(together.predict(x).mean, apart.predict(x).mean, rtol=1e-9, atol=1e-10)
    for name in ("training", "seeds", "loss of each"):
        assert together.record.notes[name] == apart.record.notes[name]
    assert "kept" in together.record.notes["training"]
    assert together.trace["validation_nlls"][0] == pytest.approx(apart.trace["validation_nlls"][0])
    for name in ("loss", "nll", "penalty", "validation_nll"):  # over those that were in training
        assert together.trace[name] == pytest.approx(apart.trace[name])
    for name in ("losses", "validation_nlls"):
        pairs = zip(together.trace[name], apart.trace[name], strict=True)
        assert all(one == pytest.approx(other, nan_ok=True) for one, other in pairs)
    if patience is not None and make is small:
        assert len(set(together.record.notes["training"].split("; "))) > 1, "members that stop at unlike epochs"


def test_members_have_the_same_say() -> None:
    x, y = classes(count=3)
    q = ensemble(classifier, (x, y), likelihood="categorical", epochs=10, members=4, generator=0, batch_size=20)
    assert q.draws.shape == (1, 4, 6 * 3 + 7 * 3)
    modules = []
    for theta in q.flat:
        module = copy.deepcopy(q.model)
        nn.utils.vector_to_parameters(theta, module.parameters())
        modules.append(module)
    with torch.no_grad():
        mean = torch.stack([module(x).softmax(-1) for module in modules]).mean(0)
    p = q.predict(x)
    torch.testing.assert_close(p.mean, mean)
    assert p.epistemic.max() > 0
    torch.testing.assert_close(q.predict(x[3:4]).mean, mean[3:4])


def test_the_same_seed_gives_the_same_members_bit_for_bit() -> None:
    first, again, other = (
        ensemble(small, line(), likelihood="gaussian", epochs=3, batch_size=16, generator=seed) for seed in (3, 3, 4)
    )
    assert isinstance(first, DrawsPosterior)
    assert isinstance(again, DrawsPosterior)
    assert isinstance(other, DrawsPosterior)
    assert torch.equal(first.draws, again.draws)
    assert not torch.equal(first.draws, other.draws)
    assert len(set(seeds_of(first))) == 5


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (dropped, {}, "random"),
        (small, {"optimizer": torch.optim.Adagrad}, "optimizer"),
        (small, {"optimizer": "lbfgs"}, "optimizer"),
        (small, {"weights": largest_magnitude(5)}, "random weights"),
        (small, {"schedule": torch.optim.lr_scheduler.ConstantLR}, "schedule"),
        (lambda: nn.Sequential(nn.Linear(2, 2000), nn.Linear(2000, 1)).double(), {"data": line(1500)}, "products"),
        (small, {"data": DataLoader(TensorDataset(*line()), batch_size=10)}, "batches"),
    ],
)
def test_what_does_not_go_side_by_side_goes_one_after_another(make: Any, options: dict[str, Any], reason: str) -> None:
    options = {"data": line(), "batch_size": 2000 if reason == "products" else None, **options}
    data = options.pop("data")
    q = ensemble(make, data, likelihood="gaussian", epochs=1, members=2, generator=0, **options)
    assert "one after another" in q.record.notes["members"]
    assert reason in q.record.notes["members"]
    if reason == "products":  # it can be done, and is
        options["side_by_side"] = True
        assert "side by side" in ensemble(make, data, likelihood="gaussian", epochs=1, members=2, **options).summary()
        return
    with pytest.raises(UnsupportedError, match=f"side_by_side: .*{reason}"):
        ensemble(make, data, likelihood="gaussian", epochs=1, members=2, side_by_side=True, **options)


def test_members_with_dropout_are_those_of_fit_map() -> None:
    q = ensemble(dropped, line(), likelihood="gaussian", epochs=3, members=2, generator=0)
    for member, seed in enumerate(seeds_of(q)):
        alone = fit_map(begun(dropped, seed), line(), likelihood="gaussian", epochs=3, generator=seed)
        assert torch.equal(q.draws[0, member], alone.mean)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_batch_norm_makes_a_mixture_of_points(*, side_by_side: bool) -> None:
    x, y = line()
    q = ensemble(
        normed, (x, y), likelihood="gaussian", epochs=5, members=3, side_by_side=side_by_side, generator=0, batch_size=9
    )
    assert isinstance(q, MixturePosterior)
    with torch.no_grad():
        members = torch.stack([component.model(x) for component in q.components])
    p = q.predict(x)
    torch.testing.assert_close(p.mean, members.mean(0))
    torch.testing.assert_close(p.epistemic, members.var(0, correction=0))
    assert q.weights.sum() == pytest.approx(1.0)


def test_unlike_members_make_a_mixture() -> None:
    """Of other widths, and of another activation, which no shape tells."""
    x, y = line()
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        modules = [small(), nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 1)).double()]
        rectified = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    assert isinstance(ensemble(modules, (x, y), likelihood="gaussian", epochs=2), MixturePosterior)
    q = ensemble([modules[0], rectified], (x, y), likelihood="gaussian", epochs=0)
    assert isinstance(q, MixturePosterior)
    with torch.no_grad():
        torch.testing.assert_close(q.predict(x).mean, 0.5 * (modules[0](x) + rectified(x)))


class Looked(nn.Module):
    """A table under a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 2), nn.Linear(2, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))


def test_members_that_differ_where_the_first_rows_do_not_look_make_a_mixture() -> None:
    first = begun(Looked, 0)
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.get_parameter("table.weight")[19] += 1.0
    data = torch.arange(20), torch.zeros(20, 1)
    q = ensemble([first, second], data, likelihood="gaussian", weights="head", epochs=0)
    assert isinstance(q, MixturePosterior)
    assert q.predict(data[0]).epistemic[19] > 0


def test_trained_networks_are_taken_as_they_are() -> None:
    x, y = line()
    modules = [begun(small, seed) for seed in range(3)]
    before = [copy.deepcopy(module.state_dict()) for module in modules]
    q = ensemble(modules, (x, y), likelihood="gaussian", epochs=0)
    assert isinstance(q, DrawsPosterior)
    for theta, module, state in zip(q.flat, modules, before, strict=True):
        assert torch.equal(theta, nn.utils.parameters_to_vector(module.parameters()).detach())
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert "as they were given" in q.summary()
    with pytest.raises(UnsupportedError, match="lr: expected None for epochs=0"):
        ensemble(modules, (x, y), likelihood="gaussian", epochs=0, lr=0.1)


def test_a_list_of_networks_is_trained_and_left_as_it_was() -> None:
    modules = [begun(small, seed) for seed in range(2)]
    before = [nn.utils.parameters_to_vector(module.parameters()).detach().clone() for module in modules]
    q = ensemble(modules, line(), likelihood="gaussian", epochs=4, generator=0)
    assert isinstance(q, DrawsPosterior)
    for module, flat, theta, seed in zip(modules, before, q.flat, seeds_of(q), strict=True):
        assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), flat)
        assert all(parameter.grad is None for parameter in module.parameters())
        alone = fit_map(module, line(), likelihood="gaussian", epochs=4, generator=seed)
        torch.testing.assert_close(theta, alone.mean, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_checkpoint_goes_on_to_the_same_numbers(tmp_path: Path, *, side_by_side: bool) -> None:
    x, y = line(60)
    options: dict[str, Any] = {
        "likelihood": "gaussian", "batch_size": 8, "lr": 0.05, "members": 2, "side_by_side": side_by_side,
        "generator": 0, "validation": (x[40:], y[40:]), "bootstrap": True,
    }  # fmt: skip
    data = x[:40], y[:40]
    path = tmp_path / "run.pt"
    ensemble(small, data, epochs=4, checkpoint=path, **options)
    went_on = ensemble(small, data, epochs=9, checkpoint=path, **options)
    straight = ensemble(small, data, epochs=9, **options)
    assert isinstance(went_on, DrawsPosterior)
    assert isinstance(straight, DrawsPosterior)
    assert torch.equal(went_on.draws, straight.draws)
    assert went_on.trace == straight.trace
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == (["run.pt"] if side_by_side else ["run-0.pt", "run-1.pt"])
    with pytest.raises(InputError, match="checkpoint"):
        ensemble(small, data, epochs=9, checkpoint=path, **{**options, "lr": 0.06})


class Stopping(nn.Module):
    """A network that is interrupted in its 13th pass in train mode, counted over all of its kind."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        Stopping.passes += self.training
        if self.training and Stopping.passes == 13:
            raise KeyboardInterrupt
        return self.body(x)


def test_an_interrupt_leaves_the_members_that_were_trained() -> None:
    Stopping.passes = 0
    q = ensemble(Stopping, line(), likelihood="gaussian", epochs=8, members=3, side_by_side=False, generator=0)
    assert isinstance(q, DrawsPosterior)
    assert q.draws.shape[1] == 1
    assert "ended by an interrupt" in q.summary()
    Stopping.passes = 0
    q = ensemble(Stopping, line(), likelihood="gaussian", epochs=30, members=3, side_by_side=True, generator=0)
    assert q.sizes == (25,)
    assert "ended by an interrupt" in q.record.notes["training"]


@pytest.mark.parametrize("side_by_side", [True, False])
def test_an_interrupt_in_the_first_epoch_is_told_of(*, side_by_side: bool) -> None:
    Stopping.passes = 7 if side_by_side else 11  # in the second step; some show first whether they can be stacked
    q = ensemble(
        Stopping, line(), likelihood="gaussian", members=3, batch_size=8, side_by_side=side_by_side, generator=0
    )
    assert "as they were given" not in q.summary()
    assert q.record.notes["members"].startswith("3, trained side" if side_by_side else "1, trained one after another")
    assert q.record.notes["training"] == "0 epochs, ended by an interrupt"
    assert q.record.notes["loss of each"] == "none"


def test_a_loss_that_diverges_is_loud() -> None:
    with pytest.raises(ConvergenceError, match="loss"):
        ensemble(small, line(), likelihood="gaussian", epochs=50, optimizer="sgd", lr=1e4, side_by_side=True)


def test_frozen_and_masked_weights_stay_as_they_are() -> None:
    modules = [begun(small, 0) for _ in range(2)]
    for module in modules:
        module[0].requires_grad_(False)
    q = ensemble(modules, line(), likelihood="gaussian", epochs=3, batch_size=16, side_by_side=True, generator=0)
    assert isinstance(q, DrawsPosterior)
    assert q.sizes == (7,)
    assert torch.equal(q.model[0].weight, modules[0][0].weight)
    assert not torch.equal(q.draws[0, 0], q.draws[0, 1]), "each has its own order of the rows"


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (SAME, {}, InputTypeError, "function that makes a network"),
        (lambda: 3, {}, InputTypeError, "torch.nn.Module"),
        ([], {}, InputError, "members"),
        (small, {"members": 0}, InputError, "members"),
        ([SAME, SAME], {"members": 3}, InputError, "as many as the list"),
        (lambda: SAME, {}, InputError, "a new network for each member"),
        ([SAME, begun(classifier, 0)], {}, InputError, "outputs|y:"),
        (small, {"patience": 3}, InputError, "patience"),
        (small, {"epochs": -1}, InputError, "epochs"),
        (small, {"optimizer": "adamw"}, OptionError, "optimizer"),
        (small, {"bootstrap": True, "data": DataLoader(TensorDataset(*line()))}, UnsupportedError, "bootstrap"),
        (small, {"bootstrap": "no"}, InputTypeError, "bootstrap"),
        (small, {"side_by_side": "no"}, InputTypeError, "side_by_side"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Any, options: dict[str, Any], error: type, words: str) -> None:
    data = options.pop("data", line())
    with pytest.raises(error, match=words):
        ensemble(make, data, likelihood="gaussian", **{"epochs": 1, **options})
