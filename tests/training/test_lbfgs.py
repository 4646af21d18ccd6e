"""L-BFGS ends at a mode by the library's own criterion, whatever the units, the order and the precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope import laplace
from bayescope.errors import ConvergenceWarning
from bayescope.likelihoods import Gaussian
from bayescope.posterior import PointPosterior
from bayescope.training import Lbfgs, fit_map
from bayescope.training.convergence import ENOUGH, MOST_EPOCHS
from tests.training.toys import Killed, Mortal, last_epoch_left, seeded

NETWORK = ((nn.Linear, (1, 8)), (nn.Tanh, ()), (nn.Linear, (8, 1)))


def wave(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(40, 1, generator=source, dtype=torch.float64) * 4 - 2
    y = torch.sin(2 * x) + 0.15 * torch.randn(40, 1, generator=source, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def fitted(data: tuple[Tensor, Tensor], **options: Any) -> PointPosterior:
    module = seeded(0, *NETWORK).to(data[0].dtype)
    return fit_map(module, data, likelihood=Gaussian(0.15**2), optimizer="lbfgs", progress=False, **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_newton_decrement_is_small(seed: int, dtype: torch.dtype) -> None:
    data = wave(seed, dtype)
    q = fitted(data)
    double = tuple(tensor.double() for tensor in data)
    at = laplace(q.model.double(), double, likelihood=Gaussian(0.15**2), prior_precision=1.0, structure="full")
    assert float(at.record.notes["Newton decrement"]) ** 2 < ENOUGH
    assert "ended by convergence" in q.summary()
    assert "at rest: yes" in q.summary()


@pytest.mark.parametrize("prior", [0.3, 10.0])
def test_bad_conditioning_ends_too(prior: float) -> None:
    q = fitted(wave(0), prior_precision=prior)
    assert len(q.trace["loss"]) < MOST_EPOCHS
    assert "ended by convergence" in q.summary()


def test_a_budget_that_is_too_small_says_what_is_left(tmp_path: Path) -> None:
    file, common = tmp_path / "run", {"likelihood": Gaussian(0.15**2), "optimizer": "lbfgs", "progress": False}
    with pytest.raises(Killed):
        fit_map(Mortal(60, seeded(0, *NETWORK).double()), wave(0), checkpoint=file, **common)
    last_epoch_left(file, MOST_EPOCHS)
    with pytest.warns(
        ConvergenceWarning, match=f"predictions may be worse .* not converged after {MOST_EPOCHS} epochs"
    ):
        q = fit_map(Mortal(60, seeded(0, *NETWORK).double()), wave(0), checkpoint=file, **common)
    assert "at rest: no, about" in q.summary()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_units_of_the_objective_do_not_matter(scale: float) -> None:
    """Pairs and stops are judged by ratios: Rosenbrock's valley in any units."""
    point = nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
    optimizer = Lbfgs([point])

    def closure() -> Tensor:
        point.grad = None
        x, y = point
        loss = scale * ((1 - x) ** 2 + 100 * (y - x**2) ** 2)
        loss.backward()
        return loss.detach()

    for _ in range(100):
        optimizer.step(closure)
    torch.testing.assert_close(point.detach(), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_an_objective_that_has_moved_is_followed() -> None:
    """What was learnt of another objective's curvature is forgotten where it leads nowhere."""
    point, centre = nn.Parameter(torch.zeros(5, dtype=torch.float64)), torch.ones(5, dtype=torch.float64)
    curvatures = torch.logspace(-3, 3, 5, dtype=torch.float64)
    optimizer = Lbfgs([point])

    def closure() -> Tensor:
        point.grad = None
        loss = 0.5 * (curvatures * (point - centre).square()).sum()
        loss.backward()
        return loss.detach()

    for move in (1.0, -2.0):
        centre *= move
        curvatures = curvatures.flip(0)
        for _ in range(20):
            optimizer.step(closure)
        torch.testing.assert_close(point.detach(), centre, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_an_optimum_at_zero_is_an_end(scale: float, seed: int, dtype: torch.dtype) -> None:
    """No rounding of the weights ends the search there: what is left to gain does, whatever the objective's unit."""
    source = torch.Generator().manual_seed(seed)
    point = nn.Parameter(torch.randn(5, generator=source, dtype=dtype))
    table = torch.randn(9, 5, generator=source, dtype=dtype)
    optimizer, evaluations = Lbfgs([point]), 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations, point.grad = evaluations + 1, None
        loss = scale * (1.0 + (table @ point).square().sum() + point.square().sum())
        loss.backward()
        return loss.detach()

    for _ in range(12):
        optimizer.step(closure)
    largest = point.detach().abs().max()
    assert largest < 1e-6
    assert largest == 0.0 or largest > 1e-30
    reached, evaluations = point.detach().clone(), 0
    for _ in range(12):
        optimizer.step(closure)
    assert evaluations == 12
    torch.testing.assert_close(point.detach(), reached, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(2))
def test_targets_of_zero_leave_weights_that_can_be_squared(seed: int) -> None:
    x, y = wave(seed)
    module = seeded(seed, (nn.Linear, (1, 1))).double()
    q = fit_map(module, (x, 0.0 * y), likelihood="gaussian", optimizer="lbfgs", epochs=60, progress=False)
    largest = q.mean.abs().max()
    assert largest < 1e-8
    assert largest == 0.0 or largest > 1e-60


def test_a_loss_with_kinks_ends() -> None:
    """At a kink the gradient does not vanish; the training ends where no step gains anything."""
    module = seeded(0, (nn.Linear, (1, 8)), (nn.ReLU, ()), (nn.Linear, (8, 1))).double()
    q = fit_map(module, wave(0), likelihood=Gaussian(0.15**2), optimizer="lbfgs", progress=False)
    assert len(q.trace["loss"]) < MOST_EPOCHS
    longer = fit_map(q.model, wave(0), likelihood=Gaussian(0.15**2), optimizer="lbfgs", epochs=50, progress=False)
    assert q.trace["loss"][-1] - longer.trace["loss"][-1] < 0.1
