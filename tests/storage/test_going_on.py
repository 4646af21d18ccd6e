"""What goes on from a posterior after loading it: more data, another prior, tuning. The answers are those of before."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope.errors import UndefinedQuantityError, UnsupportedError
from bayescope.storage import Reader, Writer, stored_function
from tests.storage.saved import Residual, data, laplace, plain, posterior, regression, seeded

# Fits of networks that are hardly trained warn of that.
pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")

STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
DTYPES = ("float32", "float64") * 3
TUNABLE = [
    *(f"laplace, {structure}, {dtype}" for structure, dtype in zip(STRUCTURES, DTYPES, strict=True)),
    "last layer", "subset", "tempered", "by the evidence", "custom network", "function space",
    "function space, nystrom", "function space, inducing",
]  # fmt: skip
UPDATED = ["laplace, full, float64", "laplace, ekfac, float64", "last layer", "variational"]


def there_and_back(q: Any, folder: Path) -> Any:
    custom = isinstance(q.model, Residual)
    return bs.load(q.save(folder / "q.bayes"), model=seeded(Residual) if custom else None)


def same(first: bs.Posterior, second: bs.Posterior, x: Any) -> None:
    """One machine computes both: what differs is a constant of rounding at most."""
    for one, other in (
        (first.location, second.location),
        (first.log_evidence(), second.log_evidence()) if first.record.evidence is not None else (x, x),
        (
            torch.as_tensor(first.predict(x, generator=0).variance),
            torch.as_tensor(second.predict(x, generator=0).variance),
        ),
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    without = {"no mode of this prior"}  # of both
    assert first.record.notes.keys() - without == second.record.notes.keys() - without


def more(q: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """New rows for a posterior, of the type of its network and its likelihood."""
    dtype = next(q.model.parameters()).dtype
    x = torch.randn(11, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
    if q.likelihood.discrete:
        return x, (x[:, 0] > 0).long()
    return x, x[:, :1]


@pytest.mark.parametrize("name", TUNABLE)
def test_the_prior_is_tuned_as_before(name: str, tmp_path: Path) -> None:
    q = posterior(name)
    loaded = there_and_back(q, tmp_path)
    assert loaded.lost == ()
    x = more(q)[0][:5]
    for prior in (2.0, torch.linspace(1.0, 2.0, q.sizes[0], dtype=torch.float64)):
        try:
            want = q.log_evidence(prior_precision=prior)
        except UnsupportedError:  # of a structure that holds one number a block
            with pytest.raises(UnsupportedError):
                loaded.log_evidence(prior_precision=prior)
            continue
        torch.testing.assert_close(loaded.log_evidence(prior_precision=prior), want, rtol=1e-13, atol=1e-13)
    if "inducing" in name:  # its evidence is a bound
        with pytest.raises(UndefinedQuantityError, match="whose evidence is a function of the prior"):
            bs.tune_prior(loaded)
        return
    tuned = bs.tune_prior(loaded, share_prior="scalar")
    same(bs.tune_prior(q, share_prior="scalar"), tuned, x)
    same(tuned, there_and_back(tuned, tmp_path), x)


def test_a_fit_to_weighted_rows_goes_on_after_loading(tmp_path: Path) -> None:
    rows = (*data(torch.float64), torch.linspace(0, 3, len(data()[1])))
    q = bs.laplace(plain(dtype=torch.float64), rows, likelihood="categorical")
    loaded = there_and_back(q, tmp_path)
    assert loaded.lost == ()
    assert "of weight 0" in loaded.record.notes["row weights"]
    torch.testing.assert_close(loaded.log_evidence(prior_precision=2.0), q.log_evidence(prior_precision=2.0))
    same(bs.tune_prior(q, share_prior="scalar"), bs.tune_prior(loaded, share_prior="scalar"), rows[0][:5])


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_the_prior_is_tuned_on_held_out_rows_as_before(structure: str, tmp_path: Path) -> None:
    q = posterior(f"laplace, {structure}, float64")
    loaded = there_and_back(q, tmp_path)
    before, after = (bs.tune_prior(each, method="validation", data=more(q)) for each in (q, loaded))
    same(before, after, more(q)[0])


@pytest.mark.parametrize("name", UPDATED)
def test_more_data_are_taken_as_before(name: str, tmp_path: Path) -> None:
    q = posterior(name)
    loaded = there_and_back(q, tmp_path)
    if "ekfac" in name:  # other data have other eigenvectors
        for each in (q, loaded):
            with pytest.raises(UnsupportedError, match="condition: expected a structure whose curvatures add up"):
                each.condition(more(q))
        return
    first, second = q.condition(more(q)), loaded.condition(more(q))
    same(first, second, more(q)[0][:5])
    if name == "last layer":  # and so on
        same(first.condition(data()), there_and_back(second, tmp_path).condition(data()), more(q)[0][:5])


def test_what_was_tuned_after_loading_takes_more_data(tmp_path: Path) -> None:
    q = regression("gaussian", prior_precision="evidence", weights="last_layer")
    want = bs.tune_prior(q, share_prior="tensor").condition(more(q))
    same(want, bs.tune_prior(there_and_back(q, tmp_path), share_prior="tensor").condition(more(q)), more(q)[0])


def test_modes_are_tuned_together_as_before(tmp_path: Path) -> None:
    networks = [plain(), seeded(plain)]
    with torch.no_grad():
        networks[1][0].weight.mul_(0.5)
    q = bs.laplace(networks, data(), likelihood="categorical", prior_precision=1.0, mixture="evidence")
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    before, after = bs.tune_prior(q), bs.tune_prior(loaded)
    torch.testing.assert_close(after.log_weights, before.log_weights, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.predict(data()[0]).mean, before.predict(data()[0]).mean)


LINEAR: dict[str, Callable[[], Any]] = {
    "conjugate": lambda: bs.BayesianLinearRegression(prior_precision=2.0, noise_variance=0.5),
    "laplace": lambda: bs.BayesianLogisticRegression(prior_precision=2.0, posterior="laplace"),
    "variational": lambda: bs.BayesianLogisticRegression(prior_precision=2.0, posterior="variational"),
    "mean_field": lambda: bs.BayesianLogisticRegression(prior_precision=2.0, posterior="mean_field"),
    "ep": lambda: bs.BayesianLogisticRegression(prior_precision=2.0, posterior="ep"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_models_take_more_data_as_before(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(40, 3)), rng.normal(size=(9, 3))
    y = x[:, 0] > 0 if name != "conjugate" else x[:, 0]
    q = LINEAR[name]().fit(x, y).posterior_
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    assert loaded.lost == ()
    labels = (new[:, 0] > 0).astype(int) if name != "conjugate" else new[:, 0]
    first, second = q.condition((new, labels)), loaded.condition((new, labels))
    torch.testing.assert_close(second.location, first.location, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(second.predict(new).variance, first.predict(new).variance, rtol=1e-12)


def tensors_of(path: Path) -> Iterator[torch.Tensor]:
    from safetensors.torch import load_file

    yield from load_file(path).values()


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_no_training_row_is_in_the_file(structure: str, tmp_path: Path) -> None:
    q = laplace(structure, torch.float64, prior_precision=1.0)
    assert len(q.fit.sample) > 0  # type: ignore[union-attr, attr-defined]
    path = q.save(tmp_path / "q.bayes")
    rows = data(torch.float64)[0]
    for tensor in tensors_of(path):
        if tensor.is_floating_point() and tensor.ndim and tensor.shape[-1] >= 3:
            windows = tensor.double().reshape(-1, tensor.shape[-1]).unfold(1, 3, 1).reshape(-1, 3)
            assert not (windows[:, None] == rows).all(-1).any()
    assert bs.load(path).fit.sample == ()


def earlier() -> bs.Posterior:
    """The posterior of a file as versions wrote it that held neither inference nor curvature."""
    writer = Writer()
    root = writer.value(posterior("laplace, kfac, float32"), "q")
    *_, node = writer.objects
    for name in ("infer", "fit"):
        del node["gaussian_posterior"][name]
    node["gaussian_posterior"]["lost"] = {"tuple": ["infer", "fit"]}
    reader = Reader(writer.tensors, size=10**6)
    for each in json.loads(json.dumps(writer.objects)):
        reader.add(each)
    return reader.value(root)


def test_files_of_earlier_versions_are_read_and_say_what_they_lack(tmp_path: Path) -> None:
    q, loaded = posterior("laplace, kfac, float32"), earlier()
    x = data()[0][:5]
    assert torch.equal(loaded.predict(x).variance, q.predict(x).variance)
    for ask in (
        lambda: loaded.condition(data()),
        lambda: loaded.log_evidence(prior_precision=2.0),
        lambda: bs.tune_prior(loaded),
    ):
        with pytest.raises(UndefinedQuantityError, match="loaded from a file"):
            ask()
    again = bs.load(loaded.save(tmp_path / "again.bayes"))
    assert again.lost == ("infer", "fit")
    assert posterior("swag").lost == ()


def test_what_needs_the_caller_s_code_is_lost_by_name(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = bs.variational(
            plain(), data(), likelihood="categorical", epochs=1, progress=False,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        )  # fmt: skip
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    assert loaded.lost == ("infer",)
    with pytest.raises(UndefinedQuantityError, match=r"condition: .* code of your own"):
        loaded.condition(data())


def test_a_network_from_a_file_is_not_read_before_it_is_traced(tmp_path: Path) -> None:
    loaded = there_and_back(posterior("laplace, kfac, float32"), tmp_path)
    network = loaded.fit.curvature.network
    assert network.weights.space == loaded.function.weights.space
    assert str(loaded.fit.curvature) == str(posterior("laplace, kfac, float32").fit.curvature)
    with pytest.raises(UnsupportedError, match=r"network: expected one that was traced here, got one from a file"):
        network.record(data()[0])
    assert loaded.function is loaded.fit.function
    assert network.module is loaded.function.module


def test_functions_are_stored_by_name_and_no_others() -> None:
    with pytest.raises(ValueError, match="the name 'conjugate' is taken by conjugate"):
        stored_function("conjugate")(earlier)
    with pytest.raises(UnsupportedError, match="got a function"):
        Writer().value(earlier, "value")
    with pytest.raises(ValueError, match="the function 'system' is not known"):
        Reader({}).value({"function": "system"})
    for parts in (
        {"function": 1, "arguments": {"tuple": []}, "keywords": {"dict": []}},
        {"function": {"function": "conjugate"}, "arguments": [], "keywords": {"dict": []}},
        {"function": {"function": "conjugate"}, "arguments": {"tuple": []}, "keywords": {"dict": [[1, 2]]}},
    ):
        with pytest.raises(ValueError, match="a function with arguments is malformed"):
            Reader({}).value({"partial": parts})


def test_the_noise_is_held_or_learnt_as_before(tmp_path: Path) -> None:
    learnt, held = regression(bs.Gaussian("evidence")), regression(bs.Gaussian(0.1))
    for q in (learnt, held):
        loaded = there_and_back(q, tmp_path)
        first, second = bs.tune_prior(q), bs.tune_prior(loaded)
        assert first.likelihood.noise_variance == second.likelihood.noise_variance
        want = q.log_evidence(noise_variance=0.3)
        torch.testing.assert_close(loaded.log_evidence(noise_variance=0.3), want, rtol=1e-13, atol=1e-13)
    assert bs.tune_prior(there_and_back(held, tmp_path)).likelihood.noise_variance == 0.1
