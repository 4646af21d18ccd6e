"""Data and networks of accelerate and skorch: the answers are those of plain arrays and modules."""

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
