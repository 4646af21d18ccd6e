"""SWAG: mean and covariance are those of the snapshots, which are taken when they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescope.errors import ConvergenceError, ConvergenceWarning, InputError, OptionError, UnsupportedError
from bayescope.posterior import GaussianPosterior
from bayescope.sampling.swag import LOWEST, swag
from bayescope.training import fit_map
from tests.training.toys import classes, flat, line, noisy_network, perceptron

ROWS, BATCH, STEPS = 40, 8, 5  # steps of an epoch


class Recorded:
    """An optimiser that tells of itself: after each step the weights and the step size."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.sizes: list[float] = []

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

        def hook(*_: Any) -> None:
            self.weights.append(torch.cat([parameter.detach().flatten().clone() for parameter in parameters]))
            self.sizes.append(optimizer.param_groups[0]["lr"])

        optimizer.register_step_post_hook(hook)
        return optimizer


def run(model: nn.Module, data: Any, **arguments: Any) -> GaussianPosterior:
    return swag(model, data, **{"likelihood": "gaussian", "batch_size": BATCH, "generator": 3, **arguments})


def defined(snapshots: list[Tensor], rank: int) -> tuple[Tensor, Tensor]:
    """Maddox et al. 2019, Section 3.3, term by term."""
    theta = torch.stack(snapshots)
    mean, second = theta.mean(0), theta.square().mean(0)
    diagonal = torch.diag(second - mean.square())
    if not rank:
        return mean, diagonal
    running = theta.cumsum(0) / torch.arange(1, len(theta) + 1)[:, None]
    deviations = (theta - running)[-rank:].mT
    return mean, 0.5 * (diagonal + deviations @ deviations.mT / (rank - 1))


def covariance(q: GaussianPosterior) -> Tensor:
    return q.precision.solve(torch.eye(q.precision.dim, dtype=torch.float64))


WHEN: dict[str, tuple[dict[str, Any], slice]] = {
    "epochs": ({"epochs": 20, "burn_in": 6}, slice(7 * STEPS - 1, None, STEPS)),
    "half of them by default": ({"epochs": 21}, slice(11 * STEPS - 1, None, STEPS)),
    "steps": ({"epochs": 12, "burn_in": 2, "collect": 3}, slice(2 * STEPS + 2, None, 3)),
    "cycles": (
        {"epochs": 40, "burn_in": 4, "schedule": "cyclic", "cycle": 3},
        slice(7 * STEPS - 1, 40 * STEPS, 3 * STEPS),
    ),
}


@pytest.mark.parametrize("rank", [0, 2, 8])
@pytest.mark.parametrize("when", WHEN)
def test_mean_and_covariance_are_those_of_the_recorded_weights(when: str, rank: int) -> None:
    arguments, chosen = WHEN[when]
    seen = Recorded()
    q = run(perceptron(), line(ROWS), optimizer=seen, rank=rank, **arguments)
    snapshots = seen.weights[chosen]
    mean, expected = defined(snapshots, rank)
    assert q.trace["snapshots"][-1] == len(snapshots) >= 10
    torch.testing.assert_close(q.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(covariance(q), expected, rtol=1e-9, atol=1e-12 * float(expected.max()))
    torch.testing.assert_close(flat(q.model), mean)


def test_fewer_snapshots_than_columns_where_their_number_is_not_known() -> None:
    seen = Recorded()
    q = run(perceptron(), line(ROWS), optimizer=seen, epochs=4, burn_in=0, collect=4, rank=9)
    _, expected = defined(seen.weights[3::4], 5)
    torch.testing.assert_close(covariance(q), expected)
    assert "5, one in 4 steps after epoch 0; the diagonal and 5 columns" in q.summary()


def test_small_variances_keep_their_digits_beside_large_weights() -> None:
    """Second moments less the square of the mean would have none left: 1e7² beside 1e-4²."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((2,), 1e7, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ (self.w - 1e7))[:, None]

    seen = Recorded()
    shifted = run(Shifted(), line(ROWS), optimizer=seen, epochs=30, prior_precision=1e-12, rank=4)
    _, expected = defined([weights - 1e7 for weights in seen.weights[16 * STEPS - 1 :: STEPS]], 4)
    assert 0 < float(expected.diagonal().max()) < 1e-2
    torch.testing.assert_close(covariance(shifted), expected, rtol=1e-6, atol=0)


def test_some_weights_are_random_and_all_that_are_trained_are_averaged() -> None:
    module, seen = perceptron(), Recorded()
    module[0].bias.requires_grad_(False)
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[0, ::3] = True
    q = run(module, line(ROWS), optimizer=seen, epochs=20, rank=3, weights={"2.weight": mask})
    snapshots = seen.weights[11 * STEPS - 1 :: STEPS]  # of 0.weight (16), 2.weight (8) and 2.bias
    _, expected = defined([weights[16:24:3] for weights in snapshots], 3)
    torch.testing.assert_close(covariance(q), expected)
    assert torch.equal(q.model[0].bias, module[0].bias)
    trained = torch.cat([q.model[0].weight.flatten(), q.model[2].weight.flatten(), q.model[2].bias])
    torch.testing.assert_close(trained.detach(), torch.stack(snapshots).mean(0))


def test_a_step_size_falls_along_a_line_in_each_cycle() -> None:
    seen = Recorded()
    run(perceptron(), line(ROWS), optimizer=seen, epochs=15, burn_in=2, schedule="cyclic", cycle=4, rank=3)
    by_epoch = torch.tensor(seen.sizes[::STEPS]) / 0.05
    one = torch.linspace(1.0, LOWEST, 4)
    torch.testing.assert_close(by_epoch, torch.cat([torch.ones(2), one, one, one, one[:1]]))


def test_without_noise_there_is_nothing_to_see() -> None:
    """All rows at once, from an optimum: the weights stay."""
    data = line(ROWS)
    mode = fit_map(perceptron(), data, likelihood="gaussian", optimizer="lbfgs", epochs=60).model
    with pytest.warns(ConvergenceWarning, match="each step read all 40 rows"):
        still = run(mode, data, batch_size=ROWS, epochs=30, burn_in=0, rank=5)
    moving = run(mode, data, epochs=30, burn_in=0, rank=5)
    assert float(still.precision.marginal_variance().max()) < 1e-12
    assert float(moving.precision.marginal_variance().min()) > 1e-8


@pytest.mark.parametrize(
    ("rows", "form", "steps"), [(100, tuple, 8), (9, tuple, 5), (2000, tuple, 16), (100, TensorDataset, 8)]
)
def test_small_data_have_minibatches_enough_by_default(rows: int, form: Any, steps: int) -> None:
    """Few of them are read whole by each step otherwise, so that nothing moves."""
    x, y = line(rows)
    data = (x, y) if form is tuple else form(x, y)
    seen = Recorded()
    q = run(perceptron(), data, batch_size=None, optimizer=seen, epochs=4, rank=2)
    assert len(seen.weights) == 4 * steps
    assert float(q.predict(x, generator=0).epistemic.min()) > 1e-8


def test_an_interrupt_before_two_snapshots_is_one() -> None:
    class Interrupted(nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.body, self.left = perceptron(), at

        def forward(self, x: Tensor) -> Tensor:
            self.left -= self.training
            if self.left < 0:
                raise KeyboardInterrupt
            return self.body(x)

    for epochs_done in (0, 5, 6):
        with pytest.raises(KeyboardInterrupt, match="before snapshot 2"):
            run(Interrupted(epochs_done * STEPS + 2), line(ROWS), epochs=10, rank=2)
    q = run(Interrupted(7 * STEPS + 2), line(ROWS), epochs=10, rank=2)
    assert "7 epochs, ended by an interrupt" in q.summary()


def test_batch_norms_have_the_statistics_of_the_average_weights() -> None:
    data = line(ROWS)
    with pytest.warns(ConvergenceWarning, match="batch_size"):
        q = run(noisy_network(), data, batch_size=ROWS, epochs=30, lr=0.05, rank=5)
    hidden = q.model[0](data[0]).detach()
    torch.testing.assert_close(q.model[1].running_mean, hidden.mean(0))
    torch.testing.assert_close(q.model[1].running_var, hidden.var(0))
    assert q.model[1].momentum == 0.1
    assert not any(module.training for module in q.model.modules())
    assert "batch norm" in q.summary()
    assert "batch norm" not in run(perceptron(), data, epochs=8, rank=2).summary()


def test_predictions_are_from_draws() -> None:
    (x, y), points = classes(80, count=3), classes(7)[0]
    q = run(perceptron(outputs=3), (x, y), likelihood="categorical", epochs=40, rank=10, lr=0.1)
    predictive = q.predict(points, samples=40, generator=1)
    draws = q.sample(40, generator=1)
    f = torch.stack([torch.func.functional_call(q.model, q.function.weights.unflat(draw), (points,)) for draw in draws])
    torch.testing.assert_close(predictive.mean, f.detach().softmax(-1).mean(0))
    assert float(predictive.epistemic.max()) > 0


def test_runs_repeat_bit_for_bit_and_leave_the_model_alone() -> None:
    module, data = noisy_network(), line(ROWS)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    first, second = (run(module, data, epochs=10, rank=3) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.precision.solve(first.mean), second.precision.solve(second.mean))
    assert first.trace == second.trace
    assert not torch.equal(first.mean, run(module, data, epochs=10, rank=3, generator=4).mean)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Killed(Exception):
    """What stands for a process that ends."""


class Mortal(nn.Module):
    """A noisy network that dies at a given forward pass of its training."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self.body, self.left = noisy_network(), dies_at

    def forward(self, x: Tensor) -> Tensor:
        if self.left is not None and self.training:
            self.left -= 1
            if self.left < 0:
                raise Killed
        out: Tensor = self.body(x)
        return out


@pytest.mark.parametrize("when", [{}, {"collect": 3}, {"schedule": "cyclic", "cycle": 2}])
def test_a_killed_run_goes_on_to_the_same_numbers(when: dict[str, Any], tmp_path: Path) -> None:
    """Each run that is killed saves its first epoch, so that the last one starts after snapshots were taken."""
    data, file = line(ROWS), tmp_path / "run.pt"
    arguments = {"epochs": 12, "burn_in": 2, "rank": 4, "lr": 0.02, **when}
    whole = run(Mortal(), data, **arguments)
    for _ in range(4):
        with pytest.raises(Killed):
            run(Mortal(2 * STEPS + 2), data, checkpoint=file, **arguments)
    for _ in range(2):  # the second has nothing left to do
        resumed = run(Mortal(), data, checkpoint=file, **arguments)
        assert torch.equal(resumed.mean, whole.mean)
        assert torch.equal(resumed.precision.solve(whole.mean), whole.precision.solve(whole.mean))
        assert torch.equal(resumed.model.body[1].running_var, whole.model.body[1].running_var)
        assert resumed.trace == whole.trace
    with pytest.raises(InputError, match="rank = 3, got 4"):
        run(Mortal(), data, checkpoint=file, **{**arguments, "rank": 3})


def test_loaders_and_single_precision() -> None:
    x, y = (tensor.float() for tensor in line(ROWS))
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    q = swag(perceptron().float(), loader, likelihood="gaussian", epochs=20, rank=4, generator=0)
    assert q.mean.dtype == torch.float64
    assert q.predict(x, samples=20).mean.shape == (ROWS, 1)


def test_a_loss_that_runs_away_is_an_error() -> None:
    with pytest.raises(ConvergenceError, match="smaller lr"):
        run(perceptron(), line(ROWS), lr=1e8, epochs=60)


REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "more columns than snapshots": (InputError, {"epochs": 30, "rank": 20}, "of which there will be 15"),
    "one snapshot": (InputError, {"epochs": 2, "rank": 0}, "at least two"),
    "one column": (InputError, {"rank": 1}, "0 or at least 2"),
    "one snapshot among steps": (InputError, {"epochs": 2, "collect": 4, "rank": 2}, "at least two snapshots"),
    "only a burn-in": (InputError, {"epochs": 9, "burn_in": 9}, "burn_in"),
    "a schedule that ends": (OptionError, {"schedule": "cosine"}, "cyclic"),
    "a cycle without one": (UnsupportedError, {"cycle": 3}, "schedule='cyclic'"),
    "steps within cycles": (UnsupportedError, {"schedule": "cyclic", "collect": 3}, "'epoch'"),
    "a cycle of one": (InputError, {"schedule": "cyclic", "cycle": 1}, "at least 2"),
    "a word": (OptionError, {"collect": "step"}, "epoch"),
    "no noise": (UnsupportedError, {"optimizer": "lbfgs", "batch_size": None}, "minibatches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(name: str) -> None:
    error, arguments, message = REFUSED[name]
    with pytest.raises(error, match=message):
        run(perceptron(), line(ROWS), **arguments)


def test_there_is_no_evidence_and_no_bound() -> None:
    q = run(perceptron(), line(ROWS), epochs=10, rank=2)
    with pytest.raises(ValueError, match=r"bs\.laplace"):
        q.log_evidence()
    with pytest.raises(ValueError, match="lower bound"):
        q.elbo  # noqa: B018


def test_the_rank_is_that_of_the_snapshots_by_default() -> None:
    options = {"likelihood": "gaussian", "generator": 0, "batch_size": 10, "progress": False}
    assert "8 columns" in swag(perceptron(), line(), schedule="cyclic", epochs=80, **options).summary()
    assert "20 columns" in swag(perceptron(), line(), epochs=60, **options).summary()
