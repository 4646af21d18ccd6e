"""Faults put into fits: each ends in the library's own error or in a right answer, and leaves what was there before.

Of every fault it is noted what came, and whether that is fine: an error of `bayescope.errors` that names the fault, or
a usable answer where one is possible; the user's own exception where the user's own code raised it. After each, the
module, its modes, gradients and hooks, the data and torch's random state have to be what they were.
"""

from __future__ import annotations

import copy
import math
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeError

Record = dict[str, Any]


# --- networks and data ------------------------------------------------------------------------------------------------


def rows(count: int = 24, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Numbers and labels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.arange(count) % classes


def network(outputs: int = 3) -> nn.Module:
    """Batch norm and dropout between its layers, so that modes and random states matter."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, outputs)
        ).train()  # fmt: skip


class Broken(nn.Module):
    """A network whose answer is spoilt."""

    def __init__(self, spoil: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.spoil = network(), spoil

    def forward(self, x: Tensor) -> Any:
        """Something else than the body's."""
        return self.spoil(self.body(x))


class Ending(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows of which there are fewer at each reading, or whose reading fails."""

    def __init__(self, fails: bool = False) -> None:
        self.rows, self.fails = list(zip(*rows(), strict=True)), fails

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for place, row in enumerate(list(self.rows)):
            if self.fails and place == 14:
                raise OSError("the disk is gone")
            yield row
        if not self.fails:
            self.rows = self.rows[: max(6, len(self.rows) - 6)]


def another(module: nn.Module) -> nn.Module:
    """A copy with other weights."""
    found, generator = copy.deepcopy(module), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return found


FITS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "fit_curvature": lambda m, d: bs.fit_curvature(m, d, likelihood="categorical"),
    "laplace": lambda m, d: bs.laplace(m, d, likelihood="categorical", prior_precision="evidence"),
    "fit_map": lambda m, d: bs.fit_map(m, d, likelihood="categorical", epochs=3, generator=0),
    "fit_evidence": lambda m, d: bs.fit_evidence(m, d, likelihood="categorical", epochs=3, burn_in=1, generator=0),
    "variational": lambda m, d: bs.variational(m, d, likelihood="categorical", epochs=3, generator=0),
    "mc_dropout": lambda m, d: bs.mc_dropout(m, d, likelihood="categorical", epochs=3, generator=0),
    "ensemble": lambda m, d: bs.ensemble([m, another(m)], d, likelihood="categorical", epochs=3, generator=0),
    "swag": lambda m, d: bs.swag(m, d, likelihood="categorical", epochs=4, rank=2, generator=0),
    "sgmcmc": lambda m, d: bs.sgmcmc(m, d, likelihood="categorical", draws=4, generator=0),
    "function_space": lambda m, d: bs.function_space(m, d, likelihood="categorical"),
}


# --- what came --------------------------------------------------------------------------------------------------------


class Came(NamedTuple):
    """What came of a fault, and whether it is what should."""

    said: str
    fine: bool


def held(module: nn.Module, data: Any) -> Record:
    """Everything of the user's that a failing call must leave alone."""
    tensors = [*module.state_dict().values(), torch.get_rng_state()]
    tensors += [part for part in data if isinstance(part, Tensor)] if isinstance(data, tuple) else []
    return {
        "tensors": [tensor.clone() for tensor in tensors],
        "modes": [part.training for part in module.modules()],
        "gradients": [value.grad is None for value in module.parameters()],
        "hooks": [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()],
        "signal": signal.getsignal(signal.SIGINT),
    }


def changed(before: Record, after: Record) -> list[str]:
    """What a call has changed; a NaN is equal to itself."""
    pairs = zip(before.pop("tensors"), after.pop("tensors"), strict=True)
    tensors = all(torch.equal(one.double().nan_to_num(), other.double().nan_to_num()) for one, other in pairs)
    return [*([] if tensors else ["tensors"]), *(name for name in before if before[name] != after[name])]


def finite(value: Any) -> bool:
    """Whether the answer of a fit holds only finite numbers."""
    if isinstance(value, bs.Curvature):
        return bool(value.with_prior(1.0).logdet().isfinite())
    return bool(torch.as_tensor(value.predict(rows()[0], generator=0).probs).isfinite().all())


def attempt(work: Callable[[], Any], *, own: type[BaseException] | None = None, answers: bool = False) -> Came:
    """Runs one call.

    Args:
        work: the call.
        own: what the user's own code raises, which is to pass through.
        answers: whether a finite answer is right, too.
    """
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            value = work()
    except BayescopeError as error:
        return Came(f"{type(error).__name__}: {error}"[:160], True)
    except BaseException as error:  # noqa: BLE001 - anything else is what this is looking for
        return Came(f"{type(error).__name__}: {error}"[:160], own is not None and isinstance(error, own))
    said = f", {seen[0].category.__name__}" if seen else ""
    return Came(f"an answer{said}", answers and (value is None or value))


def on_network(work: Callable[[nn.Module, Any], Any], module: nn.Module, data: Any, **wanted: Any) -> Came:
    """One call on a network, which is looked at before and after."""
    before = held(module, data)
    came = attempt(lambda: finite(work(module, data)), **wanted)
    spoilt = changed(before, held(module, data))
    return Came(f"{came.said} CHANGED: {', '.join(spoilt)}", False) if spoilt else came


# --- faults in data, networks and options -----------------------------------------------------------------------------


def spoilt_data() -> dict[str, Any]:
    """Data with one thing wrong, by what it is."""
    x, y = rows()
    nan, endless, huge, constant = x.clone(), x.clone(), x.clone(), x.clone()
    nan[17, 2], endless[3, 0], huge[5, 1], constant[:, 1] = math.nan, math.inf, 1e38, 3.0
    return {
        "NaN in a batch": (nan, y),
        "an infinite input": (endless, y),
        "an input of 1e38": (huge, y),
        "a label that does not exist": (x, y + 1),
        "no rows": (x[:0], y[:0]),
        "labels of other rows": (x, y[:-1]),
        "a loader of broken rows": DataLoader(TensorDataset(nan, y), batch_size=6),
        "a constant column": (constant, y),
        "one class only": (x, torch.zeros_like(y)),
    }


def spoilt_networks() -> dict[str, nn.Module]:
    """Networks with one thing wrong, by what it is."""
    nan = network()
    with torch.no_grad():
        nan[0].weight[0, 0] = math.nan
    return {
        "outputs of another shape": Broken(lambda f: f.T),
        "one output too few": network(2),
        "outputs without rows": Broken(lambda f: f.sum()),
        "no tensor": Broken(lambda f: f.tolist()),
        "nothing": Broken(lambda f: None),
        "outputs that are NaN": Broken(lambda f: f * math.nan),
        "weights that are NaN": nan,
        "outputs without a gradient": Broken(lambda f: f.detach()),
    }


def data_faults(names: Iterable[str] = FITS) -> Iterator[tuple[str, str, Came]]:
    """Spoilt data and networks through fits."""
    fits = {name: FITS[name] for name in names}
    for name, fit in fits.items():
        came = on_network(fit, network(), rows(), answers=True)
        yield "nothing", name, Came(came.said, came.fine and came.said.startswith("an answer"))
    usable = ("a constant column", "one class only", "an input of 1e38")
    for fault, data in spoilt_data().items():
        for name, fit in fits.items():
            yield fault, name, on_network(fit, network(), data, answers=fault in usable)
    for fault, module in spoilt_networks().items():
        for name, fit in fits.items():
            yield fault, name, on_network(fit, module, rows())
    for name, fit in fits.items():
        yield (
            "a loader that ends early",
            name,
            on_network(fit, network(), DataLoader(Ending(), batch_size=6), answers=name == "fit_curvature"),
        )
        yield (
            "a loader that raises",
            name,
            on_network(fit, network(), DataLoader(Ending(True), batch_size=6), own=OSError),
        )
