"""The curvatures of peers as dense matrices: each kind and structure that they have, each fair way of asking."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

from tests.curvature.cases import Case, ChannelMean, Mean

Answer = Callable[[], Tensor]


# --- how a network is put to them -------------------------------------------------------------------------------------


@final
class Packed(nn.Module):
    """A network of several inputs, by position or by name, as one of a single tensor: the rows side by side."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        super().__init__()
        self.module = module
        self.names = list(inputs) if isinstance(inputs, dict) else None
        self.shapes = [each.shape[1:] for each in (inputs.values() if self.names else inputs)]

    @staticmethod
    def pack(inputs: Any) -> Tensor:
        """The single tensor, shape (N, D)."""
        return torch.cat([each.flatten(1) for each in (inputs.values() if isinstance(inputs, dict) else inputs)], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Takes the rows apart again."""
        parts = x.split([shape.numel() for shape in self.shapes], 1)
        inputs = [part.reshape(len(x), *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return self.module(**dict(zip(self.names, inputs, strict=True))) if self.names else self.module(*inputs)


@final
class ClassesSecond(nn.Module):
    """A network with outputs (N, S, C) as one with (N, C, S), which `nn.CrossEntropyLoss` reads."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, turned."""
        return self.module(x).movedim(-1, 1)


def of_known_modules(module: nn.Module, x: Tensor) -> nn.Module:
    """Pools where the network has our means over positions, which backpack does not know; it is changed in place."""
    from backpack.custom_module.permute import Permute

    sizes: dict[nn.Module, int] = {}

    def note(each: nn.Module, inputs: tuple[Tensor]) -> None:
        sizes[each] = inputs[0].ndim - 2

    hooks = [e.register_forward_pre_hook(note) for e in module.modules() if isinstance(e, Mean | ChannelMean)]
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()
    for name, each in [found for found in module.named_modules() if found[1] in sizes]:
        size = sizes[each]
        pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[size - 1](1)
        turned = [Permute(0, size + 1, *range(1, size + 1))] * isinstance(each, Mean)
        module.set_submodule(name, nn.Sequential(*turned, pool, nn.Flatten()))
    return module


@final
@dataclass(frozen=True)
class Question:
    """A network with a loss and targets, as a peer is asked about it.

    Attributes:
        module: in evaluation mode, without in-place layers.
        x: a tensor of rows.
        y: labels, one a row or a position.
        size: the rows of a batch.
        loss: −log p(y∣f) summed over rows, of a Gaussian the squared error.
        noise: the noise variance of a Gaussian.
    """

    module: nn.Module
    x: Tensor
    y: Tensor
    size: int
    loss: type[nn.Module]
    noise: float | None

    def again(self, size: int | None = None) -> Question:
        """With a module of its own, since some leave hooks."""
        return replace(self, module=copy.deepcopy(self.module), size=size or self.size)

    def scale(self, kind: str) -> float:
        """From a curvature of the loss to that of −log p, whose gradient is the squared error's over 2 σ²."""
        if self.noise is None:
            return 1.0
        return (0.5 / self.noise) ** (2 if kind == "empirical_fisher" else 1)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights that can be trained, in the module's order."""
        return [value for value in self.module.parameters() if value.requires_grad]

    def loader(self) -> DataLoader[Any]:
        """The rows in batches."""
        return DataLoader(TensorDataset(self.x, self.y), batch_size=self.size)


def loss_of(entry: Case) -> tuple[type[nn.Module], float | None] | None:
    """The loss that peers know for a likelihood, and the noise variance; ``None`` where there is no such loss."""
    likelihood = entry.likelihood
    if likelihood.name == "categorical":
        return nn.CrossEntropyLoss, None
    if likelihood.name == "bernoulli":
        return nn.BCEWithLogitsLoss, None
    if likelihood.name == "gaussian" and likelihood.noise_variance.numel() == 1:
        return nn.MSELoss, float(likelihood.noise_variance)
    return None


def questions(entry: Case, size: int) -> dict[str, Question]:
    """The ways to ask about a network, by name: of several inputs packed, of dense outputs each way of turning them.

    Positions are rows of the data itself where the network treats each by itself: peers scale by the number of rows.
    """
    loss = loss_of(entry)
    if loss is None:
        return {}
    module = copy.deepcopy(entry.module).eval()
    for part in module.modules():
        if hasattr(part, "inplace"):
            part.inplace = False
    x, y = entry.inputs, entry.targets
    if not isinstance(x, Tensor):
        module, x = Packed(module, x), Packed.pack(x)
    y = y if loss[0] is nn.CrossEntropyLoss else y.to(torch.float64)
    ways = {"": (module, x, y, size)}
    if loss[0] is nn.CrossEntropyLoss and y.ndim > 1:
        ways["classes second"] = (ClassesSecond(module), x, y, size)
        if by_position(module, x):
            ways["positions as rows"] = (module, x.flatten(0, 1), y.flatten(), size * y.shape[1])

    return {name: Question(*way, *loss) for name, way in ways.items()}


def by_position(module: nn.Module, x: Tensor) -> bool:
    """Whether the outputs of a position are those of its input alone."""
    with torch.no_grad():
        return torch.allclose(module(x.flatten(0, 1)), module(x).flatten(0, 1), rtol=1e-12, atol=1e-12)


@contextmanager
def fair() -> Iterator[None]:
    """Float64 for what peers make by themselves, and attention by operations that have the derivatives they take."""
    fast, dtype = torch.backends.mha.get_fastpath_enabled(), torch.get_default_dtype()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_default_dtype(torch.float64)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.backends.mha.set_fastpath_enabled(fast)


# --- the peers --------------------------------------------------------------------------------------------------------


def laplace_backends(kind: str) -> dict[str, Any]:
    """laplace-torch's backends for a kind."""
    from laplace.curvature import asdl, backpack, curvlinops

    if kind == "hessian":
        return {"CurvlinopsHessian": curvlinops.CurvlinopsHessian, "AsdlHessian": asdl.AsdlHessian}
    if kind == "empirical_fisher":
        return {
            "CurvlinopsEF": curvlinops.CurvlinopsEF,
            "BackPackEF": backpack.BackPackEF,
            "AsdlEF": asdl.AsdlEF,
        }
    return {
        "CurvlinopsGGN": curvlinops.CurvlinopsGGN,
        "BackPackGGN": backpack.BackPackGGN,
        "AsdlGGN": asdl.AsdlGGN,
    }


def laplace_fit(question: Question, structure: str, backend: Any) -> Any:
    """laplace-torch's posterior."""
    from laplace import Laplace

    posterior = Laplace(
        question.again().module, "classification" if question.noise is None else "regression",
        subset_of_weights="all", hessian_structure={"full": "full", "diagonal": "diag", "kfac": "kron"}[structure],
        backend=backend, sigma_noise=1.0 if question.noise is None else question.noise**0.5,
    )  # fmt: skip
    posterior.fit(question.loader())
    return posterior


def laplace_torch(question: Question, structure: str, kind: str) -> dict[str, Answer]:
    """Its curvature without the prior, by each backend."""
    if structure not in ("full", "diagonal", "kfac") or (kind == "hessian" and structure != "full"):
        return {}
    if question.loss is nn.BCEWithLogitsLoss:
        return {}  # its classes have a logit each

    def run(backend: Any) -> Tensor:
        posterior = laplace_fit(question, structure, backend)
        if structure == "kfac":
            return posterior._H_factor * posterior.H_facs.to_matrix()
        curvature = posterior._H_factor * posterior.H
        return curvature if structure == "full" else torch.diag(curvature)

    return {f"laplace-torch, {name}": partial(run, way) for name, way in laplace_backends(kind).items()}


def curvlinops(question: Question, structure: str, kind: str) -> dict[str, Answer]:
    """Its linear operators, multiplied by the identity."""
    import curvlinops as peer

    full = {"ggn": "GGN", "hessian": "Hessian", "empirical_fisher": "EF"}[kind]
    names = {"full": full, "kfac": "KFAC", "ekfac": "EKFAC"}
    if structure not in names or (kind == "hessian" and structure != "full"):
        return {}

    def run() -> Tensor:
        asked = question.again()
        options: dict[str, Any] = {"check_deterministic": False}  # two passes that other peers do not make
        if structure != "full":
            fisher = peer.FisherType.TYPE2 if kind == "ggn" else peer.FisherType.EMPIRICAL
            options |= {"fisher_type": fisher, "separate_weight_and_bias": False}
        make = getattr(peer, f"{names[structure]}LinearOperator")
        loss = asked.loss(reduction="sum")
        operator = make(asked.module, loss, asked.parameters, list(asked.loader()), **options)
        return asked.scale(kind) * (operator @ torch.eye(operator.shape[1], dtype=torch.float64))

    return {"curvlinops": run}


def backpack(question: Question, structure: str, kind: str) -> dict[str, Answer]:
    """Its diagonals, summed over batches, and Kronecker factors, which are those of a batch: here of all rows."""
    from backpack import backpack as recording
    from backpack import extend, extensions

    found = {
        ("ggn", "diagonal"): ("DiagGGNExact", "diag_ggn_exact"),
        ("ggn", "kfac"): ("KFLR", "kflr"),
        ("hessian", "diagonal"): ("DiagHessian", "diag_h"),
        ("empirical_fisher", "diagonal"): ("SumGradSquared", "sum_grad_squared"),
    }.get((kind, structure))
    if found is None:
        return {}

    def run(converted: bool) -> Tensor:
        asked = question.again(question.size if structure == "diagonal" else len(question.x))
        weights, total = asked.parameters, 0.0
        module = of_known_modules(asked.module, asked.x[:1])
        extended, loss = extend(module, use_converter=converted), extend(asked.loss(reduction="sum"))
        for x, y in asked.loader():
            with recording(getattr(extensions, found[0])()):
                loss(extended(x), y).backward()
            answers = [getattr(each, found[1]) for each in weights]
            if structure == "diagonal":
                total = total + torch.diag(torch.cat([each.reshape(-1) for each in answers]))
            else:
                total = torch.block_diag(*(torch.kron(*each) if len(each) == 2 else each[0] for each in answers))
        return asked.scale(kind) * total

    return {"backpack": partial(run, False), "backpack, converted": partial(run, True)}


PEERS = (laplace_torch, curvlinops, backpack)


def answers(entry: Case, structure: str, kind: str, size: int) -> dict[str, dict[str, Answer]]:
    """For each peer that has the kind in the structure, its answers by the way of asking."""
    found: dict[str, dict[str, Answer]] = {}
    for turned, question in questions(entry, size).items():
        for peer in PEERS:
            for name, run in peer(question, structure, kind).items():
                who, _, way = name.partition(", ")
                found.setdefault(who, {})[", ".join(filter(None, (way, turned)))] = fair()(run)
    return found
