"""Random small networks through every structure: each answer is the definition's, or there is one of our own errors.

A network is drawn from its seed: what it reads (numbers, tokens, sequences, pictures), one to five layers that fit
behind each other, which of its weights are frozen, its likelihood, rows, batch size and kind of curvature. What it
should give is written down from definitions with autograd's Jacobians (`tests/curvature/reference.py`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from bayescope.curvature import Curvature, fit_curvature
from bayescope.errors import BayescopeError
from tests.curvature import reference
from tests.curvature.cases import DTYPE, LIKELIHOODS, Case, ChannelMean, Mean, draw_targets, fill
from tests.curvature.twins import attention, recurrence

STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
PRIOR = 0.7
# Relative errors above it are another answer.
WRONG = 1e-6
Record = dict[str, Any]


# --- layers -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of a sequence to itself; written out where a reference reads it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.reading: reference.Reading | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to the same."""
        if self.reading is not None:
            return attention(self.reading, self.attention, x, x)[0]
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrence(nn.Module):
    """A recurrent layer with the states of all steps; written out where a reference reads it."""

    def __init__(self, core: nn.RNNBase) -> None:
        super().__init__()
        self.core = core
        self.reading: reference.Reading | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, T, H)."""
        return self.core(x)[0] if self.reading is None else recurrence(self.reading, self.core, x)


class Residual(nn.Module):
    """x + g(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that the body keeps."""
        return x + self.body(x)


class Tied(nn.Module):
    """Two layers with one matrix and bias, or one layer that has two names."""

    def __init__(self, width: int, again: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = self.first if again else nn.Linear(width, width)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to the same."""
        return self.second(torch.tanh(self.first(x)))


class Last(nn.Module):
    """The last position of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, D)."""
        return x[:, -1]


class Turned(nn.Module):
    """The second dimension last, or back."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, A, B) to (N, B, A)."""
        return x.transpose(1, 2)


def written_out(module: nn.Module, inputs: Any, reading: reference.Reading) -> Tensor:
    """The network as the reference reads it: layers that have no hook at their weights are written out."""
    readers = [part for part in module.modules() if isinstance(part, (Attention, Recurrence))]
    for part in readers:
        part.reading = reading
    try:
        return reference.call(module, inputs)
    finally:
        for part in readers:
            part.reading = None


def once_named(entry: Case) -> Case:
    """A copy for the reference: `torch.func.functional_call` does not put back a layer that has two names."""
    module = copy.deepcopy(entry.module)
    for part in module.modules():
        if isinstance(part, Tied) and part.second is part.first:
            del part._modules["second"]
            object.__setattr__(part, "second", part.first)
        elif isinstance(part, nn.ReLU):
            part.inplace = False  # the first layer would write into the rows
    return replace(entry, module=module)


# --- drawing a network ------------------------------------------------------------------------------------------------

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Softplus, nn.Sigmoid, nn.PReLU, nn.LeakyReLU,
    lambda: nn.ReLU(inplace=True), lambda: nn.Dropout(0.3),
)  # fmt: skip
Maker = Callable[[random.Random, tuple[int, ...]], nn.Module]


def linear(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Over the last dimension, some with normed weights."""
    layer = nn.Linear(shape[-1], source.randint(1, 4), bias=source.random() < 0.8)
    return parametrizations.weight_norm(layer) if source.random() < 0.1 else layer


def convolution(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """With groups, steps, gaps and borders; some transposed."""
    channels, dims = shape[1], len(shape) - 2
    groups = source.choice([each for each in range(1, channels + 1) if channels % each == 0])
    options: dict[str, Any] = {"groups": groups, "stride": source.randint(1, 2), "bias": source.random() < 0.7}
    options |= {"dilation": source.randint(1, 2), "padding": source.randint(0, 1)}
    if source.random() < 0.2:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[dims - 1]
    else:
        kind = (nn.Conv1d, nn.Conv2d)[dims - 1]
        options["padding_mode"] = source.choice(["zeros", "zeros", "reflect", "circular", "replicate"])
    return kind(channels, groups * source.randint(1, 2), source.randint(1, 3), **options)


def norm(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """One that fits the shape."""
    affine = source.random() < 0.8
    last: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(shape[-1], elementwise_affine=affine),
        lambda: nn.RMSNorm(shape[-1], eps=1e-3, elementwise_affine=affine),
    ]
    if len(shape) == 2:
        return source.choice([*last, lambda: nn.BatchNorm1d(shape[1], affine=affine)])()
    batch, instance = ((nn.BatchNorm1d, nn.InstanceNorm1d), (nn.BatchNorm2d, nn.InstanceNorm2d))[len(shape) - 3]
    groups = source.choice([each for each in range(1, shape[1] + 1) if shape[1] % each == 0])
    return source.choice([
        *last, lambda: batch(shape[1], affine=affine), lambda: instance(shape[1], affine=affine),
        lambda: nn.GroupNorm(groups, shape[1], affine=affine),
    ])()  # fmt: skip


def activation(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """One of those that torch has."""
    return source.choice(ACTIVATIONS)()


def residual(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Around a linear layer, or attention where there is a sequence."""
    inner: nn.Module = nn.Linear(shape[-1], shape[-1])
    if len(shape) == 3 and source.random() < 0.5:
        inner = Attention(shape[-1], 1)
    return Residual(nn.Sequential(inner, activation(source, shape)))


def tied(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """One matrix in two places."""
    return Tied(shape[-1], source.random() < 0.5)


def attended(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Attention with one or two heads."""
    return Attention(shape[-1], 2 if shape[-1] % 2 == 0 and source.random() < 0.5 else 1)


def recurrent(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """LSTM, GRU or RNN, in one direction or both."""
    kind = source.choice([nn.LSTM, nn.GRU, nn.RNN])
    core = kind(shape[-1], source.randint(1, 2), bias=source.random() < 0.7, batch_first=True,
                bidirectional=source.random() < 0.3)  # fmt: skip
    return Recurrence(core)


def pooling(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """The largest or the mean of two neighbours, or of all."""
    kinds = ((nn.MaxPool1d, nn.AvgPool1d), (nn.MaxPool2d, nn.AvgPool2d))[len(shape) - 3]
    adaptive = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[len(shape) - 3]
    return source.choice([*(lambda kind=kind: kind(2) for kind in kinds), lambda: adaptive(1)])()  # type: ignore[misc]


def turned(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """A sequence as a row of pixels, or back."""
    return Turned()


MAKERS: dict[int, tuple[Maker, ...]] = {
    2: (linear, linear, activation, norm, residual, tied),
    3: (linear, activation, norm, residual, tied, attended, recurrent, convolution, convolution, pooling, turned),
    4: (convolution, convolution, activation, norm, pooling, linear, residual),
}


def layers(source: random.Random, first: nn.Module | None, x: Tensor, dense: bool) -> tuple[list[nn.Module], Tensor]:
    """Layers that fit behind each other, and what comes out of them."""
    found = [] if first is None else [first]
    x = x if first is None else first(x)
    for _ in range(source.randint(0, 4)):
        layer = source.choice(MAKERS[x.ndim])(source, tuple(x.shape)).to(DTYPE).eval()
        try:
            after = layer(x)
        except (RuntimeError, ValueError):
            continue  # a kernel larger than the picture
        if after.numel() and after[0].numel() <= 64:
            found, x = [*found, layer], after
    if x.ndim > 2 and not (dense and x.ndim == 3):
        means: tuple[nn.Module, ...] = (nn.Flatten(), Mean(), ChannelMean(), *([Last()] if x.ndim == 3 else []))
        ending = source.choice(means)
        found, x = [*found, ending], ending(x)
    return found, x


def drawn(seed: int) -> tuple[Case, int, str]:
    """The network of a seed with its rows and likelihood, its batch size, and its kind of curvature."""
    source, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, likelihood = source.randint(1, 9), source.choice(list(LIKELIHOODS))
    outputs, chosen = LIKELIHOODS[likelihood]
    kind, first = source.choice(["numbers", "tokens", "sequence", "pixels", "picture"]), None
    shape = {"numbers": (source.randint(1, 4),), "sequence": (source.randint(1, 3), source.randint(1, 4)),
             "pixels": (source.randint(1, 4), source.randint(2, 7)),
             "picture": (source.randint(1, 4), source.randint(2, 5), source.randint(2, 5))}.get(kind)  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their first weights from the global generator
        torch.manual_seed(seed)
        if shape is None:
            inputs = torch.randint(5, (rows, source.randint(1, 4)), generator=generator)
            first = nn.Embedding(5, source.randint(1, 4), padding_idx=source.choice([None, 0])).to(DTYPE)
        else:
            inputs = torch.randn(rows, *shape, generator=generator, dtype=DTYPE)
        with torch.no_grad():
            found, x = layers(source, first, inputs.clone(), source.random() < 0.3)
        module = nn.Sequential(*found, nn.Linear(x.shape[-1], outputs, bias=source.random() < 0.8))
    fill(module, generator)
    for layer in found:
        written = any(isinstance(part, (Attention, Recurrence)) for part in layer.modules())
        for parameter in layer.parameters():  # those that the reference writes out are whole
            parameter.requires_grad_(written or source.random() > 0.05)
    targets = draw_targets(chosen, tuple(x.shape[:-1]), outputs, generator)
    kind = source.choice(["ggn", "ggn", "ggn", "empirical_fisher"])
    return Case(module, inputs, targets, chosen), source.randint(1, rows + 1), kind


# --- judging it -------------------------------------------------------------------------------------------------------


def error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖; infinite where it is not a number, or where only one of them is 0."""
    off, size = float((got - want).norm()), float(want.norm())
    if off == 0.0:
        return 0.0
    return off / size if size > 0.0 and off == off else float("inf")


def own_errors(curvature: Curvature, entry: Case, J: Tensor) -> dict[str, float]:
    """What is computed in a structure against the same by its own dense matrix A under a prior."""
    precision = curvature.with_prior(PRIOR)
    A = precision.to_dense()
    inverse, tape = torch.linalg.inv(A), curvature.network.tape(entry.inputs)
    covariance = J @ inverse @ J.mT
    root = precision.sqrt_solve(torch.eye(len(A), dtype=DTYPE))
    return {
        "log determinant": error(precision.logdet(), torch.logdet(A)),
        "J A⁻¹ Jᵀ": error(precision.covariance_of(tape), covariance),
        "its diagonal": error(precision.variance_of(tape), covariance.diagonal(dim1=1, dim2=2)),
        "A⁻¹": error(precision.solve(torch.eye(len(A), dtype=DTYPE)), inverse),
        "its diagonal alone": error(precision.marginal_variance(), inverse.diagonal()),
        "root of A⁻¹": error(root @ root.T, inverse),
    }


@final
@dataclass(frozen=True)
class Wanted:
    """What is right for a network.

    Attributes:
        matrices: by structure the dense curvature; of "ekfac" the traces of the exact blocks, since its eigenvectors
            are not always unique.
        places: the flat positions of each block.
        jacobian: shape (N, S C, P).
        log_likelihood: of all rows.
    """

    matrices: dict[str, Tensor]
    places: list[Tensor]
    jacobian: Tensor
    log_likelihood: Tensor


def wanted(entry: Case, kind: str) -> Wanted:
    """By definitions alone."""
    entry = once_named(entry)
    full, middle = reference.full(entry, kind), reference.output_curvature(entry, kind)
    places = reference.layers(entry, written_out)
    found = reference.kfac_blocks(reference.factors(entry, middle, twin=written_out))
    matrices = {
        "full": full, "low_rank": full, "diagonal": torch.diag(full.diagonal()),
        "block": reference.restricted(full, places),
        "kfac": reference.assembled(len(full), found, full, places),
        "ekfac": torch.stack([full.diagonal()[place].sum() for place in places]),
    }  # fmt: skip
    log_likelihood = reference.total_log_prob(entry, reference.outputs(entry))
    return Wanted(matrices, places, reference.jacobian(entry), log_likelihood)


def announced(curvature: Curvature, want: Tensor, full: Tensor) -> tuple[Tensor, int]:
    """The definition with exact blocks where a fit's summary says so, and how many are not those of the definition."""
    want, others = want.clone(), 0
    for part, place in zip(curvature.network.parts, curvature.network.indices, strict=True):
        exact = full[place[:, None], place]
        if part.name in curvature.fallbacks:
            others += not torch.equal(want[place[:, None], place], exact)
            want[place], want[:, place] = 0.0, 0.0
            want[place[:, None], place] = exact
    return want, others


def judged(entry: Case, structure: str, kind: str, batch_size: int, want: Wanted) -> Record:
    """One structure: its errors, the library's refusal, or somebody else's."""
    options = {"rank": want.jacobian.shape[-1], "generator": 0} if structure == "low_rank" else {}
    try:
        curvature = fit_curvature(
            entry.module, (entry.inputs, entry.targets), likelihood=entry.likelihood, curvature=kind,
            structure=structure, batch_size=batch_size, **options,
        )  # fmt: skip
        got, right, others = curvature.precision.to_dense(), want.matrices[structure], 0
        if structure == "ekfac":
            got = torch.stack([got.diagonal()[place].sum() for place in want.places])
        if structure == "kfac":
            right, others = announced(curvature, right, want.matrices["full"])
        return {
            "exact instead": others, "the matrix": error(got, right),
            "log likelihood": error(curvature.log_likelihood, want.log_likelihood),
            **own_errors(curvature, entry, want.jacobian),
        }
    except BayescopeError as refusal:
        return {"refused": f"{type(refusal).__name__}: {refusal}"[:200]}
    except Exception as failure:  # noqa: BLE001 - anything else is what this is looking for
        return {"foreign": f"{type(failure).__name__}: {failure}"[:200]}


def held(entry: Case) -> tuple[list[Tensor], list[bool]]:
    """What a reading must leave as it was: weights, buffers, rows, random states, modes."""
    values = [*entry.module.state_dict().values(), entry.inputs, entry.targets, torch.get_rng_state()]
    return [value.clone() for value in values], [part.training for part in entry.module.modules()]


def same(before: tuple[list[Tensor], list[bool]], after: tuple[list[Tensor], list[bool]]) -> bool:
    """Whether it did."""
    return before[1] == after[1] and all(map(torch.equal, before[0], after[0]))


def network(seed: int) -> Record:
    """Everything about the network of a seed."""
    entry, batch_size, kind = drawn(seed)
    found: Record = {
        "seed": seed, "layers": [type(part).__name__ for part in entry.module], "kind": kind,
        "likelihood": entry.likelihood.name, "weights": len(reference.flat_weights(entry.module)),
    }  # fmt: skip
    want = wanted(entry, kind)
    before = held(entry)
    found["structures"] = {name: judged(entry, name, kind, batch_size, want) for name in STRUCTURES}
    found["untouched"] = same(before, held(entry))
    return found


def outcome(found: Record) -> str:
    """ "agrees", "refused", "foreign error" or "wrong" of one structure."""
    if "refused" in found or "foreign" in found:
        return "refused" if "refused" in found else "foreign error"
    return "agrees" if max(errors(found).values()) <= WRONG else "wrong"


def errors(found: Record) -> dict[str, float]:
    """Those of one structure, without the count beside them."""
    return {what: value for what, value in found.items() if what != "exact instead"}


def run(count: int, first: int = 0) -> Record:
    """So many networks: counts, largest errors, and each that is not right."""
    found = [network(seed) for seed in range(first, first + count)]
    structures: Record = {}
    for name in STRUCTURES:
        some = [each["structures"][name] for each in found]
        good = [each for each in some if outcome(each) in ("agrees", "wrong")]
        structures[name] = {
            **{what: sum(outcome(each) == what for each in some) for what in ("agrees", "refused", "foreign error", "wrong")},
            "exact instead": sum(each["exact instead"] > 0 for each in good),
            "largest errors": {what: max(each[what] for each in good) for what in errors(good[0])} if good else {},
        }  # fmt: skip
    reasons = sorted({each["structures"][name]["refused"] for each in found for name in STRUCTURES
                      if "refused" in each["structures"][name]})  # fmt: skip
    bad = [
        each
        for each in found
        if not each["untouched"] or any(outcome(one) in ("wrong", "foreign error") for one in each["structures"].values())
    ]
    weights = sorted(each["weights"] for each in found)
    return {"count": count, "weights": [weights[0], weights[len(weights) // 2], weights[-1]], "structures": structures,
            "refusals": reasons, "bad": bad}  # fmt: skip
