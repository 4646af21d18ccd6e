"""Fits draw from generators of their own: another thread that draws from the global ones meanwhile notices nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import bayescope as bs
from bayescope.private_draws import harmless_names

SEED, ROWS, ENOUGH = 7, 40, 200


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise that is drawn at each reading."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return torch.randn(2) + place % 2, torch.tensor(place % 2)


class Noisy(nn.Module):
    """A network that draws noise itself in training, besides its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network(nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + 0.1 * torch.randn_like(x) if self.training else x)


class NoisyDescent(torch.optim.SGD):
    """Steps with noise."""

    def step(self, closure: Any = None) -> Any:
        value = super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        return value


def network(*between: nn.Module) -> nn.Sequential:
    """Weights that nobody draws."""
    first, last = (nn.utils.skip_init(nn.Linear, *sizes) for sizes in ((2, 4), (4, 2)))
    layers = nn.Sequential(first, nn.Tanh(), *between, last)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return layers


def rows() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 2 * ROWS).reshape(ROWS, 2)
    return x, (x[:, 0] * 5).long() % 2


COMMON: dict[str, Any] = {"likelihood": "categorical", "generator": 0}
FITS: dict[str, Callable[[], Any]] = {
    "fit_map": lambda: bs.fit_map(Noisy(), rows(), epochs=3, batch_size=8, **COMMON),
    "fit_map of augmented rows": lambda: bs.fit_map(
        network(), DataLoader(Augmented(), batch_size=8, shuffle=True), epochs=3, **COMMON
    ),
    "fit_map by a noisy optimizer": lambda: bs.fit_map(
        network(), rows(), optimizer=lambda p: NoisyDescent(p, lr=1e-3), epochs=3, batch_size=8, **COMMON
    ),
    "laplace": lambda: bs.laplace(network(), rows(), prior_precision=1.0, curvature="fisher", **COMMON),
    "variational": lambda: bs.variational(network(), rows(), epochs=3, batch_size=8, samples=2, **COMMON),
    "mc_dropout": lambda: bs.mc_dropout(network(nn.Dropout(0.3)), rows(), epochs=3, **COMMON),
    "concrete dropout": lambda: bs.mc_dropout(network(), rows(), rate="concrete", epochs=3, **COMMON),
    "ensemble": lambda: bs.ensemble(lambda: network(nn.Dropout(0.3)), rows(), members=2, epochs=3, **COMMON),
    "swag": lambda: bs.swag(network(nn.Dropout(0.3)), rows(), batch_size=8, epochs=21, **COMMON),
    "sgmcmc": lambda: bs.sgmcmc(network(), rows(), batch_size=8, draws=4, chains=2, **COMMON),
    "nuts": lambda: bs.nuts(network(), rows(), draws=4, tune=4, chains=1, **COMMON),
}


@contextmanager
def drawing_thread() -> Iterator[tuple[list[int], list[int]]]:
    """A thread that draws from the global generators of torch and NumPy all the time, and what it has drawn."""
    of_torch: list[int] = []
    of_numpy: list[int] = []
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set() or len(of_torch) < ENOUGH:
            of_torch.append(int(torch.randint(2**62, ())))
            of_numpy.append(int(np.random.randint(2**62)))  # noqa: NPY002

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield of_torch, of_numpy
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")  # such short fits have not converged
@pytest.mark.parametrize("name", FITS)
def test_another_thread_draws_what_it_would_draw_by_itself(name: str) -> None:
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    with drawing_thread() as (of_torch, of_numpy):
        FITS[name]()
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    assert [int(torch.randint(2**62, ())) for _ in of_torch] == of_torch
    assert [int(np.random.randint(2**62)) for _ in of_numpy] == of_numpy  # noqa: NPY002


def noise(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


class Helper:
    """What draws under a name that tensors have too."""

    def add(self, x: Tensor) -> Tensor:
        return noise(x)


HELPER, DROP = Helper(), torch.nn.functional.dropout


class Hidden(nn.Module):
    """A network that draws in a way that its forward pass does not show at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.helper, self.function = network(), Helper(), noise

    def mean(self, x: Tensor) -> Tensor:
        return noise(x)


def hidden(way: str, forward: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return type(way, (Hidden,), {"forward": forward})()


def closed_over() -> Callable[[Any, Tensor], Tensor]:
    mean = HELPER
    return lambda self, x: self.layers(mean.add(x))


HIDDEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a function": lambda self, x: self.layers(noise(x)),
    "a method": lambda self, x: self.layers(Hidden.mean(self, x)),
    "a method of its own": lambda self, x: self.layers(self.mean(x)),
    "a function that it keeps": lambda self, x: self.layers(self.function(x)),
    "an object that it keeps": lambda self, x: self.layers(self.helper.add(x)),
    "a global object": lambda self, x: self.layers(HELPER.add(x)),
    "a closure": closed_over(),
    "a default": lambda self, x, drop=DROP: self.layers(drop(x)),
    "another name": lambda self, x: self.layers(DROP(x, 0.2, self.training)),
    "an inner function": lambda self, x: self.layers(torch.stack([(lambda row: row * torch.rand(2))(r) for r in x])),
    "a layer made anew": lambda self, x: self.layers(nn.Linear(2, 2)(x)),
    "an import": lambda self, x: self.layers(__import__("torch").randn_like(x) + x),
}


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("way", HIDDEN)
def test_a_network_draws_privately_however_it_calls_what_draws(way: str) -> None:
    found = []
    for _ in range(2):
        before = torch.get_rng_state()
        model = hidden(way, HIDDEN[way])
        found.append(bs.fit_map(model, rows(), epochs=2, batch_size=8, lr=0.1, **COMMON).mean)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*found)


def test_a_layer_whose_forward_pass_is_replaced_draws_privately_and_keeps_it() -> None:
    layer = nn.Identity()
    layer.forward = noise  # type: ignore[method-assign]
    before = torch.get_rng_state()
    q = bs.fit_map(network(layer), rows(), epochs=2, batch_size=8, lr=0.1, **COMMON)
    assert torch.equal(torch.get_rng_state(), before)
    assert "forward" in vars(q.model[2])


class HiddenRows(Augmented):
    """Rows whose noise a method draws."""

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.noisy(torch.ones(2)), torch.tensor(place % 2)

    def noisy(self, row: Tensor) -> Tensor:
        return noise(row)


@pytest.mark.parametrize("data", [Augmented, HiddenRows])
def test_a_data_set_draws_privately_in_every_batch(data: Callable[[], Dataset[Any]]) -> None:
    before = torch.get_rng_state()
    bs.fit_map(network(), DataLoader(data(), batch_size=8, shuffle=True), epochs=2, lr=0.1, **COMMON)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_operation_of_torch_that_draws_is_known() -> None:
    """Operations that torch itself tags as random, by the names under which code calls them."""
    public = {*dir(torch), *dir(Tensor), *dir(torch.nn.functional)}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space == "aten" and base in public and not base.startswith("_") and base != "miopen_rnn":
            operation = getattr(getattr(torch.ops.aten, base), overload or "default")
            if torch.Tag.nondeterministic_seeded in operation.tags:
                assert base not in harmless_names()


class Recomputed(nn.Module):
    """A network whose dropout is drawn again in the backward pass, or is not."""

    def __init__(self, again: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.layers, self.again, self.reentrant = network(nn.Dropout(0.5)), again, reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()  # which a reentrant checkpoint asks for
        return checkpoint(self.layers, x, use_reentrant=self.reentrant) if self.again else self.layers(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_dropout_has_the_mask_of_the_forward_pass(*, reentrant: bool) -> None:
    kept, again = (
        bs.fit_map(Recomputed(each, reentrant), rows(), epochs=3, batch_size=8, **COMMON).mean for each in (False, True)
    )
    torch.testing.assert_close(again, kept)


def test_a_recomputed_dropout_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    def fit(epochs: int, **options: Any) -> Tensor:
        model = Recomputed(again=True)
        return bs.fit_map(model, rows(), epochs=epochs, lr=0.01, batch_size=8, **COMMON, **options).mean

    fit(2, checkpoint=tmp_path / "run.pt")
    assert torch.equal(fit(4, checkpoint=tmp_path / "run.pt"), fit(4))
