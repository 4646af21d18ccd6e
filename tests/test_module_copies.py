"""Copies of modules: whatever way a module calls its layers, a copy of it calls its own, in every function that copies.

The law: a module that calls its layers through functions gives the same answers as the plain module with its weights.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import bayescope as bs
from bayescope.errors import InputError
from bayescope.module_copies import module_copy
from bayescope.network.forward import eager


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def body() -> nn.Sequential:
    """Two layers with weights from a generator of their own."""
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed)
    return module


class Net(nn.Module):
    """A network whose forward pass is an attribute."""

    def __init__(self, make: Callable[[Any], Any], layers: nn.Module | None = None) -> None:
        super().__init__()
        self.f = body() if layers is None else layers
        self.g = make(self)

    def scaled(self, scale: float, x: Tensor) -> Tensor:
        return scale * self.f(x)

    def forward(self, x: Tensor) -> Tensor:
        g = self.g
        while isinstance(g, list | tuple | dict):
            g = g["g"] if isinstance(g, dict) else g[-1]
        return g(x)


def recursive(net: Any) -> Callable[..., Tensor]:
    def g(x: Tensor, times: int = 2) -> Tensor:
        return net.f(x) if times == 0 else g(x, times - 1)

    return g


def with_default(net: Any) -> Callable[..., Tensor]:
    def g(x: Tensor, f: nn.Module = net.f, *, last: nn.Module = net.f[2]) -> Tensor:
        return f(x) + last.bias

    return g


def with_a_hook() -> nn.Module:
    module = body()
    module[1].register_forward_hook(lambda _module, _inputs, output: output * module[2].weight.sum())
    return module


def compiled_forward() -> nn.Module:
    module = body()
    module.forward = torch.compile(module.forward)  # type: ignore[method-assign]
    return module


def patched() -> nn.Module:
    """As libraries put something around a forward pass."""
    module, written = body(), None
    written = module.forward

    def forward(_self: nn.Module, x: Tensor) -> Tensor:
        return 2 * written(x)

    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]
    return module


def wrapped() -> nn.Module:
    module = body()
    written = module.forward

    @functools.wraps(written)
    def forward(x: Tensor) -> Tensor:
        return 2 * written(x)

    module.forward = forward  # type: ignore[method-assign]
    return module


def changed(change: Callable[[nn.Module], Any]) -> nn.Module:
    """A network whose first layer was changed by torch.nn.utils, and which has been run."""
    module = body()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        change(module[0])
        module(numbers(1, 3))
    return module


COPIED: dict[str, Callable[[], nn.Module]] = {
    "lambda": lambda: Net(lambda net: lambda x: 1.0 * net.f(x)),
    "partial of a method": lambda: Net(lambda net: functools.partial(net.scaled, 2.0)),
    "partial of a lambda": lambda: Net(lambda net: functools.partial(lambda scale, x: scale * net.f(x), 2.0)),
    "containers": lambda: Net(lambda net: {"g": [(torch.tanh, lambda x: 1.0 * net.f(x))]}),
    "recursive": lambda: Net(recursive),
    "defaults": lambda: Net(with_default),
    "hook": with_a_hook,
    "compiled forward": compiled_forward,
    "compiled part": lambda: nn.Sequential(body(), torch.compile(nn.Tanh())),
    "method of another function": patched,
    "wrapped": wrapped,
    "pruned": lambda: changed(lambda layer: prune.l1_unstructured(layer, "weight", 0.4)),
    "weight norm by a hook": lambda: changed(weight_norm),
    "spectral norm by a hook": lambda: changed(spectral_norm),
    "weight norm": lambda: changed(parametrizations.weight_norm),
}


def gradients(output: Tensor, module: nn.Module) -> list[Tensor | None]:
    return list(torch.autograd.grad(output.sum(), list(module.parameters()), allow_unused=True, retain_graph=True))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", COPIED)
def test_a_copy_calls_its_own_layers(name: str) -> None:
    module, x = COPIED[name]().eval(), numbers(5, 3, seed=9)
    random = torch.get_rng_state()
    with eager():
        want = gradients(module(x), module)
        for copied in (first := module_copy(module), module_copy(first)):  # a copy can be copied
            f = copied(x)
            torch.testing.assert_close(f, module(x))
            torch.testing.assert_close(gradients(f, copied), want)
            assert all(gradient is None for gradient in gradients(f, module))
    assert torch.equal(random, torch.get_rng_state())


class Frozen(nn.Linear):
    """A layer that copies share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self


def test_what_a_function_holds_beside_the_module_is_not_copied() -> None:
    module, seen = body(), []
    module[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output.sum() + module[2].bias.sum()))
    module_copy(module)(numbers(5, 3))
    assert len(seen) == 1


def test_a_frozen_part_may_be_shared_and_one_to_train_may_not() -> None:
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(Frozen(3, 4), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"'Frozen' has '0.weight' from elsewhere"):
        module_copy(module)
    module[0].requires_grad_(False)
    copied = module_copy(module)
    assert copied[0] is module[0]
    assert copied[1].weight is not module[1].weight


class Global(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = body()

    def forward(self, x: Tensor) -> Tensor:
        return network.f(x)  # for self


network: Any = Global()

REFUSED: dict[str, Callable[[], nn.Module]] = {
    "Global.forward": lambda: network,
    "ReferenceType": lambda: Net(lambda net: [weakref.ref(net.f), lambda x: x]),
    "Parameter.matmul": lambda: Net(lambda net: net.f[0].weight.matmul),
    "lambda": lambda: Net(lambda net: functools.lru_cache(lambda x: 1.0 * net.f(x))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_copy_that_would_use_the_weights_of_the_module_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"reaches its weights as self.*{name}.*from elsewhere"):
        module_copy(REFUSED[name]())


def test_lazy_layers_and_kept_results_are_told() -> None:
    with pytest.raises(InputError, match=r"'0.weight' of a lazy layer that has not seen any rows yet. Call the model"):
        module_copy(nn.Sequential(nn.LazyLinear(3)))
    module = body()
    module.last = module(numbers(1, 3))
    with pytest.raises(InputError, match="Keep no results of a forward pass"):
        module_copy(module)


class Plain(nn.Module):
    """The network that those below are, with nothing but layers."""

    def __init__(self) -> None:
        super().__init__()
        self.f = body()

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def by_a_function() -> nn.Module:
    net = Net(lambda net: lambda x: 1.0 * net.f(x))
    net.forward = functools.wraps(net.forward)(lambda x: 1.0 * net.g(x))  # type: ignore[method-assign]
    return net


def at_other_weights(make: Callable[[], nn.Module]) -> nn.Module:
    module = make()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=50 + seed))
    return module


DATA: Any = (numbers(12, 3, seed=20), torch.arange(12) % 2)
FIT: dict[str, Any] = {"likelihood": "categorical", "generator": 0}
TRAIN: dict[str, Any] = {**FIT, "epochs": 2, "progress": False}
FEW: dict[str, Any] = {**FIT, "progress": False, "draws": 8}
Make = Callable[[], nn.Module]
FUNCTIONS: dict[str, Callable[[Make], Any]] = {
    "laplace": lambda make: bs.laplace(make(), DATA, prior_precision=1.0, **FIT),
    "laplace, last layer": lambda make: bs.laplace(make(), DATA, prior_precision=1.0, weights="last_layer", **FIT),
    "laplace, samples": lambda make: bs.laplace(
        make(), DATA, prior_precision=1.0, structure="samples", samples=4, **FIT
    ),
    "conditioned": lambda make: bs.laplace(make(), DATA, prior_precision=1.0, **FIT).condition(DATA),
    "fit_map": lambda make: bs.fit_map(make(), DATA, **TRAIN),
    "variational": lambda make: bs.variational(make(), DATA, **TRAIN),
    "mc_dropout": lambda make: bs.mc_dropout(make(), DATA, rate=0.2, **TRAIN),
    "mc_dropout without data": lambda make: bs.mc_dropout(make(), rate=0.2, **FIT),
    "ensemble": lambda make: bs.ensemble([make(), at_other_weights(make)], DATA, side_by_side=False, **TRAIN),
    "ensemble at once": lambda make: bs.ensemble([make(), at_other_weights(make)], DATA, side_by_side=True, **TRAIN),
    "swag": lambda make: bs.swag(make(), DATA, rank=2, burn_in=0, **{**TRAIN, "epochs": 4}),
    "sgmcmc": lambda make: bs.sgmcmc(make(), DATA, burn_in=2, thin=1, **FEW),
    "nuts": lambda make: bs.nuts(make(), DATA, tune=15, chains=1, **FEW),
    "fit_evidence": lambda make: bs.fit_evidence(make(), DATA, burn_in=1, **TRAIN),
    "function_space": lambda make: bs.function_space(make(), DATA, **FIT),
    "select": lambda make: bs.select({"one": make()}, DATA, **FIT).best,
}


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_copies_answers_as_for_the_plain_network(name: str) -> None:
    module, x = by_a_function(), numbers(4, 3, seed=30)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    want = FUNCTIONS[name](Plain)
    got = FUNCTIONS[name](lambda: by_a_function() if name.startswith("ensemble") else module)
    p, q = want.predict(x, generator=1), got.predict(x, generator=1)
    torch.testing.assert_close(q.mean, p.mean)
    torch.testing.assert_close(q.epistemic, p.epistemic)
    assert name == "fit_map" or bool((q.epistemic > 0).all())
    assert all(map(torch.equal, before, module.parameters()))


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
def test_a_file_fills_a_copy_of_the_module_that_it_is_read_with(tmp_path: Path) -> None:
    q, x, module = FUNCTIONS["laplace"](by_a_function), numbers(4, 3, seed=30), at_other_weights(by_a_function)
    want = module(x)
    q.save(tmp_path / "q.bayes")
    p = bs.load(tmp_path / "q.bayes", model=module).predict(x)
    torch.testing.assert_close(p.mean, q.predict(x).mean)
    torch.testing.assert_close(p.epistemic, q.predict(x).epistemic)
    torch.testing.assert_close(module(x), want)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_copies_of_sparse_embeddings_have_the_output_and_the_gradient_of_the_module(table: Any, sparse: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(table(6, 4, sparse=True), nn.Tanh(), nn.Linear(4, 2))
    tokens = torch.tensor([[0, 5, 5], [2, 3, 0]])
    copied = module_copy(module, sparse=sparse)
    assert torch.equal(copied(tokens), module(tokens))
    for each in (module, copied):
        each(tokens).square().sum().backward()
    assert module[0].weight.grad.is_sparse
    assert copied[0].weight.grad.is_sparse == sparse
    for own, other in zip(module.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(other.grad.to_dense(), own.grad.to_dense())
    assert module[0].sparse


SCRIPT = """
class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)

    def forward(self, x):
        return self.net(x)

net = Wrapper()
"""


def test_a_global_that_has_the_name_of_an_attribute_is_none_of_the_weights() -> None:
    """As in a script: ``net = Wrapper()``, whose forward calls ``self.net``."""
    script: dict[str, Any] = {"nn": nn}
    with torch.random.fork_rng(devices=[]):
        exec(SCRIPT, script)
    copy = module_copy(script["net"])
    assert copy.net.weight is not script["net"].net.weight
    torch.testing.assert_close(copy(torch.ones(1, 2)), script["net"](torch.ones(1, 2)))
