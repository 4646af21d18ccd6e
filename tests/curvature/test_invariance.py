"""What a curvature does not depend on, and what reading a network leaves as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayescope.curvature import fit_curvature
from bayescope.errors import BayescopeWarning, InputError, OptionError, UnsupportedError
from tests.curvature import reference
from tests.curvature.cases import Case, assert_close, case, fit

STRUCTURES = ["full", "block", "diagonal", "kfac", "ekfac", "low_rank"]
MODELS = ["mlp", "conv2d groups", "embedding", "self-attention, time first", "batch norm", "dense outputs", "dict"]


def dense(entry: Case, structure: str, **options: Any) -> Tensor:
    rank = {"rank": sum(p.numel() for p in entry.module.parameters())} if structure == "low_rank" else {}
    return fit(entry, structure, generator=0, **rank, **options).precision.to_dense()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("model", MODELS)
def test_batches_order_and_cotangents_at_once_do_not_matter(model: str, structure: str) -> None:
    entry = case(model)
    want = dense(entry, structure)
    for batch_size in (1, 2, 100):
        assert_close(dense(entry, structure, batch_size=batch_size), want, 1e-9)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    assert_close(dense(entry.rows(order), structure), want, 1e-9)
    for cotangents in (1, 2):
        assert_close(dense(entry, structure, cotangents=cotangents), want, 1e-9)


class Rows(Dataset):
    """Rows as dicts with their labels among them."""

    def __init__(self, entry: Case) -> None:
        self.entry = entry

    def __len__(self) -> int:
        return len(self.entry.targets)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            **{name: value[index] for name, value in self.entry.inputs.items()},
            "labels": self.entry.targets[index],
        }


@pytest.mark.global_rng  # a DataLoader draws a seed for its workers
def test_data_may_come_as_arrays_datasets_and_loaders() -> None:
    entry = case("mlp")
    want = dense(entry, "kfac")
    rows = TensorDataset(entry.inputs, entry.targets)
    for data in (rows, DataLoader(rows, batch_size=4), DataLoader(rows, batch_size=2, shuffle=True)):
        curvature = fit_curvature(entry.module, data, likelihood="categorical", structure="kfac")
        assert curvature.rows == 7
        assert_close(curvature.precision.to_dense(), want, 1e-9)
    with pytest.warns(BayescopeWarning, match="expected all 7 rows of the data set, got 6"):
        short = fit_curvature(
            entry.module, DataLoader(rows, batch_size=3, drop_last=True), likelihood="categorical", structure="kfac"
        )
    assert short.rows == 6
    assert_close(short.precision.to_dense(), dense(entry.rows(slice(0, 6)), "kfac"), 1e-9)


@pytest.mark.global_rng
def test_named_inputs_may_hold_their_labels() -> None:
    entry = case("dict")
    loader = DataLoader(Rows(entry), batch_size=2)
    curvature = fit_curvature(entry.module, loader, likelihood="categorical", structure="full")
    assert_close(curvature.precision.to_dense(), reference.full(entry, "ggn"))


# --- the module is left as it was -------------------------------------------------------------------------------------


def state(module: nn.Module) -> dict[str, Any]:
    """All that a reading could leave behind."""
    return {
        "values": copy.deepcopy(module.state_dict()),
        "identities": [id(value) for value in module.parameters()],
        "grads": [None if value.grad is None else value.grad.clone() for value in module.parameters()],
        "requires": [value.requires_grad for value in module.parameters()],
        "training": [part.training for part in module.modules()],
        "hooks": [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()],
        "random": torch.get_rng_state(),
        "enabled": torch.is_grad_enabled(),
    }


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for name in want:
            assert_same(got[name], want[name])
    elif isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    elif isinstance(want, Tensor):
        assert torch.equal(got, want)
    else:
        assert got == want


class Failing(nn.Module):
    """A layer that raises once it has been called often enough."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("planted")
        return x


def unsettled() -> Case:
    """A network with dropout and running statistics, in mixed modes, with gradients of its own."""
    entry = case("batch norm")
    module = nn.Sequential(*entry.module[:-1], nn.Dropout(0.5), entry.module[-1])
    module.train()
    module[1].eval()
    for parameter in list(module.parameters())[::2]:
        parameter.grad = torch.ones_like(parameter)
    return Case(module, entry.inputs, entry.targets, entry.likelihood)


@pytest.mark.parametrize("curvature", ["ggn", "fisher", "empirical_fisher", "hessian"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac", "ekfac", "low_rank"])
def test_the_module_is_left_as_it_was(structure: str, curvature: str) -> None:
    if curvature == "hessian" and structure not in ("full", "diagonal"):
        pytest.skip("no such pair")
    entry = unsettled()
    before = state(entry.module)
    rank = {"rank": 3} if structure == "low_rank" else {}
    fit(entry, structure, curvature, generator=0, **rank)
    assert_same(state(entry.module), before)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_the_module_is_left_as_it_was_when_it_fails(calls: int) -> None:
    entry = unsettled()
    module = nn.Sequential(*entry.module[:-1], Failing(calls), entry.module[-1])
    before = state(module)
    with pytest.raises((RuntimeError, InputError), match="planted"):
        fit(Case(module, entry.inputs, entry.targets, entry.likelihood), "kfac", batch_size=1)
    assert_same(state(module), before)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_may_be_switched_off_around(structure: str) -> None:
    entry = case("mlp")
    want = dense(entry, structure)
    with torch.no_grad():
        assert_close(dense(entry, structure), want, 1e-12)
    with torch.inference_mode():
        assert_close(dense(entry, structure), want, 1e-12)


# --- number formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "conv2d groups", "embedding", "self-attention", "lstm", "layer norm"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac", "ekfac"])
def test_a_float32_network_gives_a_float64_precision(model: str, structure: str) -> None:
    entry = case(model)
    want = dense(entry, structure)
    inputs = entry.inputs.float() if entry.inputs.is_floating_point() else entry.inputs
    single = Case(copy.deepcopy(entry.module).float(), inputs, entry.targets, entry.likelihood)
    got = fit(single, structure)
    assert got.precision.to_dense().dtype == got.log_likelihood.dtype == torch.float64
    assert_close(got.precision.to_dense(), want, 1e-3 if structure == "ekfac" else 2e-5)


@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac"])
def test_autocast_is_rounded_not_refused(structure: str) -> None:
    entry = case("mlp")
    want = dense(entry, structure)
    single = Case(copy.deepcopy(entry.module).float(), entry.inputs.float(), entry.targets, entry.likelihood)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = dense(single, structure)
    assert got.dtype == torch.float64
    assert_close(got, want, 0.1)
    half = Case(copy.deepcopy(entry.module).bfloat16(), entry.inputs.bfloat16(), entry.targets, entry.likelihood)
    assert_close(dense(half, structure), want, 0.1)


# --- what does not go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["kfac", "ekfac", "low_rank"])
def test_unsupported_pairs_name_the_supported_ones(structure: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        fit(case("mlp"), structure, "hessian")
    for name in ("full", "block", "diagonal", "ggn"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"structure": "kronecker"}, {"curvature": "gauss_newton"}, {"sharing": "both"}, {"blocks": "module"}],
    ids=str,
)
def test_unknown_options_name_the_known_ones(options: dict[str, Any]) -> None:
    entry = case("mlp")
    options = {"structure": "block", "curvature": "ggn", **options}
    with pytest.raises(OptionError, match=next(iter(set(options.values()) - {"block", "ggn"}))):
        fit_curvature(entry.module, (entry.inputs, entry.targets), likelihood="categorical", **options)


@pytest.mark.parametrize("weights", ["9.weight", ["9.weight"], torch.ones(5, dtype=torch.bool)], ids=str)
def test_weights_that_do_not_exist_are_refused(weights: Any) -> None:
    with pytest.raises(InputError):
        fit(case("mlp"), "diagonal", weights=weights)


def test_no_rows_and_no_weights_are_refused() -> None:
    entry = case("mlp")
    with pytest.raises(InputError):
        fit(entry.rows(slice(0, 0)), "diagonal")
    with pytest.raises(InputError):
        fit(Case(entry.module.requires_grad_(False), entry.inputs, entry.targets, entry.likelihood), "diagonal")


def test_equal_seeds_draw_equal_labels() -> None:
    entry = case("mlp")
    one, same, *others = (fit(entry, "diagonal", "fisher", generator=s).precision.diagonal() for s in (0, 0, 1, 2, 3))
    assert torch.equal(one, same)
    assert not all(torch.allclose(one, other) for other in others)


@pytest.mark.parametrize("likelihood", ["logit", "categorical", "gaussian, 2 outputs"])
def test_the_sampled_fisher_is_the_ggn_on_average(likelihood: str) -> None:
    """For a canonical link the expectation over labels is the GGN: 600 draws a row, within five standard errors."""
    entry, copies, fits = case("mlp", likelihood), 20, 30
    exact = copies * reference.full(entry, "ggn").diagonal()
    entry, generator = entry.rows(torch.arange(7).repeat(copies)), torch.Generator().manual_seed(0)
    draws = torch.stack(
        [
            fit(entry, "diagonal", "fisher", generator=generator, batch_size=140).precision.diagonal()
            for _ in range(fits)
        ]
    )
    error = draws.std(0) / fits**0.5
    assert ((draws.mean(0) - exact).abs() < 5 * error + 1e-12).all()
