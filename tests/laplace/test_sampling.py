"""Draws by sample-then-optimise have the covariance of the full GGN's posterior, and say when they have not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset

from bayescope import laplace
from bayescope.curvature import fit_curvature
from bayescope.errors import (
    ConvergenceError,
    ConvergenceWarning,
    InputError,
    MemoryBudgetError,
    UndefinedQuantityError,
    UnsupportedError,
)
from bayescope.laplace import LaplaceFit, tune_prior
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.models import LinearizedModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, Posterior
from bayescope.precision import DensePrecision, Precision
from bayescope.priors import Prior
from tests.laplace.problems import flat, mlp, normal, nothing_written, penalty, seeded, set_flat, train

untrained = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")
pytestmark = untrained

# Every statistical test here fails by chance once in a million times, were its seed not fixed.
FALSE_ALARM = 1e-6
X, NEW = normal(40, 2, seed=1), 2.0 * normal(12, 2, seed=2)
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(3))


def both(
    module: nn.Module, data: Any, *, samples: int = 64, **options: Any
) -> tuple[DrawsPosterior, GaussianPosterior]:
    options = {"prior_precision": 1.0, **options}
    drawn = laplace(module, data, structure="samples", samples=samples, generator=7, **options)
    options.pop("tolerance", None)
    full = laplace(module, data, structure="full", **options)
    assert isinstance(drawn, DrawsPosterior)
    assert isinstance(full, GaussianPosterior)
    return drawn, full


def assert_drawn_from(z: Tensor, precision: Precision) -> None:
    """zᵀAz ~ χ²_P for each draw, and Σ zᵀAz ~ χ²_PS for all."""
    squares = (z * precision.multiply(z.mT).mT).sum(1)
    samples, dim = z.shape
    assert in_range(float(squares.sum()), samples * dim, 1)
    for square in squares.tolist():
        assert in_range(square, dim, samples)
    # and no draw knows of another one
    white = torch.linalg.cholesky(precision.to_dense()).mT @ z.mT
    between = (white.mT @ white / dim**0.5).fill_diagonal_(0.0)
    bound = stats.norm.isf(FALSE_ALARM / samples**2) * 1.5  # a product of normals has wider tails
    assert float(between.abs().max()) < bound


def offsets(drawn: DrawsPosterior, mode: Tensor) -> Tensor:
    """z of each pair θ* ± z."""
    up, down = drawn.flat.chunk(2)
    torch.testing.assert_close(up - mode, mode - down, rtol=1e-9, atol=1e-12)
    return up - mode


def in_range(square: float, degrees: int, tests: int) -> bool:
    low, high = (stats.chi2.ppf(p, degrees) for p in (0.5 * FALSE_ALARM / tests, 1.0 - 0.5 * FALSE_ALARM / tests))
    return bool(low < square < high)


@pytest.fixture(scope="module")
def large() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network of 3,000 weights with ten classes, near its mode."""
    module = seeded(lambda: nn.Sequential(*_layers(10, 40, 50, 10)), scale=0.3)
    x = normal(100, 10, seed=11)
    y = torch.randint(0, 10, (100,), generator=torch.Generator().manual_seed(12))
    train(module, lambda: nn.functional.cross_entropy(module(x), y, reduction="sum") + penalty(module, 1.0), steps=5)
    return module, (x, y)


def _layers(*widths: int) -> list[nn.Module]:
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return layers[:-1]


def test_predictive_variances_of_three_thousand_weights(large: Any) -> None:
    """S v̂/v ~ χ²_S at every input and output, and of all together once they are decorrelated."""
    module, data = large
    drawn = laplace(
        module, data, likelihood="categorical", structure="samples", samples=200, prior_precision=1.0, generator=7
    )
    assert isinstance(drawn, DrawsPosterior)
    assert isinstance(drawn.function, LinearizedModel)
    assert drawn.flat.shape == (200, 3000)
    full = fit_curvature(module, data, likelihood="categorical", structure="full").with_prior(1.0)
    z, new = offsets(drawn, drawn.function.at), 1.5 * normal(8, 10, seed=13)
    moved = drawn.function.jacobian_product(new, drawn.function.at, z).flatten(1)
    identity = torch.eye(3000, dtype=torch.float64)
    jacobian = drawn.function.jacobian_product(new, drawn.function.at, identity).flatten(1).mT
    joint = jacobian @ full.solve(jacobian.mT.contiguous())
    for square in (moved.square().sum(0) / joint.diagonal()).tolist():
        assert in_range(square, 100, len(joint))
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(joint), moved.mT, upper=False)
    assert in_range(float(white.square().sum()), white.numel(), 1)
    assert_drawn_from(z, full)


TASKS: dict[str, dict[str, Any]] = {
    "categorical": {"likelihood": "categorical", "prior_precision": 0.3},
    "by layer": {"likelihood": "categorical", "prior_precision": {"0": 0.3, "2": 4.0}},
    "by weight about a mean": {
        "likelihood": "categorical",
        "prior_precision": Prior(0.2 + normal(27, seed=4).square(), normal(27, seed=5)),
    },
    "dense": {
        "likelihood": "categorical",
        "prior_precision": Prior(DensePrecision(torch.eye(27).double() + 0.1 * torch.ones(27, 27).double())),
    },
    "cold": {"likelihood": "categorical", "temperature": 0.2},
    "last layer": {"likelihood": "categorical", "weights": "last_layer"},
    "gaussian": {"likelihood": Gaussian(0.2)},
}


@pytest.mark.parametrize("task", TASKS)
def test_draws_are_of_the_posterior(task: str) -> None:
    options = TASKS[task]
    y = normal(40, 3, seed=6) if task == "gaussian" else LABELS
    drawn, full = both(mlp(3), (X, y), samples=800, batch_size=16, **options)
    assert_drawn_from(offsets(drawn, full.location), full.precision)
    assert isinstance(full.fit, LaplaceFit)
    gamma, decrement = float(full.fit.effective_parameters()), float(full.fit.newton_decrement())
    told = drawn.record.notes
    assert float(told["Newton decrement"]) == pytest.approx(decrement, rel=1e-2)
    assert float(told["effective parameters"].split()[0]) == pytest.approx(gamma, rel=0.2)


def test_each_preconditioner_gives_the_same_draws() -> None:
    def draws(prior_precision: Any) -> tuple[Tensor, str]:
        q = laplace(
            mlp(3), (X, LABELS), likelihood="categorical", structure="samples", tolerance=1e-9, generator=1,
            prior_precision=prior_precision,
        )  # fmt: skip
        assert isinstance(q, DrawsPosterior)
        return q.flat, q.summary()

    kronecker, summary = draws(1.0)
    assert "Kronecker" in summary
    nearly_one = 1.0 + 1e-7 * torch.rand(len(kronecker[0]), generator=torch.Generator().manual_seed(0), dtype=X.dtype)
    diagonal, summary = draws(nearly_one)  # numbers that leave no Kronecker structure
    assert "diagonal" in summary
    torch.testing.assert_close(kronecker, diagonal, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("samples", "name"), [(2, "diagonal"), (64, "Kronecker")])
def test_kronecker_factors_take_no_more_memory_than_the_draws(samples: int, name: str) -> None:
    module, x = mlp(3, inputs=100, hidden=2), normal(20, 100, seed=1)  # a factor of 101 x 101 for 211 weights
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "samples", "prior_precision": 1.0}
    assert name in laplace(module, (x, LABELS[:20]), samples=samples, generator=1, **options).summary()


def test_functions_of_the_draws_are_linearised() -> None:
    drawn, full = both(mlp(3), (X, LABELS), likelihood="categorical", samples=16)
    p = drawn.predict(NEW)
    assert full.function is not None
    at_mode = full.function.forward(NEW, full.location)
    torch.testing.assert_close(p.latent_mean, at_mode, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(drawn.mean, full.location, rtol=1e-9, atol=1e-12)
    moved = full.function.jacobian_product(NEW, full.location, offsets(drawn, full.location))
    linear = Categorical().conditional(torch.cat([at_mode + moved, at_mode - moved]))[0].mean(0)
    torch.testing.assert_close(p.mean, linear)
    torch.testing.assert_close(drawn.predict(NEW, method="linearized").mean, linear)
    own = Categorical().conditional(full.function.forward(NEW, drawn.flat))[0].mean(0)
    torch.testing.assert_close(drawn.predict(NEW, method="sampled").mean, own)
    assert not torch.allclose(own, linear, atol=1e-3)
    with pytest.raises(InputError, match="integral"):
        drawn.predict(NEW, method="linearized", integral="mackay")
    assert drawn.sample_functions(NEW, 3, generator=0).shape == (3, 12, 3)
    with torch.no_grad():
        torch.testing.assert_close(drawn.model(NEW), mlp(3)(NEW))


def test_nothing_of_the_callers_is_written_or_kept() -> None:
    module, x = mlp(3).train(), X.clone()
    with nothing_written(module):
        q = laplace(module, (x, LABELS), likelihood="categorical", structure="samples", samples=4, generator=3)
        before = q.predict(NEW).mean
        again = laplace(module, (x, LABELS), likelihood="categorical", structure="samples", samples=4, generator=3)
    assert torch.equal(again.predict(NEW).mean, before)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    for posterior in (q, copy.deepcopy(q)):
        assert torch.equal(posterior.predict(NEW).mean, before)


def _far(prior_precision: float) -> Posterior:
    module, y = mlp(1), normal(40, 1, seed=9)
    train(module, lambda: 0.5 * (module(X) - y).square().sum() / 0.2 + penalty(module, 1.0))
    return laplace(
        module, (X, y), likelihood=Gaussian(0.2), structure="samples", samples=64, generator=0,
        prior_precision=prior_precision,
    )  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_weights_that_are_no_mode_are_noticed() -> None:
    _far(1.0)
    module = mlp(3)
    set_flat(module, 4.0 * flat(module))
    sure = (X, module(X).argmax(1))
    with pytest.warns(ConvergenceWarning, match="likely worse than the network's own.*Newton decrement"):
        laplace(module, sure, likelihood="categorical", structure="samples", generator=0, prior_precision=1e-3)


def test_a_network_in_single_precision() -> None:
    drawn, full = both(mlp(3).to(torch.float32), (X.float(), LABELS), likelihood="categorical", samples=800)
    assert_drawn_from(offsets(drawn, full.location), full.precision)


def test_what_does_not_converge_is_refused() -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "samples", "samples": 2}
    module = mlp(3, hidden=3000).to(torch.float32)  # products of fewer weights are in float64
    with pytest.raises(ConvergenceError, match="float64"):
        laplace(module, (X.float(), LABELS), tolerance=1e-13, prior_precision=1.0, **options)


class Counted(Dataset[Any]):
    """Rows that count how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> Any:
        self.read += 1
        return X[row], LABELS[row]


def test_data_are_read_once_a_product() -> None:
    data = Counted()
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "samples", "prior_precision": 1.0}
    q = laplace(mlp(3), data, samples=8, generator=0, **options)
    products = int(q.record.notes["conjugate gradients"].split()[0])
    assert len(q.trace["residual"]) == products
    # The first row is read for its shapes, and three times for a weight beside it. The plan, the sample of rows, the
    # preconditioner and its gradient, the noise, and the check of the residual take a pass each.
    assert data.read <= (products + 7) * len(X) + 3


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"curvature": "hessian"}, UnsupportedError, "GGN"),
        ({"rank": 3}, UnsupportedError, "rank"),
        ({"blocks": "tensor"}, UnsupportedError, "blocks"),
        ({"sharing": "reduce"}, UnsupportedError, "sharing"),
        ({"samples": 0}, InputError, "samples"),
        ({"samples": 7}, InputError, "in pairs, got 7. Take 8"),
        ({"tolerance": 2.0}, InputError, "tolerance"),
        ({"memory": 400_000, "samples": 4000}, MemoryBudgetError, "fewer samples"),
    ],
)
def test_what_cannot_be_used_is_said(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        laplace(mlp(3), (X, LABELS), likelihood="categorical", structure="samples", **options)


def test_what_draws_do_not_have_is_said_with_what_does() -> None:
    q = laplace(mlp(3), (X, LABELS), likelihood="categorical", structure="samples", samples=4, generator=0)
    assert q.summary().startswith("Posterior by laplace, samples over")
    assert "prior precision: 1" in q.summary()
    asked: list[Callable[[], object]] = [
        q.log_evidence,
        lambda: q.log_evidence(prior_precision=2.0),
        lambda: q.condition((X, LABELS)),
        lambda: tune_prior(q),
    ]
    for ask in asked:
        with pytest.raises(UndefinedQuantityError, match=r"by laplace, samples.*Take laplace with .*'kfac'"):
            ask()


def test_draws_need_no_memory_for_factors_that_they_do_not_make() -> None:
    """A layer of 3,000 outputs has a factor of 72 MB, which a diagonal preconditioner never sees."""
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 3000), nn.Tanh(), nn.Linear(3000, 2)))
    data = normal(8, 3, seed=0), torch.arange(8) % 2
    options = {"likelihood": "categorical", "structure": "samples", "samples": 2, "memory": 40 * 2**20}
    assert laplace(module, data, **options).sizes == (18_002,)
