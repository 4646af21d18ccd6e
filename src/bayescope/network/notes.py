"""What a recorder writes down while a network runs: which tensors are random weights, and where they met the data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from bayescope.errors import UnsupportedError
from bayescope.network.interception import Args, Function, Kwargs, leaves, replaced
from bayescope.network.parts import Derived
from bayescope.network.sites import Form, MatrixSite, Site, SpreadSite, WeightView

RANDOM, FIXED = "random", "fixed"


class ChangedInPlaceError(Exception):
    """A copy of a weight is changed in place; the argument is the parameter's name."""


@final
@dataclass(frozen=True)
class Computing:
    """What is noted of calls that take weights alone.

    Attributes:
        direct: parameters that are noted where they take part in a call, also in those of weights alone.
        followed: parameters whose views and copies count as computed, since some are changed in place.
    """

    direct: frozenset[str] = frozenset()
    followed: frozenset[str] = frozenset()


@final
class Notes:
    """The notes of one forward pass.

    Weights are known by the identity of their objects, so that names, tying and modules play no part. Every random
    weight reaches the network as a fresh leaf or detached, every other parameter detached.

    Attributes:
        sites: where random weights met the data, in the order of execution.
        derived: the weights among them that were computed from others, by the names that they have in every pass.
        moves_rows: whether the network has called a function that can move rows by value.
    """

    def __init__(
        self,
        random: Mapping[int, tuple[str, nn.Parameter]],
        fixed: Mapping[int, nn.Parameter],
        overwritten: frozenset[Hashable] = frozenset(),
        computing: Computing | None = None,
        buffers: Iterable[Tensor] = (),
    ) -> None:
        self.sites: list[Site] = []
        self.moves_rows = False
        self._random = random
        self._fixed = fixed
        self._overwritten = overwritten
        self._views: dict[int, WeightView] = {}
        self._kept: list[Tensor] = []  # an identity holds for as long as its object lives
        self.derived: dict[str, Derived] = {}
        self._computing = computing or Computing()
        self._leaves: dict[str, Tensor] = {}
        self._computed: dict[int, Tensor] = {}  # from weights alone, with their graph
        self._met: dict[tuple[int, int], WeightView] = {}  # those of them that met the data, in that state
        self._constants = {id(buffer): _version(buffer) for buffer in buffers}  # until something is written into them

    def view(self, value: Any) -> WeightView | None:
        """The random weight that an argument is, or is a view of."""
        identity = id(value)
        if identity in self._computed:
            return self._derived(value)
        found = self._views.get(identity)
        if found is None and identity in self._random:
            found = self._views[identity] = WeightView.whole(*self._random[identity])
        return found

    def _derived(self, value: Tensor) -> WeightView:
        """What was computed from weights, as a weight in the state in which it is."""
        key = id(value), value._version
        if key not in self._met:
            if value.is_complex():
                raise UnsupportedError("complex numbers that are computed from weights meet the data as they are")
            found = Derived.of(value, self._leaves)
            name = f"{' + '.join(found.leaves)} #{len(self.derived)}"
            self.derived[name], self._met[key] = found, WeightView.whole(name, value)
        return self._met[key]

    def takes_weights_alone(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether a call takes weights and constants alone, so that its result is the same for all rows."""
        for value in leaves(args, kwargs):
            identity = id(value)
            known = identity in self._computed or identity in self._fixed
            if known or not isinstance(value, Tensor) or self._constants.get(identity) == _version(value):
                continue
            view = self.view(value)
            if view is None or view.name in self._computing.direct:
                return False
        return True

    def is_followed(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether something computed is among the arguments, or a parameter whose copies count as such."""
        for value in leaves(args, kwargs):
            if id(value) in self._computed:
                return True
            if id(value) in self._random and self._random[id(value)][0] in self._computing.followed:
                return True
        return False

    def computed(self, func: Function, args: Args, kwargs: Kwargs) -> object:
        """Calls a function of weights alone with their graphs, and notes what it has computed."""
        args, kwargs = replaced(args, kwargs, self._with_graph)
        result = func(*args, **kwargs)
        self.note_constant(result, args)
        return result

    def note_constant(self, result: object, args: Args) -> None:
        """Notes what a call of weights and constants has returned, or written into where it returns nothing."""
        found = args[:1] if result is None else result
        for value in found if isinstance(found, list | tuple) else (found,):
            if isinstance(value, Tensor):
                self._kept.append(value)
                if value.requires_grad:
                    self._computed[id(value)] = value
                else:
                    self._constants[id(value)] = _version(value)

    def _with_graph(self, value: object) -> object:
        if id(value) in self._computed:
            return value
        view = self.view(value)
        if view is None:
            return self.plain(value)
        if view.name not in self._leaves:
            self._leaves[view.name] = view.weight.detach().requires_grad_()
        leaf = self._leaves[view.name]
        return leaf if view.is_whole else leaf.flatten()[view.positions].to(view.value.dtype)

    def register(self, view: WeightView) -> Tensor:
        """The tensor that stands for a view of a random weight from here on."""
        self._views[id(view.value)] = view
        self._kept.append(view.value)
        return view.value

    def parameters(self, args: Args, kwargs: Kwargs) -> str | None:
        """Whether random weights are among the arguments of a call, or only fixed ones."""
        found = None
        for value in leaves(args, kwargs):
            identity = id(value)
            if identity in self._random or identity in self._views or identity in self._computed:
                return RANDOM
            if identity in self._fixed:
                found = FIXED
        return found

    def plain(self, value: Any) -> Any:
        """A parameter detached; anything else unchanged."""
        view = self.view(value)
        if view is not None:
            return view.value
        return value.detach() if id(value) in self._fixed else value

    def data(self, value: object) -> Any:
        """An argument as data: a random weight in this place is spread, not a matrix."""
        view = self.view(value)
        return self.plain(value) if view is None else self.spread(view)

    def spread(self, view: WeightView, shape: tuple[int, ...] | None = None) -> Tensor:
        """A leaf that stands for a random weight, with as many entries as it meets."""
        leaf = (view.value if shape is None else view.value.expand(shape)).detach().requires_grad_()
        self.met(view, leaf)
        return leaf

    def met(self, view: WeightView, leaf: Tensor) -> None:
        """Notes a leaf that stood for a random weight."""
        self.sites.append(SpreadSite(view, leaf))

    def meet(
        self,
        form: Form,
        call: Callable[..., Tensor],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        outputs: int,
        lead: int,
    ) -> Tensor:
        """Runs ``call(x, weight, bias)`` with the weights detached, and notes the site.

        Args:
            form: the kind of call.
            call: the function.
            x: the data.
            weight: the matrix.
            bias: the bias, or ``None``.
            outputs: the size of the bias.
            lead: how many of the first dimensions may hold rows.
        """
        x, matrix, shift = self.data(x), self.plain(weight), self.plain(bias)
        views = self.view(weight), self.view(bias)
        if not (x.requires_grad or matrix.requires_grad):
            # No gradient has begun yet: it begins at the bias, which needs no activations kept, be there one or not.
            shift = matrix.new_zeros(outputs) if shift is None else shift.detach()
            shift = shift.requires_grad_()
        y = call(x, matrix, shift)
        if y._is_view():  # a layer's answer for sequences; what changes a view in place goes past the node behind it
            y = torch.ops.aten._unsafe_view(y, y.shape)
        if views != (None, None):
            source = None if x.grad_fn is None else get_gradient_edge(x)
            self._note(MatrixSite(form, *views, x.detach(), get_gradient_edge(y), y.shape, lead, x._version, source))
        return y

    def look(self, form: Form, tokens: Tensor, view: WeightView) -> Tensor:
        """Looks tokens up in a random table, and notes the site."""
        table = view.value.detach().requires_grad_()  # so that a gradient begins; nobody asks for that of the table
        y = functional.embedding(tokens, table)
        self._note(MatrixSite(form, view, None, tokens, get_gradient_edge(y), y.shape, tokens.ndim, tokens._version))
        return y

    def _note(self, site: MatrixSite) -> None:
        self.sites.append(site.cloned() if site.key in self._overwritten else site)


def _version(tensor: Tensor) -> int:
    """How often something has been written into a tensor."""
    return 0 if tensor.is_inference() else tensor._version


def grows(value: object) -> bool:
    """Whether a result, or one of several, depends on a weight."""
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, list | tuple) and any(isinstance(v, Tensor) and v.requires_grad for v in value)
