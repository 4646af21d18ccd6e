"""Laplace's approximation by several processes that read a share of the rows each, against one that reads all."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bayescope as bs
from bayescope.errors import ConvergenceWarning
from bayescope.laplace import EvidenceOfModes, Slope
from bayescope.laplace import laplace as laplace_module
from bayescope.posterior import Posterior
from bayescope.processes import present
from tests.distributed.networks import FORMS, NETWORKS, ROWS, examples, mlp
from tests.distributed.ranks import run

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # of weights that are no mode


def laplace(form: str, network: str, rows: int = ROWS, dtype: torch.dtype = torch.float64, **options: Any) -> Posterior:
    """A posterior, under a group of what each rank is given in that form."""
    together = present().count > 1
    x, y = examples(rows, dtype)
    module = NETWORKS[network](dtype)
    if together and form == "sampler":
        module = DistributedDataParallel(module)
    data = FORMS[form](x, y) if together else (x, y)
    return bs.laplace(module, data, likelihood="categorical", batch_size=5, **{"prior_precision": 0.7, **options})


def tuned(form: str, network: str, **options: Any) -> Posterior:
    """Tuned by the NLL of other rows, which are given in the same form."""
    held_out = examples(9, seed=7)
    data = FORMS[form](*held_out) if present().count > 1 else held_out
    return bs.tune_prior(laplace(form, network), method="validation", data=data, **options)


def conditioned(form: str, network: str) -> Posterior:
    """After more rows, which are given in the same form."""
    more = examples(8, seed=8)
    data = FORMS[form](*more) if present().count > 1 else more
    return laplace(form, network, prior_precision=5.0).condition(data)


def select(form: str, network: str) -> Posterior:
    """The better of two networks."""
    x, y = examples()
    data = FORMS[form](x, y) if present().count > 1 else (x, y)
    models = {"mlp": mlp(), network: NETWORKS[network]()}
    return bs.select(models, data, likelihood="categorical", prior_precision=0.7).best


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "kfac": lambda: laplace("sampler", "mlp"),
    "ekfac of a CNN": lambda: laplace("arrays", "cnn", structure="ekfac"),
    "evidence": lambda: laplace("sampler", "mlp", prior_precision="evidence"),
    "last layer, evidence": lambda: laplace("own arrays", "mlp", weights="last_layer", prior_precision="evidence"),
    "full": lambda: laplace("own loader", "mlp", structure="full", temperature=0.8),
    "mixture": lambda: bs.laplace(
        [mlp(), mlp()], FORMS["arrays"](*examples()), likelihood="categorical", mixture="evidence"
    ),
    "largest variance": lambda: laplace("sampler", "mlp", weights=bs.largest_variance(20), structure="full"),
    "validation": lambda: tuned("sampler", "mlp"),
    "validation by covariances": lambda: tuned("arrays", "mlp", integral="quadrature", temperature=True),
    "more data": lambda: conditioned("sampler", "mlp"),
    "selected": lambda: select("arrays", "cnn"),
    "learnt in training": lambda: bs.fit_evidence(
        mlp(), examples(), likelihood="categorical", epochs=4, burn_in=1, every=2, steps=5, generator=1, progress=False
    ),
    "float32": lambda: laplace("sampler", "mlp", dtype=torch.float32),
}
FEW: dict[str, Callable[[], Posterior]] = {
    "kfac": lambda: laplace("sampler", "mlp", 3),
    "ekfac of a CNN": lambda: laplace("arrays", "cnn", 3, structure="ekfac"),
    "validation": lambda: bs.tune_prior(laplace("arrays", "mlp", 9), method="validation", data=examples(3, seed=7)),
}


def told(q: Posterior) -> dict[str, Any]:
    """What is asked of a posterior, on each rank by itself."""
    x = examples(4, seed=9)[0]
    module = q.components[0].function.module if hasattr(q, "components") else q.function.module
    p = q.predict(x.to(next(module.parameters()).dtype))
    fits = [part.fit for part in getattr(q, "components", [q])]
    return {
        "probabilities": p.probs,
        "epistemic": p.mutual_information,
        "evidence": q.log_evidence().detach(),
        "decrement": torch.tensor([fit.newton_decrement() for fit in fits]),
        "prior": torch.stack([fit.prior.diagonal(fit.function.dim) for fit in fits]),
        "read": [(fit.curvature.rows, fit.observations, fit.fingerprint) for fit in fits],
    }


@contextmanager
def rounded_otherwise() -> Iterator[None]:
    """Rank 1 rounds evidences and slopes in another way, as with another number of threads."""
    value, read = EvidenceOfModes.value_and_gradient, laplace_module.read_slope
    factor = 1.0 + 1e-12 * present().rank

    def other_value(self: EvidenceOfModes, x: Tensor) -> tuple[Tensor, Tensor]:
        log_evidence, gradient = value(self, x)
        return log_evidence * factor, gradient * factor

    def other_slope(*arguments: Any) -> Slope:
        slope = read(*arguments)
        return replace(slope, gradient=slope.gradient * factor)

    with (
        mock.patch.object(EvidenceOfModes, "value_and_gradient", other_value),
        mock.patch.object(laplace_module, "read_slope", other_slope),
    ):
        yield


def work(few: bool) -> dict[str, dict[str, Any]]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    with rounded_otherwise():
        return {name: told(make()) for name, make in (FEW if few else POSTERIORS).items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run(work, 2, False)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return run(work, 4, True)


@cache
def whole(name: str, few: bool) -> dict[str, Any]:
    return told((FEW if few else POSTERIORS)[name]())


# What an optimiser leads to is the same as far as it goes: steps end where the evidence is flat.
LOOSE = {"learnt in training": 1e-6, "evidence": 1e-6, "last layer, evidence": 1e-6, "more data": 1e-5, "float32": 1e-6}


def require_whole(ranks: list[dict[str, Any]], name: str, *, few: bool) -> None:
    alone = whole(name, few)
    for rank in ranks:
        assert rank[name]["read"] == alone["read"]
        for what in ("probabilities", "epistemic", "evidence", "decrement", "prior"):
            found = rank[name][what]
            assert torch.equal(found, ranks[0][name][what])  # to the last bit on every rank
            torch.testing.assert_close(found, alone[what], rtol=LOOSE.get(name, 1e-9), atol=LOOSE.get(name, 1e-10))


@pytest.mark.parametrize("name", POSTERIORS)
def test_each_of_two_ranks_has_the_posterior_of_all_rows(two: list[dict[str, Any]], name: str) -> None:
    require_whole(two, name, few=False)


@pytest.mark.parametrize("name", FEW)
def test_ranks_without_a_row_have_it_too(four: list[dict[str, Any]], name: str) -> None:
    require_whole(four, name, few=True)


# --- draws ------------------------------------------------------------------------------------------------------------


def draws() -> tuple[Tensor, Tensor]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    q = laplace("sampler", "mlp", structure="samples", samples=400, generator=1 + present().rank)
    full = laplace("sampler", "mlp", structure="full")
    offsets = q.draws[0][:200] - full.mean
    return q.draws, (offsets * full.precision.multiply(offsets.mT).mT).sum() / offsets.numel()


def test_samples_are_the_same_on_all_ranks_and_have_the_covariance_of_all_rows() -> None:
    """E[zᵀAz]/P = 1 for z ~ N(0, A⁻¹), within 3 √(2/(P S)): ranks that drew alike would be far off."""
    (one, square), (other, _) = run(draws)
    assert torch.equal(one, other)
    assert abs(float(square) - 1.0) < 3 * (2.0 / (83 * 200)) ** 0.5


# --- what is refused --------------------------------------------------------------------------------------------------


class _Failing(Dataset[Any]):
    """A data set that one rank cannot read to the end."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if present().rank == 1 and index == 3:
            raise OSError("the disk is gone")
        return torch.zeros(6, dtype=torch.float64), 0


class _Stream(IterableDataset[Any]):
    """The same rows on all ranks, as a stream that does not look at its rank."""

    def __iter__(self) -> Any:
        return iter(zip(*examples(), strict=True))


def _nan_on_one() -> Any:
    x, y = examples()
    x[20, 2] = float("nan")  # the second rank's
    return x, y


def _other_weights() -> nn.Module:
    module = mlp()
    with torch.no_grad():
        module[0].weight[0, 0] += 1e-3 * present().rank
    return module


def _padded_otherwise() -> Any:
    class Other(DistributedSampler):
        def __iter__(self) -> Any:
            return super().__iter__()

    data = TensorDataset(*examples())
    return DataLoader(data, batch_size=4, sampler=Other(data, shuffle=False))


def _foreign() -> Any:
    data = TensorDataset(*examples())
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=3, rank=present().rank))


def _multiplied() -> Any:
    """A collate function that makes two rows of one."""
    data = TensorDataset(*examples())

    def twice(rows: list[Any]) -> Any:
        x, y = zip(*[*rows, *rows], strict=True)
        return torch.stack(x), torch.stack(y)

    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False), collate_fn=twice)


def _alone(data: Any) -> Any:
    with bs.distributed.alone():
        return _fit(data)


def _fit(data: Any, module: nn.Module | None = None) -> Any:
    return bs.laplace(mlp() if module is None else module, data, likelihood="categorical")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN on one rank": (
        lambda: _fit(_nan_on_one()),
        "ProcessError: .*rank 1 failed with InputError: .*first in row 20",
    ),
    "an error on one rank": (lambda: _fit(_Failing()), "ProcessError: .*rank 1 failed with OSError: the disk is gone"),
    "the same loader": (
        lambda: _fit(DataLoader(TensorDataset(*examples()), batch_size=4)),
        "InputError: data: expected other rows on each of 2 processes, .*DistributedSampler",
    ),
    "the same stream": (
        lambda: _fit(DataLoader(_Stream(), batch_size=4)),
        "InputError: data: expected other rows on each process, got the same on two",
    ),
    "other weights": (
        lambda: _fit(examples(), _other_weights()),
        "InputError: model: expected the same weights .*'0.weight' on rank 1",
    ),
    "repeats that are not known": (lambda: _fit(_padded_otherwise()), "InputError: data: .*31 rows .*got 32 in all"),
    "a sampler for others": (
        lambda: _fit(_foreign()),
        "ProcessError: .*expected a sampler for rank 1 of 2, got .* of 3",
    ),
    "rows of its own making": (lambda: _fit(_multiplied()), "expected a row for each of the 16 that the Distributed"),
    "a kernel between rows": (
        lambda: bs.function_space(mlp(), examples(), likelihood="categorical"),
        "UnsupportedError: function_space: expected one process, got 2 .*bs.distributed.alone",
    ),
    "an unknown option": (
        lambda: bs.laplace(mlp(), examples(), likelihood="categorical", structure="kron"),
        "OptionError: structure",
    ),
    "an option of one rank": (
        lambda: bs.fit_curvature(
            mlp(), examples(), likelihood="categorical", structure=["kfac", "kron"][present().rank]
        ),
        "ProcessError: fit_curvature: expected the same structure on all 2 processes, got .* and .kron. on rank 1",
    ),
    "another prior on one rank": (
        lambda: bs.laplace(mlp(), examples(), likelihood="categorical", prior_precision=1.0 + present().rank),
        "ProcessError: laplace: expected the same prior_precision on all 2 processes, got 1 on rank 0 and 2 on",
    ),
    "another method on one rank": (
        lambda: bs.tune_prior(_fit(examples()), share_prior=["layer", "scalar"][present().rank]),
        "ProcessError: tune_prior: expected the same share_prior",
    ),
    "another form on one rank": (
        lambda: _fit(TensorDataset(*examples()) if present().rank else examples()),
        "ProcessError: data: expected the same form on all 2 processes",
    ),
    "no network on one rank": (
        lambda: _fit(examples(), None if present().first else nn.ModuleList()),
        "rank 1 failed with InputTypeError: model: expected a module that can be called",
    ),
    "a batch of one rank": (
        lambda: _fit([examples()] if present().first else [(*examples(), 0, 0)]),
        "rank 1 failed with InputTypeError: data: expected batches",
    ),
    "a share for one that fits alone": (
        lambda: _alone(FORMS["sampler"](*examples())),
        "InputError: data: expected all rows for a process that fits by itself",
    ),
}


def errors() -> dict[str, str | None]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    found: dict[str, str | None] = {}
    for name, (call, _) in REFUSED.items():
        try:
            call()
            found[name] = None
        except Exception as error:  # noqa: BLE001 — what is looked at
            found[name] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def messages() -> list[dict[str, str | None]]:
    return run(errors)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_on_any_rank_is_an_error_on_all(messages: list[dict[str, str]], name: str) -> None:
    for rank in messages:
        assert rank[name] is not None
        assert re.search(REFUSED[name][1], rank[name], flags=re.DOTALL), rank[name]


# --- by one rank alone, and buffers -----------------------------------------------------------------------------------


def lonely() -> tuple[float | None, float, Tensor]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    own = None
    if present().first:
        with bs.distributed.alone():
            own = float(_fit(examples()).log_evidence())
    module = NETWORKS["cnn"]()
    for buffer in module.buffers():
        buffer.add_(present().rank)  # as after a training with DistributedDataParallel
    q = bs.laplace(module, examples(), likelihood="categorical")
    return own, float(q.log_evidence()), next(q.function.module.buffers())


def test_a_rank_may_fit_alone_and_buffers_are_those_of_the_first() -> None:
    (own, together, buffer), (other_own, other_together, other_buffer) = run(lonely)
    assert own == float(_fit(examples()).log_evidence())
    assert other_own is None
    assert together == other_together
    assert torch.equal(buffer, other_buffer)
    alone = bs.laplace(NETWORKS["cnn"](), examples(), likelihood="categorical")
    assert together == pytest.approx(float(alone.log_evidence()), rel=1e-10)
