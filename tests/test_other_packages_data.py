"""Data and networks of accelerate, skorch and PyTorch Geometric: the answers are those of plain arrays and modules."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeWarning
from tests.laplace.problems import mlp, normal

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
x, labels = normal(23, 2, seed=1), torch.arange(23) % 3
OPTIONS: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, labels), batch_size=5, generator=torch.Generator(), **options)


@pytest.fixture(scope="module")
def accelerator() -> Any:
    accelerate = pytest.importorskip("accelerate", reason="pip install 'bayescope[dev]' brings accelerate")
    with torch.random.fork_rng(devices=[]):
        return accelerate.Accelerator(cpu=True)


def test_what_accelerate_has_prepared_gives_the_same_posterior(accelerator: Any) -> None:
    module, shuffled = accelerator.prepare(mlp(3), loader(shuffle=True))
    q, expected = bs.laplace(module, shuffled, **OPTIONS), bs.laplace(mlp(3), (x, labels), **OPTIONS)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-9, atol=1e-9)
    ordered = accelerator.prepare(loader())
    torch.testing.assert_close(q.predict(ordered).mean, expected.predict(x).mean, rtol=1e-9, atol=1e-9)
    with pytest.warns(BayescopeWarning, match="shuffle=False"):
        q.predict(shuffled)


def test_a_training_reads_what_accelerate_has_prepared(accelerator: Any) -> None:
    module, ordered = accelerator.prepare(mlp(3), loader())
    train: dict[str, Any] = {**OPTIONS, "epochs": 3, "lr": 1e-2, "progress": False, "generator": 0}
    q, expected = bs.fit_map(module, ordered, **train), bs.fit_map(mlp(3), loader(), **train)
    torch.testing.assert_close(q.mean, expected.mean, rtol=1e-9, atol=1e-9)


class Body(nn.Module):
    """A network with a single input, or two that are added up, in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(3).float()

    def forward(self, X: Tensor, more: Tensor | None = None) -> Tensor:
        out: Tensor = self.body(X if more is None else X + more)
        return out


@pytest.fixture(scope="module")
def net() -> Any:
    skorch = pytest.importorskip("skorch", reason="pip install 'bayescope[dev]' brings skorch")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        made = skorch.NeuralNetClassifier(Body, criterion=nn.CrossEntropyLoss, max_epochs=3, lr=0.1, verbose=0)
        return made.fit(x.float().numpy(), labels.numpy())


def test_skorchs_data_sets_are_data(net: Any) -> None:
    expected = bs.laplace(net.module_, (x, labels), **OPTIONS)
    data = net.get_dataset(x.float().numpy(), labels.numpy())
    for given in (data, net.get_iterator(data)):
        q = bs.laplace(net.module_, given, **OPTIONS)
        torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(q.predict(given).mean, expected.predict(x).mean, rtol=1e-5, atol=1e-6)
    without = net.get_dataset(x.float().numpy())
    torch.testing.assert_close(expected.predict(without).mean, expected.predict(x).mean, rtol=1e-5, atol=1e-6)


def test_skorchs_inputs_by_name_are_data(net: Any) -> None:
    half = (0.5 * x).float().numpy()
    data = net.get_dataset({"X": half, "more": half}, labels.numpy())
    q, expected = bs.laplace(net.module_, data, **OPTIONS), bs.laplace(net.module_, (x, labels), **OPTIONS)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-4, atol=1e-4)


@pytest.mark.global_rng  # skorch's own loaders draw
def test_a_fitted_net_of_skorch_is_a_model(net: Any) -> None:
    q, expected = bs.laplace(net, (x, labels), **OPTIONS), bs.laplace(net.module_, (x, labels), **OPTIONS)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence())
    probabilities = torch.softmax(q.model(x.float()), 1).detach().numpy()
    np.testing.assert_allclose(probabilities, net.predict_proba(x.float().numpy()), rtol=1e-5, atol=1e-6)
    train: dict[str, Any] = {"likelihood": "categorical", "epochs": 1, "lr": 1e-3, "generator": 0, "progress": False}
    one, other = (bs.fit_map(model, (x, labels), **train) for model in (net, net.module_))
    torch.testing.assert_close(one.mean, other.mean)


def test_a_net_of_skorch_that_was_not_fitted_is_refused() -> None:
    skorch = pytest.importorskip("skorch", reason="pip install 'bayescope[dev]' brings skorch")
    with pytest.raises(
        bs.errors.InputTypeError,
        match=r"got a NeuralNetClassifier that was not fitted. Fit it first: net.fit\(X, y\)\.",
    ):
        bs.laplace(skorch.NeuralNetClassifier(Body), (x, labels), **OPTIONS)


class Graphs(nn.Module):
    """Two graph convolutions, the mean over the nodes of each graph, and a linear head."""

    def __init__(self, convolution: Any, pool: Any) -> None:
        super().__init__()
        self.first, self.second, self.pool = convolution(3, 5), convolution(5, 4), pool
        self.head = nn.Linear(4, 3)

    def features(self, batch: Any) -> Tensor:
        h = torch.tanh(self.first(batch.x, batch.edge_index))
        out: Tensor = self.pool(torch.tanh(self.second(h, batch.edge_index)), batch.batch)
        return out

    def forward(self, batch: Any) -> Tensor:
        out: Tensor = self.head(self.features(batch))
        return out


def test_the_head_of_a_network_of_graphs_is_read_from_its_features() -> None:
    geometric = pytest.importorskip("torch_geometric", reason="pip install 'bayescope[dev]' brings torch_geometric")
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    assert geometric.__version__
    graphs = []
    for number in range(7):
        nodes = 3 + number % 3
        edges = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
        graphs.append(Data(x=normal(nodes, 3, seed=number), edge_index=edges, y=torch.tensor([number % 3])))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Graphs(GCNConv, global_mean_pool).double()
    batches = GraphLoader(graphs, batch_size=3, generator=torch.Generator())
    with pytest.raises(bs.errors.InputTypeError, match=r"of graphs.*features of the last layer"):
        bs.laplace(module, batches, likelihood="categorical")
    with torch.no_grad():
        data = [(module.features(batch), batch.y) for batch in batches]
    q = bs.laplace(module.head, data, likelihood="categorical", structure="full", prior_precision=0.6)

    def outputs(weight: Tensor, bias: Tensor) -> Tensor:
        parameters = {"head.weight": weight, "head.bias": bias}
        found = [torch.func.functional_call(module, parameters, (batch,)) for batch in batches]
        return torch.cat(found)

    jacobian = torch.cat(
        [part.flatten(2) for part in torch.func.jacrev(outputs, (0, 1))(module.head.weight, module.head.bias)], -1
    ).detach()
    p = torch.softmax(outputs(module.head.weight, module.head.bias), 1).detach()
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    precision = torch.einsum("ncp,ncd,ndq->pq", jacobian, hessian, jacobian) + 0.6 * torch.eye(15, dtype=torch.float64)
    posterior: Any = q
    torch.testing.assert_close(posterior.precision.to_dense(), precision, rtol=1e-9, atol=1e-9)
    covariance = torch.einsum("ncp,pq,ndq->ncd", jacobian, torch.linalg.inv(precision), jacobian)
    torch.testing.assert_close(torch.as_tensor(q.predict(data).latent_cov), covariance, rtol=1e-9, atol=1e-9)
