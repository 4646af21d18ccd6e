"""Fits by two processes that read a shard each, against one fit to all the data."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from bayescope.curvature import Curvature, fit_curvature
from bayescope.errors import UnsupportedError
from bayescope.precision import all_reduce
from tests.processes import in_two

ROWS, FIRST = 31, 12  # the shards are not of one size
FITS: dict[str, dict[str, Any]] = {
    "kfac": {"structure": "kfac"},
    "ekfac": {"structure": "ekfac"},
    "rank": {"structure": "low_rank", "rank": 4},
    "tolerance": {"structure": "low_rank", "tolerance": 0.05},
    "own generators": {"structure": "low_rank", "rank": 4, "generator": None},
    "hessian": {"structure": "full", "curvature": "hessian"},
}


def fitted(x: Tensor, y: Tensor, **options: Any) -> Curvature:
    module = nn.Sequential(nn.utils.skip_init(nn.Linear, 6, 8), nn.Tanh(), nn.utils.skip_init(nn.Linear, 8, 3)).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return fit_curvature(module, (x, y), likelihood="categorical", **{"generator": 1, **options})


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(ROWS, 6, dtype=torch.float64, generator=generator)
    return x, torch.randint(3, (ROWS,), generator=generator)


def work(rank: int, folder: str) -> None:
    """One of the processes: all fits to its shard, into a file; those of the kind "fisher" are to the same rows."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, y = examples()
    mine = slice(0, FIRST) if rank == 0 else slice(FIRST, None)
    fits = {name: fitted(x[mine], y[mine], reduce=all_reduce, **options) for name, options in FITS.items()}
    fits["fisher"] = fitted(x, y, reduce=all_reduce, structure="full", curvature="fisher")
    found = {name: (fit.precision.to_dense(), fit.rows, fit.log_likelihood) for name, fit in fits.items()}
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Tensor, int, Tensor]]]:
    return in_two(work, tmp_path_factory.mktemp("processes"))


@cache
def whole(name: str) -> Curvature:
    return fitted(*examples(), **FITS[name])


@pytest.mark.parametrize("name", FITS)
def test_every_process_has_the_fit_to_all_shards(results: list[dict[str, Any]], name: str) -> None:
    (one, rows, log_likelihood), (other, *_) = results[0][name], results[1][name]
    assert torch.equal(one, other)
    assert rows == ROWS
    torch.testing.assert_close(log_likelihood, whole(name).log_likelihood)
    truth = whole(name).precision.to_dense()
    # Vectors of a low rank settle to the share of the residual that is left.
    rounding = 1e-4 if FITS[name]["structure"] == "low_rank" else 1e-12
    torch.testing.assert_close(one, truth, rtol=0, atol=rounding * float(truth.abs().max()))


def test_processes_with_the_same_generator_draw_other_labels(results: list[dict[str, Any]]) -> None:
    """Both read the same rows here: with the same labels the sum would be twice the fit of one."""
    alone = fitted(*examples(), structure="full", curvature="fisher").precision.to_dense()
    both, *_ = results[0]["fisher"]
    assert not torch.allclose(both, 2 * alone, rtol=0.01)
    assert not torch.allclose(both - alone, torch.zeros_like(alone))
    ggn = fitted(*examples(), structure="full").precision.to_dense()
    assert 0.5 < float(both.trace() / (2 * ggn.trace())) < 2.0


def test_separate_fits_with_corrected_eigenvalues_are_told_how_to_be_summed() -> None:
    x, y = examples()
    one, other = (fitted(x[rows], y[rows], structure="ekfac") for rows in (slice(FIRST), slice(FIRST, None)))
    with pytest.raises(UnsupportedError, match="reduce="):
        one.precision + other.precision
