"""A run that was stopped and goes on gives the numbers of one that was not."""

from __future__ import annotations

import inspect
import io
import random
import resource
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError
from bayescope.likelihoods import Gaussian
from bayescope.posterior import PointPosterior
from bayescope.priors import Prior
from bayescope.training import fit_map
from bayescope.training.checkpoint import FREE, SHARE, Checkpoint
from bayescope.training.facts import of_seed
from tests.storage.mutants import deleted, doubled, flipped, inserted, truncated
from tests.training.toys import line, noisy_network, perceptron

VALIDATION = line(20, seed=9)
RUNS: dict[str, dict[str, Any]] = {
    "adam": {"batch_size": 8},
    "cosine": {"batch_size": 8, "schedule": "cosine"},
    "sgd": {"batch_size": 8, "optimizer": "sgd"},
    "lbfgs": {"optimizer": "lbfgs"},
    "validation": {"batch_size": 8, "validation": VALIDATION, "patience": 4, "lr": 0.05},
    "own": {
        "batch_size": 8,
        "optimizer": torch.optim.RMSprop,
        "schedule": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    },
}

# Training passes of a run that is killed: over two epochs of five minibatches, or over one of L-BFGS.
DIES_AT = {"lbfgs": 60}


class Killed(Exception):
    """What stands for a process that ends."""


class Mortal(nn.Module):
    """A noisy network that dies at a given forward pass of its training, the first time it is told to."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self.body = noisy_network()
        self.left = dies_at

    def forward(self, x: Tensor) -> Tensor:
        if self.left is not None and self.training:
            self.left -= 1
            if self.left < 0:
                raise Killed
        out: Tensor = self.body(x)
        return out


def run(module: nn.Module, data: Any, **arguments: Any) -> PointPosterior:
    return fit_map(module, data, likelihood="gaussian", epochs=12, generator=4, **arguments)


def same(one: PointPosterior, other: PointPosterior) -> None:
    assert torch.equal(one.mean, other.mean)
    assert one.trace == other.trace
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_to_the_same_numbers(name: str, tmp_path: Path) -> None:
    """Each run that is killed saves its first epoch, so that the last one starts at least so many epochs later."""
    data, arguments, file = line(40), RUNS[name], tmp_path / "new" / "run.pt"
    whole = run(Mortal(), data, **arguments)
    for _ in range(3):
        with pytest.raises(Killed):
            run(Mortal(DIES_AT.get(name, 12)), data, checkpoint=file, **arguments)
    assert [path.name for path in file.parent.iterdir()] == ["run.pt"]
    resumed = run(Mortal(), data, checkpoint=file, **arguments)
    same(resumed, whole)
    same(run(Mortal(0), data, checkpoint=file, **arguments), whole)  # it has ended: nothing is trained any more


@pytest.mark.global_rng
def test_a_shuffling_loader_goes_on_in_its_order(tmp_path: Path) -> None:
    def loader() -> Any:
        return DataLoader(TensorDataset(*line(40)), batch_size=8, shuffle=True, generator=torch.Generator())

    whole = fit_map(noisy_network(), loader(), likelihood="gaussian", epochs=6, generator=1)
    fit_map(noisy_network(), loader(), likelihood="gaussian", epochs=2, generator=1, checkpoint=tmp_path / "a")
    resumed = fit_map(
        noisy_network(), loader(), likelihood="gaussian", epochs=6, generator=1, checkpoint=tmp_path / "a"
    )
    same(resumed, whole)


def test_more_epochs_go_on_from_where_a_run_ended(tmp_path: Path) -> None:
    data = line(40)
    whole = fit_map(noisy_network(), data, likelihood="gaussian", epochs=9, batch_size=8, generator=2)
    for epochs in (4, 9):
        resumed = fit_map(
            noisy_network(), data, likelihood="gaussian", epochs=epochs, batch_size=8, generator=2,
            checkpoint=tmp_path / "run.pt",
        )  # fmt: skip
    same(resumed, whole)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=file)
    with pytest.raises(InputError, match="rows = 41, got 40"):
        fit_map(perceptron(), line(41), likelihood="gaussian", epochs=2, checkpoint=file)
    with pytest.raises(InputError, match="with parameters"):
        fit_map(perceptron(hidden=3), line(40), likelihood="gaussian", epochs=2, checkpoint=file)
    with pytest.raises(InputError, match="with schedule = 'CosineAnnealingLR'"):
        fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=file, schedule="cosine")
    cosine = tmp_path / "cosine.pt"
    fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=cosine, schedule="cosine")
    with pytest.raises(InputError, match="epochs = 3, got 2"):
        fit_map(perceptron(), line(40), likelihood="gaussian", epochs=3, checkpoint=cosine, schedule="cosine")
    file.write_text("not a checkpoint")
    with pytest.raises(InputError, match="expected the file of an earlier run"):
        fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=file)
    torch.save({"run": 1}, file)
    with pytest.raises(InputError, match="something else"):
        fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=file)
    with pytest.raises(InputError, match="folder"):
        fit_map(perceptron(), line(40), likelihood="gaussian", epochs=2, checkpoint=tmp_path)


def test_a_failing_save_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    keeper = Checkpoint(file, {"rows": 3})
    keeper.save({"epoch": 1})
    with pytest.raises(Exception, match="pickle"):
        keeper.save({"epoch": lambda: None})
    assert keeper.load() == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    keeper = Checkpoint(file, {})
    keeper.save({"weights": torch.zeros(100)})
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"expected to save files in .*, got: File too large"):
            keeper.save({"weights": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_saving_keeps_to_its_share_of_the_time(tmp_path: Path) -> None:
    now = [0.0]

    class Slow:
        """Takes a second to pickle."""

        def __reduce__(self) -> tuple[Any, ...]:
            now[0] += 1.0
            return int, ()

    keeper = Checkpoint(tmp_path / "run.pt", {}, clock=lambda: now[0])
    assert keeper.due()  # at first, so that a run that is killed early has something
    keeper.save({"slow": Slow()})
    now[0] += 0.9 / SHARE
    assert not keeper.due()
    now[0] += 0.2 / SHARE
    assert keeper.due()
    assert not Checkpoint(None, {}).due()


def one(**options: Any) -> Any:
    """A short seeded run of `fit_map`."""
    given: dict[str, Any] = {"likelihood": "gaussian", "epochs": 2, "batch_size": 8, "generator": 0, "progress": False}
    return fit_map(options.pop("model", perceptron()), options.pop("data", line(40)), **{**given, **options})


# Of every argument that a run may not change when it goes on another value.
CHANGED: dict[str, Any] = {
    "likelihood": Gaussian(0.3), "prior_precision": 2.0, "weights": ["0.*"], "lr": 0.1, "optimizer": "sgd",
    "schedule": "cosine", "batch_size": 9, "validation": VALIDATION, "patience": 1, "generator": 1,
    "model": perceptron(seed=5), "data": tuple(part.flip(0) for part in line(40)), "classes_dim": 1,
}  # fmt: skip


def test_every_argument_is_a_part_of_the_run_or_may_change() -> None:
    free = (FREE - CHANGED.keys()) | {"output"}  # of this network there is one
    assert inspect.signature(fit_map).parameters.keys() <= CHANGED.keys() | free
    assert {"epochs", "progress", "checkpoint", "inplace"} <= free


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_with_another_argument_does_not_go_on(name: str, tmp_path: Path) -> None:
    given = {"validation": VALIDATION} if name == "patience" else {}
    one(**given, checkpoint=tmp_path / "run.pt")
    before = (tmp_path / "run.pt").read_bytes()
    with pytest.raises(InputError, match="checkpoint: expected one of a run with") as error:
        one(**{**given, name: CHANGED[name]}, checkpoint=tmp_path / "run.pt")
    assert "\n" not in str(error.value)
    assert f"remove {tmp_path / 'run.pt'}" in str(error.value)
    assert (tmp_path / "run.pt").read_bytes() == before
    same(one(**given, checkpoint=tmp_path / "run.pt"), one(**given))


@pytest.mark.parametrize(
    ("seed", "match"),
    [(1, "generator = 1, got 0"), (None, "generator = None, got 0"), (torch.Generator(), "state .*, got 0")],
)
def test_another_seed_is_refused_by_its_name(seed: Any, match: str, tmp_path: Path) -> None:
    one(checkpoint=tmp_path / "run.pt")
    with pytest.raises(InputError, match=match):
        one(generator=seed, checkpoint=tmp_path / "run.pt")


def test_a_generator_counts_by_its_state(tmp_path: Path) -> None:
    def source(drawn: int) -> torch.Generator:
        generator = torch.Generator().manual_seed(7)
        torch.rand(drawn, generator=generator)
        return generator

    one(generator=source(3), checkpoint=tmp_path / "run.pt")
    with pytest.raises(InputError, match="generator = 'in the state"):
        one(generator=source(4), checkpoint=tmp_path / "run.pt")
    same(one(generator=source(3), epochs=4, checkpoint=tmp_path / "run.pt"), one(generator=source(3), epochs=4))


def test_a_random_state_of_numpy_counts_by_all_of_its_state() -> None:
    def seed(kind: type[np.random.BitGenerator], drawn: int) -> Any:
        state = np.random.RandomState(kind(3))
        state.standard_normal(drawn)
        return of_seed({"random_state": state})["random_state"]

    for kind in (np.random.MT19937, np.random.PCG64):
        assert seed(kind, 1) == seed(kind, 1)
        assert len({seed(kind, drawn) for drawn in range(4)}) == 4  # normal numbers come in pairs


def test_without_a_seed_a_run_goes_on_from_any_start(tmp_path: Path) -> None:
    first = one(generator=None, checkpoint=tmp_path / "run.pt")
    same(one(generator=None, model=perceptron(seed=5), checkpoint=tmp_path / "run.pt"), first)


@pytest.mark.parametrize("name", ["variational", "mc_dropout", "ensemble", "swag", "sgmcmc", "fit_evidence"])
def test_no_function_goes_on_from_a_run_with_another_seed_or_option(name: str, tmp_path: Path) -> None:
    def go(**options: Any) -> Any:
        function = getattr(bs, name)
        model = [perceptron(), perceptron(seed=1)] if name == "ensemble" else noisy_network()
        given: dict[str, Any] = {"epochs": 6, "lr": 0.01} if name != "sgmcmc" else {"draws": 4, "burn_in": 1, "thin": 1}
        given |= {"burn_in": 1, "every": 2} if name == "fit_evidence" else {}
        given |= {"likelihood": "gaussian", "generator": 0, "progress": False, "checkpoint": tmp_path / "run.pt"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayescopeWarning)
            return function(model, line(40), **{**given, **options})

    first = go()
    for changed in ({"generator": 1}, {"prior_precision": 2.0}, {"lr": 0.02}):
        with pytest.raises(InputError, match=f"checkpoint: expected one of a run with {'|'.join(['prior', *changed])}"):
            go(**changed)
    assert torch.equal(go().mean, first.mean)


def test_a_file_is_of_one_run_at_a_time(tmp_path: Path) -> None:
    class Nested(nn.Module):
        """A network in whose training another one begins, with the same file."""

        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()
            self.told = ""

        def forward(self, x: Tensor) -> Tensor:
            if self.training and not self.told:
                try:
                    one(checkpoint=tmp_path / "run.pt")
                except InputError as error:
                    self.told = str(error)
            out: Tensor = self.body(x)
            return out

    nested = Nested()
    one(model=nested, checkpoint=tmp_path / "run.pt", inplace=True)
    assert nested.told.startswith("checkpoint: expected a file that no other process writes")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"likelihood": Gaussian(0.3)}, r"likelihood = 'gaussian\(noise_variance=0.3\)', got 'gaussian"),
        ({"prior_precision": 2.0}, "prior = 'precision 2.0, mean 0.0', got 'precision 1.0, mean 0.0'"),
        ({"prior_precision": Prior(1.0, 0.5)}, "mean 0.5"),
        ({"weights": ["0.*"]}, "weights = '0.weight, 0.bias'"),
        ({"optimizer": "sgd"}, "same optimizer, got 'Adam.* in the place of 'SGD"),
        ({"optimizer": torch.optim.RMSprop}, "same optimizer"),
        ({"lr": 0.1}, "lr = '0.1', got '0.001'"),
        ({"batch_size": 9}, "batch_size = 9, got 8"),
        ({"schedule": torch.optim.lr_scheduler.ExponentialLR}, "with schedule"),
        ({"validation": VALIDATION}, "with validation"),
    ],
)
def test_a_checkpoint_of_a_run_with_other_arguments_is_refused(
    changed: dict[str, Any], match: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.pt"
    arguments = {"likelihood": "gaussian", "epochs": 2, "batch_size": 8, "checkpoint": file}
    fit_map(perceptron(), line(40), **arguments)  # type: ignore[arg-type]
    if changed.get("schedule"):
        changed = {"schedule": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)}
    with pytest.raises(InputError, match=match):
        fit_map(perceptron(), line(40), **{**arguments, **changed})
    fit_map(perceptron(seed=5), line(40), **{**arguments, "epochs": 3})  # type: ignore[arg-type]


def test_a_checkpoint_of_other_data_or_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    fit_map(perceptron(), line(40), likelihood="gaussian", epochs=1, checkpoint=file)
    with pytest.raises(InputError, match="with data"):
        fit_map(perceptron(), line(40, seed=2), likelihood="gaussian", epochs=1, checkpoint=file)
    relu = perceptron()
    relu[1] = nn.ReLU()
    with pytest.raises(InputError, match=r"ReLU.*Tanh|Tanh.*ReLU"):
        fit_map(relu, line(40), likelihood="gaussian", epochs=1, checkpoint=file)
    frozen = perceptron()
    frozen[0].requires_grad_(False)
    with pytest.raises(InputError, match="frozen"):
        fit_map(frozen, line(40), likelihood="gaussian", epochs=1, checkpoint=file)
    validated = tmp_path / "validated.pt"
    fit_map(perceptron(), line(40), likelihood="gaussian", epochs=1, checkpoint=validated, validation=VALIDATION)
    with pytest.raises(InputError, match="with validation"):
        fit_map(
            perceptron(), line(40), likelihood="gaussian", epochs=1, checkpoint=validated, validation=line(20, seed=8)
        )


def test_a_checkpoint_with_another_schedule_is_refused(tmp_path: Path) -> None:
    arguments = {"likelihood": "gaussian", "epochs": 2, "checkpoint": tmp_path / "run.pt"}
    fit_map(perceptron(), line(40), schedule="cosine", **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="schedule = 'StepLR', got 'CosineAnnealingLR'"):
        fit_map(perceptron(), line(40), schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 3), **arguments)  # type: ignore[arg-type]


@pytest.mark.global_rng
def test_augmented_data_go_on(tmp_path: Path) -> None:
    """Rows that differ in each pass cannot be told apart from those of another run, and are not."""

    class Augmented(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
            return DATA[0][place] + torch.randn(2).double(), DATA[1][place]

    DATA = line(20)
    whole = fit_map(perceptron(), Augmented(), likelihood="gaussian", epochs=4, batch_size=8, generator=3)
    for epochs in (2, 4):
        resumed = fit_map(
            perceptron(), Augmented(), likelihood="gaussian", epochs=epochs, batch_size=8, generator=3,
            checkpoint=tmp_path / "run.pt",
        )  # fmt: skip
    same(resumed, whole)


def repickled(data: bytes, source: random.Random) -> bytes:
    """The archive of a checkpoint whose checksums are right, with an altered pickle in it."""
    before, after = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(after, "w") as archive:
        for name in before.namelist():
            content = before.read(name)
            change = source.choice([flipped, deleted, inserted, doubled, truncated])
            archive.writestr(name, change(content, source) if name.endswith("data.pkl") else content)
    return after.getvalue()


def test_an_altered_checkpoint_ends_in_one_line_or_holds_other_numbers(tmp_path: Path) -> None:
    path, run, source = tmp_path / "fit.pt", {"rows": 60, "names": ("a", "b")}, random.Random(0)
    Checkpoint(path, run).save({"weights": torch.ones(30, 4), "epoch": 3, "trace": [1.0, 2.0]})
    whole, told = path.read_bytes(), []
    for _ in range(300):
        change = source.choice([flipped, truncated, deleted, inserted, *[repickled] * 4])
        path.write_bytes(change(whole, source))
        try:
            Checkpoint(path, run).load()
        except InputError as error:
            told.append(str(error))
    assert len(told) > 150
    assert not [message for message in told if "\n" in message or not message.startswith("checkpoint: expected")]
