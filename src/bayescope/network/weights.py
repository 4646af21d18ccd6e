"""Which of a network's parameters are random, and their flat order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeGuard, final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.storage import stored


@final
@dataclass(frozen=True)
class Largest:
    """The weights that are largest by some measure: ``count`` of them, or that fraction of all (a float).

    Attributes:
        measure: "magnitude", their absolute value; or "variance", their marginal posterior variance under a diagonal
            curvature, which takes a pass over the data to find. Those are what is left of a posterior when all other
            weights are held at their mode (Daxberger et al. 2021, "Bayesian deep learning via subnetwork inference",
            Eq. 11).
        count: how many, or which fraction.
    """

    measure: Literal["magnitude", "variance"]
    count: int | float

    def __post_init__(self) -> None:
        count = self.count
        whole = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if not whole and not (isinstance(count, float) and 0 < count <= 1):
            raise InputError(
                f"largest_{self.measure}: expected a positive whole number or a fraction in (0, 1], got {count!r}."
            )

    def mask(self, values: Tensor) -> Tensor:
        """True at the largest values among those of every trainable weight, in flat order; ties go to the first."""
        wanted = self.count if isinstance(self.count, int) else max(1, round(self.count * len(values)))
        if wanted > len(values):
            raise InputError(f"weights: expected at most {len(values)} weights to be chosen, got {wanted}.")
        mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
        mask[values.argsort(descending=True, stable=True)[:wanted]] = True
        return mask.cpu()


def largest_magnitude(k: int | float) -> Largest:
    """A choice for ``weights=``: those farthest from zero are random, all others stay fixed at their present values.

    Args:
        k: how many, or as a float in (0, 1] which fraction of all trainable weights.

    Raises:
        InputError: if k is neither.
    """
    return Largest("magnitude", k)


def largest_variance(k: int | float) -> Largest:
    """A choice for ``weights=``: those that the data determine least, by a diagonal curvature that a fit finds first.

    Args:
        k: how many, or as a float in (0, 1] which fraction of all trainable weights.

    Raises:
        InputError: if k is neither.
    """
    return Largest("variance", k)


def by_variance(choice: object) -> TypeGuard[Largest]:
    """Whether a choice of weights is `largest_variance`, which needs a pass over the data."""
    return isinstance(choice, Largest) and choice.measure == "variance"


@stored("weights")
@final
@dataclass(frozen=True, eq=False)
class Weights:
    """The random weights of a module: P entries of some of its parameters, in the order of ``module.parameters()``.

    A parameter that several submodules share counts once, under its first name. Flat vectors are row-major within a
    parameter, and skip the entries that a mask leaves out.

    Attributes:
        names: the parameters with at least one random entry.
        shapes: their shapes.
        masks: for the parameters that are random in part, which entries are, in the parameter's shape.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    masks: Mapping[str, Tensor]

    @classmethod
    def select(
        cls, module: nn.Module, choice: Choice, last_layer: Callable[[], Sequence[str]] | None = None
    ) -> Weights:
        """The weights that a choice names.

        Args:
            module: the network. Parameters with ``requires_grad=False`` are fixed.
            choice: "all", "last_layer", a name, a glob ("*.weight"), a list of names and globs, `largest_magnitude`,
                a mask as a flat boolean tensor or array over all trainable weights or a dict of such by name, or
                `Weights`.
            last_layer: finds the names of the last layer's parameters; it has to trace the network.

        Raises:
            OptionError: if a name or glob matches no parameter; the message has the closest name or lists them.
            InputError: if a chosen parameter is frozen or complex, a mask has another shape, nothing is chosen, or the
                chosen parameters are not on one device.
        """
        if isinstance(choice, Weights):
            return choice
        found = cls._selected(module, choice, last_layer)
        _check_one_device(found.parameters(module))
        return found

    @classmethod
    def _selected(cls, module: nn.Module, choice: Any, last_layer: Callable[[], Sequence[str]] | None) -> Weights:
        trainable = dict(_trainable(module))
        if not trainable:
            raise InputError("model: expected a parameter with requires_grad=True, got none. Unfreeze what is random.")
        if by_variance(choice):
            raise UnsupportedError("weights: largest_variance needs data to be found; pass it to a fit.")
        if isinstance(choice, Largest):
            choice = choice.mask(torch.cat([parameter.detach().abs().flatten() for parameter in trainable.values()]))
        if isinstance(choice, np.ndarray) and choice.dtype == np.bool_:
            choice = torch.as_tensor(choice)
        if isinstance(choice, Tensor):
            return _masked(trainable, _split(choice, trainable))
        if isinstance(choice, Mapping):
            _check_known(module, trainable, choice)
            return _masked(trainable, choice)
        if isinstance(choice, str) and choice == "last_layer":
            if last_layer is None:
                raise UnsupportedError("weights: the last layer is found by tracing the network on inputs.")
            names = set(last_layer())
        else:
            names = _matching(module, trainable, choice)
        _check_real({name: parameter for name, parameter in trainable.items() if name in names})
        return cls(
            tuple(name for name in trainable if name in names),
            tuple(parameter.shape for name, parameter in trainable.items() if name in names),
            {},
        )

    @cached_property
    def dim(self) -> int:
        """P, the number of random weights."""
        return sum(self.counts)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of random entries per parameter."""
        return tuple(
            int(self.masks[name].sum()) if name in self.masks else shape.numel()
            for name, shape in zip(self.names, self.shapes, strict=True)
        )

    @property
    def space(self) -> Hashable:
        """What the entries of the flat vector stand for, as something that can be compared."""
        masks = tuple((name, tuple(mask.flatten().tolist())) for name, mask in sorted(self.masks.items()))
        return self.names, self.shapes, masks

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each parameter's random entries lie in the flat vector."""
        return tuple(slice(start, end) for start, end in pairwise(accumulate(self.counts, initial=0)))

    @property
    def entries(self) -> tuple[str, ...]:
        """What each random weight is called, in flat order: its parameter and its place there, "0.weight[2, 1]"."""
        found: list[str] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            places = torch.nonzero(self.mask(name)).tolist() if shape else [[]]
            found += [f"{name}[{', '.join(map(str, place))}]" if place else name for place in places]
        return tuple(found)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layer of each parameter: the module that owns it; those of the network itself are named together."""
        owners = [name.rpartition(".")[0] for name in self.names]
        # The parameters of the network itself have no module's name to go by.
        unnamed = " + ".join(name for name, owner in zip(self.names, owners, strict=True) if not owner)
        return tuple(owner or unnamed for owner in owners)

    def mask(self, name: str) -> Tensor:
        """Which entries of a parameter are random, in its shape."""
        if name not in self.names:
            raise OptionError.unknown("weights", name, self.names)
        shape = self.shapes[self.names.index(name)]
        return self.masks[name] if name in self.masks else torch.ones(shape, dtype=torch.bool)

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of a module with at least one random entry, by name."""
        return {name: module.get_parameter(name) for name in self.names}

    def flat(self, module: nn.Module) -> Tensor:
        """The module's present random weights, shape (P,), detached."""
        return self.flatten({name: parameter.detach() for name, parameter in self.parameters(module).items()})

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The random entries of named tensors (..., *shape), one per parameter, as (..., P)."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            rows = tensors[name].flatten(-len(shape)) if len(shape) else tensors[name].unsqueeze(-1)
            parts.append(rows[..., self._kept(name, rows.device)] if name in self.masks else rows)
        return torch.cat(parts, -1)

    def unflat(self, vector: Tensor, module: nn.Module | None = None) -> dict[str, Tensor]:
        """Named tensors (..., *shape) from a flat vector (..., P): the reverse of `flatten`.

        Args:
            vector: the random entries.
            module: where the entries come from that a mask leaves out; without it they are zero.

        Raises:
            InputError: if the vector has another length.
        """
        if vector.shape[-1:] != (self.dim,):
            raise InputError(f"weights: expected {self.dim} entries on the last axis, got {tuple(vector.shape)}.")
        result = {}
        for name, shape, place in zip(self.names, self.shapes, self.slices, strict=True):
            values = vector[..., place]
            if name in self.masks:
                fixed = values.new_zeros(shape.numel())
                if module is not None:
                    fixed = module.get_parameter(name).detach().flatten().to(values)
                whole = fixed.expand(*values.shape[:-1], -1)
                values = whole.index_copy(values.ndim - 1, self._kept(name, values.device), values)
            result[name] = values.reshape((*vector.shape[:-1], *shape))
        return result

    def without(self, names: Collection[str]) -> Weights:
        """The random weights of the other parameters."""
        kept = {name: shape for name, shape in zip(self.names, self.shapes, strict=True) if name not in names}
        masks = {name: mask for name, mask in self.masks.items() if name in kept}
        return Weights(tuple(kept), tuple(kept.values()), masks)

    def _kept(self, name: str, device: torch.device) -> Tensor:
        return torch.nonzero(self.masks[name].flatten()).squeeze(-1).to(device)


Choice = str | Sequence[str] | Tensor | np.ndarray | Mapping[str, Any] | Largest | Weights


def _check_real(chosen: Mapping[str, Tensor]) -> None:
    for name, parameter in chosen.items():
        if parameter.is_complex():
            raise InputError(
                f"weights: expected real numbers, got complex ones in {name!r}. Keep them as pairs of real numbers "
                "(torch.view_as_complex(self.w) with a last axis of 2), or leave them out of `weights`."
            )


def _check_one_device(chosen: Mapping[str, Tensor]) -> None:
    first = next(iter(chosen))
    for name, parameter in chosen.items():
        if parameter.device != chosen[first].device:
            raise InputError(
                f"weights: expected random weights on one device, got {first!r} on {chosen[first].device} and "
                f"{name!r} on {parameter.device}. Move the module, model.to({str(chosen[first].device)!r}), or name "
                "weights on one device in weights=."
            )


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _matching(module: nn.Module, trainable: Mapping[str, Tensor], choice: Choice) -> set[str]:
    """The names that "all", names and globs stand for."""
    if isinstance(choice, str):
        if choice == "all" and "all" not in trainable:
            return set(trainable)
        choice = [choice]
    if not isinstance(choice, Sequence) or not all(isinstance(pattern, str) for pattern in choice):
        raise InputTypeError(
            "weights: expected 'all', 'last_layer', names or globs, a mask, largest_magnitude(k) or "
            f"largest_variance(k), got {type(choice).__name__}."
        )
    if not choice:
        raise InputError("weights: expected at least one name or glob, got an empty list.")
    found: set[str] = set()
    canonical = _canonical_names(module)
    for pattern in choice:
        hits = {canonical[name] for name in matching(pattern, canonical)}
        if not hits:
            raise OptionError.unknown("weights", pattern, ["all", "last_layer", *trainable])
        if hits.isdisjoint(trainable):
            raise InputError(f"weights: {pattern!r} is frozen. Set requires_grad=True on what is to be random.")
        found |= hits & trainable.keys()
    return found


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern stands for: itself, those that match the glob, or those inside of a module."""
    names = list(names)
    if pattern in names:
        return [pattern]
    globbed = [name for name in names if fnmatchcase(name, pattern)]
    return globbed or [name for name in names if name.startswith(f"{pattern}.")]


def _canonical_names(module: nn.Module) -> dict[str, str]:
    """Every name of every parameter, with the first name of that same parameter."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    return {name: first[id(parameter)] for name, parameter in module.named_parameters(remove_duplicate=False)}


def _check_known(module: nn.Module, trainable: Mapping[str, Tensor], masks: Mapping[str, Any]) -> None:
    for name in masks:
        if name not in trainable:
            if name in dict(module.named_parameters()):
                raise InputError(f"weights: {name!r} is frozen. Set requires_grad=True on what is to be random.")
            raise OptionError.unknown("weights", name, trainable)


def _split(mask: Tensor, trainable: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A flat mask over all trainable weights as masks by name."""
    sizes = [parameter.numel() for parameter in trainable.values()]
    if mask.dtype != torch.bool or mask.shape != (sum(sizes),):
        raise InputError(
            f"weights: expected a boolean mask of shape ({sum(sizes)},) over all trainable weights, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    parts = mask.cpu().split(sizes)
    return {name: part.reshape(trainable[name].shape) for name, part in zip(trainable, parts, strict=True)}


def _masked(trainable: Mapping[str, Tensor], masks: Mapping[str, Any]) -> Weights:
    """The weights where the masks are true; parameters without a mask are fixed."""
    chosen = {}
    for name, parameter in trainable.items():
        if name not in masks:
            continue
        mask = torch.as_tensor(masks[name]).cpu()
        if mask.dtype != torch.bool or mask.shape != parameter.shape:
            raise InputError(
                f"weights: expected a boolean mask of shape {tuple(parameter.shape)} for {name!r}, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}."
            )
        if mask.any():
            chosen[name] = mask
    if not chosen:
        raise InputError("weights: expected a mask with at least one true entry, got none.")
    shapes = tuple(trainable[name].shape for name in chosen)
    return Weights(tuple(chosen), shapes, {name: mask for name, mask in chosen.items() if not mask.all()})
