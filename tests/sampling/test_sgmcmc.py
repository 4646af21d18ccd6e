"""Stochastic-gradient MCMC: the posterior up to the bias that the step size is known to have, whatever the network."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import ConvergenceError, ConvergenceWarning, InputError, OptionError, UnsupportedError
from bayescope.likelihoods import Gaussian
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.sampling import sgmcmc
from tests.training.toys import classes, line, noisy_network, perceptron, seeded

NOISE = 0.25
CHAINS, DRAWS = 300, 20
Z = 4.4


def exact(x: Tensor, y: Tensor, precision: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Λ and the mean of the posterior of a linear regression with a bias."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    total = design.mT @ design / NOISE + precision
    return total, torch.linalg.solve(total, design.mT @ y[:, 0] / NOISE + precision @ mean)


def linear() -> nn.Module:
    return seeded(0, (nn.Linear, (2, 1))).double()


FULL = torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.2], [0.5, 0.2, 4.0]], dtype=torch.float64)
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "sgld": ({"method": "sgld", "lr": 0.2}, 1.0),
    "sghmc": ({"method": "sghmc", "lr": 0.3, "friction": 0.4}, 0.4),
    "cold": ({"method": "sgld", "lr": 0.2, "temperature": 0.25}, 1.0),
    "full prior": ({"method": "sgld", "lr": 0.2, "prior_precision": Prior(DensePrecision(FULL), 0.5)}, 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_linear_regression_has_the_moments_of_the_discretised_chain(name: str) -> None:
    """Chains are independent: the mean over a chain's draws has its own spread as its standard error."""
    options, friction = CASES[name]
    x, y = line()
    full = name == "full prior"
    precision = FULL if full else torch.eye(3, dtype=torch.float64)
    total, centre = exact(x, y, precision, torch.full((3,), 0.5 if full else 0.0, dtype=torch.float64))
    q = sgmcmc(
        linear(), (x, y), likelihood=Gaussian(NOISE), draws=DRAWS, burn_in=120, thin=5, chains=CHAINS, start="prior",
        generator=0, **options,
    )  # fmt: skip
    inverse = torch.linalg.inv(total @ (torch.eye(3) - options["lr"] / len(x) * total / (2 * (2 - friction))))
    covariance = options.get("temperature", 1.0) * inverse
    offset = q.draws - centre
    for each, expected in ((offset, torch.zeros(3)), (offset.square(), covariance.diagonal())):
        of_chains = each.mean(1)
        error = of_chains.std(0) / math.sqrt(CHAINS)
        assert bool(((of_chains.mean(0) - expected).abs() < Z * error).all())
    assert float(inverse[0, 0] * total.inverse()[0, 0].reciprocal()) > 1.1, "the step size has a bias to be seen"
    assert q.prediction_r_hat is not None
    assert q.prediction_r_hat.shape == (40, 1)


def test_a_small_step_gives_the_posterior() -> None:
    x, y = line()
    total, centre = exact(x, y, torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    q = sgmcmc(
        linear(), (x, y), likelihood=Gaussian(NOISE), lr=0.02, friction=0.3, draws=20, burn_in=200, thin=20, chains=100,
        generator=0,
    )  # fmt: skip
    sd = total.inverse().diagonal().sqrt()
    assert bool(((q.mean - centre).abs() < 0.1 * sd).all())
    torch.testing.assert_close(q.covariance.diagonal().sqrt(), sd, rtol=0.1, atol=0.0)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_minibatches_of_each_chain_are_its_own_and_seeded_runs_repeat() -> None:
    x, y = classes(count=3)

    def drawn(seed: int, **options: Any) -> Tensor:
        return sgmcmc(
            perceptron(outputs=3), (x, y), likelihood="categorical", draws=5, burn_in=2, chains=2, batch_size=16,
            generator=seed, **options,
        ).draws  # fmt: skip

    first = drawn(3)
    assert first.shape == (2, 5, 2 * 8 + 8 + 8 * 3 + 3)
    assert torch.equal(first, drawn(3))
    assert not torch.equal(first, drawn(4))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, drawn(3, method="sgld"))


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_draws_predict_and_the_trace_tells_of_each_chain() -> None:
    x, y = classes(count=3)
    module = perceptron(outputs=3)
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    q = sgmcmc(module, (x, y), likelihood="categorical", draws=8, burn_in=4, thin=2, chains=3, generator=0)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), before)
    p = q.predict(x)
    torch.testing.assert_close(p.mean.sum(-1), torch.ones(60, dtype=torch.float64))
    assert len(q.trace["loss"]) == 4 + 2 * 8
    assert [len(losses) for losses in q.trace["losses"]] == [3] * 20
    assert torch.equal(nn.utils.parameters_to_vector(q.model.parameters()), q.draws[0, -1])
    assert "3, in one pass" in q.summary()


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "data",
    [
        [(x[start : start + 20], y[start : start + 20]) for x, y in [line()] for start in (0, 20)],
        DataLoader(TensorDataset(*line()), batch_size=10),
        TensorDataset(*line()),
    ],
    ids=["list", "loader", "dataset"],
)
def test_data_in_batches(data: Any) -> None:
    q = sgmcmc(
        linear(), data, likelihood=Gaussian(NOISE), lr=0.1, draws=6, thin=1, burn_in=10, chains=2, cycles=2, generator=0
    )
    assert q.draws.shape == (2, 6, 3)
    assert len(q.trace["loss"]) == 2 * (10 + 3)


def test_cycles_end_where_the_step_size_is_small() -> None:
    """Near the end of each cycle the draws come close together; without noise in its beginning the mode is found."""
    x, y = line()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = sgmcmc(
            linear(), (x, y), likelihood=Gaussian(NOISE), lr=0.3, friction=1.0, draws=30, thin=1, burn_in=60, cycles=3,
            chains=40, generator=0,
        )  # fmt: skip
    steps = q.draws.diff(dim=1).square().sum(-1).mean(0)
    within = torch.arange(29) % 10
    assert float(steps[within == 8].mean()) < 0.05 * float(steps[within == 0].mean())
    assert "10 in each of 3 cycles" in q.summary()
    apart = [max(losses) - min(losses) > 1e-6 for losses in q.trace["losses"]]
    assert apart[:70] == [False] * 60 + [True] * 10, "chains from the same weights part with the first noise"


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("chains", [1, 2])
def test_networks_are_sampled_in_eval_mode(chains: int) -> None:
    """Batch norm keeps its statistics, and dropout does not draw: what is sampled is what predicts."""
    module, (x, y) = noisy_network(), line()
    state = {name: buffer.clone() for name, buffer in module.named_buffers()}
    q = sgmcmc(module, (x, y), likelihood="gaussian", lr=1e-4, draws=4, thin=1, burn_in=0, chains=chains, generator=0)
    assert all(torch.equal(buffer, state[name]) for name, buffer in q.model.named_buffers())
    loss = float(0.5 * (module.eval()(x).detach() - y).square().sum() + 20 * math.log(2 * math.pi))
    assert q.trace["nll"][0] == pytest.approx(loss)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("weights", ["last_layer", {"0.weight": torch.eye(8, 2, dtype=torch.bool)}])
@pytest.mark.parametrize("chains", [1, 2])
def test_all_weights_but_the_random_ones_stay(weights: Any, chains: int) -> None:
    module = perceptron()
    q = sgmcmc(
        module, line(), likelihood="gaussian", weights=weights, draws=4, thin=1, burn_in=1, chains=chains,
        start="prior", generator=0,
    )  # fmt: skip
    assert q.function is not None
    moved = q.function.weights  # type: ignore[attr-defined]
    assert q.draws.shape[-1] == moved.dim
    for name, parameter in q.model.named_parameters():
        kept = ~moved.mask(name) if name in moved.names else torch.ones_like(parameter, dtype=torch.bool)
        assert torch.equal(parameter[kept], module.get_parameter(name)[kept])
    assert bool((q.draws.diff(dim=1) != 0).all())


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_a_checkpoint_goes_on_to_the_same_draws(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "likelihood": "gaussian", "burn_in": 3, "chains": 2, "batch_size": 16, "generator": 0, "thin": 2,
    }  # fmt: skip
    path = tmp_path / "run.pt"
    sgmcmc(perceptron(), line(), draws=4, checkpoint=path, **options)
    went_on = sgmcmc(perceptron(), line(), draws=9, checkpoint=path, **options)
    straight = sgmcmc(perceptron(), line(), draws=9, **options)
    assert torch.equal(went_on.draws, straight.draws)
    assert torch.equal(sgmcmc(perceptron(), line(), draws=5, checkpoint=path, **options).draws, straight.draws[:, :5])
    for other in ({"thin": 1}, {"lr": 0.02}, {"temperature": 0.5}, {"method": "sgld"}, {"chains": 3}):
        with pytest.raises(InputError, match="checkpoint"):
            sgmcmc(perceptron(), line(), draws=9, checkpoint=path, **{**options, **other})


def test_chains_that_have_not_met_are_warned_of() -> None:
    with pytest.warns(ConvergenceWarning, match="sghmc: .*R-hat"):
        q = sgmcmc(
            linear(), line(), likelihood=Gaussian(NOISE), lr=1e-4, draws=8, thin=1, burn_in=0, chains=3, start="prior",
            generator=0,
        )  # fmt: skip
    assert q.prediction_r_hat is not None
    assert float(q.prediction_r_hat.max()) > 1.1


def test_few_draws_are_not_judged() -> None:
    q = sgmcmc(linear(), line(), likelihood=Gaussian(NOISE), draws=2, thin=1, burn_in=1, generator=0)
    assert q.prediction_r_hat is None
    assert q.prediction_effective_draws is None


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_an_interrupt_leaves_the_draws_until_then() -> None:
    class Stopping(nn.Module):
        passes, limit = 0, 30

        def __init__(self) -> None:
            super().__init__()
            self.body = linear()

        def forward(self, x: Tensor) -> Tensor:
            Stopping.passes += torch.is_grad_enabled()
            if torch.is_grad_enabled() and Stopping.passes == Stopping.limit:
                raise KeyboardInterrupt
            return self.body(x)

    q = sgmcmc(Stopping(), line(), likelihood=Gaussian(NOISE), draws=50, thin=1, burn_in=10, generator=0)
    assert 10 < q.draws.shape[1] < 30
    assert "an interrupt" in q.summary()
    Stopping.passes, Stopping.limit = 0, 5
    with pytest.raises(KeyboardInterrupt):
        sgmcmc(Stopping(), line(), likelihood=Gaussian(NOISE), draws=50, thin=1, burn_in=10, generator=0)


def test_a_step_size_that_is_too_large_is_loud() -> None:
    with pytest.raises(ConvergenceError, match="smaller lr"):
        sgmcmc(linear(), line(), likelihood=Gaussian(1e-4), lr=10.0, draws=5, thin=1, burn_in=200, generator=0)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "hmc"}, OptionError, "method"),
        ({"method": "sgld", "friction": 0.1}, UnsupportedError, "friction"),
        ({"friction": 1.5}, InputError, "friction"),
        ({"friction": 0.0}, InputError, "friction"),
        ({"lr": -1.0}, InputError, "lr"),
        ({"temperature": 0.0}, InputError, "temperature"),
        ({"draws": 0}, InputError, "draws"),
        ({"draws": 10, "cycles": 3}, InputError, "multiple of the 3 cycles"),
        ({"thin": 0}, InputError, "thin"),
        ({"burn_in": -1}, InputError, "burn_in"),
        ({"chains": 0}, InputError, "chains"),
        ({"start": "map"}, OptionError, "start"),
        ({"batch_size": 0}, InputError, "batch_size"),
        ({"prior_precision": -1.0}, InputError, "prior_precision"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        sgmcmc(linear(), line(), likelihood=Gaussian(NOISE), **options)


def test_draws_are_twenty_steps_apart_by_default() -> None:
    x, y = line()
    q = sgmcmc(linear(), (x, y), likelihood=Gaussian(NOISE), draws=2, batch_size=len(x) // 4, generator=0)
    assert "5 epochs apart, after 100 to burn in" in q.summary()  # four steps an epoch
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(x) // 2)
    q = sgmcmc(linear(), loader, likelihood=Gaussian(NOISE), draws=2, generator=0)
    assert "10 epochs apart, after 200 to burn in" in q.summary()
