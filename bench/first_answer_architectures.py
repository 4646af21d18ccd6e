"""Points of the benchmark of first answers: networks of others, and copies of them."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import bayescope as bs
from bayescope.errors import BayescopeError
from bench.first_answer_points import Point
from tests.network.architectures import ARCHITECTURES, ggn, jacobian, make

SECTION = "Networks of others"
REFUSED = ("complex weights", "checkpoint, reentrant", "lazy")  # which autograd has no answer for either


def by_a_closure() -> nn.Module:
    """A network whose forward pass is a function that holds it."""
    torch.manual_seed(0)  # noqa: TID251
    module = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    written = module.forward
    module.forward = lambda x: 1.0 * written(x)  # type: ignore[method-assign]
    return module


def copies(quick: bool) -> dict[str, float]:
    """The epistemic variance of Laplace, and how far fit_map moves the probabilities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    options: dict[str, Any] = {"likelihood": "categorical"}
    q = bs.laplace(by_a_closure(), (x, y), prior_precision=1.0, **options)
    module = by_a_closure()
    point = bs.fit_map(module, (x, y), epochs=10 if quick else 100, generator=0, progress=False, **options)
    moved = point.predict(x).mean - module(x).softmax(-1)
    return {
        "largest epistemic variance of bs.laplace": float(q.predict(x).epistemic.max()),
        "largest change of a probability by bs.fit_map": float(moved.abs().max()),
    }


def outcome(name: str) -> str:
    """Whether curvature and predictive covariance are those of autograd, or an error of the library says why not."""
    x, y = ARCHITECTURES[name][1], torch.arange(7) % 2
    try:
        q = bs.laplace(make(name), (x, y), likelihood="categorical", structure="full", prior_precision=1.0)
        found = q.predict(x).latent_cov
    except BayescopeError:
        return "refused"
    except Exception:  # noqa: BLE001 - an error of another library is what is counted
        return "foreign error"
    G, J = ggn(make(name), x), jacobian(make(name), x)
    want = J @ torch.linalg.inv(G + torch.eye(len(G), dtype=G.dtype)) @ J.mT
    return "exact" if torch.allclose(found, want, rtol=1e-7, atol=1e-9) else "wrong"


def architectures(quick: bool) -> dict[str, float]:
    """How many of the patterns have which outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: outcome(name) for name in list(ARCHITECTURES)[:: 4 if quick else 1]}
    possible = [name for name in found if name not in REFUSED]
    return {
        "exact, of those that autograd can differentiate": sum(found[n] == "exact" for n in possible) / len(possible),
        "exact, or refused by an error of the library": sum(o in ("exact", "refused") for o in found.values())
        / len(found),
    }


def convolutions(norm: Callable[[nn.Module], nn.Module], classes: int) -> nn.Module:
    """Three convolutions, each of them changed, and a linear layer."""
    torch.manual_seed(0)  # noqa: TID251
    layers: list[nn.Module] = []
    for channels, width, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [norm(nn.Conv2d(channels, width, 3, stride, padding=1)), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def seconds(work: Callable[[], Any], times: int) -> float:
    """The median of the processor time that it takes."""
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def weight_normed(quick: bool) -> dict[str, float]:
    """The diagonal curvature of weight-normed convolutions, as multiples of a forward and backward pass."""
    torch.set_num_threads(1)
    rows, classes = 64 if quick else 256, 3
    x, y = torch.randn(rows, 3, 16, 16), torch.arange(rows) % classes
    module = convolutions(weight_norm, classes)

    def gradient() -> Tensor:
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        return loss

    def curvature() -> None:
        bs.fit_curvature(module, (x, y), likelihood="categorical", structure="diagonal")

    gradient(), curvature()
    return {"diagonal GGN, × forward + backward": seconds(curvature, 5) / seconds(gradient, 15)}


POINTS: tuple[Point, ...] = (
    Point(
        SECTION,
        "closures",
        "A module whose forward pass is a function that holds the module; 100 rows of XOR.",
        copies,
        {
            "largest epistemic variance of bs.laplace": "≥ 0.001",
            "largest change of a probability by bs.fit_map": "≥ 0.1",
        },
    ),
    Point(
        SECTION,
        "architectures",
        "What others write into forward passes: clones changed in place, autograd functions, derived weights and more; "
        "the covariance of bs.laplace against float64 autograd.",
        architectures,
        {
            "exact, of those that autograd can differentiate": "≥ 1",
            "exact, or refused by an error of the library": "≥ 1",
        },
    ),
    Point(
        SECTION,
        "weight_norm",
        "Three weight-normed convolutions, 56,000 weights, 256 pictures of 16 × 16, 3 classes.",
        weight_normed,
        {"diagonal GGN, × forward + backward": "≤ 6"},
    ),
)
