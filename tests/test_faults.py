"""Faults in data and networks: each fit ends in the library's own error, or in a finite answer where one is possible.

An exception of the user's own code passes through. The module, its modes, gradients and hooks, the data, torch's random
state and the handling of signals stay as they were. Each fault goes through two fits, so that each fit meets four.
"""

from __future__ import annotations

import copy
import math
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeError


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


def held(module: nn.Module, data: Any) -> dict[str, Any]:
    """All that belongs to the user; a NaN is written as a number, since it is not equal to itself."""
    tensors = [*module.state_dict().values(), torch.get_rng_state()]
    tensors += [part for part in data if isinstance(part, Tensor)] if isinstance(data, tuple) else []
    return {
        "tensors": [tensor.double().nan_to_num().tolist() for tensor in tensors],
        "modes": [part.training for part in module.modules()],
        "gradients": [value.grad is None for value in module.parameters()],
        "hooks": [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()],
        "signal": signal.getsignal(signal.SIGINT),
    }


def finite(answer: Any) -> bool:
    """Whether the answer of a fit holds only finite numbers."""
    if isinstance(answer, bs.Curvature):
        return bool(answer.with_prior(1.0).logdet().isfinite())
    return bool(torch.as_tensor(answer.predict(rows()[0], generator=0).probs).isfinite().all())


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


def faults() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]]:
    """How the network and the data of each fault are made."""
    return {
        "none": (network, rows),
        **{name: (network, lambda name=name: spoilt_data()[name]) for name in spoilt_data()},
        **{name: (lambda name=name: spoilt_networks()[name], rows) for name in spoilt_networks()},
        "a loader that ends early": (network, lambda: DataLoader(Ending(), batch_size=6)),
        "a loader that raises": (network, lambda: DataLoader(Ending(fails=True), batch_size=6)),
    }


# Where an answer is right. Curvature alone reads its rows once, and does not see that a loader has fewer the next time.
ANSWERED = {"none", "a constant column", "one class only", "an input of 1e38"}
ANSWERED_BY_ONE = {("a loader that ends early", "fit_curvature")}
CASES = [(fault, list(FITS)[(place + shift) % len(FITS)]) for place, fault in enumerate(faults()) for shift in (0, 3)]


def outcome(fit: Callable[[], Any]) -> str:
    """What came: "an answer", "a refusal" or an error of others."""
    try:
        return "an answer" if finite(fit()) else "numbers that are not finite"
    except BayescopeError as error:
        return "a refusal" if "\n" not in str(error) else f"several lines: {error}"
    except OSError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize(("fault", "fit"), CASES)
def test_a_fault_ends_in_a_refusal_or_a_finite_answer_and_changes_nothing(fault: str, fit: str) -> None:
    module, data = (make() for make in faults()[fault])
    before = held(module, data)
    came = outcome(lambda: FITS[fit](module, data))
    right = {"a refusal"} if fault != "none" else set()
    if fault in ANSWERED or (fault, fit) in ANSWERED_BY_ONE:
        right |= {"an answer"}
    assert came in (right if fault != "a loader that raises" else {"the disk is gone"})
    assert held(module, data) == before
