"""Variational layers: drawn in every pass, with the KL of their weights, and plain layers again at their means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayescope as bs
from bayescope import BayesianLogisticRegression
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.layers import (
    Conv1dVariational,
    Conv2dVariational,
    Conv3dVariational,
    EmbeddingVariational,
    LinearVariational,
    deterministic,
    kl,
)
from bayescope.reparameterization import gaussian_kl
from tests.network.networks import built, numbers
from tests.test_reparameterization import assert_standard

pytestmark = pytest.mark.global_rng  # layers start and draw from torch's present state

# A plain layer, the variational one of it, and inputs.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Any, Tensor]] = {
    "linear": (lambda: nn.Linear(3, 2), LinearVariational, numbers(4, 3)),
    "linear without bias": (lambda: nn.Linear(3, 2, bias=False), LinearVariational, numbers(4, 5, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), Conv1dVariational, numbers(4, 2, 7)),
    "conv2d": (
        lambda: nn.Conv2d(2, 3, (3, 2), padding=(1, 0), padding_mode="circular"),
        Conv2dVariational,
        numbers(4, 2, 5, 5),
    ),
    "conv2d, same": (
        lambda: nn.Conv2d(2, 3, 2, dilation=2, padding="same", padding_mode="reflect"),
        Conv2dVariational,
        numbers(4, 2, 5, 5),
    ),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, bias=False), Conv3dVariational, numbers(2, 1, 3, 3, 3)),
    "embedding": (
        lambda: nn.Embedding(5, 3, padding_idx=-1),
        EmbeddingVariational,
        torch.tensor([[0, 4, 4], [1, 2, 2]]),
    ),
}


def pair(name: str, **options: Any) -> tuple[nn.Module, Any, Tensor]:
    make, kind, x = LAYERS[name]
    plain = built(make)
    return plain, kind.of(plain, **options), x


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_plain_layer_where_sds_vanish(name: str) -> None:
    plain, layer, x = pair(name, initial_sd=1e-12)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer(x[0]), plain(x[0]), rtol=1e-9, atol=1e-9)
    for estimator in ("flipout", "reparameterization"):
        torch.testing.assert_close(pair(name, initial_sd=1e-12, estimator=estimator)[1](x), plain(x))


@pytest.mark.parametrize("name", LAYERS)
def test_there_and_back(name: str) -> None:
    plain, layer, x = pair(name, initial_sd=0.3)
    back = layer.deterministic()
    assert type(back) is type(plain)
    assert repr(back) == repr(plain)
    torch.testing.assert_close(back(x), plain(x), rtol=0, atol=0)
    assert all(torch.equal(value, back.state_dict()[key]) for key, value in plain.state_dict().items())
    assert back.weight.data_ptr() != layer.weight_mean.data_ptr() != plain.weight.data_ptr()
    sds = layer.deviations()
    assert sds.keys() == dict(plain.named_parameters()).keys()
    fixed = sds["weight"] == 0
    assert fixed.any() == (name == "embedding")
    torch.testing.assert_close(sds["weight"][~fixed], torch.full_like(sds["weight"], 0.3)[~fixed])


@pytest.mark.parametrize("name", LAYERS)
def test_it_draws_in_training_and_in_eval_mode(name: str) -> None:
    plain, layer, x = pair(name, initial_sd=0.3)
    for mode in (True, False):
        layer.train(mode)
        with torch.random.fork_rng():
            torch.random.default_generator.manual_seed(3)
            first, second = layer(x), layer(x)
            torch.random.default_generator.manual_seed(3)
            assert torch.equal(layer(x), first)
        assert not torch.equal(first, second)
        draws = torch.func.vmap(lambda _: layer(x), randomness="different")(torch.empty(4000)).detach()
        free = draws.std(0) > 1e-9
        assert_standard(((draws.mean(0) - plain(x).detach()) / draws.std(0) * 4000**0.5)[free])


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_and_their_gradients(name: str) -> None:
    plain, layer, x = pair(name, prior_precision=2.0)
    has_bias = getattr(plain, "bias", None) is not None
    expected = {"weight_mean", "weight_rho"} | ({"bias_mean", "bias_rho"} if has_bias else set())
    assert {n for n, _ in layer.named_parameters()} == expected
    (layer(x).square().sum() + layer.kl()).backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    if name == "embedding":
        assert not layer.weight_rho.grad[-1].any()
        assert torch.equal(layer.weight_rho[-1].detach(), torch.full((3,), -torch.inf, dtype=torch.float64))


def test_kl_is_that_of_the_weights_and_is_summed_over_layers() -> None:
    _, layer, _ = pair("linear", prior_precision=2.0, initial_sd=0.3)
    with torch.no_grad():
        layer.weight_rho.copy_(numbers(2, 3))
    want = gaussian_kl(layer.weight_mean, F.softplus(layer.weight_rho), 2.0)
    want = want + gaussian_kl(layer.bias_mean, F.softplus(layer.bias_rho), 2.0)
    torch.testing.assert_close(layer.kl(), want, rtol=1e-14, atol=0)
    torch.testing.assert_close(kl(layer), want, rtol=1e-14, atol=0)
    _, other, _ = pair("conv2d")
    network = nn.Sequential(layer, nn.ReLU(), nn.ModuleList([other, layer]))  # one of them in two places
    torch.testing.assert_close(kl(network), want + other.kl(), rtol=1e-14, atol=0)
    assert kl(nn.Linear(2, 2)) == 0.0
    assert kl(nn.Linear(2, 2)).dtype == torch.float64


def test_the_network_of_plain_layers_has_the_sds_by_name() -> None:
    _, layer, x = pair("linear", initial_sd=0.3)
    _, table, _ = pair("embedding", initial_sd=0.2)
    network = nn.ModuleDict({"a": layer, "again": layer, "body": nn.Sequential(nn.Linear(2, 2), table)})
    network.eval()
    before = copy.deepcopy(network.state_dict())
    plain, sds = deterministic(network)
    assert set(sds) == {"a.weight", "a.bias", "body.1.weight"}
    assert plain["a"] is plain["again"]
    assert type(plain["a"]) is nn.Linear
    assert not plain["a"].training
    assert plain["body"][0] is not network["body"][0]
    torch.testing.assert_close(sds["a.bias"], torch.full((2,), 0.3, dtype=torch.float64))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    single, sds = deterministic(layer)
    assert set(sds) == {"weight", "bias"}
    assert torch.equal(single(x), F.linear(x, layer.weight_mean, layer.bias_mean))
    assert deterministic(nn.ReLU())[1] == {}


def test_new_layers_start_as_plain_ones_and_conversion_draws_nothing() -> None:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(4)
        layer = LinearVariational(3, 2, dtype=torch.float64)
        torch.random.default_generator.manual_seed(4)
        plain = nn.Linear(3, 2, dtype=torch.float64)
    assert torch.equal(layer.weight_mean, plain.weight)
    assert torch.equal(layer.bias_mean, plain.bias)
    state = torch.get_rng_state()
    for name in LAYERS:
        make, kind, _ = LAYERS[name]
        kind.of(built(make))
    assert torch.equal(torch.get_rng_state(), state)
    frozen = built(lambda: nn.Linear(3, 2)).requires_grad_(False)
    assert not any(p.requires_grad for p in LinearVariational.of(frozen).parameters())
    assert not any(p.requires_grad for p in LinearVariational.of(frozen).deterministic().parameters())


def test_copies_and_state_dicts() -> None:
    _, layer, x = pair("conv2d")
    again = copy.deepcopy(layer)
    again.load_state_dict(layer.state_dict())
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(3)
        first = layer(x)
        torch.random.default_generator.manual_seed(3)
        assert torch.equal(again(x), first)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="prior_precision"):
        LinearVariational(2, 2, prior_precision=0.0)
    with pytest.raises(InputError, match="initial_sd"):
        EmbeddingVariational(2, 2, initial_sd=-1.0)
    with pytest.raises(OptionError, match="estimator"):
        Conv1dVariational(1, 1, 1, estimator="flip")
    for option in ({"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}):
        with pytest.raises(UnsupportedError, match="max_norm"):
            EmbeddingVariational.of(nn.Embedding(3, 2, **option))


def test_a_loop_over_one_layer_is_variational_logistic_regression() -> None:
    x = numbers(80, 2)
    y = (x @ torch.tensor([1.5, -0.5], dtype=torch.float64) + 0.3 + numbers(80, seed=5) > 0).double()
    textbook = BayesianLogisticRegression(
        posterior="mean_field", prior_precision=0.5, intercept_prior_precision=0.5, standardize=False
    ).fit(x.numpy(), y.numpy())
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(1)
        layer = LinearVariational(2, 1, prior_precision=0.5, initial_sd=0.3, dtype=torch.float64)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.985)
        for _ in range(350):
            optimizer.zero_grad()
            f = layer(x.repeat(16, 1)).squeeze(-1)
            loss = F.binary_cross_entropy_with_logits(f, y.repeat(16), reduction="sum") / 16 + kl(layer)
            loss.backward()
            optimizer.step()
            schedule.step()
    sds = torch.cat([layer.weight.sd.flatten(), layer.bias.sd]).detach()
    means = torch.cat([layer.weight_mean.flatten(), layer.bias_mean]).detach()
    reference = textbook.posterior_
    torch.testing.assert_close((means - reference.mean) / sds, torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.05)
    torch.testing.assert_close(sds, reference.covariance.diagonal().sqrt(), rtol=0.03, atol=0)


def test_what_reads_plain_networks_refuses_layers_that_draw() -> None:
    """Their ρ would be taken for a weight, and each of their passes is another network."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    module, data = nn.Sequential(LinearVariational(3, 1)), (x, x.sum(1, keepdim=True))
    for fit in (bs.fit_map, bs.laplace, bs.ensemble, bs.swag, bs.sgmcmc, bs.nuts, bs.mc_dropout):
        model = [module, copy.deepcopy(module)] if fit is bs.ensemble else module
        with pytest.raises(UnsupportedError, match=r"bs\.variational"):
            fit(model, data, likelihood="gaussian")
