"""Networks of PyTorch Geometric: rows are graphs or nodes, and answers those of the definition, a row at a time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from tests.laplace.problems import normal

geometric = pytest.importorskip("torch_geometric.data", reason="pip install 'bayescope[dev]' brings torch_geometric")
convolutions = pytest.importorskip("torch_geometric.nn")
loaders = pytest.importorskip("torch_geometric.loader")

# Fits of networks that are hardly trained warn of that.
pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
ROWS: list[Any] = ["graphs", "nodes"]
PRIOR = 0.6


class Convolutions(nn.Module):
    """A graph convolution, one with attention, the mean over the nodes of each graph on request, and a head."""

    def __init__(self, rows: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = convolutions.GCNConv(3, 5), convolutions.GATConv(5, 4)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(4, 3)
        self.pooled = rows == "graphs"

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x, edge_index)), edge_index))
        out: Tensor = self.head(self.dropout(convolutions.global_mean_pool(h, batch) if self.pooled else h))
        return out


class OfBatch(nn.Module):
    """The same network, which takes a batch as it is."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: Any) -> Tensor:
        out: Tensor = self.network(data.x, data.edge_index, data.batch)
        return out


def module(rows: str, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Convolutions(rows, dropout).double()


def graphs(rows: str, count: int = 7, seed: int = 0, sizes: Sequence[int] = (3, 4, 5)) -> list[Any]:
    """Rings of so many nodes, in turn; y is of graphs or of nodes."""
    found = []
    for number in range(count):
        nodes = sizes[number % len(sizes)]
        edges = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
        labels = (torch.arange(nodes) + number) % 3 if rows == "nodes" else torch.tensor([number % 3])
        found.append(geometric.Data(x=normal(nodes, 3, seed=seed + number), edge_index=edges, y=labels))
    return found


def by_definition(network: nn.Module, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The precision of Laplace's posterior and the covariance of f, from the gradient of each output by itself."""
    parameters, f, rows = list(network.parameters()), network(numbers), []
    for output in f.flatten():
        gradients = torch.autograd.grad(output, parameters, retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    jacobian, p = torch.stack(rows).unflatten(0, f.shape), torch.softmax(f.detach(), 1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    precision = torch.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian)
    precision += PRIOR * torch.eye(len(precision), dtype=torch.float64)
    return precision, torch.einsum("ncp,pq,ndq->ncd", jacobian, torch.linalg.inv(precision), jacobian)


def laplace(network: nn.Module, data: Any, **options: Any) -> Any:
    chosen: dict[str, Any] = {"structure": "full", "prior_precision": PRIOR, **options}
    return bs.laplace(network, data, likelihood="categorical", **chosen)


@pytest.mark.parametrize("rows", ROWS)
def test_the_posterior_of_all_weights_is_exact(rows: Any) -> None:
    network = bs.integrations.GraphNetwork(module(rows), graphs(rows), rows=rows)
    numbers, y = network.data()
    q = laplace(network, (numbers, y))
    precision, covariance = by_definition(network, numbers)
    torch.testing.assert_close(q.precision.to_dense(), precision, rtol=1e-9, atol=1e-9)
    answer = q.predict(numbers)
    torch.testing.assert_close(torch.as_tensor(answer.latent_cov), covariance, rtol=1e-9, atol=1e-9)
    some = torch.tensor([5, 1, 1])  # in any order, and more than once
    torch.testing.assert_close(q.predict(some).latent_cov, answer.latent_cov[some], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac", "block"])
@pytest.mark.parametrize(("count", "sizes"), [(20, (4,)), (30, (3, 4, 5)), (15, (2, 2, 2, 2, 3)), (16, (3, 4, 5))])
def test_graphs_of_other_sizes_are_predicted_as_one_at_a_time(structure: str, count: int, sizes: Any) -> None:
    """The nodes of 24 graphs, of which two change one node between them, fill a table of 24 rows as well."""
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs", count, sizes=sizes))
    q = laplace(network, network.data(), structure=structure)
    for place in (0, 11):
        new = network.add(graphs("graphs", 24, seed=50, sizes=[4] * place + [3, 5] + [4] * (22 - place)))
        alone = torch.cat([torch.as_tensor(q.predict(number[None]).latent_cov) for number in new])
        torch.testing.assert_close(torch.as_tensor(q.predict(new).latent_cov), alone, rtol=1e-9, atol=1e-9)


def test_kronecker_factors_are_of_the_layers_after_the_pooling() -> None:
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs", 20, sizes=(4,)))
    note = laplace(network, network.data(), structure="kfac").record.notes["read in another structure"]
    assert "first" in note
    assert "second" in note
    assert "head" not in note


@pytest.mark.parametrize("rows", ROWS)
def test_the_order_of_rows_and_the_form_of_graphs_change_nothing(rows: Any) -> None:
    given = graphs(rows)
    network = bs.integrations.GraphNetwork(module(rows), given, rows=rows)
    numbers, y = network.data()
    want = laplace(network, (numbers, y)).log_evidence()
    shuffled = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
    loader = loaders.DataLoader(given, batch_size=3, generator=torch.Generator())
    for form in (geometric.Batch.from_data_list(given), loader):
        other = bs.integrations.GraphNetwork(OfBatch(module(rows)), form, rows=rows)
        found = laplace(other, (numbers[shuffled], y[shuffled])).log_evidence()
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", ROWS)
def test_graphs_that_are_added_are_known_to_the_posterior(rows: Any) -> None:
    network = bs.integrations.GraphNetwork(module(rows).float(), graphs(rows), rows=rows)
    numbers, y = network.data()
    q = laplace(network, (numbers, y), structure="diagonal")
    before = q.predict(numbers)
    added = graphs(rows, 2, seed=50)
    more = network.add(added)
    assert more.tolist() == list(range(len(numbers), len(numbers) + (7 if rows == "nodes" else 2)))
    assert torch.equal(q.predict(numbers).mean, before.mean)
    alone = bs.integrations.GraphNetwork(module(rows).float(), added, rows=rows)
    mean = torch.as_tensor(q.predict(more).latent_mean)
    torch.testing.assert_close(mean, alone(torch.arange(len(more))).detach().to(mean.dtype), rtol=1e-5, atol=1e-5)


def test_a_mask_chooses_nodes() -> None:
    (graph,) = graphs("nodes", 1)
    network = bs.integrations.GraphNetwork(module("nodes"), graph, rows="nodes")
    (without,) = graphs("nodes", 1, seed=9)
    del without.y
    for _ in range(2):
        numbers, y = network.data(torch.tensor([True, False, True]))
        assert numbers.tolist() == [0, 2]
        assert torch.equal(y, graph.y[[0, 2]])
        assert network.data([2, 0])[1].tolist() == graph.y[[2, 0]].tolist()
        assert network.data()[0].tolist() == [0, 1, 2]
        network.add(without)
    (later,) = graphs("nodes", 1, seed=10)
    assert network.data([1, *network.add(later)[1:].tolist()])[1].tolist() == [1, 1, 2]


def test_graphs_without_targets_and_other_entries_are_predicted() -> None:
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs"))
    q = laplace(network, network.data())
    before = torch.as_tensor(q.predict(torch.arange(7)).mean)
    (new,) = graphs("graphs", 1, seed=9)
    del new.y
    new.name = "new"
    number = network.add(new)
    together = torch.as_tensor(q.predict(torch.cat([number, torch.arange(7)])).mean)
    torch.testing.assert_close(together[1:], before)
    torch.testing.assert_close(together[:1], torch.as_tensor(q.predict(number).mean))


@pytest.mark.parametrize("rows", ROWS)
def test_data_sets_and_subsets_are_taken(rows: Any, tmp_path: Path) -> None:
    given = graphs(rows)

    class Rings(geometric.InMemoryDataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(str(tmp_path))
            self.data, self.slices = self.collate(given)

    want = bs.integrations.GraphNetwork(module(rows), given, rows=rows).data()
    for form in (Rings(), Rings()[:], torch.utils.data.Subset(given, range(7))):
        network = bs.integrations.GraphNetwork(module(rows), form, rows=rows)
        assert all(torch.equal(one, other) for one, other in zip(network.data(), want, strict=True))
        assert network(want[0][-2:]).shape == (2, 3)


class WithDefaults(nn.Module):
    """A forward with one required argument and others that some graphs have no entry for."""

    def __init__(self) -> None:
        super().__init__()
        self.network = module("graphs")

    def forward(self, batch: Any, edge_weight: Any = None, y: Any = None) -> Tensor:
        assert edge_weight is None
        assert y is None
        out: Tensor = self.network(batch.x, batch.edge_index, batch.batch)
        return out


class Misnamed(WithDefaults):
    def forward(self, x: Any, edges: Any) -> Tensor:  # type: ignore[override]
        raise AssertionError


def test_arguments_have_the_names_of_entries() -> None:
    given, numbers = graphs("graphs"), torch.arange(7)
    want = bs.integrations.GraphNetwork(module("graphs"), given)(numbers)
    assert torch.equal(bs.integrations.GraphNetwork(WithDefaults(), given)(numbers), want)
    with pytest.raises(InputError, match=r"module: expected a forward .* got edges beside them\. Rename them"):
        bs.integrations.GraphNetwork(Misnamed(), given)(numbers)


@pytest.mark.global_rng  # initial weights
def test_members_of_an_ensemble_share_their_graphs() -> None:
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs"))
    q = bs.ensemble(
        lambda: bs.integrations.GraphNetwork(Convolutions("graphs").double(), network),
        network.data(), likelihood="categorical", members=2, epochs=2, generator=0, progress=False,
    )  # fmt: skip
    assert q.predict(network.add(graphs("graphs", 2, seed=50))).mean.shape == (2, 3)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("posterior", ["variational", "mc_dropout", "ensemble", "fit_map", "last_layer"])
def test_other_posteriors_are_trained(posterior: str, rows: Any) -> None:
    network = bs.integrations.GraphNetwork(module(rows, 0.2), graphs(rows), rows=rows)
    data, options = network.data(), {"likelihood": "categorical", "progress": False, "generator": 0}
    if posterior == "last_layer":
        q: Any = laplace(network, data, weights="last_layer")
    elif posterior == "ensemble":
        q = bs.ensemble(lambda: copy.deepcopy(network), data, members=2, epochs=3, batch_size=4, **options)
    else:
        q = getattr(bs, posterior)(network, data, epochs=3, batch_size=4, **options)
    probabilities = torch.as_tensor(q.predict(data[0], generator=0).mean)
    assert probabilities.shape == (len(data[0]), 3)
    torch.testing.assert_close(probabilities.sum(1), torch.ones_like(probabilities[:, 0]))


def test_a_posterior_is_saved_without_the_graphs(tmp_path: Path) -> None:
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs"))
    q = laplace(network, network.data())
    new = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs", 2, seed=50))
    loaded = bs.load(q.save(tmp_path / "q.bayes"), model=new)
    torch.testing.assert_close(
        loaded.predict(torch.arange(2)).mean, q.predict(network.add(graphs("graphs", 2, seed=50))).mean
    )


def test_what_is_no_graph_is_refused() -> None:
    given = graphs("graphs")
    network = bs.integrations.GraphNetwork(module("graphs"), given)
    batches = loaders.DataLoader(given, batch_size=3, generator=torch.Generator())
    with pytest.raises(InputTypeError, match=r"got graphs in a .*bs\.integrations\.GraphNetwork\(module, graphs\)"):
        bs.laplace(module("graphs"), batches, likelihood="categorical")
    q = laplace(network, network.data())
    for x in (given[0], given, batches):
        with pytest.raises(InputTypeError, match=r"got graphs in a .*network\.add\(graphs\) for x"):
            q.predict(x)
    with pytest.raises(OptionError, match="rows"):
        bs.integrations.GraphNetwork(module("graphs"), given, rows="edges")  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"graphs: expected torch_geometric\.data\.Data or several, got Tensor"):
        bs.integrations.GraphNetwork(module("graphs"), normal(3, 2, seed=0))
    hetero = geometric.HeteroData()
    for several in (hetero, [given[0], hetero]):
        with pytest.raises(InputTypeError, match=r"got HeteroData\. Give graph\.to_homogeneous\(\)"):
            bs.integrations.GraphNetwork(module("graphs"), several)
    with pytest.raises(InputTypeError, match=r"module: expected a torch\.nn\.Module, got str"):
        bs.integrations.GraphNetwork("GCN", given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one graph"):
        network.add([])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (torch.tensor([7]), "numbers of rows from 0 to 6, got 7 to 7"),
        (torch.zeros(3), r"whole numbers of shape \(N,\), got float32 of shape \(3,\)"),
        (torch.zeros(0, dtype=torch.int64), r"got int64 of shape \(0,\)"),
        (torch.ones(7, dtype=torch.bool), r"got a mask of bool\. network\.data\(mask\.bool\(\)\)\[0\]"),
    ],
)
def test_numbers_that_are_no_rows_are_refused(numbers: Tensor, message: str) -> None:
    network = bs.integrations.GraphNetwork(module("graphs"), graphs("graphs"))
    with pytest.raises(InputError, match="x: expected .*" + message):
        network(numbers)


def test_targets_that_do_not_fit_are_refused() -> None:
    given = graphs("graphs")
    network = bs.integrations.GraphNetwork(module("graphs"), given)
    with pytest.raises(InputError, match=r"where: .* a mask of uint8"):
        network.data(torch.ones(7, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"where: expected a mask of shape \(7,\), got \(7, 2\)"):
        network.data(torch.ones(7, 2, dtype=torch.bool))
    wrong = bs.integrations.GraphNetwork(module("graphs"), given, rows="nodes")
    with pytest.raises(InputError, match=r"y of shape \(3, \.\.\.\) in a graph"):
        wrong.data()
    with pytest.raises(InputError, match=r"outputs of shape \(27, C\), one for each of the nodes"):
        wrong(torch.tensor([0]))
    given[0].y = 2.0  # a number is a target too
    assert network.data([0])[1].tolist() == [2.0]
    given[0].y = torch.zeros(2)
    with pytest.raises(InputError, match=r"y of shape \(1, \.\.\.\) .* Give y\[None\]"):
        network.data()
    del given[0].y
    with pytest.raises(InputError, match="got one without"):
        network.data()


def test_dropout_before_the_pooling_of_graphs_is_refused() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = nn.ModuleDict({"dropout": nn.Dropout(0.2), "head": nn.Linear(3, 3)}).double()

    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = before

        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            out: Tensor = self.parts["head"](convolutions.global_mean_pool(self.parts["dropout"](x), batch))
            return out

    for sizes in ((4,), (3, 4, 5)):
        network = bs.integrations.GraphNetwork(Early(), graphs("graphs", 12, sizes=sizes))
        with pytest.raises(UnsupportedError, match="where rows differ in size, as graphs do, put dropout after"):
            bs.mc_dropout(network, network.data(), likelihood="categorical", epochs=1, progress=False)


def test_rows_that_are_one_number_each_are_dropped_out() -> None:
    """A network of embeddings takes a whole number a row."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(0)
        embedding = nn.Sequential(nn.Embedding(9, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3)).double()
    numbers = torch.arange(20) % 9
    q = bs.mc_dropout(
        embedding, (numbers, numbers % 3), likelihood="categorical", epochs=2, progress=False, generator=0
    )
    answer = q.predict(numbers, generator=0)
    torch.testing.assert_close(answer.mean[9:18], answer.mean[:9])
