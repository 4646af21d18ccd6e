"""Pairwise: a reward model read on both items, as sites with two positions, and a posterior over rewards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import bayescope as bs
from bayescope.curvature import fit_curvature
from bayescope.errors import InputError, InputTypeError, UndefinedQuantityError, UnsupportedError
from bayescope.layers import Pairwise
from bayescope.likelihoods import BradleyTerry


def dense_reward() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), (5,)


def image_reward() -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1), nn.Flatten(0))
    return layers, (1, 4, 4)


class Tokens(nn.Module):
    """Items of tokens with a mask, by name, whose answer has ``logits``."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 3), nn.Linear(3, 1, bias=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        mean = (self.embed(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return SimpleNamespace(logits=self.head(torch.tanh(mean)))


def filled(module: nn.Module) -> Pairwise:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.to(torch.float64).parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return Pairwise(module)


def build(name: str) -> tuple[Pairwise, Any, Tensor]:
    """The layer, 12 pairs and their labels."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (12,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        if name == "tokens":
            ids = torch.randint(7, (12, 2, 4), generator=generator)
            mask = torch.ones(12, 2, 4, dtype=torch.float64)
            mask[::2, 1, 2:] = 0
            return filled(Tokens()), {"ids": ids, "mask": mask}, y
        module, shape = dense_reward() if name == "dense" else image_reward()
    return filled(module), torch.randn(12, 2, *shape, dtype=torch.float64, generator=generator), y


def called(layer: Pairwise, inputs: Any) -> Tensor:
    return layer(**inputs) if isinstance(inputs, dict) else layer(inputs)


def item(inputs: Any, which: int) -> Any:
    return {k: v[:, which] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:, which]


def dense_ggn(layer: Pairwise, inputs: Any) -> Tensor:
    """Jᵀ Λ J with J from `torch.func` and Λ from the definition of the likelihood."""
    named = dict(layer.named_parameters())
    sizes = [value.numel() for value in named.values()]

    def f(theta: Tensor) -> Tensor:
        parts = dict(zip(named, theta.split(sizes), strict=True))
        values = {name: parts[name].reshape(value.shape) for name, value in named.items()}
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
        return functional_call(layer, values, args, kwargs)

    theta = torch.cat([value.detach().reshape(-1) for value in named.values()])
    J, rewards = jacrev(f)(theta).detach(), f(theta).detach()
    p = torch.sigmoid(rewards[:, 1] - rewards[:, 0])
    contrast = J[:, 1] - J[:, 0]
    return contrast.mT @ ((p * (1 - p))[:, None] * contrast)


everywhere = pytest.mark.parametrize("name", ["dense", "image", "tokens"])


@everywhere
def test_rewards_are_those_of_each_item_by_itself(name: str) -> None:
    layer, inputs, _ = build(name)
    f = called(layer, inputs)
    assert f.shape == (12, 2)
    for which in range(2):
        one = item(inputs, which)
        alone = layer.reward(**one) if isinstance(one, dict) else layer.reward(one)
        alone = alone if isinstance(alone, Tensor) else alone.logits
        torch.testing.assert_close(f[:, which], alone.reshape(12), rtol=1e-12, atol=1e-14)


@everywhere
@pytest.mark.parametrize("structure", ["full", "diagonal", "ekfac", "kfac"])
def test_its_curvature_is_the_dense_one(name: str, structure: str) -> None:
    layer, inputs, y = build(name)
    data = torch.utils.data.DataLoader(Pairs(inputs, y), batch_size=5) if isinstance(inputs, dict) else (inputs, y)
    curvature = fit_curvature(layer, data, likelihood="bradley_terry", structure=structure)
    truth = dense_ggn(layer, inputs)
    got = curvature.precision.to_dense()
    assert all(part.reason is None for part in curvature.network.parts)  # read as layers, not row by row
    if structure == "full":
        torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-12)
    elif structure == "diagonal":
        torch.testing.assert_close(got.diagonal(), truth.diagonal(), rtol=1e-9, atol=1e-12)
    elif structure == "ekfac":
        assert got.trace().item() == pytest.approx(truth.trace().item(), rel=1e-9)
    else:
        assert torch.linalg.eigvalsh(got).min() > -1e-10


class Pairs(torch.utils.data.Dataset[Any]):
    """Rows of named inputs beside their labels."""

    def __init__(self, inputs: dict[str, Tensor], y: Tensor) -> None:
        self.inputs, self.y = inputs, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return {name: value[row] for name, value in self.inputs.items()}, self.y[row]


def test_the_rewards_shared_part_is_not_determined() -> None:
    """A constant added to every reward changes no preference: the bias of the last layer has no curvature."""
    layer, inputs, y = build("dense")
    curvature = fit_curvature(layer, (inputs, y), likelihood=BradleyTerry(), structure="full")
    assert curvature.precision.to_dense()[-1].abs().max() < 1e-12


def test_inputs_that_are_no_pairs_are_refused() -> None:
    layer, inputs, _ = build("dense")
    with pytest.raises(InputError, match=r"inputs: expected tensors of one shape \(N, 2, …\) .* got \[\(12,\)\]"):
        layer(torch.zeros(12))
    for shape in ((12, 5), (12, 3, 5)):  # single items, and more than two
        with pytest.raises(InputError, match=rf"\(N, 2, …\) .* got \[\({', '.join(map(str, shape))}\)\]"):
            layer(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(InputError, match=r"got \[\(12, 2, 5\), \(12, 3\)\]"):
        layer(inputs, torch.zeros(12, 3))
    with pytest.raises(InputError, match=r"reward: expected one number for each of 24 items, .* got \(24, 4\)"):
        Pairwise(layer.reward[0])(inputs)


def items_of(inputs: Any, rows: slice) -> Any:
    """The second items of some pairs."""
    return {k: v[rows, 1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[rows, 1]


unsettled = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained to its mode


def fitted(name: str, structure: str = "kfac") -> tuple[Any, Any]:
    layer, inputs, y = build(name)
    data = torch.utils.data.DataLoader(Pairs(inputs, y), batch_size=5) if isinstance(inputs, dict) else (inputs, y)
    return bs.laplace(layer, data, likelihood="bradley_terry", prior_precision=2.0, structure=structure), inputs


@unsettled
@everywhere
def test_rewards_of_single_items_are_jointly_those_of_pairs(name: str) -> None:
    q, inputs = fitted(name)
    rewards = bs.item_rewards(q)
    items, pairs = rewards.joint_latent(items_of(inputs, slice(0, 7))), q.joint_latent(inputs)
    torch.testing.assert_close(items.mean[:, 0], pairs.mean[:7, 1])
    torch.testing.assert_close(items.covariance, pairs.covariance[1:14:2, 1:14:2])
    one, pair = (
        r.sample_functions(x, 3, generator=0) for r, x in ((rewards, items_of(inputs, slice(0, 7))), (q, inputs))
    )
    torch.testing.assert_close(one[..., 0], pair[:, :7, 1])
    assert "the rewards of single items" in rewards.summary()
    assert "the rewards" not in q.summary()


@unsettled
def test_rewards_have_gradients_and_files(tmp_path: Any) -> None:
    q, inputs = fitted("dense", "full")
    rewards, items = bs.item_rewards(q), inputs[:4, 0]
    leaf = items.clone().requires_grad_()
    c = rewards.joint_latent(leaf, differentiable=True).covariance
    contrast = c[1, 1] + c[2, 2] - 2 * c[1, 2]
    (slope,) = torch.autograd.grad(contrast, leaf)
    way = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    up, down = (rewards.joint_latent(items + s * way).covariance for s in (1e-5, -1e-5))
    apart = [e[1, 1] + e[2, 2] - 2 * e[1, 2] for e in (up, down)]
    torch.testing.assert_close((slope * way).sum(), (apart[0] - apart[1]) / 2e-5, rtol=1e-6, atol=1e-9)
    again = bs.load(rewards.save(tmp_path / "rewards.bayes"))
    torch.testing.assert_close(again.joint_latent(items), rewards.joint_latent(items))


@unsettled
def test_rewards_are_of_every_form_over_weights() -> None:
    q, inputs = fitted("dense")
    items = inputs[:4, 0]
    layer, data = q.model, (inputs, build("dense")[2])
    mixture = bs.laplace([layer, build("dense")[0]], data, likelihood="bradley_terry", prior_precision=2.0)
    draws = bs.laplace(layer, data, likelihood="bradley_terry", prior_precision=2.0, structure="samples", samples=8)
    for each in (mixture, draws):
        found, pairs = bs.item_rewards(each).joint_latent(items), each.joint_latent(inputs[:4])
        torch.testing.assert_close(found.mean[:, 0], pairs.mean[:, 0])
        torch.testing.assert_close(found.covariance, pairs.covariance[::2, ::2])


@unsettled
def test_rewards_are_refused_where_there_are_none() -> None:
    q, inputs = fitted("dense")
    rewards = bs.item_rewards(q)
    with pytest.raises(UndefinedQuantityError, match=r"predict: .* has no likelihood .* Ask for joint_latent"):
        rewards.predict(inputs[:4, 0])
    with pytest.raises(UndefinedQuantityError, match="condition"):
        rewards.condition((inputs[:, 0], torch.zeros(12)))
    with pytest.raises(InputTypeError, match=r"expected the posterior of a bs\.layers\.Pairwise, got one of a Rewards"):
        bs.item_rewards(rewards)
    with pytest.raises(InputTypeError, match=r"expected the posterior of a bs\.layers\.Pairwise, got Pairwise"):
        bs.item_rewards(q.model)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"got one by mc_dropout, which draws functions of pairs"):
        bs.item_rewards(bs.mc_dropout(q.model, likelihood="bradley_terry", rate=0.1))
