"""Copies of posteriors on another device, which is pretended, and with networks of another floating-point type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.posterior import GaussianPosterior, MixturePosterior, Posterior, Record
from bayescope.precision import DensePrecision
from tests.device_paths import NETWORKS, TRAINED, perceptron, problem, seeded
from tests.pretend import GPU, HOST, Places, pretended

pytestmark = [
    pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),  # an LSTM believes in the GPU
]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    with pretended(monkeypatch) as found:
        yield found


def laplace(name: str = "perceptron", **options: Any) -> GaussianPosterior:
    module, data = problem(name, "cpu")
    options = {"prior_precision": 1.0, **options}
    return bs.laplace(module, data, likelihood="categorical", generator=0, **options)


def trained(method: str, **options: Any) -> Posterior:
    module, data = problem("perceptron", "cpu")
    model: Any = [seeded(perceptron) for _ in range(2)] if method == "ensemble" else module
    return getattr(bs, method)(model, data, **{**TRAINED, **options})


POSTERIORS = {
    **{
        f"laplace-{structure}": lambda structure=structure: laplace(structure=structure)
        for structure in ("full", "block", "diagonal", "kfac", "ekfac")
    },
    "laplace-low_rank": lambda: laplace(structure="low_rank", rank=5),
    "laplace-last_layer": lambda: laplace("resnet", weights="last_layer"),
    "laplace-tokens": lambda: laplace("tokens"),
    "laplace-subnetwork": lambda: laplace(weights=bs.largest_variance(9), structure="full"),
    "laplace-samples": lambda: laplace(structure="samples", samples=6),
    "mixture": lambda: bs.laplace(
        [seeded(perceptron), perceptron_of(1)], problem("perceptron", "cpu")[1],
        likelihood="categorical", prior_precision=1.0, generator=0,
    ),
    "function_space": lambda: bs.function_space(
        *problem("perceptron", "cpu"), likelihood="categorical", generator=0, progress=False
    ),
    "fit_map": lambda: trained("fit_map"),
    "variational": lambda: trained("variational"),
    "mc_dropout": lambda: trained("mc_dropout", rate=0.2),
    "mc_dropout, untrained": lambda: bs.mc_dropout(seeded(perceptron), likelihood="categorical", rate=0.2),
    "ensemble": lambda: trained("ensemble"),
    "swag": lambda: trained("swag", rank=2, lr=1e-2, epochs=6),
}  # fmt: skip


def perceptron_of(seed: int) -> nn.Module:
    module = seeded(perceptron)
    for parameter in module.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return module


def inputs_of(name: str) -> torch.Tensor:
    network = {"laplace-last_layer": "resnet", "laplace-tokens": "tokens"}.get(name, "perceptron")
    return problem(network, "cpu")[1][0]


@pytest.mark.global_rng
@pytest.mark.parametrize("name", POSTERIORS)
def test_a_moved_posterior_answers_on_its_device_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, x = POSTERIORS[name](), inputs_of(name)
    before = q.predict(x, generator=0)
    wanted = [before.probs, before.epistemic, q.mean]
    with pretended(monkeypatch) as places:
        moved = q.to("cuda")
        p = moved.predict(x, generator=0)
        found = [p.probs, p.epistemic, moved.mean]
        assert all(places.of(answer) == GPU for answer in found)
        if not name.startswith(("mc_dropout", "function_space")):
            assert places.of(moved.sample(2, generator=0)) == GPU
        if not name.startswith(("mc_dropout", "fit_map")):
            assert places.of(moved.interval()[0]) == GPU
        assert len(moved.summary()) > 0
        back = moved.to("cpu").predict(x, generator=0)
        assert places.of(back.probs) != GPU
        for answers in (found, [back.probs, back.epistemic]):
            for got, want in zip(answers, wanted, strict=False):
                torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-12)
    assert torch.equal(q.predict(x, generator=0).probs, wanted[0])


@pytest.mark.global_rng
def test_what_a_fit_knows_moves_too(places: Places) -> None:
    x, y = problem("perceptron", "cpu")[1]
    module = seeded(lambda: nn.Linear(4, 3))
    q = bs.laplace(module, (x, y), likelihood="categorical", structure="diagonal", prior_precision=1.0)
    moved = q.to("cuda")
    more = x[:5], y[:5]
    found = [moved.log_evidence(prior_precision=3.0), bs.tune_prior(moved).log_evidence(), moved.condition(more).mean]
    wanted = [q.log_evidence(prior_precision=3.0), bs.tune_prior(q).log_evidence(), q.condition(more).mean]
    for got, want in zip(found, wanted, strict=True):
        assert places.of(got) == GPU
        torch.testing.assert_close(got.cpu(), want, rtol=1e-8, atol=1e-10)


def test_a_moved_posterior_can_be_saved_and_loaded_onto_a_device(tmp_path: Any, places: Places) -> None:
    q = laplace()
    x = inputs_of("perceptron")
    path = q.to("cuda").save(tmp_path / "q.bayes")
    assert path.read_bytes() == q.save(tmp_path / "other.bayes").read_bytes()
    loaded = bs.load(path, device="cuda")
    assert places.of(loaded.mean) == GPU
    assert places.of(loaded.predict(x).probs) == GPU
    assert torch.equal(loaded.predict(x).probs.cpu(), q.predict(x).probs)
    assert places.of(bs.load(path).mean) != GPU
    assert isinstance(loaded.predict(x.numpy()).probs, np.ndarray)


@pytest.mark.global_rng
def test_a_network_of_ones_own_is_loaded_onto_a_device(tmp_path: Any, places: Places) -> None:
    class Own(nn.Sequential):
        """A class that no file describes."""

    def make() -> nn.Module:
        return Own(nn.Linear(4, 3)).double()

    module = make()
    x, y = problem("perceptron", "cpu")[1]
    q = bs.laplace(module, (x, y), likelihood="categorical", prior_precision=1.0)
    loaded = bs.load(q.save(tmp_path / "q.bayes"), model=make(), device="cuda")
    assert places.of(loaded.predict(x).probs) == GPU
    assert all(places.of(parameter) == GPU for parameter in loaded.model.parameters())


def test_the_posterior_of_a_log_density_moves(places: Places) -> None:
    matrix = torch.tensor([[2.0, 0.4], [0.4, 1.5]], dtype=torch.float64)
    q = GaussianPosterior(torch.ones(2, dtype=torch.float64), DensePrecision(matrix), Record("laplace"))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    for one in (q, MixturePosterior(weights, [q, q], Record("laplace"))):
        moved = one.to("cuda")
        for answer in (moved.mean, moved.sd, moved.interval()[1], moved.sample(5, generator=0)):
            assert places.of(answer) == GPU
        assert torch.equal(moved.sample(5, generator=0).cpu(), one.sample(5, generator=0))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cast_network_answers_as_one_that_was_fitted_so(name: str) -> None:
    q = laplace(name, structure="diagonal")
    x = problem(name, "cpu")[1][0]
    single = q.to(dtype=torch.float32)
    assert {parameter.dtype for parameter in single.model.parameters()} == {torch.float32}
    assert single.mean.dtype == single.precision.diagonal().dtype == torch.float64
    torch.testing.assert_close(single.predict(x).latent_cov.double(), q.predict(x).latent_cov, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(single.predict(x).probs.double(), q.predict(x).probs, rtol=1e-3, atol=1e-5)
    assert {parameter.dtype for parameter in q.model.parameters()} == {torch.float64}


def test_a_cast_forgets_no_digit_of_the_weights() -> None:
    q = laplace()
    x = inputs_of("perceptron")
    there_and_back = q.to(dtype=torch.bfloat16).to(dtype=torch.float64)
    torch.testing.assert_close(there_and_back.predict(x).probs, q.predict(x).probs, rtol=1e-12, atol=0)
    assert torch.equal(there_and_back.mean, q.mean)


@pytest.mark.global_rng
def test_a_cast_posterior_is_conditioned_in_its_type() -> None:
    x, y = problem("perceptron", "cpu")[1]
    module = seeded(lambda: nn.Linear(4, 3))
    q = bs.laplace(module, (x, y), likelihood="categorical", structure="diagonal", prior_precision=1.0)
    after = q.to(dtype=torch.float32).condition((x[:5], y[:5]))
    assert {parameter.dtype for parameter in after.model.parameters()} == {torch.float32}
    torch.testing.assert_close(after.mean, q.condition((x[:5], y[:5])).mean, rtol=1e-3, atol=1e-4)


def test_a_copy_shares_nothing_that_can_be_written() -> None:
    q = laplace()
    x = inputs_of("perceptron")
    q.model[0].weight.data.zero_()  # the caller's own copy
    moved = q.to("cpu")
    assert moved.function.module is not q.function.module  # type: ignore[union-attr]
    assert moved.model[0].weight.any()
    assert torch.equal(moved.predict(x).probs, q.predict(x).probs)


@pytest.mark.usefixtures("places")
def test_a_table_stays_on_the_cpu(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    model = bs.BayesianLinearRegression(prior_precision=1.0).fit(X, y)
    assert torch.equal(model.posterior_.to("cpu").mean, model.posterior_.mean)
    with pytest.raises(UnsupportedError, match="expected 'cpu' for the posterior of a model of tables"):
        model.posterior_.to("cuda")
    with pytest.raises(UnsupportedError, match="dtype: expected None where there is no network"):
        model.posterior_.to(dtype=torch.float32)
    path = model.save(tmp_path / "model.bayes")
    assert np.array_equal(bs.load(path, device="cpu").coef_, model.coef_)
    with pytest.raises(UnsupportedError, match="expected the file of a posterior"):
        bs.load(path, device="cuda")


def test_an_estimators_network_moves_and_reads_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.arange(30) % 3
    model = bs.BayesianMLPClassifier(hidden=(4,), posterior="laplace", random_state=0).fit(X, y)
    X[2, 1] = np.nan
    wanted = model.predict_distribution(X)
    with pretended(monkeypatch):
        found = model.posterior_.to("cuda").predict(X)
        np.testing.assert_allclose(found.probs, wanted.probs, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"device": "nowhere"}, InputError, "device: expected one that torch finds here, got 'nowhere'"),
        ({"device": "meta"}, InputError, "keeps numbers"),
        ({"device": 3}, InputTypeError, "a name such as 'cuda'"),
        ({"device": torch.float32}, InputTypeError, r"Write dtype=torch\.float32"),
        ({"dtype": torch.int64}, InputTypeError, "a floating-point type"),
        ({"dtype": "float32"}, InputTypeError, "a floating-point type"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        laplace().to(**arguments)


def test_points_go_to_the_device_of_the_density(places: Places) -> None:
    q = laplace(structure="diagonal")
    theta = q.sample(2, generator=0)
    found = q.to("cuda").log_prob(theta)
    assert places.of(found) == GPU
    assert torch.equal(found.cpu(), q.log_prob(theta))
    assert torch.equal(q.to("cuda").log_prob(theta.numpy()).cpu(), q.log_prob(theta))


@pytest.mark.usefixtures("places")
def test_a_prior_on_another_device_goes_to_the_network() -> None:
    module, data = problem("perceptron", "cuda")
    each = torch.linspace(1.0, 2.0, 83, dtype=torch.float64)
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "diagonal", "generator": 0}
    wanted = bs.laplace(seeded(perceptron), data, prior_precision=each, **options).log_evidence()
    for prior in (each, each.numpy(), each.to("cuda"), bs.Prior(each, mean=torch.zeros(83, dtype=torch.float64))):
        q = bs.laplace(module, data, prior_precision=prior, **options)
        torch.testing.assert_close(q.log_evidence().cpu(), wanted, rtol=1e-10, atol=0)


class Spread(nn.Module):
    """A network over two devices, as models too large for one GPU are laid out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh().to(self.second.weight.device))


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("method", ["fit_map", "variational", "laplace"])
def test_weights_on_two_devices_are_refused_by_name(method: str) -> None:
    module, data = seeded(Spread), problem("perceptron", "cpu")[1]
    module.second.to("cuda")
    options = {"likelihood": "categorical"} if method == "laplace" else TRAINED
    message = r"on one device, got 'first\.weight' on cpu and 'second\.weight' on cuda:0\. Move the module"
    with pytest.raises(InputError, match=message):
        getattr(bs, method)(module, data, **options)


def test_a_network_without_numbers_is_refused() -> None:
    module, data = problem("perceptron", "cpu")
    with pytest.raises(InputError, match=r"got '0\.weight' on torch's device 'meta', which keeps none"):
        bs.fit_map(module.to("meta"), data, **TRAINED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="expected one that torch finds here, got 'cuda'"):
        laplace().to("cuda")
    assert HOST.type == "cpu"
