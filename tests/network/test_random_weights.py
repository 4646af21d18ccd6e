"""A network with Gaussian weights, whoever holds them: each row's outputs are those of drawn weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayescope.errors import OptionError, UnsupportedError
from bayescope.layers import Pairwise
from bayescope.network import RandomWeights, passes_at
from bayescope.private_draws import RandomSource
from bayescope.reparameterization import ESTIMATORS, GaussianTensor
from tests.network.networks import Function, built, call, generator, numbers
from tests.network.test_draws import NETWORKS as DRAWN
from tests.test_reparameterization import assert_standard

pytestmark = pytest.mark.global_rng  # weights are drawn from torch's present state, as in layers


def passes(
    module: nn.Module, gaussians: Mapping[str, GaussianTensor], inputs: Any, *, estimator: str, samples: int = 1
) -> Tensor:
    """`RandomWeights.passes` for a network that is run once: where its weights are used is found out each time."""
    found = RandomWeights.of(module, gaussians, inputs)
    return found.passes(gaussians, inputs, estimator=estimator, samples=samples)


class Tied(nn.Module):
    """Tokens in and out through one table, over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.mix(self.table(tokens))), self.table.weight)


class SequenceFirst(nn.Module):
    """Positions on the first axis, rows on the second, and as many of both."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(x.transpose(0, 1)))
        return self.head(hidden.prod(0))


class Flattened(nn.Module):
    """Rows and positions on one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(x.flatten(0, 1))).reshape(*x.shape[:2], 3)
        return self.head(hidden.prod(1))


class Shared(nn.Module):
    """One layer that is run twice, and a bias of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
        self.head.bias = self.twice.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


# For each network its inputs, and which of its weights are drawn by the calls that they are used in.
ALL = ("*",)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, tuple[str, ...]]] = {
    "mlp": (*DRAWN["mlp"], ALL),
    "lstm": (*DRAWN["lstm"], ("head.weight", "head.bias")),
    "encoder": (
        DRAWN["encoder"][0],
        {"tokens": torch.randint(11, (3, 4), generator=generator(0))},
        ("table.weight", "mix.linear1.*", "mix.linear2.*", "head.*"),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2, stride=2, groups=2, padding=1, padding_mode="reflect"), nn.Tanh(),
            nn.ConvTranspose2d(4, 2, 2, stride=2, groups=2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 2),
        ),
        numbers(3, 2, 3, 3),
        ("0.*", "2.*", "5.*"),
    ),
    "tied": (Tied, torch.tensor([[0, 3, 3], [2, 1, 0], [4, 4, 4]]), ("mix.*",)),
    "sequence first": (SequenceFirst, numbers(3, 3, 2), ALL),
    "flattened": (Flattened, numbers(3, 4, 2), ("head.*",)),
    "shared": (Shared, numbers(3, 3), ("head.weight",)),
    "pairs": (lambda: Pairwise(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))), numbers(4, 2, 3), ()),
    "bare": (lambda: Function(lambda m, x: torch.tanh(x @ m.w.T) + m.b, w=(2, 3), b=(2,)), numbers(3, 3), ()),
    "by value": (*DRAWN["by value"], ()),
    "two inputs": (*DRAWN["two inputs"], ()),
    "writes over its input": (*DRAWN["writes over its input"], ()),
}  # fmt: skip


def gaussians_of(module: nn.Module, sd: float = 0.4) -> dict[str, GaussianTensor]:
    spread = generator(8)
    return {
        name: GaussianTensor(p.detach().clone(), sd * torch.rand(p.shape, generator=spread, dtype=p.dtype))
        for name, p in module.named_parameters()
    }


def made(name: str) -> tuple[nn.Module, Any, dict[str, GaussianTensor]]:
    make, x, _ = NETWORKS[name]
    module = built(make).eval()
    return module, copy.deepcopy(x), gaussians_of(module)


def at_weights(module: nn.Module, values: dict[str, Tensor], x: Any) -> Tensor:
    """f with weights written into a copy."""
    one = copy.deepcopy(module)
    with torch.no_grad():
        for name, value in values.items():
            one.get_parameter(name).copy_(value)
        return call(one, copy.deepcopy(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_uses_are_the_calls_that_take_a_weight_once(name: str) -> None:
    module, x, gaussians = made(name)
    patterns = NETWORKS[name][2]
    uses = RandomWeights.of(module, tuple(gaussians), x).uses
    expected = {n for n in gaussians for p in patterns if n == p or (p.endswith("*") and n.startswith(p[:-1]))}
    assert uses.keys() == expected
    assert {use.axis for use in uses.values()} <= ({0, 1} if name == "sequence first" else {0})


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", NETWORKS)
def test_without_spread_it_is_the_network_at_the_means(name: str, estimator: str) -> None:
    module, x, gaussians = made(name)
    means = {n: g.mean + 0.1 for n, g in gaussians.items()}
    fixed = {n: GaussianTensor(mean, torch.zeros_like(mean)) for n, mean in means.items()}
    want = at_weights(module, means, x)
    for samples in (1, 3):
        got = passes(module, fixed, copy.deepcopy(x), estimator=estimator, samples=samples)
        torch.testing.assert_close(got, want.expand(samples, *want.shape), rtol=1e-12, atol=1e-12)


def repeated(function: Callable[[int], Tensor], draws: int, together: int) -> Tensor:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(11)
        return torch.cat([function(together) for _ in range(draws // together)])


def draws_of(name: str) -> int:
    return 200 if name in ("by value", "lstm") else 3000  # those go one by one


@functools.cache
def drawn(name: str) -> Tensor:
    """f at drawn weights."""
    module, x, gaussians = made(name)
    with torch.no_grad():
        return repeated(
            lambda s: passes_at(module, {n: g.draws(s) for n, g in gaussians.items()}, x), 3 * draws_of(name), 200
        )


@pytest.mark.parametrize("estimator", ["local_reparameterization", "flipout", "reparameterization"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_row_has_the_distribution_of_drawn_weights(name: str, estimator: str) -> None:
    module, x, gaussians = made(name)
    random = RandomWeights.of(module, tuple(gaussians), x)
    one = lambda s: random.passes(gaussians, copy.deepcopy(x), estimator=estimator, samples=s)  # noqa: E731
    with torch.no_grad():
        got = repeated(one, draws_of(name), 200)
    want = drawn(name)
    seen, known = (f.flatten(2) for f in (got, want))  # (S, N, positions and outputs)
    directions = numbers(seen.shape[2], 4, seed=31)  # their sums tell of correlations within a row
    seen, known = torch.cat([seen, seen @ directions], 2), torch.cat([known, known @ directions], 2)
    centre = known.mean(0)
    z = []
    for power in (1, 2):
        a, b = (seen - centre) ** power, (known - centre) ** power
        z.append((a.mean(0) - b.mean(0)) / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt())
    assert_standard(torch.stack(z))


@pytest.mark.parametrize("name", ["mlp", "convolutions", "encoder", "tied", "sequence first"])
def test_draws_go_through_together_where_torch_can(name: str) -> None:
    module, x, gaussians = made(name)
    random, calls = RandomWeights.of(module, tuple(gaussians), x), []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    for estimator in ESTIMATORS:
        assert len(random.passes(gaussians, x, estimator=estimator, samples=5)) == 5
    assert len(calls) == len(ESTIMATORS)


def test_what_torch_cannot_pass_together_is_tried_once_and_leaves_no_trace() -> None:
    """Batch norm in training counts the passes that are run, draws are those of a loop; in eval mode all is well."""
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    x, gaussians, calls = numbers(6, 3), gaussians_of(module), []
    alone, random = copy.deepcopy(module), RandomWeights.of(module, tuple(gaussians), x)
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    values = {name: gaussian.draws(3) for name, gaussian in gaussians.items()}
    with RandomSource(0).inside():
        first = passes_at(module, values, x)
        random.passes(gaussians, x, estimator="flipout", samples=3)
        passes_at(module, values, x)
    assert int(module[2].num_batches_tracked) == 9
    assert len(calls) == 10
    with RandomSource(0).inside():  # one pass after another, from the same random state
        each = [passes_at(alone, {n: v[s : s + 1] for n, v in values.items()}, x)[0] for s in range(3)]
    torch.testing.assert_close(first, torch.stack(each))
    calls.clear()
    assert len(passes_at(module.eval(), values, x)) == 3
    assert len(calls) == 1
    assert int(module[2].num_batches_tracked) == 9


@pytest.mark.parametrize("name", NETWORKS)
def test_samples_differ(name: str) -> None:
    module, x, gaussians = made(name)
    for estimator in ESTIMATORS:
        f = passes(module, gaussians, copy.deepcopy(x), estimator=estimator, samples=3)
        assert not torch.equal(f[0], f[1])
        assert not torch.equal(f[1], f[2])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", ["mlp", "encoder", "convolutions", "tied", "shared"])
def test_gradients_are_those_of_drawn_weights_on_average(name: str, samples: int) -> None:
    draws = 500
    module, x, gaussians = made(name)
    random = RandomWeights.of(module, tuple(gaussians), x)
    leaves = {n: (g.mean, g.sd) for n, g in gaussians.items()}

    def gradient(estimator: str) -> Tensor:
        def loss(values: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
            moved = {n: GaussianTensor(*pair) for n, pair in values.items()}
            return random.passes(moved, x, estimator=estimator, samples=samples).square().mean()

        found = [g for pair in torch.func.grad(loss)(leaves).values() for g in pair]
        # A few numbers that all entries take part in.
        return torch.stack([g.sum() for g in found] + [(g * numbers(*g.shape, seed=3)).sum() for g in found])

    def gradients(estimator: str, n: int) -> Tensor:
        repeat = torch.func.vmap(lambda _: gradient(estimator), randomness="different")
        return repeated(lambda s: repeat(torch.empty(s)), n, 500)

    by_row, drawn = gradients("local_reparameterization", draws), gradients("reparameterization", 2 * draws)
    error = (by_row.var(0) / draws + drawn.var(0) / (2 * draws)).sqrt()
    free = error > 1e-10  # the bias of attention's keys has no effect
    assert_standard(((by_row.mean(0) - drawn.mean(0)) / error)[free])


def test_what_is_not_random_keeps_its_value_and_its_graph() -> None:
    module = built(DRAWN["mlp"][0])
    x = DRAWN["mlp"][1]
    weight = module.get_parameter("0.weight")
    spread = GaussianTensor(weight, torch.full_like(weight, 0.1).requires_grad_())
    for estimator in ESTIMATORS:
        f = passes(module, {"0.weight": spread}, x, estimator=estimator)
        module.zero_grad()
        f.square().sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())
        assert spread.sd.grad is not None


def test_the_first_look_leaves_no_trace() -> None:
    module, x, gaussians = made("convolutions")
    module.train()
    module.get_parameter("0.bias").requires_grad_(False)
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    RandomWeights.of(module, tuple(gaussians), x)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())
    assert [n for n, p in module.named_parameters() if not p.requires_grad] == ["0.bias"]
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class OnceMoreInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + self.layer.weight.sum() if self.training and x.shape[1] == 3 else y


class TwiceInTraining(OnceMoreInTraining):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.layer(y) if self.training else y


@pytest.mark.parametrize("make", [OnceMoreInTraining, TwiceInTraining])
def test_another_use_than_the_first_look_saw_is_refused(make: Callable[[], nn.Module]) -> None:
    module = built(make).train()
    gaussians = gaussians_of(module)
    random = RandomWeights.of(module, tuple(gaussians), numbers(4, 3))
    with pytest.raises(UnsupportedError, match="used again"):
        random.passes(gaussians, numbers(4, 3), estimator="flipout")
    f = random.passes(gaussians, numbers(4, 3), estimator="reparameterization")
    assert f.shape == (1, 4, 3)


def test_a_shape_may_be_asked_for() -> None:
    module = built(lambda: Function(lambda m, x: F.linear(x, m.w) * m.w.shape[0] / m.w.dtype.itemsize, w=(2, 3)))
    gaussians = {"w": GaussianTensor(module.get_parameter("w"), torch.zeros(2, 3, dtype=torch.float64))}
    x = numbers(4, 3)
    f = passes(module, gaussians, x, estimator="local_reparameterization")[0]
    torch.testing.assert_close(f, x @ module.get_parameter("w").T / 4)


def test_rows_that_were_alone_on_their_axis_need_not_stay_so() -> None:
    module = built(lambda: Function(lambda m, x: F.linear(x.flatten(0, 1), m.w).reshape(*x.shape[:2], 2), w=(2, 3)))
    gaussians, x = gaussians_of(module), numbers(4, 1, 3).expand(4, 5, 3)  # five positions that are alike
    random = RandomWeights.of(module, ("w",), x[:, :1])
    for estimator in ("local_reparameterization", "flipout"):
        f = random.passes(gaussians, x, estimator=estimator)[0]
        torch.testing.assert_close(f, f[:, :1].expand(4, 5, 2))


def test_an_unknown_estimator_is_refused() -> None:
    module, x, gaussians = made("mlp")
    with pytest.raises(OptionError, match="local_reparam"):
        passes(module, gaussians, x, estimator="local")


class Drawn(TorchFunctionMode):
    """Notes the shapes of the normal numbers that are drawn inside."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.randn, torch.randn_like):
            self.shapes.append(tuple(result.shape))
        return result


def test_local_reparameterization_spares_the_noise_of_weights() -> None:
    module, x, gaussians = made("mlp")
    random = RandomWeights.of(module, tuple(gaussians), x)
    with Drawn() as drawn:
        random.passes(gaussians, x, estimator="local_reparameterization")
    assert drawn.shapes == [(7, 5), (7, 2)]


def test_embeddings_draw_for_the_tokens_that_are_there() -> None:
    module = built(lambda: nn.Embedding(1000, 2))
    gaussians = gaussians_of(module)
    with Drawn() as drawn:
        f = passes(module, gaussians, torch.tensor([[3, 4, 3], [3, 3, 3]]), estimator="flipout")[0]
    assert drawn.shapes == [(2, 2)]
    offset = (f - gaussians["weight"].mean[torch.tensor([[3, 4, 3], [3, 3, 3]])]).detach()
    assert torch.equal(offset[0, 0], offset[0, 2])
    assert torch.equal(offset[1, 0], offset[1, 1])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("samples", [1, 4])
def test_at_given_weights_it_is_the_network_there(name: str, samples: int) -> None:
    module, x, gaussians = made(name)
    values = {n: g.draws(samples).requires_grad_() for n, g in gaussians.items()}
    f = passes_at(module, values, copy.deepcopy(x))
    for s in range(samples):
        torch.testing.assert_close(f[s], at_weights(module, {n: v[s] for n, v in values.items()}, x))
    sums = f.flatten(1).sum(1)
    gradients = torch.autograd.grad(sums[-1], list(values.values()), allow_unused=True)
    assert all(g is None or samples == 1 or not g[0].any() for g in gradients)
    assert any(g is not None and g[-1].any() for g in gradients)


def test_gradients_at_given_weights_are_the_networks_own() -> None:
    module, x, gaussians = made("mlp")
    values = {n: g.draws(3).requires_grad_() for n, g in gaussians.items()}
    passes_at(module, values, x).square().sum().backward()
    for s in range(3):
        one = {n: v.detach()[s].clone().requires_grad_() for n, v in values.items()}
        torch.func.functional_call(module, one, (x,)).square().sum().backward()
        for n, value in values.items():
            torch.testing.assert_close(value.grad[s], one[n].grad)
