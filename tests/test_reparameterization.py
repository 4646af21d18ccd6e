"""What a layer makes of Gaussian weights has the moments that drawing them gives, and gradients without bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import Tensor

from bayescope.private_draws import RandomSource, standard_normal
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, gaussian_kl, linear
from tests.network.networks import generator, numbers

pytestmark = pytest.mark.global_rng  # layers draw from torch's present state

# What each z-test lets pass by chance: one run in ten thousand would find fault with a right estimator.
FALSE_ALARMS = 1e-4
DRAWS = 10_000


def assert_standard(z: Tensor) -> None:
    """All of some standard normal numbers, dependent or not, are as small as they should be."""
    limit = float(stats.norm.isf(FALSE_ALARMS / 2 / z.numel()))
    assert float(z.abs().max()) < limit, f"largest of {z.numel()} is {float(z.abs().max()):.2f}, limit {limit:.2f}"


def gaussian(*shape: int, seed: int = 3) -> GaussianTensor:
    """Means and sds of their own; a tenth of the entries or so are fixed."""
    spread = torch.rand(shape, generator=generator(seed), dtype=torch.float64)
    return GaussianTensor(numbers(*shape, seed=seed + 1), torch.where(spread < 0.1, 0.0, spread))


Layer = Callable[[Any, Any, str], Tensor]


def _linear(x: Tensor) -> Layer:
    return lambda weight, bias, estimator: linear(x, weight, bias, estimator)


def _rows_second(x: Tensor) -> Layer:
    return lambda weight, bias, estimator: linear(x, weight, bias, estimator, rows=1).transpose(0, 1)


def _convolved(function: Any, x: Tensor, **options: Any) -> Layer:
    return lambda weight, bias, estimator: convolution(function, x, weight, bias, estimator, **options)


def _looked_up(indices: Tensor, **options: Any) -> Layer:
    return lambda weight, _, estimator: embedding(indices, weight, estimator, **options)


TOKENS = torch.tensor([[0, 3, 3], [2, 1, 0], [4, 4, 4]])
# A layer on a few rows, with the shapes of its weight and bias.
LAYERS: dict[str, tuple[Layer, tuple[int, ...], int | None]] = {
    "linear": (_linear(numbers(3, 4)), (2, 4), 2),
    "linear without bias": (_linear(numbers(3, 4)), (2, 4), None),
    "linear over positions": (_linear(numbers(3, 2, 4)), (2, 4), 2),
    "linear, rows second": (_rows_second(numbers(2, 3, 4)), (2, 4), 2),
    "conv1d, stride": (_convolved(F.conv1d, numbers(3, 2, 5), stride=2, padding=1), (2, 2, 3), 2),
    "conv2d, groups": (_convolved(F.conv2d, numbers(3, 4, 3, 3), groups=2), (2, 2, 2, 2), 2),
    "conv2d, dilation": (_convolved(F.conv2d, numbers(3, 1, 3, 3), dilation=2, padding="same"), (1, 1, 2, 2), None),
    "conv3d": (_convolved(F.conv3d, numbers(3, 1, 2, 2, 2)), (2, 1, 2, 2, 1), 2),
    "transposed": (
        _convolved(F.conv_transpose2d, numbers(3, 2, 2, 2), stride=2, output_padding=1),
        (2, 1, 2, 2),
        1,
    ),
    "transposed, groups": (_convolved(F.conv_transpose1d, numbers(3, 4, 2), groups=2), (4, 2, 2), 4),
    "one token": (_looked_up(TOKENS[0]), (5, 2), None),
    "tokens": (_looked_up(TOKENS), (5, 2), None),
    "tokens with a padding": (_looked_up(TOKENS, padding_idx=0), (5, 2), None),
}


def parts(name: str) -> tuple[Layer, GaussianTensor, GaussianTensor | None]:
    layer, shape, outputs = LAYERS[name]
    if name == "tokens with a padding":  # whose own embedding is no random variable
        weight = gaussian(*shape)
        weight.sd[0] = 0.0
        return layer, weight, None
    return layer, gaussian(*shape), None if outputs is None else gaussian(outputs, seed=7)


def repeated(function: Callable[[], Any], draws: int = DRAWS) -> Any:
    """Independent calls, stacked."""
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(11)
        return torch.func.vmap(lambda _: function(), randomness="different")(torch.empty(draws))


def moments(name: str) -> tuple[Tensor, Tensor]:
    """E[y] (N, Q) and the covariance (N Q, N Q) of a layer, which is linear in its weights, if they are drawn once."""
    layer, weight, bias = parts(name)
    given = (weight.mean,) if bias is None else (weight.mean, bias.mean)
    plain = lambda *w: layer(GaussianTensor(w[0], torch.zeros_like(w[0])), w[1] if bias else None, "reparameterization")  # noqa: E731
    found: Any = torch.func.jacrev(lambda w: plain(*w))(given)
    sds = (weight.sd,) if bias is None else (weight.sd, bias.sd)
    y = plain(*given)
    jacobian = torch.cat([part.reshape(y.numel(), -1) for part in found], 1)
    variances = torch.cat([sd.flatten() for sd in sds]).square()
    return y.reshape(len(y), -1), (jacobian * variances) @ jacobian.T


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAYERS)
def test_each_row_has_the_moments_of_drawn_weights(name: str, estimator: str) -> None:
    layer, weight, bias = parts(name)
    mean, covariance = moments(name)
    rows, width = mean.shape
    y = repeated(lambda: layer(weight, bias, estimator)).reshape(DRAWS, rows, width)
    blocks = covariance.reshape(rows, width, rows, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    variance = blocks.diagonal(dim1=1, dim2=2)
    free = variance > 1e-20
    assert_standard(((y.mean(0) - mean) / (variance / DRAWS).sqrt())[free])
    torch.testing.assert_close(y[:, ~free], mean[~free].expand(DRAWS, -1), rtol=1e-12, atol=1e-12)
    offset = y - mean
    found = torch.einsum("snp,snq->npq", offset, offset) / DRAWS
    spread = ((variance[:, :, None] * variance[:, None] + blocks.square()) / DRAWS).sqrt()  # Isserlis
    assert_standard(((found - blocks) / spread)[free[:, :, None] & free[:, None]])


@pytest.mark.parametrize("estimator", ["local_reparameterization", "flipout"])
@pytest.mark.parametrize("name", ["linear", "linear over positions", "tokens"])
def test_rows_are_uncorrelated_where_they_are_drawn_by_themselves(name: str, estimator: str) -> None:
    layer, weight, bias = parts(name)
    mean, covariance = moments(name)
    rows, width = mean.shape
    y = repeated(lambda: layer(weight, bias, estimator)).reshape(DRAWS, rows, width) - mean
    products = torch.einsum("snp,smq->snpmq", y, y)
    across = products.mean(0) / (products.square().mean(0) / DRAWS).sqrt()
    apart = ~torch.eye(rows, dtype=torch.bool)[:, None, :, None].expand(rows, width, rows, width)
    assert_standard(across[apart & (products.square().mean(0) > 1e-20)])
    drawn = repeated(lambda: layer(weight, bias, "reparameterization")).reshape(DRAWS, rows, width) - mean
    together = torch.einsum("snp,smq->npmq", drawn, drawn) / DRAWS
    assert (together[apart].abs().max() > 0.05).item()  # the test can tell
    assert (covariance.reshape(rows, width, rows, width)[apart].abs().max() > 0.05).item()


def expected_loss(name: str, target: Tensor) -> Callable[..., Tensor]:
    """E Σ (y − t)² = Σ (E y − t)² + Var y, as a function of means and sds."""
    layer, weight, bias = parts(name)

    def loss(*values: Tensor) -> Tensor:
        means, sds = values[: len(values) // 2], values[len(values) // 2 :]

        def plain(*w: Tensor) -> Tensor:
            fixed = GaussianTensor(w[0], torch.zeros_like(w[0]))
            return layer(fixed, w[1] if bias else None, "reparameterization")

        jacobians: Any = torch.func.jacrev(lambda w: plain(*w))(means)
        y = plain(*means)
        spread = sum(((j.flatten(y.ndim) * s.flatten()) ** 2).sum() for j, s in zip(jacobians, sds, strict=True))
        return (y - target).square().sum() + spread

    del weight
    return loss


def drawn_gradients(name: str, estimator: str, target: Tensor, draws: int) -> tuple[Tensor, ...]:
    layer, weight, bias = parts(name)
    given = (weight.mean, weight.sd) if bias is None else (weight.mean, bias.mean, weight.sd, bias.sd)

    def loss(values: tuple[Tensor, ...]) -> Tensor:
        half = len(values) // 2
        shift = GaussianTensor(values[1], values[half + 1]) if bias else None
        return (layer(GaussianTensor(values[0], values[half]), shift, estimator) - target).square().sum()

    return repeated(lambda: torch.func.grad(loss)(given), draws)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["linear", "linear over positions", "conv2d, groups", "one token", "tokens"])
def test_gradients_are_unbiased(name: str, estimator: str) -> None:
    draws = 10_000
    layer, weight, bias = parts(name)
    target = numbers(*layer(weight, bias, "reparameterization").shape, seed=23)
    given = (weight.mean, weight.sd) if bias is None else (weight.mean, bias.mean, weight.sd, bias.sd)
    exact: Any = torch.func.grad(expected_loss(name, target), argnums=tuple(range(len(given))))(*given)
    for want, got in zip(exact, drawn_gradients(name, estimator, target, draws), strict=True):
        error = got.std(0) / math.sqrt(draws)
        free = error > 1e-12
        assert_standard(((got.mean(0) - want) / error)[free])
        torch.testing.assert_close(got.mean(0)[~free], want[~free], rtol=1e-8, atol=1e-8)


def test_local_reparameterization_has_the_least_noise_in_its_gradients() -> None:
    layer, weight, bias = parts("linear")
    target = numbers(*layer(weight, bias, "reparameterization").shape, seed=23)
    noise = {}
    for estimator in ("local_reparameterization", "flipout", "reparameterization"):
        found = drawn_gradients("linear", estimator, target, 4000)
        noise[estimator] = sum(float(gradient.var(0).sum()) for gradient in found)
    assert noise["local_reparameterization"] < 0.9 * noise["flipout"] < 0.81 * noise["reparameterization"]


def test_local_reparameterization_is_its_definition() -> None:
    weight, bias, x = gaussian(2, 4), gaussian(2, seed=7), numbers(3, 4)
    with RandomSource(9).inside():
        noise = standard_normal((3, 2), x)

    def defined(*v: Tensor) -> Tensor:
        x, mean, sd, shift, spread = v
        return x @ mean.T + shift + (x.square() @ sd.square().T + spread.square()).sqrt() * noise

    def ours(*v: Tensor) -> Tensor:
        x, mean, sd, shift, spread = v
        with RandomSource(9).inside():
            return linear(x, GaussianTensor(mean, sd), GaussianTensor(shift, spread), "local_reparameterization")

    given = [v.requires_grad_() for v in (x, weight.mean, weight.sd, bias.mean, bias.sd + 0.1)]
    torch.testing.assert_close(ours(*given), defined(*given), rtol=1e-14, atol=1e-14)
    cotangent = numbers(3, 2, seed=13)
    want = torch.autograd.grad(defined(*given), given, cotangent)
    got = torch.autograd.grad(ours(*given), given, cotangent)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_what_is_fixed_gives_no_nan_in_gradients() -> None:
    x = numbers(3, 4)
    x[1] = 0.0
    x.requires_grad_()
    mean, sd = numbers(2, 4).requires_grad_(), torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    y = linear(x, GaussianTensor(mean, sd), None, "local_reparameterization")
    torch.testing.assert_close(y, x @ mean.T, rtol=0, atol=0)
    for gradient in torch.autograd.grad(y.square().sum(), (x, mean, sd)):
        assert gradient.isfinite().all()
    y = linear(x, GaussianTensor(mean, sd + 0.3), None, "local_reparameterization")
    assert torch.equal(y[1], torch.zeros(2, dtype=torch.float64))
    for gradient in torch.autograd.grad(y.square().sum(), (x, mean, sd)):
        assert gradient.isfinite().all()


def test_without_an_axis_of_rows_weights_are_drawn_once() -> None:
    weight, bias = gaussian(2, 4), gaussian(2, seed=7)
    x = numbers(4).expand(3, 4)
    y = linear(x, weight, bias, "local_reparameterization", rows=None)
    assert torch.equal(y[0], y[1])
    assert linear(numbers(4), weight, bias, "flipout").shape == (2,)


def test_draws_are_of_the_gaussian() -> None:
    value = gaussian(3, 2)
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(5)
        many = value.draws(DRAWS)
        once = torch.stack([value.draw() for _ in range(2000)])
    for drawn in (many, once):
        free = value.sd > 0
        z = (drawn.mean(0) - value.mean)[free] / (value.sd[free] / math.sqrt(len(drawn)))
        ratio = drawn.var(0)[free] / value.sd[free].square()
        assert_standard(torch.cat([z, (ratio - 1) * math.sqrt((len(drawn) - 1) / 2)]))
        assert torch.equal(drawn[:, ~free], value.mean[~free].expand(len(drawn), -1))


@pytest.mark.parametrize(
    ("mean", "sd", "precision", "centre"),
    [
        (0.0, 1.0, 1.0, 0.0),
        (1.3, 0.2, 4.0, 0.5),
        (-2.0, 3.0, 0.1, 1.0),
        (0.1, 1e-3, 100.0, 0.0),
        (5.0, 0.5, 1e-2, -1.0),
    ],
)
def test_kl_is_the_integral(mean: float, sd: float, precision: float, centre: float) -> None:
    q, p = stats.norm(mean, sd), stats.norm(centre, 1 / math.sqrt(precision))

    def integrand(z: float) -> float:
        theta = mean + sd * z
        return float(stats.norm.pdf(z) * (q.logpdf(theta) - p.logpdf(theta)))

    want = sum(integrate.quad(integrand, a, a + 2, epsabs=1e-13, epsrel=1e-13)[0] for a in range(-12, 12, 2))
    got = gaussian_kl(*(torch.tensor([v], dtype=torch.float64) for v in (mean, sd, precision, centre)))
    assert float(got) == pytest.approx(want, rel=1e-10, abs=1e-10)


def test_kl_sums_over_what_is_random() -> None:
    value, precision = gaussian(4, 3), torch.rand(3, generator=generator(1), dtype=torch.float64) + 0.5
    assert (value.sd == 0).any()
    one = lambda m, s, p: gaussian_kl(m[None], s[None], p) if s > 0 else 0.0  # noqa: E731
    want = sum(one(value.mean[i, j], value.sd[i, j], float(precision[j])) for i, j in np.ndindex(4, 3))
    mean, sd = value.mean.requires_grad_(), value.sd.requires_grad_()
    kl = gaussian_kl(mean, sd, precision)
    assert float(kl.detach()) == pytest.approx(float(want), rel=1e-13)
    of_mean, of_sd = torch.autograd.grad(kl, (mean, sd))
    free = sd.detach() > 0
    torch.testing.assert_close(of_mean, torch.where(free, precision * mean, 0.0).detach())
    torch.testing.assert_close(of_sd[free], (precision * sd - 1 / sd)[free].detach())
    assert torch.equal(of_sd[~free], torch.zeros_like(of_sd[~free]))


def test_kl_of_single_precision_weights_is_summed_in_double() -> None:
    value = gaussian(300, 300)
    kl = gaussian_kl(value.mean.float(), value.sd.float(), 2.0)
    assert kl.dtype == torch.float64
    assert float(kl) == pytest.approx(float(gaussian_kl(value.mean, value.sd, 2.0)), rel=1e-7)
