"""The predictive as a module of plain tensors, as an exported program, and as an ONNX file."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError
from tests.network.networks import built, numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning"),  # nothing is trained
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of exporters
]

X = numbers(23, 3)
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 0.3).long()


class Named(nn.Module):
    """Two inputs by name, an output object, and a position for each of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.tanh(self.body(x) + shift))}


def mlp(outputs: int = 3, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs, bias=bias))


def fitted(
    structure: str = "kfac", likelihood: Any = "categorical", outputs: int = 3, *, bias: bool = True, dtype: Any = None,
    prior: Any = 1.7,
) -> Any:  # fmt: skip
    dtype = torch.float64 if dtype is None else dtype
    targets: Any = {
        "categorical": CLASSES,
        "bernoulli": (X[:, :outputs] > 0).double(),
        "probit": (X[:, :1] > 0).double(),
    }
    y = targets.get(likelihood if isinstance(likelihood, str) else "", X[:, :outputs] * 2.0)
    module, data = built(mlp(outputs, bias)).to(dtype), (X.to(dtype), y if y.dtype == torch.int64 else y.to(dtype))
    rank = {"rank": 4} if structure == "low_rank" else {}
    weights = "last_layer"
    return bs.laplace(
        module, data, likelihood=likelihood, weights=weights, structure=structure, prior_precision=prior, **rank
    )


def answers(q: Any, x: Any) -> tuple[Tensor, Tensor, Tensor]:
    p = q.predict(x, integral="mackay") if q.likelihood.name in ("categorical", "bernoulli") else q.predict(x)
    last = p.probs if q.likelihood.discrete else p.variance
    variance = torch.as_tensor(p.latent_cov).diagonal(dim1=-2, dim2=-1)
    return tuple(torch.as_tensor(each) for each in (p.latent_mean, variance, last))  # type: ignore[return-value]


def assert_answers(q: Any, x: Any, found: Any, limit: float) -> None:
    for got, want in zip(found, answers(q, x), strict=True):
        torch.testing.assert_close(
            torch.as_tensor(got).double().reshape(want.shape), want.double(), rtol=limit, atol=limit
        )


CASES: dict[str, dict[str, Any]] = {
    **{structure: {"structure": structure} for structure in ("kfac", "ekfac", "diagonal", "full", "low_rank", "block")},
    "a bias of its own": {"prior": {"2.weight": 1.0, "2.bias": 5.0}},
    "no bias": {"bias": False},
    "one label": {"likelihood": "bernoulli", "outputs": 1},
    "several labels": {"likelihood": "bernoulli", "outputs": 2, "structure": "full"},
    "probit": {"likelihood": "probit", "outputs": 1},
    "gaussian": {"likelihood": bs.Gaussian(0.3), "outputs": 2},
    "gaussian, a noise each": {"likelihood": bs.Gaussian([0.3, 0.7]), "outputs": 2, "structure": "diagonal"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_module_predicts_as_the_posterior(name: str) -> None:
    q, x = fitted(**CASES[name]), numbers(7, 3, seed=4)
    module = q.predictive_module(x[:1])
    before = [tensor.clone() for tensor in q.model.state_dict().values()]
    assert_answers(q, x, module(x), 1e-10)
    assert not any(tensor.requires_grad for tensor in module.parameters())
    for kept, now in zip(before, q.function.module.state_dict().values(), strict=True):
        assert torch.equal(kept, now)


def test_in_single_precision_it_is_right_to_single_precision() -> None:
    for structure in ("kfac", "full"):
        q, x = fitted(structure, dtype=torch.float32), numbers(7, 3, seed=4).float()
        found = q.predictive_module(x)(x)
        assert all(each.dtype == torch.float32 for each in found)
        assert_answers(q, x, found, 1e-5)


def test_named_inputs_and_positions_are_taken() -> None:
    x = {"x": numbers(6, 2, 3), "shift": numbers(6, 2, 5, seed=3)}
    y = torch.arange(12).reshape(6, 2) % 3
    data = torch.utils.data.TensorDataset(x["x"], x["shift"], y)

    def named(rows: Any) -> dict[str, Tensor]:
        columns = zip(*rows, strict=True)
        return {name: torch.stack(column) for name, column in zip(("x", "shift", "labels"), columns, strict=True)}

    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=named)
    q = bs.laplace(built(Named), loader, likelihood="categorical", weights="last_layer", prior_precision=1.0)
    found = q.predictive_module(x)(x)
    assert found[0].shape == found[1].shape == (6, 2, 3)
    assert_answers(q, x, found, 1e-10)


def test_a_linear_model_of_numbers_is_exported_without_its_table() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(30, 3))
    model = bs.BayesianLinearRegression().fit(table, table[:, 0] + 0.1 * rng.normal(size=30))
    with pytest.raises(
        UnsupportedError, match=r"export: expected a posterior whose inputs are tensors, got an estimator's"
    ):
        model.posterior_.predictive_module(table)
    q = dataclasses.replace(model.posterior_, reader=None)
    x = torch.from_numpy(rng.normal(size=(5, q.function.features)))
    assert_answers(q, x, q.predictive_module(x)(x), 1e-10)


def test_after_loading_the_module_is_the_same(tmp_path: Path) -> None:
    q, x = fitted(), numbers(7, 3, seed=4)
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    for got, want in zip(loaded.predictive_module(x)(x), q.predictive_module(x)(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


SCRIPT = """
import sys, torch
module = torch.export.load(sys.argv[1]).module()
x = torch.arange(15.0, dtype=torch.float64).reshape(5, 3) / 10
torch.save(module(x), sys.argv[2])
assert not any(name.startswith("bayescope") for name in sys.modules)
"""


def test_an_exported_program_needs_no_bayescope(tmp_path: Path) -> None:
    q = fitted("ekfac")
    example = numbers(2, 3, seed=4)
    rows = torch.export.Dim("rows")
    program = torch.export.export(q.predictive_module(example), (example,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "q.pt2")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "q.pt2"), str(tmp_path / "answers.pt")]
    subprocess.run(command, check=True, timeout=100, cwd=tmp_path)
    x = torch.arange(15.0, dtype=torch.float64).reshape(5, 3) / 10
    assert_answers(q, x, torch.load(tmp_path / "answers.pt"), 1e-12)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_an_onnx_runtime_predicts_as_the_posterior(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'bayescope[dev]' brings onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'bayescope[dev]' brings onnxruntime")
    dtype = getattr(torch, name)
    q = fitted("kfac", dtype=dtype) if name == "float64" else fitted("full", bs.Gaussian(0.3), 2, dtype=dtype)
    logged: list[str] = []
    logger, handler = logging.getLogger("torch.onnx._internal.exporter._registration"), logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: logged.append(record.getMessage()))
    monkeypatch.setattr(logger, "handlers", [handler])
    filters = list(logger.filters)
    path = q.export(tmp_path / "q.onnx", X[:1].to(dtype))
    assert not [line for line in logged if "torchvision" in line]
    assert logger.filters == filters
    assert [each.name for each in tmp_path.iterdir()] == ["q.onnx"]
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    last = "probs" if q.likelihood.discrete else "variance"
    assert [each.name for each in session.get_outputs()] == ["latent_mean", "latent_variance", last]
    assert [(each.name, each.shape) for each in session.get_inputs()] == [("x", ["batch", 3])]
    for rows in (1, 7):
        x = numbers(rows, 3, seed=4).to(dtype)
        assert_answers(q, x, session.run(None, {"x": x.numpy()}), 1e-5 if name == "float32" else 1e-10)


def test_what_has_no_such_form_is_refused() -> None:
    module, data = built(mlp()), (X, CLASSES)
    everything = bs.laplace(module, data, likelihood="categorical", prior_precision=1.0)
    part = bs.laplace(module, data, likelihood="categorical", weights="2.bias", prior_precision=1.0)
    draws = bs.mc_dropout(module, likelihood="categorical", rate=0.1)
    mixture = bs.laplace([module, module], data, likelihood="categorical", weights="last_layer", prior_precision=1.0)
    own = dataclasses.replace(fitted(), likelihood=bs.HeteroscedasticGaussian())
    variational = dataclasses.replace(fitted(), method="sampled")
    for q, match in (
        (everything, r"over all weights of the last layer and no others, got '0.weight', .*weights='last_layer'"),
        (part, r"got"),
        (draws, r"expected a Gaussian posterior .* got one by mc_dropout"),
        (mixture, r"expected a Gaussian posterior .* got one by mixture of laplace"),
        (own, r"export: expected the likelihood gaussian, .* got 'heteroscedastic_gaussian'"),
        (variational, r"export: expected a linearised posterior"),
    ):
        with pytest.raises(UnsupportedError, match=match):
            q.predictive_module(X[:2])


def test_an_example_that_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=rf"could not be run on inputs of shape \(2, {X.shape[1] + 1}\)"):
        fitted().predictive_module(torch.zeros(2, X.shape[1] + 1))
