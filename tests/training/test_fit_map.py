"""The most probable weights: equal to closed forms and to Newton's method, the same twice, nothing else touched."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import (
    ConvergenceError,
)
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import fit_map
from tests.training.toys import classes, flat, line, noisy_network, perceptron, seeded

NOISE = 0.09
LINEAR = ((nn.Linear, (2, 1)),)
FULL = torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.2], [0.5, 0.2, 4.0]], dtype=torch.float64)

# By name: what is passed, the same as a matrix, and its mean.
PRIORS: dict[str, tuple[Any, Tensor, Tensor]] = {
    "scalar": (2.0, 2.0 * torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)),
    "vector": (
        [1.0, 5.0, 20.0],
        torch.diag(torch.tensor([1.0, 5.0, 20.0], dtype=torch.float64)),
        torch.zeros(3, dtype=torch.float64),
    ),
    "tensors": (
        {"0.weight": 3.0, "0.bias": 30.0},
        torch.diag(torch.tensor([3.0, 3.0, 30.0], dtype=torch.float64)),
        torch.zeros(3, dtype=torch.float64),
    ),
    "mean": (
        Prior(50.0, [1.0, -2.0, 3.0]),
        50.0 * torch.eye(3, dtype=torch.float64),
        torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64),
    ),
    "full": (
        Prior(DensePrecision(10.0 * FULL), [0.5, 0.0, -1.0]),
        10.0 * FULL,
        torch.tensor([0.5, 0.0, -1.0], dtype=torch.float64),
    ),
}


def ridge(x: Tensor, y: Tensor, precision: Tensor, mean: Tensor) -> Tensor:
    """The mode of a linear regression with a bias: (XᵀX/σ² + P₀)⁻¹ (Xᵀy/σ² + P₀m)."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    return torch.linalg.solve(design.mT @ design / NOISE + precision, design.mT @ y[:, 0] / NOISE + precision @ mean)


@pytest.mark.parametrize("name", PRIORS)
def test_linear_regression_by_lbfgs_is_the_closed_form(name: str) -> None:
    prior, precision, mean = PRIORS[name]
    x, y = line()
    q = fit_map(
        seeded(0, *LINEAR).double(), (x, y), likelihood=Gaussian(NOISE), prior_precision=prior, optimizer="lbfgs",
        epochs=10,
    )  # fmt: skip
    truth = ridge(x, y, precision, mean)
    torch.testing.assert_close(q.mean, truth, rtol=1e-9, atol=1e-9)
    offset = truth - mean
    assert q.trace["penalty"][-1] == pytest.approx(float(0.5 * offset @ precision @ offset))
    assert q.trace["loss"][-1] == pytest.approx(q.trace["nll"][-1] + q.trace["penalty"][-1])


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_linear_regression_by_minibatches_is_the_closed_form(name: str, optimizer: str) -> None:
    prior, precision, mean = PRIORS[name]
    x, y = line()
    q = fit_map(
        seeded(0, *LINEAR).double(), (x, y), likelihood=Gaussian(NOISE), prior_precision=prior, optimizer=optimizer,
        lr=0.03 if optimizer == "adam" else 2e-3, schedule="cosine", batch_size=16, epochs=300, generator=0,
    )  # fmt: skip
    torch.testing.assert_close(q.mean, ridge(x, y, precision, mean), rtol=0.0, atol=5e-3)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli(link="probit"), Categorical()])
def test_classifiers_by_lbfgs_have_no_gradient_left(likelihood: Any) -> None:
    x, y = classes(count=3 if isinstance(likelihood, Categorical) else 2)
    outputs = 3 if isinstance(likelihood, Categorical) else 1
    module = seeded(0, (nn.Linear, (2, outputs))).double()
    q = fit_map(module, (x, y), likelihood=likelihood, prior_precision=0.7, optimizer="lbfgs", epochs=20)
    fitted = q.model
    f = fitted(x)
    joint = likelihood.log_prob(f, likelihood.targets(y, outputs)).sum()
    joint = joint - 0.35 * sum(parameter.square().sum() for parameter in fitted.parameters())
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(joint, list(fitted.parameters()))])
    assert gradient.abs().max() < 1e-6
    assert -joint.item() == pytest.approx(q.trace["loss"][-1])


def test_same_generator_same_numbers_and_global_state_untouched() -> None:
    """Dropout draws from torch's own state: that is seeded for the run, and put back by the fixture's check."""
    x, y = line()
    before = torch.get_rng_state()

    def fitted(seed: int) -> Tensor:
        q = fit_map(noisy_network(), (x, y), likelihood="gaussian", epochs=3, batch_size=8, generator=seed)
        return q.mean

    first = fitted(5)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(fitted(5), first)
    assert not torch.equal(fitted(6), first)


@pytest.mark.global_rng
def test_a_shuffling_loader_repeats_itself() -> None:
    x, y = line()

    def fitted() -> Tensor:
        loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        return fit_map(noisy_network(), loader, likelihood="gaussian", epochs=3, generator=1).mean

    first = fitted()
    torch.rand(3)
    assert torch.equal(fitted(), first)


def test_callers_module_is_untouched_unless_asked() -> None:
    x, y = line()
    module = noisy_network()
    module[0].weight.grad = torch.ones_like(module[0].weight)
    before = copy.deepcopy(module.state_dict())
    q = fit_map(module, (x, y), likelihood="gaussian", epochs=2, generator=0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    assert bool((module[0].weight.grad == 1).all())
    assert not q.model.training

    trained = fit_map(module, (x, y), likelihood="gaussian", epochs=2, generator=0, inplace=True)
    assert torch.equal(flat(module), flat(q.model))
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    with torch.no_grad():
        module[0].weight.zero_()  # the posterior holds a module of its own
    assert torch.equal(flat(trained.model), flat(q.model))


def test_batch_norm_is_trained_in_train_mode() -> None:
    x, y = line(33)  # a last minibatch of a single row would be refused by batch norm
    q = fit_map(noisy_network(), (x, y), likelihood="gaussian", epochs=30, batch_size=32, lr=0.01, generator=0)
    normed = q.model[1]
    assert normed.num_batches_tracked == 60
    torch.testing.assert_close(normed.running_mean, q.model[0](x).mean(0), atol=0.1, rtol=0.1)
    torch.testing.assert_close(q.predict(x).mean, q.model(x).detach())


def test_forms_of_data_agree() -> None:
    x, y = line(24)
    pairs: list[Any] = [(x, y), (x.numpy(), y.numpy()[:, 0]), TensorDataset(x, y)]
    batches = [(x[:12], y[:12]), (x[12:], y[12:])]
    truth = ridge(x, y, *PRIORS["scalar"][1:])
    for data in [*pairs, batches, DataLoader(TensorDataset(x, y), batch_size=12, generator=torch.Generator())]:
        q = fit_map(
            seeded(0, *LINEAR).double(), data, likelihood=Gaussian(NOISE), prior_precision=2.0, lr=0.05,
            schedule="cosine", batch_size=12, epochs=200, generator=0,
        )  # fmt: skip
        torch.testing.assert_close(q.mean, truth, rtol=0.0, atol=2e-3)


def test_dense_outputs_count_every_position() -> None:
    """A network with two positions a row is the regression of twice as many rows."""
    x, y = line(20)
    unfolded = fit_map(seeded(0, *LINEAR).double(), (x, y), likelihood=Gaussian(NOISE), optimizer="lbfgs", epochs=8)
    folded = (x.reshape(10, 2, 2), y.reshape(10, 2, 1))
    q = fit_map(seeded(0, *LINEAR).double(), folded, likelihood=Gaussian(NOISE), optimizer="lbfgs", epochs=8)
    torch.testing.assert_close(q.mean, unfolded.mean)
    by_batches = fit_map(
        seeded(0, *LINEAR).double(), folded, likelihood=Gaussian(NOISE), lr=0.05, schedule="cosine", epochs=200,
        batch_size=4, generator=0,
    )  # fmt: skip
    torch.testing.assert_close(by_batches.mean, unfolded.mean, rtol=0.0, atol=5e-3)


def test_weights_without_a_prior_are_point_estimates() -> None:
    """A bias with no prior: the mean residual is zero, which a prior on it would not leave it at."""
    x, y = line()
    module = seeded(0, *LINEAR).double()
    free = fit_map(
        module, (x, y + 5.0), likelihood=Gaussian(NOISE), prior_precision=100.0, weights="*.weight", optimizer="lbfgs",
        epochs=10,
    )  # fmt: skip
    assert free.mean.shape == (2,)
    assert (y + 5.0 - free.model(x)).mean().abs() < 1e-8
    pulled = fit_map(module, (x, y + 5.0), likelihood=Gaussian(NOISE), prior_precision=100.0, optimizer="lbfgs")
    assert (y + 5.0 - pulled.model(x)).mean().abs() > 0.1


def test_frozen_weights_stay_and_unused_ones_go_to_their_prior() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = seeded(0, *LINEAR).double()
            self.frozen = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x) * self.frozen
            return out

    q = fit_map(Partial(), line(), likelihood="gaussian", prior_precision=1.0, optimizer="lbfgs")
    assert q.model.frozen == 1.0
    assert q.model.unused.abs().max() < 1e-6


def test_last_layer_and_masks_carry_the_prior() -> None:
    x, y = line()
    last = fit_map(perceptron(), (x, y), likelihood="gaussian", weights="last_layer", epochs=2, generator=0)
    assert last.mean.shape == (9,)
    mask = torch.zeros(3, dtype=torch.bool)
    mask[0] = True
    q = fit_map(
        seeded(0, *LINEAR).double(), (x, y), likelihood=Gaussian(NOISE), prior_precision=1e8, weights=mask,
        optimizer="lbfgs",
    )  # fmt: skip
    assert q.mean.shape == (1,)
    assert q.mean.abs() < 1e-5
    expected = ridge(x, y, torch.diag(torch.tensor([1e8, 0.0, 0.0], dtype=torch.float64)), torch.zeros(3).double())
    torch.testing.assert_close(flat(q.model), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["cosine", lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.1)])
def test_any_optimizer_and_schedule(schedule: Any) -> None:
    seen: list[float] = []

    class Spy(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    fit_map(
        perceptron(), line(), likelihood="gaussian", optimizer=lambda p: Spy(p, lr=0.5), schedule=schedule, epochs=4
    )
    if schedule == "cosine":
        assert seen == pytest.approx([0.25 * (1 + np.cos(np.pi * epoch / 4)) for epoch in range(4)])
    else:
        assert seen == pytest.approx([0.5, 0.5, 0.05, 0.05])


def test_a_diverging_loss_is_an_error() -> None:
    x, y = line()
    with pytest.raises(ConvergenceError, match=r"finite number, got .* step size 10000.*smaller lr"):
        fit_map(seeded(0, *LINEAR).double(), (x, y), likelihood="gaussian", optimizer="sgd", lr=1e4, epochs=200)


def test_an_interrupt_returns_what_is_there() -> None:
    class Interrupting(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += self.training
            if type(self).calls > 3:
                raise KeyboardInterrupt
            return super().forward(x)

    module = seeded(0, (Interrupting, (2, 1))).double()
    q = fit_map(module, line(), likelihood="gaussian", epochs=50, generator=0)
    assert len(q.trace["loss"]) == 3
    assert "3 epochs, ended by an interrupt" in q.summary()
    assert not torch.equal(q.mean, flat(module))


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "adam", "epochs": 3}, {"optimizer": lambda p: torch.optim.SGD(p, 0.1), "epochs": 3}],
    ids=["default", "adam", "own"],
)
@pytest.mark.parametrize("prior", [1.0, Prior(DensePrecision(2.0 * torch.eye(25, dtype=torch.float64)))])
def test_a_table_with_sparse_gradients_is_trained_in_place_as_a_dense_one(prior: Any, options: Any) -> None:
    x = torch.randint(7, (40,), generator=torch.Generator().manual_seed(0))
    found = []
    for sparse in (True, False):
        module = seeded(0, (nn.Embedding, (7, 3)), (nn.Linear, (3, 1))).double()
        module[0].sparse = sparse
        fit_map(
            module, (x, x % 2), likelihood="bernoulli", prior_precision=prior, inplace=True, generator=0,
            progress=False, **options,
        )  # fmt: skip
        found.append(flat(module))
    torch.testing.assert_close(*found)


def test_the_summary_has_the_loss_and_whether_it_is_at_rest() -> None:
    q = fit_map(perceptron(), line(), likelihood="gaussian", epochs=20, lr=3e-3)
    loss, nll, penalty = (q.trace[name][-1] for name in ("loss", "nll", "penalty"))
    assert f"loss: {loss:.4f} (negative log likelihood {nll:.4f}, penalty {penalty:.4f})" in q.summary()
    before, after = (torch.tensor(q.trace["loss"])[places] for places in (slice(5, 10), slice(15, 20)))
    fell, error = before.mean() - after.mean(), (before.var(correction=0) + after.var(correction=0)).div(5).sqrt()
    told = f"the second half lowered the loss by {fell:.2g} ± {error:.1g} nats"
    assert f"at rest: no, {told}. Train for more epochs, or" in q.summary()
    assert "optimizer='lbfgs'" in q.summary()
    q = fit_map(perceptron(), line(), likelihood="gaussian", epochs=20, optimizer="lbfgs")
    assert "at rest: yes, the second half" in q.summary()
    q = fit_map(perceptron(), line(), likelihood="gaussian", epochs=1, optimizer="lbfgs")
    assert "at rest: unknown after 1 epoch. Train for more epochs." in q.summary()
