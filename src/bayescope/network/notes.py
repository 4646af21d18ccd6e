"""What a recorder writes down while a network runs: which tensors are random weights, and where they met the data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from bayescope.network.forms import Form
from bayescope.network.sites import MatrixSite, Site, SpreadSite
from bayescope.network.views import WeightView

RANDOM, FIXED = "random", "fixed"


@final
class Notes:
    """The notes of one forward pass.

    Weights are known by the identity of their objects, so that names, tying and modules play no part. Every random
    weight reaches the network as a fresh leaf or detached, every other parameter detached.

    Attributes:
        sites: where random weights met the data, in the order of execution.
        moves_rows: whether the network has called a function that can move rows by value.
    """

    def __init__(
        self,
        random: Mapping[int, tuple[str, nn.Parameter]],
        fixed: Mapping[int, nn.Parameter],
        overwritten: frozenset[Hashable] = frozenset(),
    ) -> None:
        self.sites: list[Site] = []
        self.moves_rows = False
        self._random = random
        self._fixed = fixed
        self._overwritten = overwritten
        self._views: dict[int, WeightView] = {}
        self._kept: list[Tensor] = []  # an identity holds for as long as its object lives

    def view(self, value: Any) -> WeightView | None:
        """The random weight that an argument is, or is a view of."""
        identity = id(value)
        found = self._views.get(identity)
        if found is None and identity in self._random:
            found = self._views[identity] = WeightView.whole(*self._random[identity])
        return found

    def register(self, view: WeightView) -> Tensor:
        """The tensor that stands for a view of a random weight from here on."""
        self._views[id(view.value)] = view
        self._kept.append(view.value)
        return view.value

    def parameters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Whether random weights are among the arguments of a call, or only fixed ones."""
        found = None
        for value in leaves(args, kwargs):
            identity = id(value)
            if identity in self._random or identity in self._views:
                return RANDOM
            if identity in self._fixed:
                found = FIXED
        return found

    def plain(self, value: Any) -> Any:
        """A parameter detached; anything else as it is."""
        view = self.view(value)
        if view is not None:
            return view.value
        return value.detach() if id(value) in self._fixed else value

    def data(self, value: Any) -> Any:
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
        self, form: Form, call: Callable[..., Tensor], x: Any, weight: Any, bias: Any, *, outputs: int, lead: int
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


def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments of a call and, where one is a list or tuple, what is in it."""
    for value in (*args, *kwargs.values()):
        if type(value) is list or type(value) is tuple:
            yield from value
        else:
            yield value


def replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], replace: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, each leaf of them replaced."""

    def inner(value: Any) -> Any:
        return type(value)(map(replace, value)) if type(value) in (list, tuple) else replace(value)

    return tuple(map(inner, args)), {name: inner(value) for name, value in kwargs.items()}


def flows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a gradient has to pass through a call."""
    return any(isinstance(value, Tensor) and value.requires_grad for value in leaves(args, kwargs))


def grows(value: Any) -> bool:
    """Whether a result, or one of several, depends on a weight."""
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, list | tuple) and any(isinstance(v, Tensor) and v.requires_grad for v in value)
