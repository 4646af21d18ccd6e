"""Options that cannot be used are refused before anything is trained; runs are watched, kept and ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import (
    ConvergenceError,
    InputError,
    InputTypeError,
    OptionError,
    UndefinedQuantityError,
    UnsupportedError,
)
from bayescope.likelihoods import Gaussian
from bayescope.network import largest_variance
from bayescope.variational import variational
from tests.training.toys import line, noisy_network, perceptron
from tests.variational.toys import GAUSSIAN, network

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "family": ({"family": "meanfield"}, OptionError, r"family: .*Did you mean 'mean_field'"),
    "estimator": ({"estimator": "score"}, OptionError, "estimator: expected one of 'local_reparameterization'"),
    "estimator of a family": (
        {"family": "full", "estimator": "flipout"}, UnsupportedError,
        "expected one of 'sticking_the_landing', 'reparameterization' for the family 'full', got 'flipout'",
    ),
    "estimator of ivon": (
        {"optimizer": "ivon", "estimator": "flipout"}, UnsupportedError,
        "expected one of 'reparameterization' for the optimizer 'ivon'",
    ),
    "family of ivon": ({"optimizer": "ivon", "family": "full"}, UnsupportedError, "'ivon' expects the family 'mean_f"),
    "prior of ivon": ({"optimizer": "ivon", "initial_sd": 3.0}, InputError, "no more than the prior's sd for 'ivon'"),
    "optimizer": ({"optimizer": "lbfgs"}, OptionError, "optimizer: expected one of 'adam', 'sgd', 'ivon'"),
    "rank": ({"rank": 3}, UnsupportedError, "rank: expected with the family 'low_rank', got 'mean_field'"),
    "large rank": ({"family": "low_rank", "rank": 4}, InputError, "rank: expected at most 3, the number of random"),
    "no rank": ({"family": "low_rank", "rank": 0}, InputError, "rank: expected a whole number"),
    "prior": ({"prior_precision": "learnt"}, OptionError, "prior_precision: expected one of 'evidence'"),
    "share_prior": ({"share_prior": "scalar"}, UnsupportedError, "share_prior: expected with prior_precision="),
    "unknown share_prior": (
        {"prior_precision": "evidence", "share_prior": "row"}, OptionError, "share_prior: expected one of"
    ),
    "samples": ({"samples": 0}, InputError, "samples: expected a whole number"),
    "kl_weight": ({"kl_weight": 0.0}, InputError, "kl_weight: expected a positive number"),
    "warmup": ({"warmup": -1}, InputError, "warmup: expected a whole number of at least 0"),
    "warmup to the end": ({"warmup": 1}, UnsupportedError, "warmup: expected fewer epochs than there are, 1, got 1"),
    "initial_sd": ({"initial_sd": "prior"}, OptionError, "initial_sd: expected one of 'laplace'"),
    "initial_sds": ({"initial_sd": [0.1, 0.2]}, InputError, "initial_sd: expected a number or one for each of 3"),
    "epochs": ({"epochs": -1}, InputError, "epochs: expected a whole number of at least 0"),
    "lr": ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "lr": 0.1}, UnsupportedError, "lr: expected None"),
    "patience": ({"patience": 3}, InputError, "patience: expected validation="),
    "no epochs": ({"epochs": 0, "validation": line()}, UnsupportedError, "epochs: expected at least 1 to go with"),
    "likelihood": ({"likelihood": "normal"}, OptionError, "likelihood: expected one of"),
    "weights": ({"weights": "1"}, OptionError, "weights: expected one of"),
    "variances": ({"weights": largest_variance(2)}, UnsupportedError, "largest_variance"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused(name: str) -> None:
    options, error, message = REFUSED[name]
    given = {"likelihood": GAUSSIAN, "epochs": 1, "progress": False, **options}
    with pytest.raises(error, match=message):
        variational(network(), line(), **given)


def test_no_module_and_no_numbers() -> None:
    with pytest.raises(InputTypeError, match=r"model: expected a torch\.nn\.Module, got str"):
        variational("network", line(), likelihood=GAUSSIAN)  # type: ignore[arg-type]
    x, y = line()
    broken = x.clone()
    broken[3, 1] = float("nan")
    with pytest.raises(InputError, match=r"NaN or infinity, first in row 3"):
        variational(network(), (broken, y), likelihood=GAUSSIAN, epochs=1)


def test_a_full_covariance_of_a_large_network_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'full' expects at most 5,000 random weights, got 5,001\. .*'low_rank'"
    ):
        variational(perceptron(hidden=1250), line(), likelihood=GAUSSIAN, family="full", epochs=1)


def test_divergence_is_noticed() -> None:
    with pytest.raises(ConvergenceError, match=r"loss: expected a finite number, got .* Take a smaller lr"):
        variational(perceptron(), line(), likelihood=GAUSSIAN, optimizer="sgd", lr=1e3, epochs=30, progress=False)


def test_validation_keeps_the_best_predictions_and_stops() -> None:
    x, y = line(30)
    held = line(30, seed=7)  # another slope: the longer the training, the worse
    q = variational(
        perceptron(), (x, y), likelihood=GAUSSIAN, lr=0.05, epochs=100, validation=held, patience=5, generator=0,
        progress=False,
    )  # fmt: skip
    losses = q.trace["validation_nll"]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 5 < 100
    assert f"after epoch {best + 1} kept" in q.summary()
    nll = -float(q.predict(held[0], samples=4000, generator=0).log_prob(held[1]).sum())
    assert nll == pytest.approx(losses[best], rel=0.3)  # of 16 draws
    plain = variational(
        perceptron(), (x, y), likelihood=GAUSSIAN, lr=0.05, epochs=best + 6, generator=0, progress=False
    )
    assert plain.trace["loss"] == q.trace["loss"]


CONTINUED: dict[str, dict[str, Any]] = {
    "mean field": {"prior_precision": "evidence", "likelihood": "noise"},
    "low rank": {"family": "low_rank", "rank": 2, "warmup": 3},
    "full": {"family": "full", "estimator": "reparameterization"},
    "ivon": {"optimizer": "ivon", "warmup": 3, "prior_precision": "evidence", "share_prior": "tensor"},
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_that_goes_on_comes_to_the_same_numbers(name: str, tmp_path: Path) -> None:
    given = {"likelihood": GAUSSIAN, **CONTINUED[name]}
    if given["likelihood"] == "noise":
        given["likelihood"] = Gaussian("evidence")
    file = tmp_path / "run.pt"
    module = perceptron() if name == "ivon" else noisy_network()

    def run(epochs: int, checkpoint: Path | None) -> Any:
        return variational(
            module, line(24), batch_size=8, epochs=epochs, generator=3, checkpoint=checkpoint, progress=False, **given
        )

    whole = run(6, None)
    run(4, file)
    q = run(6, file)
    assert q.trace == whole.trace
    assert torch.equal(q.mean, whole.mean)
    assert torch.equal(q.precision.marginal_variance(), whole.precision.marginal_variance())
    assert torch.equal(q.elbo, whole.elbo)
    for other in ({"samples": 5}, {"initial_sd": 0.07}):
        with pytest.raises(InputError, match=rf"checkpoint: expected one of a run with {next(iter(other))}"):
            variational(module, line(24), batch_size=8, epochs=7, checkpoint=file, generator=3, **{**given, **other})


def test_an_interrupt_gives_what_there_is() -> None:
    class Impatient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.passes = network(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += self.training
            if self.passes == 4:
                self.passes += 1
                raise KeyboardInterrupt
            out: Tensor = self.body(x)
            return out

    q = variational(Impatient(), line(), likelihood=GAUSSIAN, epochs=50, generator=0, progress=False)
    assert len(q.trace["loss"]) == 3
    assert "ended by an interrupt" in q.summary()
    assert torch.isfinite(q.elbo)


@pytest.mark.parametrize("reads", [1, 8])
def test_an_interrupt_while_the_bound_is_read_keeps_q(reads: int) -> None:
    """At the first look at the network there is no bound at all; after a round of draws, one of that round."""

    class Impatient(nn.Module):
        """Interrupted when it is read in eval mode for the given time after its training."""

        def __init__(self, reads: int) -> None:
            super().__init__()
            self.body, self.interrupted, self.reads = network(), reads, -1000  # less before the training

        def forward(self, x: Tensor) -> Tensor:
            self.reads = 0 if self.training else self.reads + 1
            if self.reads == self.interrupted:
                raise KeyboardInterrupt
            out: Tensor = self.body(x)
            return out

    whole, q = (
        variational(Impatient(when), line(), likelihood=GAUSSIAN, epochs=5, generator=0, progress=False)
        for when in (-1, reads)
    )
    assert torch.equal(q.mean, whole.mean)
    assert q.trace == whole.trace
    if reads > 1:
        assert re.search(r"from (16|32|48|64) draws, ended by an interrupt", q.summary())
        assert torch.isfinite(q.elbo)
        return
    assert "bound: not read, ended by an interrupt" in q.summary()
    with pytest.raises(UndefinedQuantityError, match=r"elbo: .* Ctrl-C came before it was read"):
        _ = q.elbo
