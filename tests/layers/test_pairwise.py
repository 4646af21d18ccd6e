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
from bayescope.errors import InputError
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


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained to its mode
def test_single_items_are_scored_and_their_difference_to_a_reference_is_uncertain() -> None:
    """Beside what is documented for q.model.reward and q.predict: both moments from draws of the functions."""
    layer, inputs, y = build("dense")
    q = bs.laplace(layer, (inputs, y), likelihood="bradley_terry", prior_precision=2.0, structure="full")
    items, reference = inputs[:4, 0], inputs[5:6, 1].expand(4, -1)
    rewards = q.model.reward(items).detach()
    torch.testing.assert_close(rewards, layer.reward(items).detach())
    pairs = torch.stack([reference, items], 1)
    p = q.predict(pairs)
    torch.testing.assert_close(p.latent_mean[:, 1:], rewards)
    c = p.latent_cov
    variance = c[:, 0, 0] + c[:, 1, 1] - 2 * c[:, 0, 1]
    draws = q.sample_functions(pairs, 4000, generator=0)
    torch.testing.assert_close(variance, (draws[..., 1] - draws[..., 0]).var(0), rtol=0.1, atol=0.0)
