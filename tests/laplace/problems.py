"""Small problems for Laplace's approximation of networks, with the closed forms that it has to equal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from bayescope.posterior import GaussianPosterior, Posterior

DTYPE = torch.float64
M = TypeVar("M", bound=nn.Module)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], M], seed: int = 0, scale: float = 0.5) -> M:
    """A module in float64 with weights from a generator of its own."""
    with torch.random.fork_rng(devices=[]):
        module = make().to(DTYPE)
    for i, parameter in enumerate(module.parameters()):
        parameter.data = scale * normal(*parameter.shape, seed=1000 * seed + i)
    return module


def mlp(outputs: int = 1, *, inputs: int = 2, hidden: int = 4, seed: int = 0) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)), seed)


class Closed(NamedTuple):
    """Bayesian linear regression y = Φ w + ε with prior N(m₀, P₀⁻¹) and noise σ², one output."""

    mean: Tensor
    precision: Tensor
    log_evidence: Tensor


def closed_form(design: Tensor, y: Tensor, prior: Tensor, noise: float, centre: Tensor | float = 0.0) -> Closed:
    """The posterior by the normal equations, the evidence as the density of y under N(Φ m₀, Φ P₀⁻¹ Φᵀ + σ² I)."""
    centre = torch.as_tensor(centre, dtype=DTYPE).expand(design.shape[1])
    precision = design.mT @ design / noise + torch.diag(prior)
    mean = torch.linalg.solve(precision, design.mT @ y / noise + prior * centre)
    covariance = (design / prior) @ design.mT + noise * torch.eye(len(y), dtype=DTYPE)
    residual = y - design @ centre
    quadratic = residual @ torch.linalg.solve(covariance, residual)
    log_evidence = -0.5 * (quadratic + torch.logdet(covariance) + len(y) * math.log(2 * math.pi))
    return Closed(mean, precision, log_evidence)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def set_flat(module: nn.Module, theta: Tensor) -> None:
    """Writes flat weights into all parameters of a module."""
    with torch.no_grad():
        for parameter, values in zip(
            module.parameters(), theta.split([p.numel() for p in module.parameters()]), strict=True
        ):
            parameter.copy_(values.reshape(parameter.shape))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def train(module: nn.Module, loss: Callable[[], Tensor], steps: int = 60) -> None:
    """Minimises a loss of the module by full-batch L-BFGS until it rests."""
    optimiser = torch.optim.LBFGS(
        module.parameters(),
        max_iter=steps * 10,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    for parameter in module.parameters():
        parameter.grad = None


def penalty(module: nn.Module, prior_precision: float) -> Tensor:
    return 0.5 * prior_precision * torch.stack([p.square().sum() for p in module.parameters()]).sum()


@contextmanager
def nothing_written(module: nn.Module) -> Iterator[None]:
    """Fails where a module's weights, buffers, gradients or modes, or torch's global generator are not as before."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    wanted = [p.requires_grad for p in module.parameters()]
    generator = torch.get_rng_state()
    yield
    after = module.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert [part.training for part in module.modules()] == modes
    assert [p.requires_grad for p in module.parameters()] == wanted
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), generator)


@final
class _Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are augmented by noise from a global generator each time they are read."""

    def __init__(self, x: Tensor, y: Tensor, source: str) -> None:
        self._x, self._y, self._source = x, y, source

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x = self._x[row]
        noise = torch.randn_like(x) if self._source == "torch" else torch.from_numpy(np.random.randn(*x.shape)).to(x)  # noqa: NPY002
        return x + 0.1 * noise, self._y[row]


def unlike(x: Tensor, y: Tensor, source: str) -> DataLoader[tuple[Tensor, Tensor]]:
    """A loader whose passes differ: augmented by "torch" or "numpy", drawn with "replacement", or in part "dropped"."""
    plain: TensorDataset = TensorDataset(x, y)
    if source == "replacement":
        return DataLoader(plain, batch_size=5, sampler=WeightedRandomSampler(torch.ones(len(y)).tolist(), len(y)))
    if source == "dropped":
        return DataLoader(plain, batch_size=5, shuffle=True, drop_last=True)
    return DataLoader(_Noisy(x, y, source), batch_size=5, shuffle=True)


# Where an untrained network is what a test needs, the warning about it is not.
UNTRAINED = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
STRUCTURES: dict[str, dict[str, Any]] = {
    "full": {},
    "block": {},
    "diagonal": {},
    "kfac": {},
    "ekfac": {},
    "low_rank": {"rank": 5},
}


def at(module: nn.Module, theta: Tensor) -> nn.Module:
    moved = copy.deepcopy(module)
    set_flat(moved, theta)
    return moved


def gaussian(q: Posterior) -> GaussianPosterior:
    assert isinstance(q, GaussianPosterior)
    return q
