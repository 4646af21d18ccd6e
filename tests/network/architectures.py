"""Networks as others write them: what they do with their weights beside handing them to a layer of torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from tests.network.networks import Function, numbers

# --- changes in place -------------------------------------------------------------------------------------------------


def masked_bias(m: Any, x: Tensor) -> Tensor:
    """As torchvision's Swin V2 takes the keys' share out of a bias."""
    bias = m.bias.clone()
    bias[2:4].zero_()
    return m.last(torch.tanh(F.linear(x, m.weight, bias)))


def masked_weight(m: Any, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    weight.masked_fill_(torch.eye(6, 4, dtype=torch.bool), 0.0)
    return m.last(torch.tanh(F.linear(x, weight, m.bias)))


def scaled_rows(m: Any, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    weight[1:3] *= 2.0
    weight[0] = 0.5
    return m.last(torch.tanh(F.linear(x, weight, m.bias)))


def written_data(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(F.linear(x, m.weight, m.bias)).clone()
    h[:, 2:4] = 0.0
    h.masked_fill_(h < -0.5, -0.5)
    h[:, 0] = h[:, 1] * 2.0
    return m.last(h)


def written_table(m: Any, x: Tensor) -> Tensor:
    """A matrix that is filled with weights."""
    matrix = x.new_zeros(6, 4)
    matrix[:3, :3] = m.weight[:3, :3]
    matrix[3:, 1:] = m.weight[3:, 1:].exp()
    return m.last(torch.tanh(F.linear(x, matrix, m.bias)))


def kept(m: Any, x: Tensor) -> Tensor:
    """What a function of the weights needs for its gradient is written over afterwards, in a copy."""
    weight = torch.tanh(m.weight)
    other = weight.clone().mul_(2.0)
    return m.last(F.linear(x, weight, m.bias) + F.linear(x, other))


# --- autograd functions -----------------------------------------------------------------------------------------------


class Hadamard(torch.autograd.Function):
    """(A B) ∘ (C D), as adapters of the kind LoHa have it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, d: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(a, b, c, d)
        ctx.scale = scale
        return (a @ b) * (c @ d) * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b, c, d = ctx.saved_tensors
        g = g * ctx.scale
        left, right = g * (c @ d), g * (a @ b)
        return left @ b.T, a.T @ left, right @ d.T, c.T @ right, None


def loha(m: Any, x: Tensor) -> Tensor:
    update = Hadamard.apply(m.a, m.b, m.c, m.d, 0.5)
    return m.last(torch.tanh(F.linear(x, m.weight + update, m.bias)))


class Sign(torch.autograd.Function):
    """The sign, with the gradient of the identity inside of [−1, 1]."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight.sign()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return g * (weight.abs() <= 1)


def binarised(m: Any, x: Tensor) -> Tensor:
    return m.last(torch.tanh(F.linear(x, Sign.apply(m.weight), m.bias)))


class FusedNorm(torch.autograd.Function):
    """x w / rms(x), in one call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, scale = ctx.saved_tensors
        h = g * weight
        inner = (h * x).mean(-1, keepdim=True)
        return h * scale - x * scale**3 * inner, (g * x * scale).flatten(0, -2).sum(0)


def fused_norm(m: Any, x: Tensor) -> Tensor:
    return m.last(FusedNorm.apply(torch.tanh(F.linear(x, m.weight, m.bias)), m.scale))


class FusedLinear(torch.autograd.Function):
    """x Wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight, g.T @ x, g.sum(0)


def fused_linear(m: Any, x: Tensor) -> Tensor:
    return m.last(torch.tanh(FusedLinear.apply(x, m.weight, m.bias)))


# --- complex numbers --------------------------------------------------------------------------------------------------


def rotary(m: Any, x: Tensor) -> Tensor:
    """Positions as angles, which turn pairs of numbers."""
    h = F.linear(x, m.weight, m.bias)
    angles = torch.arange(3, dtype=x.dtype)
    turned = torch.view_as_complex(h.unflatten(-1, (3, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return m.last(torch.view_as_real(turned).flatten(1))


def filtered(m: Any, x: Tensor) -> Tensor:
    """A filter in the frequencies, whose weights are pairs of numbers."""
    frequencies = torch.fft.rfft(torch.tanh(F.linear(x, m.weight, m.bias)))
    return m.last(torch.fft.irfft(frequencies * torch.view_as_complex(m.filter), n=6))


class ComplexWeights(nn.Module):
    """A Fourier layer whose weights are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.filter = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.fft.irfft(torch.fft.rfft(self.first(x)) * self.filter, n=6))


# --- derivatives and recomputation inside of a pass -------------------------------------------------------------------


def energy(m: Any, x: Tensor) -> Tensor:
    return (F.linear(torch.tanh(F.linear(x, m.weight, m.bias)), m.out)).sum()


def by_func_grad(m: Any, x: Tensor) -> Tensor:
    """A Hamiltonian network: a gradient in the inputs."""
    return m.last(torch.func.vmap(torch.func.grad(lambda one: energy(m, one)))(x))


def by_autograd_grad(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(energy(m, x), x, create_graph=True)
    return m.last(slope)


def mapped(m: Any, x: Tensor) -> Tensor:
    return m.last(torch.func.vmap(lambda one: torch.tanh(m.weight @ one + m.bias))(x))


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda h: torch.tanh(self.middle(h)), torch.tanh(self.first(x)), use_reentrant=self.reentrant)
        return self.last(h)


# --- weights that are computed from weights ---------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.last = table, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        return self.last(torch.tanh(h.mean(1) if h.ndim == 3 else h))


def standardised(m: Any, x: Tensor) -> Tensor:
    """A convolution whose kernels have mean 0 and variance 1."""
    centred = m.kernel - m.kernel.mean((1, 2, 3), keepdim=True)
    kernel = m.gain.view(-1, 1, 1, 1) * centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()
    return m.last(torch.tanh(F.conv2d(x, kernel, m.bias)).mean((2, 3)))


def chosen_mixture(m: Any, x: Tensor) -> Tensor:
    """One matrix of three, mixed by learnt shares."""
    shares = m.shares.softmax(0)
    weight = torch.einsum("k,koi->oi", shares, m.matrices)
    return m.last(torch.tanh(x @ weight.T))


def positive(m: Any, x: Tensor) -> Tensor:
    return m.last(torch.tanh(F.linear(x, F.softplus(m.weight), m.bias)))


def fixed_share(m: Any, x: Tensor) -> Tensor:
    """A scale that depends on a weight, for a weight that is used as it is as well."""
    return m.last(torch.tanh(F.linear(x, m.weight * m.scale.exp(), m.bias)) + F.linear(x, m.weight))


def twice(m: Any, x: Tensor) -> Tensor:
    """A matrix with its bias, and once more in another form."""
    return m.last(torch.tanh(F.linear(x, m.weight, m.bias)) + F.linear(x, F.softplus(m.weight)))


def positions(m: Any, x: Tensor) -> Tensor:
    """Numbers of a table, one for each position, are added to all rows."""
    tokens = torch.arange(x.shape[1])
    shift = F.pad(F.embedding(tokens, m.table), (0, 3))
    return m.last(torch.tanh(F.linear(x, m.weight, m.bias) + shift).mean(1))


def layers(change: Callable[[nn.Module], Any], *, image: bool = False) -> nn.Module:
    """Two layers, both changed by something of torch.nn.utils."""
    if image:
        body = [nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)]
    else:
        body = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)]
    module = nn.Sequential(*body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        change(module[0])
        change(module[2])
    return module


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight + weight.mean()


def pruned(layer: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", 0.4)
    prune.random_unstructured(layer, "bias", 1)


def with_last(function: Callable[..., Tensor], width: int = 6, **shapes: tuple[int, ...]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = Function(function, **shapes)
        module.last = nn.Linear(width, 2)
        return module

    return make


LINEAR: dict[str, Any] = {"weight": (6, 4), "bias": (6,)}
X, IMAGES = numbers(7, 4), numbers(7, 2, 4, 4)
TOKENS = torch.tensor([[0, 1, 1], [4, 2, 0], [3, 4, 5], [0, 0, 0], [5, 1, 2], [2, 2, 1], [3, 3, 3]])
LOHA: dict[str, Any] = {**LINEAR, "a": (6, 2), "b": (2, 4), "c": (6, 2), "d": (2, 4)}

ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "bias cleared in a clone": (with_last(masked_bias, **LINEAR), X),
    "weight masked in a clone": (with_last(masked_weight, **LINEAR), X),
    "weight scaled in a clone": (with_last(scaled_rows, **LINEAR), X),
    "activations written in a clone": (with_last(written_data, **LINEAR), X),
    "matrix filled with weights": (with_last(written_table, **LINEAR), X),
    "derived weight changed in a clone": (with_last(kept, **LINEAR), X),
    "LoHa by an autograd function": (with_last(loha, **LOHA), X),
    "binarised": (with_last(binarised, **LINEAR), X),
    "fused norm": (with_last(fused_norm, **LINEAR, scale=(6,)), X),
    "fused linear": (with_last(fused_linear, **LINEAR), X),
    "rotary": (with_last(rotary, **LINEAR), X),
    "filter of pairs": (with_last(filtered, **LINEAR, filter=(4, 2)), X),
    "complex weights": (ComplexWeights, X),
    "func.grad": (with_last(by_func_grad, 4, **LINEAR, out=(1, 6)), X),
    "autograd.grad": (with_last(by_autograd_grad, 4, **LINEAR, out=(1, 6)), X),
    "func.vmap": (with_last(mapped, **LINEAR), X),
    "checkpoint": (lambda: Recomputed(False), X),
    "checkpoint, reentrant": (lambda: Recomputed(True), X),
    "sparse embedding": (lambda: Tokens(nn.Embedding(6, 4, sparse=True)), TOKENS),
    "sparse embedding bag": (lambda: Tokens(nn.EmbeddingBag(6, 4, sparse=True)), TOKENS),
    "embedding bag": (lambda: Tokens(nn.EmbeddingBag(6, 4, mode="sum")), TOKENS),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 2)), X),
    "pruned": (lambda: layers(pruned), X),
    "weight norm": (lambda: layers(parametrizations.weight_norm), X),
    "weight norm of all": (lambda: layers(lambda m: parametrizations.weight_norm(m, dim=None)), X),
    "weight norm by columns": (lambda: layers(lambda m: parametrizations.weight_norm(m, dim=1)), X),
    "weight norm by a hook": (lambda: layers(weight_norm), X),
    "spectral norm": (lambda: layers(parametrizations.spectral_norm), X),
    "spectral norm by a hook": (lambda: layers(spectral_norm), X),
    "orthogonal": (lambda: layers(parametrizations.orthogonal), X),
    "orthogonal, cayley": (lambda: layers(lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley")), X),
    "own parametrization": (lambda: layers(lambda m: parametrize.register_parametrization(m, "weight", Doubled())), X),
    "weight norm of convolutions": (lambda: layers(parametrizations.weight_norm, image=True), IMAGES),
    "weight norm of convolutions by a hook": (lambda: layers(weight_norm, image=True), IMAGES),
    "spectral norm of convolutions": (lambda: layers(parametrizations.spectral_norm, image=True), IMAGES),
    "pruned convolutions": (lambda: layers(pruned, image=True), IMAGES),
    "standardised convolution": (
        with_last(standardised, 4, kernel=(4, 2, 3, 3), gain=(4,), bias=(4,)), IMAGES,
    ),
    "mixture of matrices": (with_last(chosen_mixture, shares=(3,), matrices=(3, 6, 4)), X),
    "positive weights": (with_last(positive, **LINEAR), X),
    "weight as it is and derived": (with_last(twice, **LINEAR), X),
    "table of positions": (with_last(positions, table=(5, 3), **LINEAR), numbers(7, 3, 4)),
    "scaled weight": (with_last(fixed_share, **LINEAR, scale=()), X),
}  # fmt: skip


def make(name: str, seed: int = 2) -> nn.Module:
    """The network of that name in float64 with drawn weights; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # that of the fork
        module = ARCHITECTURES[name][0]().double()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if not nn.parameter.is_lazy(parameter):
                drawn = torch.randn((*parameter.shape, 2), generator=source, dtype=torch.float64)
                drawn = torch.view_as_complex(drawn) if parameter.is_complex() else drawn[..., 0]
                parameter.copy_(0.7 * drawn)
    return module.eval()


def jacobian(module: nn.Module, inputs: Any) -> Tensor:
    """∂f/∂θ of all parameters, (N, C, P): one backward pass for each number of the output, each row by itself."""
    rows = []
    for n in range(len(inputs)):
        for f in module(inputs[n : n + 1])[0]:
            gradients = torch.autograd.grad(f, list(module.parameters()), retain_graph=True, allow_unused=True)
            pairs = zip(gradients, module.parameters(), strict=True)
            rows.append(torch.cat([(torch.zeros_like(p) if g is None else g.to_dense()).flatten() for g, p in pairs]))
    return torch.stack(rows).unflatten(0, (len(inputs), -1)).detach()


def ggn(module: nn.Module, inputs: Any) -> Tensor:
    """Σ Jᵀ (diag p − p pᵀ) J of a softmax, shape (P, P)."""
    J, p = jacobian(module, inputs), module(inputs).softmax(-1).detach()
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("ncp,ncd,ndq->pq", J, middle, J)
