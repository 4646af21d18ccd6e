"""Small networks and data that several pictures share, all of them made from seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from bayescope.curvature.options import StructureName
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.models import Model
from bayescope.posterior import GaussianPosterior, PointPosterior, Posterior, Record
from bayescope.training.fit_map import fit_map

DOUBLE = torch.float64


class TrainTest(NamedTuple):
    """Rows to train on and rows to test on.

    Attributes:
        x: inputs, shape (N, D).
        y: targets (N, 1) or labels (N,).
        test_x: inputs, shape (M, D).
        test_y: targets or labels.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """The rows to train on."""
        return self.x, self.y


def mlp(*widths: int, seed: int = 0, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    """A fully connected network in float64, with weights N(0, 1/fan-in) and biases N(0, 1).

    Args:
        widths: of the input, of each hidden layer and of the output.
        seed: of the initial weights; the global generator is left alone.
        activation: makes what stands between the layers.
    """
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=DOUBLE)
        with torch.no_grad():
            layer.weight.normal_(0.0, 1.0 / math.sqrt(fan_in), generator=source)
            layer.bias.normal_(generator=source)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def posterior(
    start: nn.Module,
    data: tuple[Tensor, Tensor],
    likelihood: LikelihoodName | Likelihood,
    prior_precision: float,
    *,
    structure: StructureName = "full",
) -> GaussianPosterior:
    """Laplace at the mode that full-batch training leads to."""
    mode = fit_map(
        start, data, likelihood=likelihood, prior_precision=prior_precision, optimizer="lbfgs", progress=False
    )
    q = laplace(mode.model, data, likelihood=likelihood, prior_precision=prior_precision, structure=structure)
    return cast(GaussianPosterior, q)


def parts(q: Posterior) -> tuple[Model, Likelihood]:
    """The function and the likelihood of a posterior that has both."""
    assert q.function is not None
    assert q.likelihood is not None
    return q.function, q.likelihood


def at_mode(q: GaussianPosterior) -> PointPosterior:
    """The mode of a posterior as a posterior without width: the prediction of the trained network."""
    return PointPosterior(q.mean, Record("map"), q.function, q.likelihood)


def test_loss(q: Posterior, rows: TrainTest, **options: Any) -> float:
    """NLL per test row, in nats; the options are those of `Posterior.predict`."""
    return -float(q.predict(rows.test_x, **options).log_prob(rows.test_y).mean())


# A curve with a gap --------------------------------------------------------------------------------------------------
NOISE_SD = 0.15
SEEN = ((-2.0, -0.6), (0.6, 2.0))


def truth(x: Tensor) -> Tensor:
    """The curve without its noise."""
    return torch.sin(2.0 * x) + 0.3 * x


def gap(rows: int = 60, seed: int = 0) -> TrainTest:
    """A curve measured with noise on two intervals and nowhere between; test rows come from the same intervals."""
    source = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor(SEEN, dtype=DOUBLE)[torch.arange(count) % 2].T
        x = (low + (high - low) * torch.rand(count, dtype=DOUBLE, generator=source))[:, None]
        return x, truth(x) + NOISE_SD * torch.randn(count, 1, dtype=DOUBLE, generator=source)

    return TrainTest(*draw(rows), *draw(1000))


# Two bananas ---------------------------------------------------------------------------------------------------------
def banana(rows: int = 160, seed: int = 0) -> TrainTest:
    """A bent class, label 1, around a round one, label 0, that overlaps it; both are equally frequent."""
    source = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % 2
        noise = torch.randn(count, 3, dtype=DOUBLE, generator=source)
        angle, radius = 0.85 * noise[:, 0], 1.7 + 0.32 * noise[:, 1]
        bent = torch.stack([radius * angle.sin() * 1.15, radius * angle.cos() - 0.6], 1)
        round_ = torch.stack([0.62 * noise[:, 0], 0.5 * noise[:, 1] - 0.45], 1)
        return torch.where(labels[:, None] == 1, bent, round_), labels

    return TrainTest(*draw(rows), *draw(2000))
