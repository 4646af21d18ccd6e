"""Fits by several processes that read a share of the rows each, against one process that reads all."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bayescope.curvature import Curvature, fit_curvature
from bayescope.errors import UnsupportedError
from bayescope.network import Shard
from bayescope.processes import present
from tests.distributed.networks import FORMS, NETWORKS, examples, mlp
from tests.distributed.ranks import run

# name: (form of the data, network, options)
FITS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "full": ("sampler", "mlp", {"structure": "full"}),
    "block": ("arrays", "mlp", {"structure": "block", "blocks": "tensor"}),
    "diagonal": ("own arrays", "mlp", {"structure": "diagonal"}),
    "kfac": ("sampler", "mlp", {"structure": "kfac"}),
    "kfac of a data set": ("data set", "cnn", {"structure": "kfac"}),
    "kfac of batches": ("batches", "mlp", {"structure": "kfac"}),
    "kfac, reduced": ("own loader", "cnn", {"structure": "kfac", "sharing": "reduce"}),
    "ekfac": ("sampler", "mlp", {"structure": "ekfac"}),
    "ekfac of a CNN": ("arrays", "cnn", {"structure": "ekfac"}),
    "last layer": ("sampler", "mlp", {"structure": "kfac", "weights": "last_layer"}),
    "rank": ("sampler", "mlp", {"structure": "low_rank", "rank": 4}),
    "cutoff": ("arrays", "mlp", {"structure": "low_rank", "cutoff": 0.05}),
    "hessian": ("sampler", "mlp", {"structure": "full", "curvature": "hessian"}),
    "hessian in blocks": ("own arrays", "mlp", {"structure": "block", "curvature": "hessian"}),
    "hessian's diagonal": ("arrays", "mlp", {"structure": "diagonal", "curvature": "hessian"}),
    "empirical": ("sampler", "cnn", {"structure": "ekfac", "curvature": "empirical_fisher"}),
    "drawn labels, arrays": ("arrays", "mlp", {"structure": "full", "curvature": "fisher"}),
    "drawn labels, dealt out": ("sampler", "mlp", {"structure": "kfac", "curvature": "fisher"}),
    "drawn labels, own arrays": ("own arrays", "cnn", {"structure": "diagonal", "curvature": "fisher"}),
    "float32": ("sampler", "mlp", {"structure": "kfac"}),
    "float32 of a CNN": ("arrays", "cnn", {"structure": "ekfac"}),
}
# Those that 4 ranks are left without a row in: 3 rows, in any form.
FEW = [
    "full",
    "block",
    "diagonal",
    "kfac",
    "kfac, reduced",
    "ekfac",
    "last layer",
    "rank",
    "hessian",
    "hessian's diagonal",
]


def fitted(name: str, *, rows: int, distributed: bool) -> Curvature:
    form, network, options = FITS[name]
    dtype = torch.float32 if name.startswith("float32") else torch.float64
    x, y = examples(rows, dtype)
    module = NETWORKS[network](dtype)
    if distributed and form == "sampler":
        module = DistributedDataParallel(module)
    return fit_curvature(
        module, FORMS[form](x, y) if distributed else (x, y), likelihood="categorical", batch_size=5,
        **{"generator": 300, **options},
    )  # fmt: skip


Found = tuple[Tensor, int, Tensor]


def work(names: list[str], rows: int) -> dict[str, Found]:
    fits = {name: fitted(name, rows=rows, distributed=True) for name in names}
    return {name: (fit.precision.to_dense(), fit.rows, fit.log_likelihood) for name, fit in fits.items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Found]]:
    return run(work, 2, list(FITS), 31)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Found]]:
    return run(work, 4, FEW, 3)


@cache
def whole(name: str, rows: int) -> Curvature:
    return fitted(name, rows=rows, distributed=False)


def require_whole(found: list[dict[str, Found]], name: str, rows: int) -> None:
    """Every rank has the fit to all rows, to the last bit what the others have."""
    alone = whole(name, rows)
    truth = alone.precision.to_dense()
    # The vectors of a low rank settle to the share of the residual that is left.
    settled = 1e-4 if FITS[name][2]["structure"] == "low_rank" and rows > 3 else 1e-10
    rounding = 1e-6 if name.startswith("float32") else settled
    for matrix, count, log_likelihood in (rank[name] for rank in found):
        assert torch.equal(matrix, found[0][name][0])
        assert count == rows
        torch.testing.assert_close(log_likelihood, alone.log_likelihood, rtol=rounding, atol=0)
        torch.testing.assert_close(matrix, truth, rtol=0, atol=rounding * float(truth.abs().max()))


@pytest.mark.parametrize("name", FITS)
def test_each_of_two_ranks_has_the_fit_to_all_rows(two: list[dict[str, Found]], name: str) -> None:
    require_whole(two, name, 31)


@pytest.mark.parametrize("name", FEW)
def test_ranks_without_a_row_take_part(four: list[dict[str, Found]], name: str) -> None:
    require_whole(four, name, 3)


def with_own_labels() -> tuple[Tensor, Tensor]:
    """The curvature "fisher" of rows whose numbers nobody knows: both ranks read the same ones, as if other ones."""
    x, y = examples()
    loader = FORMS["sampler"](x, y)
    everything = [(inputs, targets) for inputs, targets in loader]
    both = fit_curvature(
        mlp(), _Unnumbered(everything), likelihood="categorical", structure="full", curvature="fisher", generator=1
    )
    return both.precision.to_dense(), torch.tensor(present().rank)


class _Unnumbered(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows of this rank's, one after another, as a stream gives them."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        for x, y in self._batches:
            yield from zip(x, y, strict=True)


def test_streams_draw_labels_of_their_own() -> None:
    """Unlike those of numbered rows they are no single process's, and the same on all ranks in the end."""
    (one, _), (other, _) = run(with_own_labels)
    assert torch.equal(one, other)
    labelled = fit_curvature(
        mlp(), examples(), likelihood="categorical", structure="full", curvature="fisher", generator=1
    ).precision.to_dense()
    ggn = fit_curvature(mlp(), examples(), likelihood="categorical", structure="full").precision.to_dense()
    assert not torch.allclose(one, labelled, rtol=0.01)
    assert 0.4 < float(one.trace() / ggn.trace()) < 2.5
    assert not Shard(numbered=False).numbered


def test_separate_fits_with_corrected_eigenvalues_are_told_how_to_be_summed() -> None:
    x, y = examples()
    one, other = (
        fit_curvature(mlp(), (x[rows], y[rows]), likelihood="categorical", structure="ekfac")
        for rows in (slice(12), slice(12, None))
    )
    with pytest.raises(UnsupportedError, match="processes of one group"):
        one.precision + other.precision
