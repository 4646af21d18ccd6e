"""Hyperparameters learnt while training: where the evidence is exact they are its own, and the best is kept."""

from __future__ import annotations

import copy
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import ConvergenceWarning, InputError, OptionError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression
from bayescope.laplace import fit_evidence, tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.training.toys import Killed, Mortal, classes, flat, line, noisy_network, perceptron, seeded

QUICK: dict[str, Any] = {"epochs": 12, "burn_in": 4, "every": 4, "steps": 5, "generator": 0}
# Networks that are hardly trained are far from any mode, and are told so.
HASTY = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")


@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_linear_regression_learns_what_the_exact_evidence_learns(structure: str) -> None:
    x, y = line(50, 3)
    q = fit_evidence(
        seeded(0, (nn.Linear, (3, 1, False))).double(), (x, y), likelihood=Gaussian("evidence"), structure=structure,
        optimizer="lbfgs", epochs=40, burn_in=1, every=1,
    )  # fmt: skip
    exact = BayesianLinearRegression(fit_intercept=False, standardize=False).fit(x.numpy(), y.numpy()[:, 0])
    assert q.log_evidence().item() == pytest.approx(exact.log_evidence_, abs=1e-7)
    assert q.trace["prior_precision"][-1] == pytest.approx([exact.prior_precision_], rel=1e-3)
    assert q.trace["noise_variance"][-1] == pytest.approx(exact.noise_variance_, rel=1e-3)
    assert isinstance(q.likelihood, Gaussian)
    assert float(q.likelihood.noise_variance) == pytest.approx(exact.noise_variance_, rel=1e-3)
    torch.testing.assert_close(q.mean, torch.from_numpy(exact.coef_).reshape(-1), rtol=1e-4, atol=1e-6)
    found = q.predict(x)
    truth = exact.predict_distribution(x.numpy())
    torch.testing.assert_close(found.variance, torch.as_tensor(truth.variance), rtol=1e-3, atol=0.0)


def test_minibatches_end_at_the_same_optimum() -> None:
    x, y = line(50, 3)
    q = fit_evidence(
        seeded(0, (nn.Linear, (3, 1, False))).double(), (x, y), likelihood="gaussian", structure="full", lr=0.05,
        schedule="cosine", batch_size=16, epochs=150, generator=0,
    )  # fmt: skip
    exact = BayesianLinearRegression(fit_intercept=False, standardize=False).fit(x.numpy(), y.numpy()[:, 0])
    assert q.log_evidence().item() == pytest.approx(exact.log_evidence_, abs=1e-3)
    assert q.trace["noise_variance"][-1] == pytest.approx(exact.noise_variance_, rel=0.02)


@pytest.mark.parametrize("groups", ["scalar", "tensor", "feature"])
def test_a_classifier_ends_where_tuning_finds_nothing_to_gain(groups: str) -> None:
    x, y = classes(80, count=3)
    q = fit_evidence(
        seeded(0, (nn.Linear, (2, 3))).double(), (x, y), likelihood="categorical", structure="full", share_prior=groups,
        optimizer="lbfgs", epochs=40, burn_in=1, every=1, keep="last",
    )  # fmt: skip
    tuned = tune_prior(q, share_prior=groups)
    assert q.log_evidence().item() == pytest.approx(tuned.log_evidence().item(), abs=1e-4)
    assert "noise_variance" not in q.trace
    assert len(q.trace["prior_precision"][-1]) == {"scalar": 1, "tensor": 2, "feature": 3}[groups]


@HASTY
def test_the_best_weights_are_kept_with_their_own_hyperparameters() -> None:
    def fitted(keep: str) -> Any:
        return fit_evidence(
            perceptron(), line(40), likelihood="gaussian", lr=0.05, epochs=16, burn_in=4, every=4, keep=keep,
            schedule=lambda adam: torch.optim.lr_scheduler.LambdaLR(adam, lambda epoch: 1.0 if epoch < 12 else 20.0),
            generator=0,
        )  # fmt: skip

    q, last = fitted("best"), fitted("last")
    evidences = q.trace["log_evidence"]
    best = int(np.argmax(evidences))
    assert best == len(evidences) - 2  # the last epochs, with their far too large steps, have spoilt the weights
    assert q.log_evidence().item() == pytest.approx(evidences[best], rel=1e-9)
    assert f"after epoch {q.trace['judged'][best]} kept" in q.summary()
    assert float(q.likelihood.noise_variance) == pytest.approx(q.trace["noise_variance"][best])
    assert last.trace == q.trace
    assert last.log_evidence().item() == pytest.approx(evidences[-1], rel=1e-9)
    assert float(last.likelihood.noise_variance) == pytest.approx(q.trace["noise_variance"][-1])


@HASTY
def test_judgements_fall_after_the_burn_in_every_so_often_and_at_the_end() -> None:
    q = fit_evidence(perceptron(), line(), likelihood="gaussian", **{**QUICK, "epochs": 14})
    assert q.trace["judged"] == [4, 8, 12, 14]
    assert len(q.trace["nll"]) == 14
    assert q.trace["prior_precision"][0] == pytest.approx([1.0, 1.0])  # those that the first weights were trained with
    assert q.trace["prior_precision"][1] != pytest.approx([1.0, 1.0])


@HASTY
def test_the_loss_is_under_the_hyperparameters_of_the_moment() -> None:
    """The noise that the first climb learns: from then on the same residuals cost another sum."""
    x, y = line(40)
    frozen = seeded(0, (nn.Linear, (2, 1))).double()
    q = fit_evidence(
        frozen,
        (x, y),
        likelihood="gaussian",
        noise_variance=4.0,
        optimizer="sgd",
        lr=1e-12,
        epochs=2,
        burn_in=1,
        every=1,
        steps=30,
    )
    f = frozen(x).detach()
    for epoch, noise in enumerate(q.trace["noise_variance"]):
        assert q.trace["nll"][epoch] == pytest.approx(-Gaussian(noise).log_prob(f, y).sum().item(), rel=1e-6)
        penalty = 0.5 * q.trace["prior_precision"][epoch][0] * flat(frozen).square().sum().item()
        assert q.trace["penalty"][epoch] == pytest.approx(penalty, rel=1e-6)
    assert q.trace["noise_variance"][1] != pytest.approx(4.0)


@HASTY
def test_what_is_given_stays_where_it_is_not_learnt() -> None:
    x, y = line(40)
    prior = Prior(3.0, torch.full((2,), 5.0))
    q = fit_evidence(
        seeded(0, (nn.Linear, (2, 1, False))).double(), (x, y), likelihood=Gaussian(0.3), prior_precision=prior,
        optimizer="lbfgs", **QUICK,
    )  # fmt: skip
    assert isinstance(q.likelihood, Gaussian)
    assert float(q.likelihood.noise_variance) == 0.3
    assert q.fit is not None
    assert torch.equal(q.fit.prior.mean, prior.mean)  # type: ignore[attr-defined]
    several = fit_evidence(perceptron(outputs=2), (x, y.expand(-1, 2)), likelihood=Gaussian([0.3, 0.5]), **QUICK)
    assert "noise_variance" not in several.trace


@HASTY
def test_weights_that_are_not_random_are_trained_without_a_prior() -> None:
    q = fit_evidence(perceptron(), line(), likelihood="gaussian", weights="last_layer", **QUICK)
    assert q.mean.shape == (9,)
    assert not torch.equal(q.model[0].weight, perceptron()[0].weight)


@HASTY
def test_same_generator_same_numbers_and_nothing_else_touched() -> None:
    x, y = line()
    module = noisy_network()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()

    def fitted(seed: int, **more: Any) -> Any:
        return fit_evidence(module, (x, y), likelihood="gaussian", **{**QUICK, **more, "generator": seed})

    first = fitted(1, curvature="fisher")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert torch.equal(fitted(1, curvature="fisher").mean, first.mean)
    assert not torch.equal(fitted(2, curvature="fisher").mean, first.mean)
    q = fitted(1, inplace=True, keep="last")
    assert torch.equal(flat(module), flat(q.model))
    with torch.no_grad():
        module[0].weight.zero_()
    assert float(q.model[0].weight.detach().abs().min()) > 0.0


class Pausing(Mortal):
    """A network that takes long in its last pass but one, so that a checkpoint is due after the epoch."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.left == 2:
            time.sleep(0.4)
        return super().forward(x)


@HASTY
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    def run(module: Pausing, file: Path | None = None) -> Any:
        return fit_evidence(module, line(), likelihood="gaussian", batch_size=20, checkpoint=file, **QUICK)

    whole = run(Pausing(1000))
    with pytest.raises(Killed):
        run(Pausing(13), tmp_path / "run.pt")
    resumed = run(Pausing(22), tmp_path / "run.pt")  # too few passes for all twelve epochs
    assert resumed.trace == whole.trace
    assert torch.equal(resumed.mean, whole.mean)
    assert resumed.log_evidence() == whole.log_evidence()
    for changed, match in (({"every": 2}, "every = 2, got 4"), ({"structure": "full"}, "structure = 'full', got")):
        with pytest.raises(InputError, match=match):
            fit_evidence(
                Pausing(9), line(), likelihood="gaussian", batch_size=20, checkpoint=tmp_path / "run.pt",
                **{**QUICK, **changed},
            )  # fmt: skip


@HASTY
@pytest.mark.parametrize("keep", ["best", "last"])
def test_more_epochs_go_on_from_where_a_run_ended(keep: str, tmp_path: Path) -> None:
    def run(epochs: int, file: Path | None = None) -> Any:
        return fit_evidence(
            noisy_network(), line(), likelihood="gaussian", batch_size=20, keep=keep, checkpoint=file,
            **{**QUICK, "epochs": epochs},
        )  # fmt: skip

    whole, file = run(16), tmp_path / "run.pt"
    first = run(8, file)
    assert first.trace["judged"] == [4, 8]
    again = run(8, file)
    assert torch.equal(again.mean, first.mean)
    resumed = run(16, file)  # with the climb after epoch 8 that the first run was spared
    assert resumed.trace == whole.trace
    assert torch.equal(resumed.mean, whole.mean)
    between = run(18, file)
    assert between.trace["judged"] == [4, 8, 12, 16, 18]


@HASTY
def test_more_data_are_taken_under_what_was_learnt() -> None:
    x, y = line(40)
    q = fit_evidence(perceptron(hidden=3), (x, y), likelihood="gaussian", structure="full", **QUICK)
    after = q.condition(line(10, seed=5))
    assert isinstance(q.likelihood, Gaussian)
    assert isinstance(after.likelihood, Gaussian)
    assert torch.equal(after.likelihood.noise_variance, q.likelihood.noise_variance)


@pytest.mark.global_rng
def test_passes_that_differ_are_refused_at_the_first_judgement() -> None:
    class Augmented(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        reads = 0

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            self.reads += 1
            source = torch.Generator().manual_seed(self.reads)
            return torch.randn(2, dtype=torch.float64, generator=source), torch.ones(1, dtype=torch.float64)

    data = Augmented()
    with pytest.raises(InputError, match="random augmentation"):
        fit_evidence(perceptron(), data, likelihood="gaussian", **{**QUICK, "epochs": 400})
    assert data.reads < 20 * 12


def circles(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """One circle inside of another, with the labels that no line divides."""
    source = torch.Generator().manual_seed(seed)
    inside = (torch.rand(rows, generator=source) < 0.5).double()
    angle = 6.2832 * torch.rand(rows, generator=source, dtype=torch.float64)
    points = (2.0 - inside)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return points + 0.1 * torch.randn(rows, 2, generator=source, dtype=torch.float64), inside


def accuracy(q: Any, seed: int) -> float:
    x, y = circles(500, seed)
    return float(((q.predict(x).probs[:, 1] > 0.5) == y.bool()).double().mean())


@HASTY
@pytest.mark.parametrize("seed", range(3))
def test_a_network_learns_before_the_evidence_is_climbed(seed: int) -> None:
    q = fit_evidence(
        perceptron(hidden=20),
        circles(150, seed),
        likelihood="bernoulli",
        prior_precision=0.3,
        epochs=30,
        generator=seed,
    )
    assert accuracy(q, 10 + seed) > 0.95


def test_what_is_learnt_first_has_a_file_of_its_own(tmp_path: Path) -> None:
    def run() -> Any:
        return fit_evidence(
            perceptron(), line(), likelihood="gaussian", epochs=10, generator=0, checkpoint=tmp_path / "run.pt"
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first, again = run(), run()
    assert {file.name for file in tmp_path.iterdir()} == {"run.pt", "run-first.pt"}
    assert torch.equal(first.mean, again.mean)


SWITCHED_OFF = 1e6  # a precision under which a network does not learn


@HASTY
@pytest.mark.parametrize("judged", ["evidence", "validation"])
def test_the_best_of_several_starts_is_returned(judged: str, tmp_path: Path) -> None:
    def run(file: Path | None = None, **more: Any) -> Any:
        return fit_evidence(
            perceptron(hidden=20), circles(150, 0), likelihood="bernoulli", epochs=20, burn_in=18, every=1, steps=1,
            optimizer="lbfgs", generator=0, validation=circles(60, 1) if judged == "validation" else None,
            checkpoint=file, **more,
        )  # fmt: skip

    each = [run(prior_precision=start) for start in (SWITCHED_OFF, 0.1)]
    found = run(tmp_path / "run.pt", starts=[SWITCHED_OFF, 0.1])
    scores = [max(q.trace["log_evidence"]) if judged == "evidence" else -min(q.trace["validation_nll"]) for q in each]
    assert torch.equal(found.mean, each[int(np.argmax(scores))].mean)
    assert {file.name for file in tmp_path.iterdir()} == {"run-1.pt", "run-2.pt"}
    if judged == "validation":
        assert accuracy(found, 5) > 0.95


@HASTY
def test_rows_of_a_validation_choose_the_weights_and_train_nothing() -> None:
    """Labels of the validation are the wrong ones: what has learnt least is best for them."""
    x, y = circles(150, 0)
    options: dict[str, Any] = {"likelihood": "bernoulli", "optimizer": "lbfgs", **QUICK, "every": 1, "burn_in": 1}
    plain = fit_evidence(perceptron(hidden=20), (x, y), **options)
    wrong = fit_evidence(perceptron(hidden=20), (x, y), validation=(x, 1.0 - y), **options)
    assert wrong.trace["log_evidence"] == plain.trace["log_evidence"]
    chosen = wrong.trace["judged"][int(np.argmin(wrong.trace["validation_nll"]))]
    assert f"after epoch {chosen} kept" in wrong.summary() or chosen == wrong.trace["judged"][-1]
    assert not torch.equal(wrong.mean, plain.mean)


def test_one_prediction_for_all_rows_is_said() -> None:
    options: dict[str, Any] = {"likelihood": "bernoulli", "optimizer": "lbfgs", **QUICK}
    with pytest.warns(ConvergenceWarning, match="^The network predicts the same for every row"):
        fit_evidence(perceptron(), circles(100, 0), prior_precision=SWITCHED_OFF, **options)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"structure": "low_rank"}, OptionError, "structure"),
    ({"structure": "kfac", "curvature": "hessian"}, UnsupportedError, "structure"),
    ({"share_prior": "tensors"}, OptionError, "share_prior"),
    ({"share_prior": "weight"}, UnsupportedError, "share_prior"),
    ({"burn_in": 13}, InputError, "burn_in"),
    ({"every": 0}, InputError, "every"),
    ({"steps": 0}, InputError, "steps"),
    ({"step_size": 0.0}, InputError, "step_size"),
    ({"keep": "first"}, OptionError, "keep"),
    ({"starts": 0.1}, InputError, "starts"),
    ({"starts": []}, InputError, "starts"),
    ({"starts": [0.1, 1.0], "inplace": True}, UnsupportedError, "inplace"),
    ({"likelihood": Gaussian(0.3), "noise_variance": 0.3}, UnsupportedError, "noise_variance"),
    ({"noise_variance": 0.0}, InputError, "noise_variance"),
    (
        {"prior_precision": Prior(DensePrecision(torch.eye(33, dtype=torch.float64)))},
        UnsupportedError,
        "full precision",
    ),
    ({"patience": 3}, TypeError, "patience"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_what_cannot_be_used_is_refused_before_any_training(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    class Untrainable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            assert not self.training, "it is being trained"
            out: Tensor = self.body(x)
            return out

    with pytest.raises(error, match=message):
        fit_evidence(Untrainable(), line(), **{"likelihood": "gaussian", **QUICK, **arguments})


@HASTY
def test_the_summary_has_what_was_learnt_and_what_was_held() -> None:
    q = fit_evidence(perceptron(), line(), likelihood="gaussian", noise_variance=0.3, **QUICK)
    assert isinstance(q.likelihood, Gaussian)
    assert float(q.record.notes["noise variance"]) == pytest.approx(float(q.likelihood.noise_variance), rel=1e-3)
    assert q.record.notes["noise variance"] != "0.3"
    assert all(f"\n  {name}: " in q.summary() for name in ("prior precision", "likelihood", "noise variance"))
    held = fit_evidence(perceptron(), line(), likelihood=Gaussian(0.3), **QUICK)
    assert held.record.notes["noise variance"] == "0.3"
    with pytest.raises(OptionError, match="Did you mean 'kfac'"):
        fit_evidence(perceptron(), line(), likelihood="gaussian", structure="kron", **QUICK)
