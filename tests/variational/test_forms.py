"""Variational inference for every form of model, weights and data; the same twice, and nothing else touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.layers import LinearVariational
from bayescope.likelihoods import Gaussian
from bayescope.priors import Prior
from bayescope.training import fit_map
from bayescope.variational import variational
from tests.training.toys import flat, line, noisy_network, perceptron, seeded
from tests.variational.toys import GAUSSIAN, network, regression, seeded_draws


def test_last_layer_masks_and_frozen_weights() -> None:
    x, y = line(40)
    last = variational(
        perceptron(), (x, y), likelihood=GAUSSIAN, weights="last_layer", family="full", epochs=3, lr=0.01, generator=0,
        progress=False,
    )  # fmt: skip
    assert last.mean.shape == (9,)
    before = perceptron()
    assert not torch.equal(last.model[0].weight, before[0].weight)  # a point estimate
    mask = torch.zeros(33, dtype=torch.bool)
    mask[::3] = True
    for family in ("mean_field", "low_rank", "full"):
        q = variational(
            perceptron(), (x, y), likelihood=GAUSSIAN, weights=mask, family=family, epochs=2, generator=0,
            progress=False,
        )  # fmt: skip
        assert q.mean.shape == (11,)
        assert not torch.equal(flat(q.model)[~mask], flat(before)[~mask])
    frozen = perceptron()
    frozen[0].requires_grad_(False)
    adapted = variational(frozen, (x, y), likelihood=GAUSSIAN, epochs=2, generator=0, progress=False)
    assert torch.equal(adapted.model[0].weight, before[0].weight)
    assert adapted.mean.shape == (9,)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, W + B A: factors that meet no data by themselves but as products."""

    def __init__(self) -> None:
        super().__init__()
        self.base = seeded(0, (nn.Linear, (2, 6)), (nn.Tanh, ()), (nn.Linear, (6, 1)))
        self.base.requires_grad_(False)
        with seeded_draws(1):
            self.down = nn.Parameter(0.1 * torch.randn(1, 2))
        self.up = nn.Parameter(torch.zeros(6, 1))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        weight = self.base[0].weight + self.up @ self.down
        out: Tensor = self.base[2](torch.tanh(nn.functional.linear(x * scale, weight, self.base[0].bias)))
        return out


def test_adapters_with_several_inputs_in_single_precision() -> None:
    x, y = line(40)
    inputs = {"x": x, "scale": torch.ones(40, 1)}
    q = variational(Adapted(), (inputs, y), likelihood=GAUSSIAN, epochs=30, lr=0.02, generator=0, progress=False)
    assert q.mean.shape == (8,)
    assert q.trace["loss"][-1] < q.trace["loss"][0]
    again = variational(
        Adapted(), ((x, torch.ones(40, 1)), y), likelihood=GAUSSIAN, epochs=30, lr=0.02, generator=0, progress=False
    )
    assert torch.equal(again.mean, q.mean)
    assert q.predict(inputs).mean.shape == (40, 1)


def test_dense_outputs_and_many_classes() -> None:
    x, y = line(20)
    folded = (x.reshape(10, 2, 2), y.reshape(10, 2, 1))
    q = variational(
        network(), folded, likelihood=GAUSSIAN, family="full", samples=2, epochs=400, lr=0.05, schedule="cosine",
        generator=0, progress=False,
    )  # fmt: skip
    problem = regression(20, Prior(1.0))
    assert ((q.mean - problem.mean) / problem.sds).abs().max() < 1e-2
    assert float(q.elbo) == pytest.approx(problem.evidence, abs=0.01)
    labels = torch.randint(1000, (12, 3, 2), generator=torch.Generator().manual_seed(0))
    images = torch.randn(12, 2, 3, 2, generator=torch.Generator().manual_seed(1))

    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with seeded_draws(0):
                self.convolution = nn.Conv2d(2, 1000, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.convolution(x).movedim(1, -1)
            return out

    many = variational(Pixels(), (images, labels), likelihood="categorical", epochs=1, generator=0, progress=False)
    assert many.predict(images, samples=3).probs.shape == (12, 3, 2, 1000)
    assert torch.isfinite(many.elbo)


def test_forms_of_data_agree() -> None:
    x, y = line(24)
    rows = TensorDataset(x, y)
    truth = regression(24, Prior(2.0))
    loader = DataLoader(rows, batch_size=12, generator=torch.Generator())
    for data in [(x.numpy(), y.numpy()[:, 0]), [(x[:12], y[:12]), (x[12:], y[12:])], loader]:
        q = variational(
            network(), data, likelihood=GAUSSIAN, prior_precision=2.0, batch_size=12, epochs=100, lr=0.05,
            schedule="cosine", generator=0, progress=False,
        )  # fmt: skip
        assert ((q.mean - truth.mean) / truth.sds).abs().max() < 0.5


def test_the_same_generator_gives_the_same_numbers() -> None:
    x, y = line(30)
    module = noisy_network()
    before = copy.deepcopy(module.state_dict())

    def fitted(seed: int, **options: Any) -> Any:
        return variational(
            module, (x, y), likelihood=GAUSSIAN, batch_size=8, epochs=3, generator=seed, progress=False, **options
        )

    for options in ({}, {"family": "low_rank", "rank": 2}, {"optimizer": "ivon", "samples": 2}):
        first, second, other = fitted(5, **options), fitted(5, **options), fitted(6, **options)
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(first.elbo, second.elbo)
        assert torch.equal(first.precision.marginal_variance(), second.precision.marginal_variance())
        assert not torch.equal(first.mean, other.mean)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    assert not first.model.training


def test_the_row_of_padding_is_no_parameter() -> None:
    """Nothing but noise could come of it: it stays as it is, beside masks of the caller's own too."""
    with seeded_draws(0):
        model = nn.Sequential(nn.Embedding(6, 3, padding_idx=2), nn.Flatten(), nn.Linear(12, 2))
        x, y = torch.randint(0, 6, (40, 4)), torch.randint(0, 2, (40,))
    q = variational(model, (x, y), likelihood="categorical", epochs=2, generator=0, progress=False)
    assert q.mean.shape == (15 + 26,)
    assert torch.equal(q.model[0].weight[2], torch.zeros(3))
    padded = torch.full((1, 4), 2)
    bias = q.predict(padded, samples=400, generator=0)
    sds = q.precision.marginal_variance()[-2:].sqrt()
    torch.testing.assert_close(bias.latent_cov[0].diagonal().sqrt(), sds, rtol=0.2, atol=0.0, check_dtype=False)
    mask = {"0.weight": torch.zeros(6, 3, dtype=torch.bool)}
    mask["0.weight"][1:4] = True
    some = variational(model, (x, y), likelihood="categorical", weights=mask, epochs=1, generator=0, progress=False)
    assert some.mean.shape == (6,)


@pytest.mark.parametrize(("make", "whole"), [(torch.optim.SGD, False), (torch.optim.LBFGS, True)])
def test_only_a_line_search_asks_for_values(make: Any, whole: bool) -> None:
    """A step of SGD has the expected log likelihood alone; KL(q∥p), which costs time, is added for a line search."""
    values: list[float] = []

    def noting(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        optimizer, closure = arguments

        def noted() -> Tensor:
            value: Tensor = closure()
            values.append(float(value))
            return value

        return (optimizer, noted), options

    def watched(parameters: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = make(parameters, lr=1e-3)
        optimizer.register_step_pre_hook(noting)
        return optimizer

    x, y = line()
    q = variational(perceptron(), (x, y), likelihood=GAUSSIAN, epochs=2, generator=0, progress=False, optimizer=watched)
    added = len(x) * values[0] - q.trace["nll"][0]
    assert added == pytest.approx(q.trace["kl"][0] if whole else 0.0, rel=0.2, abs=1e-6)


def test_a_full_covariance_does_not_run_away() -> None:
    """321 weights, from Laplace's sds: the noise of the triangle's entries once made its inverse explode."""
    x, y = line(30, 1)
    model = seeded(0, (nn.Linear, (1, 16)), (nn.Tanh, ()), (nn.Linear, (16, 16)), (nn.Tanh, ()), (nn.Linear, (16, 1)))
    trained = fit_map(
        model.double(), (x, y), likelihood=GAUSSIAN, optimizer="lbfgs", epochs=20, generator=0, progress=False
    )
    q = variational(
        trained.model, (x, y), likelihood=GAUSSIAN, family="full", initial_sd="laplace", lr=0.01, samples=4,
        epochs=120, generator=0, progress=False,
    )  # fmt: skip
    losses = torch.tensor(q.trace["loss"])
    assert losses[-20:].mean() < losses[:20].mean()
    assert losses.max() < 3.0 * losses[0]


def test_more_data_leave_alone_what_is_not_random() -> None:
    """Point estimates, masked entries and batch statistics are of all rows so far, of which new rows know nothing."""
    x, y = line(40)
    mask = torch.zeros(33, dtype=torch.bool)
    mask[::3] = True
    for options in ({}, {"family": "full"}, {"estimator": "sticking_the_landing", "prior_precision": 3.0}):
        given: dict[str, Any] = {"likelihood": GAUSSIAN, "lr": 0.05, "generator": 0, "progress": False, **options}
        q = variational(perceptron(), (x[:20], y[:20]), weights=mask, epochs=3, **given)
        more = q.condition((x[20:], y[20:]))
        assert torch.equal(flat(more.model)[~mask], flat(q.model)[~mask])
        assert not torch.isclose(more.mean, q.mean).any()
        last = variational(noisy_network(), (x[:20], y[:20]), weights="last_layer", epochs=3, samples=2, **given)
        later = last.condition((x[20:], y[20:]))
        names = [name for name in later.model.state_dict() if not name.startswith("4.")]
        assert "1.running_mean" in names
        assert all(torch.equal(later.model.state_dict()[n], last.model.state_dict()[n]) for n in names)
        assert not torch.isclose(later.mean, last.mean).any()
        assert all(parameter.requires_grad for parameter in later.model.parameters())


def test_notes_of_priors_that_win_and_that_give_way() -> None:
    """Of 600 weights 40 rows of noise tell nothing; a layer's own prior is not the call's."""
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 2, generator=source), torch.randn(40, 1, generator=source)
    model = seeded(0, (nn.Linear, (2, 200)), (nn.Tanh, ()), (nn.Linear, (200, 1)))
    given: dict[str, Any] = {"generator": 0, "progress": False}
    q = variational(
        model, (x, y), likelihood=Gaussian(100.0), prior_precision=400.0, initial_sd=0.05, epochs=300, lr=0.02, **given
    )
    assert -float(q.elbo_terms["kl"]) < 8.0
    assert "close to the prior: " in q.summary()
    assert "fewer random weights" in q.summary()
    with seeded_draws(0):
        layered = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), LinearVariational(4, 1, prior_precision=2.0))
    fitted = variational(layered, (x, y), likelihood=GAUSSIAN, epochs=1, **given)
    assert "close to the prior" not in fitted.summary()
    assert "prior of layers: 2, which gave way to prior_precision=" in fitted.summary()
    array = variational(layered, (x, y), likelihood=GAUSSIAN, prior_precision=torch.full((5,), 2.0), epochs=0, **given)
    assert "prior of layers: 2, which gave way" in array.summary()
    same = variational(layered, (x, y), likelihood=GAUSSIAN, prior_precision=2.0, epochs=1, **given)
    assert "prior of layers" not in same.summary()
