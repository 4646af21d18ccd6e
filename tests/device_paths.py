"""Every public path of networks once, on a device that is named: what a GPU has to give as the CPU gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.curvature import SUPPORTED
from tests.large_models import ResNet, VisionTransformer

CLASSES = 3
_dtype: ContextVar[torch.dtype] = ContextVar("dtype", default=torch.float64)
Answers = list[Tensor]


class Pieces(nn.Module):
    """An embedding, a recurrent layer, a scale of its own and norms: the layers that images do not meet."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.steps = nn.LSTM(4, 3, batch_first=True)
        self.norm = nn.LayerNorm(3)
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(3, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.steps(self.table(tokens))[0][:, -1]) * self.scale)


@contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, the networks of all paths have this floating-point type; it is float64 outside."""
    token = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(token)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A module whose first weights are the same each time, in eval mode and float64, norms and tokens away from 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and (tensor.ndim < 2 or not tensor.any()):
                tensor.data.add_(0.1 * torch.rand_like(tensor))
    return module.to(_dtype.get()).eval()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "resnet": lambda: ResNet(CLASSES, 2, (1, 1)),
    "transformer": lambda: VisionTransformer(CLASSES, 4, 1, 2, 8, 16),
    "tokens": Pieces,
}


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


INPUTS: dict[str, Tensor] = {
    "perceptron": _numbers(11, 4),
    "resnet": _numbers(6, 3, 16, 16),
    "transformer": _numbers(6, 3, 16, 16),
    "tokens": torch.arange(42).reshape(6, 7) ** 2 % 7,
}


def problem(name: str, device: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network on a device, with inputs and labels on the CPU, as a loader gives them."""
    x = INPUTS[name]
    return seeded(NETWORKS[name]).to(device), (x, torch.arange(len(x)) % CLASSES)


def curvature(name: str, kind: str, structure: str, device: str) -> Answers:
    module, data = problem(name, device)
    options: dict[str, Any] = {"rank": 4} if structure == "low_rank" else {}
    found = bs.fit_curvature(
        module, data, likelihood="categorical", curvature=kind, structure=structure, generator=0, **options
    )
    posterior = found.with_prior(500.0)
    return [found.precision.diagonal(), posterior.marginal_variance(), posterior.logdet(), found.log_likelihood]


def laplace(name: str, device: str, **options: Any) -> Answers:
    module, data = problem(name, device)
    q = bs.laplace(module, data, likelihood="categorical", prior_precision=1.0, generator=0, **options)
    p = q.predict(data[0])
    return [q.log_evidence(), p.probs, p.epistemic, p.log_prob(data[1]), p.mutual_information]


def regression(device: str) -> Answers:
    module, (x, y) = problem("perceptron", device)
    target = torch.nn.functional.one_hot(y, CLASSES).double()
    q = bs.laplace(module, (x, target), likelihood=bs.Gaussian(0.5), prior_precision=1.0)
    tuned = bs.tune_prior(q)
    p = tuned.predict(x)
    return [q.log_evidence(), tuned.log_evidence(), p.mean, p.variance, *p.interval(0.9)]


def queries(device: str) -> Answers:
    """What a posterior is asked for beside predictions."""
    module, (x, y) = problem("perceptron", device)
    q = bs.laplace(module, (x, y), likelihood="categorical", generator=0)
    inputs = x.to(device).requires_grad_()
    probs = q.predict(inputs, differentiable=True).probs
    (slope,) = torch.autograd.grad(probs[:, 0].sum(), inputs)
    with TemporaryDirectory() as folder:
        q.save(Path(folder) / "q.bayes")
        loaded = bs.load(Path(folder) / "q.bayes")
    return [
        q.sample(3, generator=0),
        q.predict(x, method="sampled", samples=5, generator=0).probs,
        q.log_prob(q.sample(2, generator=1)),
        slope,
        loaded.predict(x).probs,
    ]


def validated(device: str) -> Answers:
    module, data = problem("perceptron", device)
    q = bs.laplace(module, data, likelihood="categorical", generator=0)
    return [bs.tune_prior(q, method="validation", data=data).predict(data[0]).probs]


def function_space(device: str, approximation: str) -> Answers:
    module, data = problem("perceptron", device)
    options: dict[str, Any] = {} if approximation == "exact" else {"points": 6}
    q = bs.function_space(
        module, data, likelihood="categorical", approximation=approximation, generator=0, progress=False, **options
    )
    return [q.log_evidence(), q.predict(data[0]).probs]


TRAINED = {"likelihood": "categorical", "epochs": 2, "batch_size": 6, "generator": 0, "progress": False}


def trained(device: str, method: str, **options: Any) -> Answers:
    """A training on the device: its random numbers may be others than on the CPU."""
    module, data = problem("perceptron", device)
    settings = {**TRAINED, **options}
    if method == "sgmcmc":
        settings |= {"draws": 3, "burn_in": 2}
        del settings["epochs"]
    if method == "ensemble":
        q = bs.ensemble([seeded(perceptron).to(device) for _ in range(2)], data, **settings)
    else:
        q = getattr(bs, method)(module.train(), data, **settings)
    p = q.predict(data[0])
    return [p.probs, p.epistemic]


# Paths whose answers are those of the CPU, but for rounding.
EXACT: dict[str, Callable[[str], Answers]] = {
    **{
        f"{kind}-{structure}": lambda device, k=kind, s=structure: curvature("perceptron", k, s, device)
        for kind, structures in SUPPORTED.items()
        for structure in structures
    },
    **{
        f"{name}-{structure}": lambda device, n=name, s=structure: curvature(n, "ggn", s, device)
        for name in ("resnet", "transformer", "tokens")
        for structure in ("diagonal", "kfac")
    },
    **{
        f"laplace-{structure}": lambda device, s=structure: laplace("perceptron", device, structure=s)
        for structure in ("full", "block", "diagonal", "kfac", "ekfac")
    },
    "laplace-low_rank": lambda device: laplace("perceptron", device, structure="low_rank", rank=5),
    "laplace-last_layer": lambda device: laplace("resnet", device, weights="last_layer"),
    "laplace-subnetwork": lambda device: laplace(
        "perceptron", device, weights=bs.largest_variance(9), structure="full"
    ),
    "laplace-resnet": lambda device: laplace("resnet", device),
    "laplace-transformer": lambda device: laplace("transformer", device),
    "laplace-tokens": lambda device: laplace("tokens", device),
    "regression": regression,
    "queries": queries,
    "tune_prior-validation": validated,
    "function_space-exact": lambda device: function_space(device, "exact"),
}
# Paths that train: what they give is checked to be finite alone.
TRAINS: dict[str, Callable[[str], Answers]] = {
    "fit_map": lambda device: trained(device, "fit_map"),
    "fit_evidence": lambda device: trained(device, "fit_evidence", burn_in=1, every=1, steps=2),
    "variational-mean_field": lambda device: trained(device, "variational"),
    "variational-low_rank": lambda device: trained(device, "variational", family="low_rank", rank=2),
    "mc_dropout": lambda device: trained(device, "mc_dropout", rate=0.2),
    "ensemble": lambda device: trained(device, "ensemble"),
    "ensemble-side_by_side": lambda device: trained(device, "ensemble", side_by_side=True),
    "swag": lambda device: trained(device, "swag", rank=2, lr=1e-2, epochs=6),
    "sgmcmc": lambda device: trained(device, "sgmcmc", lr=1e-3),
}
