"""Masks are drawn once a pass for all rows, as torch's own dropout draws them for one; all else stays in eval mode."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network import call, dropout, map_tensors, random_outputs, reading, switched_on, switches_of, tensors
from bayescope.network.dropout import dropout_masks
from tests.dropout.networks import CASES, ROWS, Folded, case, perceptron
from tests.network.networks import built, generator, numbers


def passes(module: nn.Module, x: Any, n: int, seed: int = 0, memory: int | None = None) -> Tensor:
    switched, off = switches_of(module, x)
    with reading(module), switched_on(switched):
        return random_outputs(module, x, n, generator(seed), off, memory)[0]


class OneByOne(nn.Module):
    """A network that looks at the numbers that it has computed, which no pass can do together with others."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        f = self.module(*inputs, **named)
        assert math.isfinite(float(next(tensors([f] if isinstance(f, Tensor) else list(f.values()))).sum()))
        return f


@pytest.mark.parametrize("name", CASES)
def test_a_pass_is_one_function_of_its_rows(name: str) -> None:
    module, x = case(name)
    whole = passes(module, x, 4)
    assert whole.shape[:2] == (4, ROWS)
    assert whole.dtype == torch.float64
    assert (whole.std(0) > 1e-6).any(), "nothing was dropped"
    for rows in (slice(2, 3), slice(1, 4)):
        some = passes(module, map_tensors(lambda t, rows=rows: t[rows], x), 4)
        torch.testing.assert_close(some, whole[:, rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_passes_at_once_are_passes_one_by_one(name: str) -> None:
    module, x = case(name)
    together = passes(module, x, 4)
    torch.testing.assert_close(passes(OneByOne(module), x, 4), together, rtol=1e-10, atol=1e-12)


def test_blocks_of_passes_and_rows_change_nothing() -> None:
    module, x = case("perceptron")
    whole = passes(module, x, 7)
    torch.testing.assert_close(passes(module, x, 7, memory=700), whole, rtol=1e-12, atol=1e-12)


def test_passes_repeat_by_seed_and_begin_alike() -> None:
    module, x = case("perceptron")
    first = passes(module, x, 6)
    assert torch.equal(first, passes(module, x, 6))
    assert not torch.equal(first, passes(module, x, 6, seed=1))
    torch.testing.assert_close(passes(module, x, 3), first[:3], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_left_as_it_was(name: str) -> None:
    module, x = case(name)
    module.train()
    before, modes = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    passes(module, x, 3)
    assert modes == [part.training for part in module.modules()]
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in before.items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_of_0_is_the_network_and_of_1_leaves_the_bias(rate: float) -> None:
    module, x = built(lambda: perceptron(rate)).eval(), numbers(ROWS, 3)
    f = passes(module, x, 3)
    with torch.no_grad():
        expected = module(x) if rate == 0 else module[-1].bias.expand(ROWS, 2)
    assert torch.equal(f, expected.expand(3, -1, -1))


def test_moments_of_a_linear_layer_are_the_closed_form() -> None:
    """f = Σ_d w_d x_d z_d/(1−r) + b has mean wᵀx + b and covariance r/(1−r) Σ_d x_d x′_d w_d²."""
    r, n = 0.3, 40_000
    module = built(lambda: nn.Sequential(nn.Dropout(r), nn.Linear(4, 1)))
    x = numbers(3, 4)
    weight, bias = module[1].weight.detach()[0], module[1].bias.detach()
    f = passes(module, x, n)[..., 0]
    covariance = r / (1 - r) * (x * weight.square()) @ x.mT
    sd = covariance.diagonal().sqrt()
    assert ((f.mean(0) - (x @ weight + bias)).abs() < 5 * sd / math.sqrt(n)).all()
    scale = sd[:, None] * sd
    assert ((torch.cov(f.mT) - covariance).abs() < 5 * math.sqrt(2 / n) * 1.5 * scale).all()


# Functions of (input, rate) and a row for them; on the right, the shape of the mask of one row.
FUNCTIONS: dict[str, tuple[Callable[[Tensor, float], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "dropout": (F.dropout, (4, 3), (1, 4, 3)),
    "torch.dropout": (lambda x, p: torch.dropout(x, p, train=True), (4, 3), (1, 4, 3)),
    "dropout1d": (F.dropout1d, (4, 3), (1, 4, 1)),
    "dropout2d": (F.dropout2d, (4, 3, 2), (1, 4, 1, 1)),
    "dropout3d": (F.dropout3d, (4, 3, 2, 2), (1, 4, 1, 1, 1)),
    "alpha": (lambda x, p: F.alpha_dropout(x, p, training=True), (4, 3), (1, 4, 3)),
    "feature alpha": (lambda x, p: F.feature_alpha_dropout(x, p, training=True), (4, 3), (1, 4, 1)),
    "in place": (lambda x, p: F.dropout(x * 1.0, p, inplace=True), (4, 3), (1, 4, 3)),
    "by keyword": (lambda x, p: F.dropout(input=x, training=True, p=p), (4, 3), (1, 4, 3)),
}


class Applied(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.unused = function, nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("rate", [0.25, 0.6])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_dropped_is_what_torch_drops(name: str, rate: float) -> None:
    function, shape, mask = FUNCTIONS[name]
    x, n = numbers(1, *shape), 4_000
    module = Applied(lambda x: function(x, rate))
    (site,) = dropout_masks(module, x)
    assert tuple(site.shape) == mask
    f = passes(module, x, n)[:, 0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = torch.stack([F.dropout(x, rate) if name == "by keyword" else function(x, rate) for _ in range(60)])[:, 0]
    ends = torch.stack([own.amin(0), own.amax(0)])  # kept and dropped, in some order
    common = [value for value in ends.flatten() if torch.isclose(ends, value).any(0).all()]
    dropped = common[0].expand_as(x[0])  # what all entries can become is what is dropped
    kept = ends.sum(0) - dropped
    is_kept = torch.isclose(f, kept.expand_as(f), rtol=1e-12)
    assert (is_kept | torch.isclose(f, dropped.expand_as(f), rtol=1e-12)).all()
    share = is_kept.double().mean(0)
    assert ((share - (1 - rate)).abs() < 5 * math.sqrt(rate * (1 - rate) / n)).all()
    flat = is_kept[:, *[slice(None) if size > 1 else slice(0, 1) for size in mask[1:]]]
    assert torch.equal(is_kept, flat.expand_as(is_kept)), "positions of a channel share a mask"
    units = flat.flatten(1).double()
    correlation = torch.corrcoef(units.mT) - torch.eye(units.shape[1])
    assert correlation.abs().max() < 5 / math.sqrt(n), "units are dropped independently"


class Spelled(nn.Module):
    """Tokens folded together with their rows, the row running fastest."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(7, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.embedding(x).transpose(0, 1).reshape(-1, 6), 0.4)
        return self.linear(hidden).reshape(x.shape[1], x.shape[0], 2).transpose(0, 1)


@pytest.mark.parametrize(
    "rows", [[[1, 2, 3], [4, 5, 6], [1, 2, 3]], [[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 3]]]
)
def test_tokens_that_begin_and_end_alike_take_their_masks_by_position(rows: list[list[int]]) -> None:
    module, x = built(Spelled), torch.tensor(rows)
    f = passes(module, x, 8)
    one_by_one = torch.cat([passes(module, x[k : k + 1], 8) for k in range(len(x))], 1)
    torch.testing.assert_close(f, one_by_one, rtol=1e-12, atol=1e-12)
    alike = bool((x == x[0]).all())
    assert (dropout_masks(module, x) is None) == alike, "rows that are all alike alone are read one by one"


def test_rows_that_are_mixed_before_dropout_are_refused() -> None:
    class Mixing(Folded):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + x.mean(0))

    with pytest.raises(UnsupportedError, match="rows that do not depend on each other"):
        passes(built(lambda: Mixing(inner=False)), numbers(ROWS, 4, 2), 2)


def test_positions_that_grow_with_the_rows_are_refused() -> None:
    for drop in (lambda x: F.dropout(x @ x.mT, 0.5), lambda x: F.dropout(x.flatten()[: len(x) + 1], 0.5)):
        with pytest.raises(UnsupportedError, match="grows with the rows along one axis"):
            passes(Applied(drop), numbers(ROWS, 3), 2)


def test_fewer_rows_at_once_than_one_take_their_masks_by_position() -> None:
    """The mask of a folded row is the same whether it is seen alone or among others: which position it is decides."""
    for inner in (False, True):
        module, x = built(lambda inner=inner: Folded(inner=inner)), numbers(ROWS, 4, 2)
        x[:] = x[:1]  # all rows alike: so are their answers
        f = passes(module, x, 6)
        torch.testing.assert_close(f, f[:, :1].expand_as(f), rtol=1e-12, atol=1e-12)


def test_a_network_that_counts_dropout_by_rows_is_refused() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(len(x)):
                x = F.dropout(x, 0.1)
            return x

    with pytest.raises(UnsupportedError, match="the same calls of dropout"):
        passes(Counting(), numbers(ROWS, 3), 2)


def test_sites_tell_shapes_and_rates() -> None:
    module, x = case("convolutional")
    with reading(module):
        sites = dropout_masks(module, x)
        assert call(module, x).shape == (ROWS, 3)
    assert [(tuple(site.shape), site.rate) for site in sites] == [
        ((1, 4, 1, 1), 0.3), ((1, 4, 1, 1), 0.2), ((1, 36), 0.3),
    ]  # fmt: skip
    scale, alpha = 1.0507009873554805, 1.6732632423543772  # of a self-normalising unit
    assert pytest.approx(-scale * alpha) == dropout.SATURATION
