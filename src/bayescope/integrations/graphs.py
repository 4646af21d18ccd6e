"""Networks of PyTorch Geometric, whose rows are graphs or nodes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, cast, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import Dataset

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import as_tensor


class _Graphs(list[Any]):
    """Graphs that a network and its deep copies share: the network of a posterior knows those that are added later."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@final
class GraphNetwork(nn.Module):
    """Wraps a network of PyTorch Geometric, so that the functions of this library can read it a row at a time.

    A batch of graphs has the nodes of all graphs along one axis, and no axis of rows. This network holds the graphs,
    and its inputs are numbers of rows, int64 of shape (N,). A row is a graph, or a node if ``rows="nodes"``. The
    Jacobian of a row is exact, even if its output depends on all nodes of its graph. Weights that meet nodes are
    differentiated for each row by itself: "kfac" holds them in full, and layers after the pooling in factors.

        network = bs.integrations.GraphNetwork(module, graphs)
        q = bs.laplace(network, network.data(), likelihood="categorical", structure="full")
        p = q.predict(network.add(new_graphs))

    With ``rows="nodes"`` each call runs all graphs, so that a mask of dropout is the same for all nodes.

    Args:
        module: takes the entries of a ``torch_geometric.data.Batch`` by name, as in ``forward(x, edge_index, batch)``,
            or the batch itself as its one required argument. It returns f of shape (graphs, C) or (nodes, C). An
            optional argument keeps its default where the graphs have no entry of its name.
        graphs: a ``Data`` or several: a list, a data set, or a loader in a fixed order. They are not copied. Another
            `GraphNetwork` shares its graphs, as the members of an ensemble need.
        rows: "graphs" or "nodes".

    Attributes:
        module: the network.
        rows: "graphs" or "nodes".

    Raises:
        OptionError: if ``rows`` is neither "graphs" nor "nodes".
        InputTypeError: if an entry is not a ``Data``, or the module is not a ``torch.nn.Module``.
        InputError: if there is no graph.
    """

    def __init__(self, module: nn.Module, graphs: Any, *, rows: Literal["graphs", "nodes"] = "graphs") -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}.")
        self.rows = checks.choice("rows", rows, ("graphs", "nodes"))
        # Nodes stand in the place of rows in no layer, and graphs may differ in their number of nodes.
        self.row_folds = ("alone",) if self.rows == "graphs" else ()
        self.module = module
        # Now, since `forward` is exchanged while this library calls the module.
        self._arguments = {
            name: argument.default is argument.empty
            for name, argument in inspect.signature(module.forward).parameters.items()
            if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        }
        if isinstance(graphs, GraphNetwork):
            self._graphs: _Graphs = graphs._graphs
            self._first: int = graphs._first
        else:
            self._graphs = _Graphs()
            self._first = len(self.add(graphs))

    def add(self, graphs: Any) -> Tensor:
        """Adds graphs to this network and its deep copies, and returns the numbers of their rows, int64 of shape (N,).

        The numbers of earlier rows stay as they are.

        Raises:
            InputTypeError: if an entry is not a ``Data``.
            InputError: if there is no graph.
        """
        found = _single(graphs)
        if not found:
            raise InputError("graphs: expected at least one graph, got none.")
        before = self._count()
        self._graphs.extend(found)
        return torch.arange(before, self._count())

    def data(self, where: ArrayLike | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The numbers of rows and their targets, which stand in ``y`` of the graphs: (numbers, y), as `laplace` takes.

        Args:
            where: the numbers of rows, or a mask, bool of shape (N,), such as ``graph.train_mask``; ``None`` for the
                rows of the graphs that this network was made with, and not of those that were added.

        Raises:
            InputError: if a graph has no y, if its y has no entry for each row, or if there is no such row.
        """
        numbers = torch.arange(self._first) if where is None else self._where(as_tensor(where))
        sizes = torch.tensor([self._size(graph) for graph in self._graphs])
        ends = sizes.cumsum(0)
        graphs, place = torch.bucketize(numbers, ends, right=True).unique(return_inverse=True)
        targets = [self._targets(self._graphs[graph]) for graph in graphs.tolist()]
        starts = sizes[graphs].cumsum(0) - sizes[graphs]
        y = torch.cat(targets)
        return numbers, y[(starts[place] + numbers - (ends - sizes)[graphs][place]).to(y.device)]

    def forward(self, numbers: Tensor) -> Tensor:
        """f of rows, shape (N, C)."""
        wanted = self._numbers("x", numbers)
        if self.rows == "graphs":
            return self._outputs([self._graphs[number] for number in wanted.tolist()], len(wanted))
        f = self._outputs(self._graphs, self._count())
        return f[wanted.to(f.device)]

    def _outputs(self, graphs: Sequence[Any], rows: int) -> Tensor:
        """f of all rows of some graphs."""
        parameter = next(self.module.parameters(), torch.empty(0))
        batch = _joined(graphs).to(parameter.device)
        batch = batch.apply(lambda each: each.to(parameter.dtype) if each.is_floating_point() else each)
        f = self._answer(batch)
        if not isinstance(f, Tensor) or f.ndim == 0 or len(f) != rows:
            got = f"shape {tuple(f.shape)}" if isinstance(f, Tensor) else type(f).__name__
            raise InputError(
                f"module: expected outputs of shape ({rows}, C), one for each of the {self.rows}, got {got}. "
                "Choose rows= by whether the module pools the nodes of each graph."
            )
        return f

    def _answer(self, batch: Any) -> Any:
        """What the module returns for a batch."""
        required = [name for name, needed in self._arguments.items() if needed]
        whole = not self._arguments or (len(required) == 1 and (required[0] not in batch or required[0] == "batch"))
        if whole:
            return self.module(batch)
        missing = [name for name in required if name not in batch]
        if missing:
            raise InputError(
                f"module: expected a forward whose arguments are entries of the graphs, {sorted(batch.keys())}, got "
                f"{', '.join(missing)} beside them. Rename them, or take the whole batch: forward(self, data)."
            )
        return self.module(**{name: batch[name] for name in self._arguments if name in batch})

    def _targets(self, graph: Any) -> Tensor:
        """y of a graph, an entry for each of its rows."""
        y, size = getattr(graph, "y", None), self._size(graph)
        if y is None:
            raise InputError("graphs: expected graphs with targets in y, got one without. Give (numbers, y) yourself.")
        y = torch.atleast_1d(as_tensor(y))
        if len(y) != size:
            raise InputError(
                f"graphs: expected y of shape ({size}, ...) in a graph, an entry for each of its rows, which are "
                f"{self.rows}, got shape {tuple(y.shape)}. Give y[None] where one graph has several targets, or choose "
                "the other rows=."
            )
        return y

    def _where(self, where: Tensor) -> Tensor:
        """The numbers of rows, which may be given as a mask."""
        if where.dtype != torch.bool:
            return self._numbers("where", where)
        if where.shape not in ((self._first,), (self._count(),)):
            raise InputError(
                f"where: expected a mask of shape ({self._first},), got {tuple(where.shape)}. Choose one split if "
                "there are several: graph.train_mask[:, 0]."
            )
        return self._numbers("where", where.nonzero()[:, 0].cpu())

    def _numbers(self, name: str, numbers: Tensor) -> Tensor:
        """The numbers of rows.

        Raises:
            InputError: if there are none, or they are no numbers of rows.
        """
        count, dtype = self._count(), str(numbers.dtype).removeprefix("torch.")
        if numbers.dtype in (torch.bool, torch.uint8):
            raise InputError(
                f"{name}: expected the numbers of rows, got a mask of {dtype}. network.data(mask.bool())[0] is the "
                "numbers of its rows."
            )
        if numbers.ndim != 1 or numbers.is_floating_point() or not len(numbers):
            raise InputError(
                f"{name}: expected the numbers of rows, whole numbers of shape (N,), got {dtype} of shape "
                f"{tuple(numbers.shape)}. network.add(graphs) returns those of other graphs."
            )
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
            raise InputError(
                f"{name}: expected numbers of rows from 0 to {count - 1}, got {int(numbers.min())} to "
                f"{int(numbers.max())}. network.add(graphs) adds rows; give the members of an ensemble "
                "GraphNetwork(module, network), which shares them."
            )
        return numbers.to(torch.int64)

    def _count(self) -> int:
        return sum(map(self._size, self._graphs))

    def _size(self, graph: Any) -> int:
        return 1 if self.rows == "graphs" else int(graph.num_nodes)


def _joined(graphs: Sequence[Any]) -> Any:
    """One batch of some graphs, with the entries that all of them have, but for the targets."""
    keys = [set(graph.keys()) for graph in graphs]
    absent = set.union(*keys) - set.intersection(*keys) | {"y"}
    return _geometric().Batch.from_data_list(list(graphs), exclude_keys=sorted(absent))


def _single(graphs: Any) -> list[Any]:
    """Each graph of a graph, a batch, or several of these.

    Raises:
        InputTypeError: if one is not a ``Data``.
    """
    if isinstance(graphs, Dataset):  # first: data sets of PyTorch Geometric have the attributes of their graphs too
        return [each for place in range(len(cast(Any, graphs))) for each in _single(graphs[place])]
    if hasattr(graphs, "edge_index") or hasattr(graphs, "to_data_list") or hasattr(graphs, "edge_types"):
        if not isinstance(graphs, _geometric().Data):
            raise InputTypeError(
                f"graphs: expected torch_geometric.data.Data, got {type(graphs).__name__}. Give graph.to_homogeneous() "
                "where nodes are of several types."
            )
        return cast(list[Any], graphs.to_data_list()) if hasattr(graphs, "to_data_list") else [graphs]
    if isinstance(graphs, Tensor | str) or not isinstance(graphs, Iterable):
        raise InputTypeError(f"graphs: expected torch_geometric.data.Data or several, got {type(graphs).__name__}.")
    return [each for graph in graphs for each in _single(graph)]


def _geometric() -> Any:
    """PyTorch Geometric's classes of data; the caller's graphs are of it, so that it is installed."""
    return importlib.import_module("torch_geometric.data")
