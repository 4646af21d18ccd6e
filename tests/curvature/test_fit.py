"""The driver: passes, options, priors and what a result says of itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from bayescope.curvature import SUPPORTED, Curvature, fit_curvature
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.network import largest_magnitude, largest_variance
from bayescope.precision import BlockPrecision
from bayescope.priors import Prior
from tests.network.test_network import Largest

ROWS, FEATURES, CLASSES = 23, 4, 3
PAIRS = [(kind, structure) for kind, structures in SUPPORTED.items() for structure in structures]


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A module in float64, whose first weights are the same at every run."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make().double()


@pytest.fixture(scope="module")
def module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Linear(FEATURES, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, CLASSES)
        ).double()  # fmt: skip


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=generator)
    return x, torch.randint(CLASSES, (ROWS,), generator=generator)


def _fit(module: nn.Module, data: Any, structure: str, **options: Any) -> Curvature:
    if structure == "low_rank":
        options.setdefault("rank", 1000)
    options.setdefault("generator", 3)
    return fit_curvature(module, data, likelihood="categorical", structure=structure, **options)


def _close(one: Curvature, other: Curvature, tolerance: float = 1e-10) -> None:
    a, b = one.precision.to_dense(), other.precision.to_dense()
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(b.abs().max()))
    assert one.rows == other.rows
    torch.testing.assert_close(one.log_likelihood, other.log_likelihood)


# --- what the result does not depend on -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "structure"), PAIRS)
def test_batches_and_chunks_leave_the_result_as_it_is(
    module: nn.Module, data: tuple[Tensor, Tensor], kind: str, structure: str
) -> None:
    once = _fit(module, data, structure, curvature=kind, batch_size=ROWS)
    for batch_size, cotangents in [(5, None), (5, 1), (1, 3)]:
        _close(_fit(module, data, structure, curvature=kind, batch_size=batch_size, cotangents=cotangents), once)


@pytest.mark.parametrize(("kind", "structure"), [pair for pair in PAIRS if pair[0] != "fisher"])
def test_the_order_of_the_data_leaves_the_result_as_it_is(
    module: nn.Module, data: tuple[Tensor, Tensor], kind: str, structure: str
) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    reordered = (data[0][order], data[1][order])
    _close(
        _fit(module, reordered, structure, curvature=kind, batch_size=6), _fit(module, data, structure, curvature=kind)
    )


@pytest.mark.global_rng
@pytest.mark.parametrize("structure", ["kfac", "ekfac", "low_rank"])
def test_a_shuffling_loader_gives_its_rows_in_the_same_order_in_every_pass(
    module: nn.Module, data: tuple[Tensor, Tensor], structure: str
) -> None:
    loader = DataLoader(TensorDataset(*data), batch_size=4, shuffle=True)
    state = torch.get_rng_state()
    first = _fit(module, loader, structure, curvature="fisher")
    assert torch.equal(torch.get_rng_state(), state)
    _close(_fit(module, loader, structure, curvature="fisher"), first)


def test_the_generator_draws_the_labels(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    one, again, other = (_fit(module, data, "full", curvature="fisher", generator=seed) for seed in (1, 1, 2))
    assert torch.equal(one.precision.to_dense(), again.precision.to_dense())
    assert not torch.allclose(one.precision.to_dense(), other.precision.to_dense())


def test_the_fisher_is_the_ggn_in_expectation(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """The mean of 100 draws' diagonals within 4.5 standard errors: for a softmax expected and observed Λ are one."""
    draws = torch.stack(
        [_fit(module, data, "diagonal", curvature="fisher", generator=seed).precision.diagonal() for seed in range(100)]
    )
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - _fit(module, data, "diagonal").precision.diagonal()).abs() < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("structure", ["kfac", "diagonal"])
def test_a_last_layer_holds_no_root_of_the_hessian(structure: str) -> None:
    rows, classes = 40, 60
    network = _seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, classes)))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, FEATURES, dtype=torch.float64, generator=generator)
    labels = torch.arange(rows) % classes
    with Largest() as written:
        _fit(network, (x, labels), structure, weights="last_layer", batch_size=rows)
    assert written.numel < 2 * classes**2  # a root of all rows has about rows · classes² numbers


@pytest.mark.parametrize("structure", ["kfac", "diagonal"])
def test_a_last_layer_is_read_through_the_moments_of_the_hessian(
    module: nn.Module, data: tuple[Tensor, Tensor], structure: str
) -> None:
    head = _fit(module, data, structure, weights="last_layer", batch_size=10)
    assert head.network.head
    x, _ = data
    a = torch.cat([module[:3](x).detach(), torch.ones(ROWS, 1, dtype=torch.float64)], 1)
    p = module(x).detach().softmax(-1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    if structure == "kfac":
        expected = torch.kron(middle.sum(0), a.mT @ a) / ROWS
    else:
        expected = torch.diag(torch.einsum("ncc,nd->cd", middle, a.square()).flatten())
    order = head.network.indices[0]
    torch.testing.assert_close(head.precision.to_dense()[order][:, order], expected, rtol=1e-10, atol=1e-12)


def test_dense_outputs_have_an_observation_a_position(data: tuple[Tensor, Tensor]) -> None:
    """A network that treats tokens apart has the curvature of its tokens as rows, except that of one drawn gradient."""
    net = _seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    x, y = data[0][:20], data[1][:20]
    for kind in ("ggn", "empirical_fisher", "hessian"):
        tokens = _fit(net, (x.reshape(5, 4, FEATURES), y.reshape(5, 4)), "full", curvature=kind, batch_size=2)
        rows = _fit(net, (x, y), "full", curvature=kind)
        torch.testing.assert_close(tokens.precision.to_dense(), rows.precision.to_dense(), rtol=1e-9, atol=1e-12)
        assert (tokens.rows, rows.rows) == (5, 20)
        torch.testing.assert_close(tokens.log_likelihood, rows.log_likelihood)


def test_single_precision_networks_and_autocast_agree(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    truth = _fit(module, data, "kfac").precision.to_dense()
    single = copy.deepcopy(module).float()
    got = _fit(single, data, "kfac").precision.to_dense()
    torch.testing.assert_close(got, truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = _fit(single, data, "kfac").precision.to_dense()
    torch.testing.assert_close(half, truth, rtol=0.1, atol=2e-2 * float(truth.abs().max()))


@pytest.mark.parametrize(("kind", "structure"), [("ggn", "low_rank"), ("hessian", "full")])
def test_half_precision_suffices_for_every_kind(
    module: nn.Module, data: tuple[Tensor, Tensor], kind: str, structure: str
) -> None:
    single = copy.deepcopy(module).float()
    options = {"rank": 6} if structure == "low_rank" else {}
    truth = _fit(module, data, structure, curvature=kind, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = _fit(single, data, structure, curvature=kind, **options)
        covariance = half.network.latent_covariance(data[0], half.with_prior(60.0))
    expected, size = truth.precision.to_dense(), float(truth.precision.to_dense().abs().max())
    torch.testing.assert_close(half.precision.to_dense(), expected, rtol=0.1, atol=5e-2 * size)
    expected = truth.network.latent_covariance(data[0], truth.with_prior(60.0))
    torch.testing.assert_close(covariance, expected, rtol=0.1, atol=0.1 * float(expected.max()))


@pytest.mark.parametrize(("kind", "structure"), PAIRS)
def test_data_of_inference_mode_and_callers_in_it_are_taken(
    module: nn.Module, data: tuple[Tensor, Tensor], kind: str, structure: str
) -> None:
    with torch.inference_mode():
        inside = _fit(module, (data[0].clone(), data[1].clone()), structure, curvature=kind)
    _close(inside, _fit(module, data, structure, curvature=kind))
    prior = torch.tensor(100.0, dtype=torch.float64, requires_grad=True)
    inside.with_prior(prior).logdet().backward()
    assert prior.grad is not None


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "kfac", "curvature": "hessian"}, "Supported: 'ggn' with 'full'"),
        ({"structure": "kfac", "rank": 3}, "rank: expected with the structure 'low_rank', got 'kfac'"),
        ({"structure": "diagonal", "sharing": "reduce"}, "sharing: expected with the structure 'kfac' and 'ekfac'"),
        ({"structure": "kfac", "blocks": "tensor"}, "blocks: expected with the structure 'block'"),
        ({"structure": "low_rank"}, "expected either rank= or cutoff="),
        ({"structure": "low_rank", "rank": 2, "cutoff": 0.1}, "expected either rank= or cutoff="),
        ({"structure": "low_rank", "cutoff": 2.0}, "cutoff: expected a number strictly between 0 and 1"),
        ({"structure": "kfac", "cotangents": 0}, "cotangents: expected a whole number of at least 1"),
        ({"structure": "kfac", "sharing": "sum"}, "sharing: expected one of 'expand', 'reduce'"),
        ({"structure": "block", "blocks": "weight"}, "are the structure 'diagonal'"),
        ({"structure": "block", "blocks": "layers"}, "Did you mean 'layer'"),
        ({"structure": "block", "blocks": [["0.*"], ["2.*"]]}, "got '3.weight' in 0. Add a block"),
        ({"structure": "block", "blocks": [["*"], ["2.*"]]}, "got '2.weight' in 2. Take it out"),
        ({"structure": "block", "blocks": [["*"], ["7.*"]]}, r"blocks: expected one of .*got '7\.\*'"),
        ({"structure": "block", "blocks": ["0.weight"]}, "expected 'layer', 'tensor' or a list of lists"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(
    module: nn.Module, data: tuple[Tensor, Tensor], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((UnsupportedError, InputError, OptionError, TypeError), match=message):
        fit_curvature(module, data, likelihood="categorical", **options)


class _Passes(IterableDataset):
    """Batches that differ from pass to pass."""

    def __init__(self, passes: list[list[tuple[Tensor, Tensor]]]) -> None:
        self.passes = passes

    def __iter__(self) -> Any:
        return iter(self.passes.pop(0) if len(self.passes) > 1 else self.passes[0])


@pytest.mark.parametrize("change", ["fewer rows", "other rows"])
@pytest.mark.global_rng
def test_passes_that_differ_are_noticed(module: nn.Module, data: tuple[Tensor, Tensor], change: str) -> None:
    x, y = data
    later = [(x[:9], y[:9])] if change == "fewer rows" else [(x + 0.3, y)]
    first = [(x, y)]  # the search for weights and the trace look at it before it is read
    changing = _Passes([first, first, first, later])
    with pytest.raises(
        InputError, match=r"expected every pass to give the same rows, got 23 .* in the next\. Take out"
    ):
        _fit(module, DataLoader(changing, batch_size=None), "ekfac")


def test_outputs_that_are_not_finite_are_refused(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    x = data[0].clone()
    x[7] = torch.nan
    batches = [(x[:5], data[1][:5]), (x[5:], data[1][5:])]
    for given in ((x, data[1]), batches):
        with pytest.raises(InputError, match=r"expected a finite log likelihood, got nan\. .* first in row 7: check"):
            _fit(module, given, "full")
    x[0] = torch.inf  # among the rows of the trace
    with pytest.raises(InputError, match=r"NaN or infinite ones, as are the inputs, first in row 0 of the data"):
        _fit(module, (x, data[1]), "full")


@pytest.mark.parametrize("kind", ["ggn", "fisher", "empirical_fisher", "hessian"])
def test_labels_that_do_not_fit_are_shown_as_they_were_given(
    module: nn.Module, data: tuple[Tensor, Tensor], kind: str
) -> None:
    x, y = data
    with pytest.raises(InputError, match="or probabilities of the 3 classes that sum to 1"):
        fit_curvature(module, (x, 2 * torch.eye(3)[y]), likelihood="categorical", structure="full", curvature=kind)
    wrong = y.clone()
    wrong[17] = 9
    for given in ((x, wrong), [(x[:6], wrong[:6]), (x[6:12], wrong[6:12]), (x[12:], wrong[12:])]):
        with pytest.raises(InputError, match="got 9 in row 17"):
            fit_curvature(module, given, likelihood="categorical", structure="full", curvature=kind)


def test_rows_that_a_loader_drops_are_told_of(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    def loader(**options: Any) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*data), batch_size=10, generator=torch.Generator(), **options)

    with pytest.warns(BayescopeWarning, match="expected all 23 rows of the data set, got 20: the loader drops") as seen:
        _fit(module, loader(drop_last=True), "ekfac")
    assert len(seen) == 1
    assert seen[0].filename == __file__
    few = torch.utils.data.SubsetRandomSampler(range(20), generator=torch.Generator())
    for kept in (loader(), loader(drop_last=True, sampler=few)):  # nothing is dropped: any warning is an error here
        _fit(module, kept, "diagonal")


def test_outputs_that_look_like_probabilities_are_told_of(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    with pytest.warns(BayescopeWarning, match="expected logits .* Take the softmax off"):
        _fit(nn.Sequential(module, nn.Softmax(-1)), data, "kfac")
    _fit(nn.Sequential(module, nn.LogSoftmax(-1)), data, "kfac")


def test_inputs_that_the_network_cannot_take_are_named(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    with pytest.raises(InputError, match=r"run on inputs of shape \(23, 3\) and dtype float64: mat1") as caught:
        _fit(module, (x[:, :3], y), "kfac")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InputError, match=r"dtype int64: .*give X\.astype\(float\)"):
        _fit(module, (x.long().numpy(), y), "kfac")
    with pytest.raises(InputError, match=r"shape \(11, 2\)"):  # of a later batch
        _fit(module, [(x[:12], y[:12]), (x[12:, :2], y[12:])], "kfac")


# --- weights and groups -----------------------------------------------------------------------------------------------


def test_the_largest_variances_are_the_smallest_curvatures(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    everything = _fit(module, data, "diagonal").precision.diagonal()
    chosen = _fit(module, data, "full", weights=largest_variance(9))
    assert chosen.network.dim == 9
    expected = torch.zeros(len(everything), dtype=torch.bool)
    expected[everything.argsort()[:9]] = True
    full = _fit(module, data, "full").precision.to_dense()
    torch.testing.assert_close(chosen.precision.to_dense(), full[expected][:, expected])


def test_a_mask_may_be_an_array(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    mask = torch.arange(53) % 3 == 0
    as_tensor, as_array = (_fit(module, data, "full", weights=given) for given in (mask, mask.numpy()))
    assert torch.equal(as_array.precision.to_dense(), as_tensor.precision.to_dense())


@pytest.mark.parametrize("weights", ["last_layer", "*.weight", ["0.*", "3.bias"], largest_magnitude(12)])
def test_fewer_weights_are_a_part_of_the_full_matrix(
    module: nn.Module, data: tuple[Tensor, Tensor], weights: Any
) -> None:
    full = _fit(module, data, "full")
    chosen = _fit(module, data, "full", weights=weights)
    places = dict(zip(full.network.weights.names, full.network.weights.slices, strict=True))
    index = torch.cat(
        [
            torch.arange(places[name].start, places[name].stop)[chosen.network.weights.mask(name).flatten()]
            for name in chosen.network.weights.names
        ]
    )
    truth = full.precision.to_dense()[index][:, index]
    torch.testing.assert_close(chosen.precision.to_dense(), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("blocks", ["layer", "tensor", [["0.*", "3.bias"], ["2.*"], ["3.weight"]]])
def test_blocks_are_the_full_matrix_within_their_blocks(
    module: nn.Module, data: tuple[Tensor, Tensor], blocks: Any, kind: str
) -> None:
    full = _fit(module, data, "full", curvature=kind)
    got = _fit(module, data, "block", curvature=kind, blocks=blocks)
    truth, kept = full.precision.to_dense(), torch.zeros_like(full.precision.to_dense())
    names = list(full.network.weights.names)
    member = {
        "layer": lambda name: name.split(".")[0],
        "tensor": lambda name: name,
    }.get(blocks if isinstance(blocks, str) else "", lambda name: {"0": 0, "2": 1}.get(name[0], 2 * (name != "3.bias")))
    labels = torch.tensor([list(map(member, names)).index(member(name)) for name in names])
    labels = labels.repeat_interleave(torch.tensor(full.network.weights.counts))
    kept = torch.where(labels[:, None] == labels, truth, 0.0)
    torch.testing.assert_close(got.precision.to_dense(), kept, rtol=1e-9, atol=1e-11)


def test_parts_without_a_kronecker_product_fall_back_and_are_named(
    module: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    full = _fit(module, data, "full").precision.to_dense()
    norm = slice(25, 35)  # after 5 × 4 + 5 weights, a scale and a shift of 5 each
    for structure in ("kfac", "ekfac"):
        got = _fit(module, data, structure)
        assert got.fallbacks["2"].structure == "full"
        assert "full: elementwise weights" in got.summary()
        torch.testing.assert_close(got.precision.to_dense()[norm, norm], full[norm, norm])


def test_a_wide_part_without_a_kronecker_product_falls_back_to_its_diagonal(data: tuple[Tensor, Tensor]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers = nn.Linear(FEATURES, 300), nn.LayerNorm(300), nn.Tanh(), nn.Linear(300, CLASSES)
        wide = nn.Sequential(*layers).double()
    exact, norm = _fit(wide, data, "diagonal").precision.diagonal(), slice(300 * (FEATURES + 1), 300 * (FEATURES + 3))
    for structure in ("kfac", "ekfac"):
        got = _fit(wide, data, structure)
        assert got.fallbacks["1"].structure == "diagonal"
        assert isinstance(got.precision, BlockPrecision)
        torch.testing.assert_close(got.precision.blocks[1].to_dense(), torch.diag(exact[norm]))


# --- priors and summaries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["full", "block", "diagonal", "kfac", "ekfac", "low_rank"])
def test_a_prior_is_added_to_the_diagonal(module: nn.Module, data: tuple[Tensor, Tensor], structure: str) -> None:
    curvature = _fit(module, data, structure)
    bare = curvature.precision.to_dense()
    layers = {"0": 0.5, "2": 2.0, "3": torch.tensor(3.0)}
    by_part = torch.cat(
        [torch.full((count,), value, dtype=torch.float64) for count, value in ((25, 0.5), (10, 2.0), (18, 3.0))]
    )
    for prior, diagonal in [
        (0.7, torch.full((53,), 0.7, dtype=torch.float64)),
        (Prior(0.7), torch.full((53,), 0.7, dtype=torch.float64)),
        (layers, by_part),
        (by_part, by_part),
        (Prior(by_part), by_part),
    ]:
        posterior = curvature.with_prior(prior)
        torch.testing.assert_close(posterior.to_dense(), bare + torch.diag(diagonal), rtol=1e-9, atol=1e-9)
        assert torch.isfinite(posterior.logdet())
    torch.testing.assert_close(curvature.precision.to_dense(), bare)


@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac", "ekfac"])
def test_a_prior_that_is_learnt_stays_in_the_graph(
    module: nn.Module, data: tuple[Tensor, Tensor], structure: str
) -> None:
    curvature = _fit(module, data, structure)
    values = {name: torch.tensor(1.0, dtype=torch.float64, requires_grad=True) for name in ("0", "2", "3")}
    curvature.with_prior(values).logdet().backward()
    variance = curvature.with_prior(1.0).marginal_variance()
    for (name, value), index in zip(values.items(), curvature.network.indices, strict=True):
        assert value.grad is not None, name
        torch.testing.assert_close(value.grad, variance[index].sum(), rtol=1e-8, atol=1e-10)


def test_priors_that_do_not_fit_are_refused(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    curvature = _fit(module, data, "kfac")
    with pytest.raises(OptionError, match=r"prior_precision: expected one of .*'0', '2', '3', got '1'"):
        curvature.with_prior({"1": 1.0})
    with pytest.raises(InputError, match=r"expected a number for each random parameter, got none for \['2.weight'"):
        curvature.with_prior({"0": 1.0})
    with pytest.raises(InputError, match="expected positive numbers"):
        curvature.with_prior(-1.0)
    with pytest.raises(InputError, match=r"expected a number or shape \(53,\), got \(3,\)"):
        curvature.with_prior([1.0, 2.0, 3.0])
    for several in ([1.0, 2.0], torch.ones(1, 2)):
        with pytest.raises(InputError, match=r"prior_precision\['2'\]: expected one number"):
            curvature.with_prior({"0": 1.0, "2": several, "3": [1.0]})
    for truth in (True, {"0": True, "2": 1.0, "3": 1.0}):
        with pytest.raises(InputTypeError, match=r"expected a positive number, .*got True"):
            curvature.with_prior(truth)
    mixed = torch.linspace(1, 2, 53)
    with pytest.raises(UnsupportedError, match="'full', 'block', 'diagonal' and 'low_rank' take any diagonal"):
        curvature.with_prior(mixed).logdet()


def test_the_summary_says_what_was_done(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    curvature = _fit(module, data, "kfac")
    text = curvature.summary()
    assert text == repr(curvature)
    for piece in (
        "'ggn'",
        "'kfac'",
        "53 weights",
        "23 rows read in 1 pass, ",
        f"{float(curvature.log_likelihood):.4f}",
        "linear",
    ):
        assert piece in text
    truth = Categorical().log_prob(module(data[0]), data[1]).sum()
    torch.testing.assert_close(curvature.log_likelihood, truth.detach())


def test_noise_that_is_not_known_yet_is_refused(module: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="has not been learnt yet"):
        fit_curvature(module, (data[0], torch.zeros(ROWS, 3)), likelihood=Gaussian("evidence"), structure="full")
