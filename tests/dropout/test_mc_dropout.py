"""Monte Carlo dropout: as the closed forms have it, the same twice, the caller's network untouched, nothing ignored."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayescope.dropout import mc_dropout
from bayescope.errors import ConvergenceError, InputError, InputTypeError, OptionError, UndefinedQuantityError
from bayescope.errors import UnsupportedError as Unsupported
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.priors import Prior
from tests.dropout.networks import CASES, ROWS, Functional, case, perceptron
from tests.network.networks import built, generator, numbers
from tests.training.toys import classes, flat, line, seeded


def small(outputs: int = 1, hidden: int = 8) -> nn.Module:
    return built(lambda: nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, outputs)))


@pytest.mark.parametrize("name", CASES)
def test_any_network_with_dropout_is_a_posterior(name: str) -> None:
    module, x = case(name)
    before, modes = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    q = mc_dropout(module, likelihood="categorical")
    f = q.sample_functions(x, 12, generator=0)
    p = q.predict(x, samples=12, generator=0)
    probs = torch.softmax(f, -1).mean(0)
    torch.testing.assert_close(torch.as_tensor(p.probs), probs)
    targets = torch.zeros(f.shape[1:-1], dtype=torch.int64)
    wanted = torch.logsumexp(torch.log_softmax(f, -1)[..., 0], 0) - math.log(12)
    torch.testing.assert_close(torch.as_tensor(p.log_prob(targets)), wanted)  # log-mean-exp, not mean log
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in before.items())
    assert modes == [part.training for part in module.modules()]
    assert torch.equal(q.mean, flat(module))


def test_regression_is_matched_in_its_moments() -> None:
    """Var[y] = τ⁻¹ + the variance over passes (Gal and Ghahramani 2016, Eq. 9)."""
    module, x = case("perceptron")
    q = mc_dropout(module, likelihood=Gaussian(0.25))
    f = q.sample_functions(x, 100, generator=4).numpy()
    p = q.predict(x.numpy(), generator=4)
    np.testing.assert_allclose(p.mean, f.mean(0))
    np.testing.assert_allclose(p.epistemic, f.var(0))
    np.testing.assert_allclose(p.variance, 0.25 + f.var(0))


def test_rate_0_is_the_deterministic_network() -> None:
    module, x = small().eval(), numbers(ROWS, 2)
    q, f = mc_dropout(module, likelihood=Gaussian(0.5), rate=0.0), module(x).detach()
    assert torch.equal(q.sample_functions(x, 3, generator=1), f.expand(3, -1, -1))
    torch.testing.assert_close(q.predict(x, generator=1).mean, f, rtol=1e-14, atol=1e-14)
    assert float(q.predict(x, generator=1).epistemic.max()) < 1e-30


def test_summary_tells_what_there_is() -> None:
    q = mc_dropout(small(), likelihood=Gaussian(0.5), rate=0.1, before="hidden")
    assert "dropout: rate 0.1 at 2" in q.summary()
    assert "noise variance: 0.5" in q.summary()
    with pytest.raises(UndefinedQuantityError, match="mc_dropout draws functions"):
        q.sample()


def test_no_dropout_is_refused() -> None:
    with pytest.raises(InputError, match="expected a network with dropout"):
        mc_dropout(small(), likelihood="bernoulli")
    with pytest.raises(InputError, match="calls dropout in eval mode"):
        mc_dropout(small(), classes(), likelihood="bernoulli")
    with pytest.raises(InputTypeError, match="expected a torch"):
        mc_dropout(lambda x: x, likelihood="bernoulli")
    assert "as the network's code calls it" in mc_dropout(built(Functional), likelihood="categorical").summary()


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rate beside dropout": ({"model": built(perceptron), "rate": 0.1}, Unsupported, "dropout of its own"),
    "rate of 1": ({"rate": 1.0}, InputError, "rate: expected a number"),
    "rate below 0": ({"rate": -0.1}, InputError, "rate: expected a number"),
    "unknown rate": ({"rate": "concret", "data": line()}, OptionError, "Did you mean 'concrete'"),
    "concrete untrained": ({"rate": "concrete"}, Unsupported, "rate: expected a training"),
    "before alone": ({"model": built(perceptron), "before": "hidden"}, Unsupported, "before: expected rate="),
    "epochs without data": ({"rate": 0.1, "epochs": 3}, Unsupported, "epochs: expected data="),
    "validation without data": ({"rate": 0.1, "validation": line()}, Unsupported, "validation: expected data="),
    "lr without data": ({"rate": 0.1, "lr": 0.1}, Unsupported, "lr: expected a training"),
    "optimizer without data": ({"rate": 0.1, "optimizer": "sgd"}, Unsupported, "optimizer: expected a training"),
    "checkpoint untrained": ({"rate": 0.1, "data": line(), "epochs": 0, "checkpoint": "x"}, Unsupported, "checkpoint"),
    "prior without data": ({"rate": 0.1, "prior_precision": 1.0}, Unsupported, "prior_precision: expected a training"),
    "rows alone": ({"rate": 0.1, "rows": 7}, Unsupported, "rows: expected None"),
    "rows beside data": (
        {"rate": 0.1, "rows": 7, "data": line(), "weight_decay": 0.1, "prior_precision": 1.0}, Unsupported, "counted",
    ),
    "weight decay alone": ({"rate": 0.1, "weight_decay": 0.1, "rows": 7}, InputError, "prior_precision= to go with it"),
    "weight decay without rows": ({"rate": 0.1, "weight_decay": 0.1, "prior_precision": 1.0}, InputError, "rows="),
    "two noises": (
        {"rate": 0.1, "weight_decay": 0.1, "prior_precision": 1.0, "rows": 7, "likelihood": Gaussian(2.0)},
        Unsupported, "or the noise",
    ),
    "noise of classes": (
        {"rate": 0.1, "weight_decay": 0.1, "prior_precision": 1.0, "rows": 7, "likelihood": "bernoulli"},
        Unsupported, "expected a Gaussian likelihood",
    ),
    "noise from nothing": ({"rate": 0.1, "likelihood": Gaussian("evidence")}, InputError, "nothing to learn it from"),
    "patience alone": ({"rate": 0.1, "data": line(), "patience": 3}, InputError, "patience: expected validation="),
    "validation of nothing": (
        {"rate": 0.1, "data": line(), "epochs": 0, "validation": line()}, Unsupported, "validation: expected a noise",
    ),
    "lbfgs": ({"rate": 0.1, "data": line(), "optimizer": "lbfgs"}, Unsupported, "noisy gradients"),
    "epochs below 0": ({"rate": 0.1, "data": line(), "epochs": -1}, InputError, "epochs: expected a whole number"),
    "NaN": ({"rate": 0.1, "data": (np.full((4, 2), np.nan), np.zeros(4))}, InputError, "finite inputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(name: str) -> None:
    options, error, message = REFUSED[name]
    model = options.get("model", small())
    options = {"likelihood": "gaussian"} | {key: value for key, value in options.items() if key != "model"}
    with pytest.raises(error, match=message):
        mc_dropout(model, options.pop("data", None), **options)


def test_weight_decay_tells_the_noise() -> None:
    """λ = (1 − r) l²/(2 N τ)."""
    r, precision, tau, rows = 0.2, 0.01, 4.0, 300
    decay = (1 - r) * precision / (2 * rows * tau)
    options = {"rate": r, "weight_decay": decay, "prior_precision": precision}
    for likelihood in ("gaussian", Gaussian("evidence")):
        q = mc_dropout(small(), likelihood=likelihood, rows=rows, **options)
        assert float(q.likelihood.noise_variance) == pytest.approx(1 / tau)
    q = mc_dropout(small(), line(300), likelihood="gaussian", epochs=1, generator=0, **options)
    assert float(q.likelihood.noise_variance) == pytest.approx(1 / tau)


@pytest.mark.parametrize("mean", [0.0, 1.5])
def test_linear_regression_with_dropout_is_the_closed_form(mean: float) -> None:
    """Averaged over masks, ½τ Σ (y − wᵀx)² + ½τ r/(1−r) Σ_nd x_nd² w_d² + ½ l² Σ_d E(w_d z_d/(1−r) − m)²."""
    r, noise, precision = 0.4, 0.09, 600.0
    x, y = line(200)
    module = seeded(0, (nn.Linear, (2, 1, False))).double()
    q = mc_dropout(
        module, (x, y), likelihood=Gaussian(noise), rate=r, prior_precision=Prior(precision, mean), epochs=400, lr=0.05,
        schedule="cosine", batch_size=200, generator=0,
    )  # fmt: skip

    def minimum(prior: float) -> Tensor:
        matrix = x.mT @ x / noise + torch.diag(r / (1 - r) * x.square().sum(0) / noise + prior)
        return torch.linalg.solve(matrix, (x.mT @ y / noise)[:, 0] + precision * mean)

    off = (q.mean - minimum(precision / (1 - r))).abs().max()
    assert off < 0.012  # the last steps' masks are at random
    assert (q.mean - minimum(precision * (1 - r))).abs().max() > 5 * off


def test_the_noise_is_learnt_with_the_weights_and_then_from_the_passes() -> None:
    x, y = line(400)
    held_out = line(200, seed=1)
    options: dict[str, Any] = {"rate": 0.05, "before": "hidden", "epochs": 60, "lr": 0.02, "generator": 0}
    q = mc_dropout(small(), (x, y), likelihood=Gaussian("evidence"), prior_precision=0.1, **options)
    learnt, trained = float(q.likelihood.noise_variance), q.trace["noise_variance"][-1]
    assert 0.05 < learnt < trained < 0.4  # 0.09, and the masks' own in training
    assert "by 100 passes over 400 rows" in q.summary()
    other = mc_dropout(q.model, (x, y), likelihood=Gaussian("evidence"), epochs=0, validation=held_out, generator=0)
    assert "by 100 passes over 200 rows" in other.summary()
    assert torch.equal(other.mean, q.mean)
    scores = []
    for factor in (0.8, 1.0, 1.25):
        fixed = mc_dropout(q.model, likelihood=Gaussian(float(other.likelihood.noise_variance) * factor))
        scores.append(float(fixed.predict(held_out[0], samples=400, generator=7).log_prob(held_out[1]).mean()))
    assert scores[1] == max(scores)


def test_the_noise_of_an_epoch_is_its_mean_square() -> None:
    x, y, module = numbers(50, 2), numbers(50, 3, seed=5), small(3)
    q = mc_dropout(
        module, (x, y), likelihood=Gaussian("evidence"), rate=0.0, epochs=1, lr=1e-30, generator=0, batch_size=7
    )
    f = module(x).detach()
    assert q.trace["noise_variance"] == pytest.approx([float((f - y).square().mean())])
    assert float(q.likelihood.noise_variance) == pytest.approx(float((f - y).square().mean()))
    wanted = -Gaussian((y - y.mean(0)).square().mean()).log_prob(f, y).sum()
    assert q.trace["nll"] == pytest.approx([float(wanted)])


def test_training_repeats_by_seed_and_leaves_the_caller_alone() -> None:
    module, data = small(2), classes()
    before = flat(module).clone()
    options: dict[str, Any] = {"likelihood": "categorical", "rate": 0.2, "epochs": 3, "batch_size": 16}
    first = mc_dropout(module, data, generator=5, **options)
    assert torch.equal(first.mean, mc_dropout(module, data, generator=5, **options).mean)
    assert not torch.equal(first.mean, mc_dropout(module, data, generator=6, **options).mean)
    assert torch.equal(flat(module), before)
    assert not any(part._forward_pre_hooks for part in module.modules())
    assert all(not part.training for part in first.model.modules())
    assert set(first.trace) == {"loss", "nll", "penalty"}
    x = data[0][:4]
    assert torch.equal(first.predict(x, generator=1).probs, first.predict(x, generator=1).probs)


@pytest.mark.parametrize("rate", [0.2, "concrete"])
def test_a_checkpoint_goes_on_to_the_same_numbers(tmp_path: Path, rate: Any) -> None:
    data = line(60)
    options: dict[str, Any] = {
        "likelihood": Gaussian("evidence"), "rate": rate, "batch_size": 16, "generator": 3, "lr": 0.01,
    }  # fmt: skip
    whole = mc_dropout(small(), data, epochs=6, **options)
    file = tmp_path / "run.pt"
    mc_dropout(small(), data, epochs=3, checkpoint=file, **options)
    resumed = mc_dropout(small(), data, epochs=6, checkpoint=file, **options)
    assert torch.equal(whole.mean, resumed.mean)
    assert whole.trace == resumed.trace
    other = options | {"rate": 0.3}
    with pytest.raises(InputError, match="checkpoint: expected one of a run"):
        mc_dropout(small(), data, epochs=6, checkpoint=file, **other)


def test_the_best_validation_is_kept() -> None:
    data, held_out = line(40), line(40, seed=9)
    q = mc_dropout(
        small(), data, likelihood=Gaussian(0.1), rate=0.1, epochs=30, lr=0.05, validation=held_out, patience=4,
        generator=0,
    )  # fmt: skip
    best = int(np.argmin(q.trace["validation_nll"]))
    f = q.model(held_out[0]).detach()
    assert float(-Gaussian(0.1).log_prob(f, held_out[1]).sum()) == pytest.approx(q.trace["validation_nll"][best])


def test_learnt_rates_fall_with_data_and_rise_without() -> None:
    """The entropy of the masks is one term however many rows there are (Gal, Hron and Kendall 2017, section 4.1)."""
    rates = {}
    for rows in (12, 1500):
        q = mc_dropout(
            small(hidden=20), line(rows), likelihood=Gaussian(0.09), rate="concrete", epochs=100_000 // max(rows, 400),
            lr=0.02, generator=0, prior_precision=1.0,
        )  # fmt: skip
        rates[rows] = [part.p for part in q.model.modules() if isinstance(part, nn.Dropout)]
        assert q.trace["rates"][-1] == pytest.approx(rates[rows])
        assert [name for name, _ in q.model.named_parameters()] == [name for name, _ in small().named_parameters()]
    assert max(rates[1500]) < min(rates[12])


def test_learnt_rates_before_frozen_weights_are_refused() -> None:
    module = small()
    module[0].requires_grad_(False)
    with pytest.raises(Unsupported, match="'0', whose weight is frozen"):
        mc_dropout(module, line(), likelihood=Gaussian(0.1), rate="concrete", epochs=1)
    q = mc_dropout(module, line(), likelihood=Gaussian(0.1), rate="concrete", before="2", epochs=1, generator=0)
    assert torch.equal(q.model[0].weight, module[0].weight)
    assert q.mean.shape == (9,)
    frozen = small().requires_grad_(False)
    assert mc_dropout(frozen, likelihood=Gaussian(0.1), rate=0.1).mean.shape == (33,)


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    with pytest.raises(ConvergenceError, match="loss: expected a finite number"):
        mc_dropout(small(), line(), likelihood=Gaussian(0.1), rate=0.1, lr=1e200, epochs=30, generator=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_thousand_classes_at_positions_in_either_precision(dtype: torch.dtype) -> None:
    module = built(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1000))).to(dtype)
    x, y = numbers(12, 3, 2), torch.randint(1000, (12, 3), generator=generator())
    q = mc_dropout(module, (x, y), likelihood=Categorical(), rate=0.1, epochs=2, generator=0)
    p = q.predict(x[:2].to(dtype), samples=5, generator=0)
    assert p.probs.shape == (2, 3, 1000)
    assert p.probs.dtype == dtype
    assert next(q.model.parameters()).dtype == dtype


def test_one_output_for_two_classes() -> None:
    x, y = classes(80)
    q = mc_dropout(small(), (x.numpy(), y.numpy()), likelihood=Bernoulli(), rate=0.1, epochs=60, lr=0.03, generator=0)
    p = q.predict(x.numpy(), generator=0)
    assert p.probs.shape == (80, 2)
    assert float((p.probs.argmax(1) == y.numpy()).mean()) > 0.8


def test_batch_norm_is_trained_and_then_left() -> None:
    module, x = built(perceptron), numbers(40, 3)
    y = torch.randint(2, (40,), generator=generator())
    q = mc_dropout(module, (x, y), likelihood="categorical", epochs=2, generator=0)
    assert not torch.equal(q.model[1].running_mean, module[1].running_mean)
    f = q.sample_functions(x, 3, generator=0)
    torch.testing.assert_close(f[:, :1], q.sample_functions(x[:1], 3, generator=0))


def test_data_may_come_in_batches() -> None:
    x, y = line(40)
    batches = [(x[:25], y[:25]), (x[25:], y[25:])]
    options: dict[str, Any] = {"likelihood": Gaussian("evidence"), "rate": 0.1, "generator": 0}
    q = mc_dropout(small(), batches, epochs=2, validation=batches[:1], **options)
    assert "by 100 passes over 25 rows" in q.summary()
    whole = mc_dropout(q.model, (x, y), likelihood=Gaussian("evidence"), epochs=0, generator=1)
    apart = mc_dropout(q.model, batches, likelihood=Gaussian("evidence"), epochs=0, generator=1)
    assert float(whole.likelihood.noise_variance) == pytest.approx(float(apart.likelihood.noise_variance))


def test_inputs_of_another_width_are_told() -> None:
    q = mc_dropout(built(perceptron), likelihood="categorical")
    with pytest.raises(InputError, match="could not be run on inputs of shape"):
        q.predict(np.zeros((2, 5)))
    with pytest.raises(InputError, match="at least one row"):
        q.predict(np.zeros((0, 3)))
    with pytest.raises(InputError, match="finite outputs"):
        q.predict(np.full((2, 3), np.inf))
