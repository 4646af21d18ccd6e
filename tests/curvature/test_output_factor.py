"""Output factors that are a diagonal, against the definition; and that nothing of the size of C × C is ever made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayescope as bs
from bayescope.curvature import fit_curvature, output_factors
from bayescope.errors import OptionError, UnsupportedError
from bayescope.precision import BlockPrecision, DiagonalPrecision, KroneckerPrecision
from tests.network.networks import built

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    return built(make, 1).double()


class Pixels(nn.Module):
    """A small fully convolutional network, (N, 2, H, W) → (N, H, W, C)."""

    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))).movedim(1, -1)


def mlp(classes: int = 5, width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, classes))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 5))


Case = tuple[Callable[[], nn.Module], Tensor, Tensor]
CASES: dict[str, Case] = {
    "mlp": (mlp, numbers(20, 4), torch.arange(20) % 5),
    "tokens": (words, torch.arange(40).reshape(20, 2) % 9, torch.arange(20) % 5),
    "sequences": (mlp, numbers(6, 3, 4), torch.arange(18).reshape(6, 3) % 5),
    "pixels": (Pixels, numbers(4, 2, 3, 3), torch.arange(36).reshape(4, 3, 3) % 3),
}


def factors(precision: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    found = [block.factors for block in precision.blocks if isinstance(block, KroneckerPrecision)]
    return [(each.input, each.output, each.normaliser) for each in found]


@pytest.mark.parametrize("weights", ["all", "last_layer"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("curvature", ["ggn", "fisher", "empirical_fisher"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_diagonal_of_the_dense_one(name: str, curvature: str, sharing: str, weights: str) -> None:
    make, x, y = CASES[name]
    module = drawn(make)
    dense, diagonal = (
        fit_curvature(module, (x, y), likelihood="categorical", curvature=curvature, sharing=sharing, weights=weights,
                      output_factor=factor, generator=0).precision
        for factor in ("dense", "diagonal")
    )  # fmt: skip
    assert len(factors(dense)) == len(factors(diagonal)) > 0
    for (inputs, outputs, count), (other, squares, same) in zip(factors(dense), factors(diagonal), strict=True):
        torch.testing.assert_close(other, inputs)
        torch.testing.assert_close(squares, outputs.diagonal(dim1=1, dim2=2))
        assert count == same


def test_of_a_softmax_it_is_the_sum_of_p_times_one_less_p() -> None:
    module, (_, x, y) = drawn(mlp), CASES["mlp"]
    (block,) = fit_curvature(
        module, (x, y), likelihood="categorical", weights="last_layer", output_factor="diagonal"
    ).precision.blocks  # fmt: skip
    with torch.no_grad():
        p = module(x).softmax(1)
    torch.testing.assert_close(block.factors.output[0], (p * (1 - p)).sum(0))


def reference(module: nn.Module, x: Tensor, delta: Tensor) -> Tensor:
    """A of the last layer by its definition, (Σ ã ãᵀ) and diag(Σ p (1 − p)), in the flat order of (W, b)."""
    with torch.no_grad():
        hidden = torch.cat([module[:2](x), torch.ones(len(x), 1, dtype=torch.float64)], 1)
        p = module(x).softmax(1)
    matrix = torch.kron(torch.diag((p * (1 - p)).sum(0)), hidden.mT @ hidden) / len(x)  # (C, D + 1)
    classes, width = p.shape[1], hidden.shape[1]
    canonical = torch.arange(classes * width).reshape(classes, width)
    order = torch.cat([canonical[:, :-1].flatten(), canonical[:, -1]])
    return matrix[order][:, order] + delta * torch.eye(classes * width, dtype=torch.float64)


def log_evidence(module: nn.Module, x: Tensor, y: Tensor, delta: Tensor) -> Tensor:
    with torch.no_grad():
        log_likelihood = torch.log_softmax(module(x), 1).gather(1, y[:, None]).sum()
        theta = torch.cat([module[2].weight.flatten(), module[2].bias])
    log_prior = 0.5 * (len(theta) * (delta.log() - math.log(2 * math.pi)) - delta * theta.square().sum())
    constant = 0.5 * len(theta) * math.log(2 * math.pi)
    return log_likelihood + log_prior + constant - 0.5 * torch.logdet(reference(module, x, delta))


def test_the_posterior_is_that_of_the_definition(tmp_path: Path) -> None:
    module, (_, x, y) = drawn(mlp), CASES["mlp"]
    delta = torch.tensor(0.7, dtype=torch.float64)
    q = bs.laplace(
        module, (x, y), likelihood="categorical", weights="last_layer", output_factor="diagonal",
        prior_precision=float(delta),
    )  # fmt: skip
    matrix = reference(module, x, delta)
    torch.testing.assert_close(q.precision.to_dense(), matrix, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.precision.logdet(), torch.logdet(matrix), rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(q.covariance, torch.linalg.inv(matrix), rtol=1e-10, atol=1e-10)
    root = q.precision.sqrt_solve(torch.eye(len(matrix), dtype=torch.float64))
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(matrix), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.log_evidence(), log_evidence(module, x, y, delta), rtol=1e-10, atol=1e-9)
    new = numbers(3, 4, seed=2)
    hidden = module[:2](new).detach()
    jacobian = torch.cat(
        [torch.kron(torch.eye(5, dtype=torch.float64)[None], hidden[:, None]), torch.eye(5).double().expand(3, -1, -1)],
        -1,
    )
    want = torch.einsum("ncp,pq,ndq->ncd", jacobian, torch.linalg.inv(matrix), jacobian)
    torch.testing.assert_close(q.predict(new).latent_cov, want, rtol=1e-9, atol=1e-9)
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    assert torch.equal(loaded.predict(new).probs, q.predict(new).probs)


def test_its_evidence_has_its_maximum_where_the_definition_s_has() -> None:
    module, (_, x, y) = drawn(mlp), CASES["mlp"]
    q = bs.laplace(
        module, (x, y), likelihood="categorical", weights="last_layer", output_factor="diagonal",
        prior_precision="evidence",
    )  # fmt: skip
    delta = q.fit.prior.precision.mean()
    here, *beside = (log_evidence(module, x, y, delta * factor) for factor in (1.0, 0.99, 1.01))
    assert all(here > other for other in beside)
    torch.testing.assert_close(q.log_evidence(), here, rtol=1e-9, atol=1e-8)


def test_some_layers_may_have_it() -> None:
    make, x, y = CASES["mlp"]
    fitted = fit_curvature(drawn(make), (x, y), likelihood="categorical", output_factor={"2": "diagonal"})
    assert [outputs.ndim for _, outputs, _ in factors(fitted.precision)] == [3, 2]
    parts = fitted.network.parts
    assert output_factors({"*": "diagonal", "0.weight": "dense"}, parts) == ("dense", "diagonal")
    assert output_factors("diagonal", parts) == ("diagonal", "diagonal")


def test_shards_add_up() -> None:
    make, x, y = CASES["mlp"]
    module, options = drawn(make), {"likelihood": "categorical", "output_factor": "diagonal"}
    one, two, both = (
        fit_curvature(module, (x[rows], y[rows]), **options).precision
        for rows in (slice(0, 7), slice(7, None), slice(None))
    )
    torch.testing.assert_close((one + two).to_dense(), both.to_dense())


def test_eigenvalues_are_corrected_in_its_basis() -> None:
    make, x, y = CASES["mlp"]
    module, options = drawn(make), {"likelihood": "categorical", "weights": "last_layer"}
    corrected = fit_curvature(module, (x, y), structure="ekfac", output_factor="diagonal", **options).precision
    full = fit_curvature(module, (x, y), structure="full", **options).precision
    (block,) = corrected.blocks
    rotated = block.basis.to_dense()
    index = corrected.indices[0]
    want = rotated.mT @ full.to_dense()[index][:, index] @ rotated
    torch.testing.assert_close(block.eigenvalues.flatten(), want.diagonal())


class Largest(TorchDispatchMode):
    """The most entries that a tensor has which is made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.device.type != "meta"]
        sizes = [tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in made]
        self.numel = max(self.numel, *sizes, 0)
        return out


@pytest.mark.parametrize("options", [{"output_factor": "diagonal"}, {"structure": "diagonal"}])
def test_no_matrix_of_all_pairs_of_classes_is_made(options: dict[str, Any]) -> None:
    classes, width, rows = 4000, 8, 40
    module = built(lambda: mlp(classes, width), 1).float()
    x, y = numbers(rows, 4).float(), torch.arange(rows) * 70 % classes
    with Largest() as largest:
        q = bs.laplace(
            module, (x, y), likelihood="categorical", weights="last_layer", prior_precision="evidence", **options
        )  # fmt: skip
        everything = q.predict(x[:8], integral="mackay")
        top = q.predict(x[:8], top=5)
        assert everything.probs.shape == (8, classes)
        assert top.probs.shape == (8, 5)
        q.sample(2, generator=0)
    # The check against autograd has the gradients of five rows; batches are rows × classes; five classes and those that
    # stand for the others are integrated at 2,048 nodes.
    assert largest.numel <= max(rows * classes, 6 * classes * (width + 1), 8 * 2048 * (5 + 64)) < classes**2 / 10


def test_the_diagonal_structure_is_no_kronecker_product() -> None:
    make, x, y = CASES["mlp"]
    precision = fit_curvature(drawn(make), (x, y), likelihood="categorical", structure="diagonal").precision
    assert isinstance(precision, DiagonalPrecision)
    kronecker = fit_curvature(drawn(make), (x, y), likelihood="categorical", output_factor="diagonal").precision
    assert isinstance(kronecker, BlockPrecision)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output_factor": "diag"}, OptionError, "output_factor"),
        ({"output_factor": {"7": "diagonal"}}, OptionError, "output_factor"),
        ({"output_factor": "diagonal", "structure": "full"}, UnsupportedError, "'kfac' and 'ekfac'"),
        ({"output_factor": {"2": "diagonal"}, "structure": "diagonal"}, UnsupportedError, "Leave it out"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    make, x, y = CASES["mlp"]
    for run in (fit_curvature, bs.laplace, bs.plan):
        with pytest.raises(error, match=message):
            run(drawn(make), (x, y), likelihood="categorical", **options)
