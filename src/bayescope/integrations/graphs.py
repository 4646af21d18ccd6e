"""Networks of PyTorch Geometric, whose rows are graphs or nodes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, cast, final

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import as_tensor


class _Graphs(list[Any]):
    """Graphs that a network and its copies have in common: a posterior's network knows those that are added later."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@final
class GraphNetwork(nn.Module):
    """A network of PyTorch Geometric for the functions of this library, which read a row at a time.

    The nodes of a graph share edges, so that a batch of graphs has no axis along which rows could be cut. This network
    holds the graphs and takes the numbers of rows, int64 of shape (N,): its rows are graphs or nodes, as ``rows`` says.
    The Jacobian of each row is exact, also where all nodes of a graph have a part in it.

        network = bs.integrations.GraphNetwork(module, graphs, rows="graphs")
        q = bs.laplace(network, network.data(), likelihood="categorical")
        p = q.predict(network.add(new_graphs))

    For ``rows="nodes"`` each call runs all graphs, so that a mask of dropout is the same for all nodes.

    Args:
        module: takes a ``torch_geometric.data.Batch``, or its entries by their names, such as ``forward(x, edge_index,
            batch)``, and returns f of shape (graphs, C) or (nodes, C).
        graphs: a ``Data``, or several: a list, a data set or a loader in a fixed order.
        rows: "graphs" or "nodes".

    Attributes:
        module: the network.
        rows: what its rows are.

    Raises:
        OptionError: for other rows.
        InputTypeError: if something is no graph, or the module no module.
        InputError: if there is no graph.
    """

    def __init__(self, module: nn.Module, graphs: Any, *, rows: Literal["graphs", "nodes"] = "graphs") -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}.")
        self.rows = checks.choice("rows", rows, ("graphs", "nodes"))
        self.module = module
        self._arguments = tuple(inspect.signature(module.forward).parameters)
        self._graphs = _Graphs()
        self.add(graphs)

    def add(self, graphs: Any) -> Tensor:
        """The numbers of the rows of more graphs, int64 of shape (N,), which this network and its copies know then.

        Raises:
            InputTypeError: if something is no graph.
            InputError: if there is no graph.
        """
        found = list(_single(graphs))
        if not found:
            raise InputError("graphs: expected at least one graph, got none.")
        before = self._count()
        self._graphs.extend(found)
        return torch.arange(before, self._count())

    def data(self, chosen: ArrayLike | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows with the targets that stand in ``y`` of their graphs: (numbers, y), as `laplace` takes data.

        Args:
            chosen: the numbers of the rows, or which of all rows are meant, bool of shape (N,), such as
                ``graph.train_mask``; ``None`` for all.

        Raises:
            InputError: if a graph has no y, if y has no entry for each row, or if there is no such row.
        """
        if any(getattr(graph, "y", None) is None for graph in self._graphs):
            raise InputError("graphs: expected graphs with targets in y, got one without. Give (numbers, y) yourself.")
        parts = [graph.y if self.rows == "nodes" or graph.y.ndim else graph.y[None] for graph in self._graphs]
        for graph, part in zip(self._graphs, parts, strict=True):
            if len(part) != self._size(graph):
                raise InputError(
                    f"graphs: expected y with {self._size(graph)} targets, one for each of the {self.rows} of a graph, "
                    f"got shape {tuple(part.shape)}. Give (numbers, y) yourself, or the other rows="
                )
        y = torch.cat(parts)
        numbers = self._numbers(torch.arange(len(y)) if chosen is None else as_tensor(chosen))
        return numbers, y[numbers.to(y.device)]

    def forward(self, numbers: Tensor) -> Tensor:
        """f of rows, shape (N, C)."""
        wanted = self._numbers(numbers)
        if self.rows == "graphs":
            return self._outputs([self._graphs[number] for number in wanted.tolist()], len(wanted))
        f = self._outputs(self._graphs, self._count())
        return f[wanted.to(f.device)]

    def _outputs(self, graphs: Sequence[Any], rows: int) -> Tensor:
        """f of all rows of some graphs."""
        parameter = next(self.module.parameters(), torch.empty(0))
        batch = _joined(list(graphs)).to(parameter.device)
        batch = batch.apply(lambda each: each.to(parameter.dtype) if each.is_floating_point() else each)
        taken = [name for name in self._arguments if name in batch]
        f = self.module(**{name: batch[name] for name in taken}) if taken else self.module(batch)
        if not isinstance(f, Tensor) or f.ndim == 0 or len(f) != rows:
            got = f"shape {tuple(f.shape)}" if isinstance(f, Tensor) else type(f).__name__
            raise InputError(
                f"module: expected outputs of shape ({rows}, C), one for each of the {self.rows}, got {got}. "
                "Choose rows= by whether the module pools the nodes of each graph."
            )
        return f

    def _numbers(self, numbers: Tensor) -> Tensor:
        """The numbers of rows as they are, or of a mask of all rows.

        Raises:
            InputError: if they are none, or there are no such rows.
        """
        count = self._count()
        if numbers.dtype == torch.bool and numbers.shape == (count,):
            return numbers.nonzero()[:, 0]
        whole = numbers.ndim == 1 and not (numbers.is_floating_point() or numbers.dtype == torch.bool)
        if not whole or (len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count):
            raise InputError(
                f"x: expected the numbers of rows, whole numbers from 0 to {count - 1} of shape (N,), got "
                f"{str(numbers.dtype).removeprefix('torch.')} of shape {tuple(numbers.shape)}. network.add(graphs) "
                "returns those of other graphs."
            )
        return numbers.to(torch.int64)

    def _count(self) -> int:
        return sum(map(self._size, self._graphs))

    def _size(self, graph: Any) -> int:
        return 1 if self.rows == "graphs" else int(graph.num_nodes)


def _joined(graphs: list[Any]) -> Any:
    """One batch of some graphs."""
    # They are objects of this package, so that it is there.
    return importlib.import_module("torch_geometric.data").Batch.from_data_list(graphs)


def _single(graphs: Any) -> Iterable[Any]:
    """Each graph of a graph, a batch, or several of these."""
    if hasattr(graphs, "to_data_list"):
        return cast(Iterable[Any], graphs.to_data_list())
    if hasattr(graphs, "edge_index"):
        return [graphs]
    if not isinstance(graphs, Iterable):
        raise InputTypeError(f"graphs: expected torch_geometric.data.Data, or several, got {type(graphs).__name__}.")
    found: list[Any] = []
    for graph in graphs:
        if isinstance(graph, Tensor | str) or not hasattr(graph, "edge_index"):
            raise InputTypeError(f"graphs: expected torch_geometric.data.Data, got {type(graph).__name__} among them.")
        found += _single(graph)
    return found
