"""One pass over the data at given weights: the log likelihood, its gradient, and a fingerprint of what was read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from bayescope.curvature.kinds import Observations
from bayescope.curvature.passes import DIFFERS
from bayescope.errors import InputError
from bayescope.laplace.training_rows import ROWS, RowSample, TrainingRows
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import Batches, row_parts
from bayescope.network.forward import owned, reading
from bayescope.network.inputs import Inputs, call, explained, take_rows
from bayescope.network.shards import Fingerprint
from bayescope.network.weights import Weights
from bayescope.private_draws import private_draws
from bayescope.processes import present
from bayescope.progress import progress_bar
from bayescope.tape.tape import row_blocks

# The most roundings of each row's share of Σ log p(y∣f) by which two passes over the same rows differ.
ROUNDINGS = 16
# Where the draws of this pass begin, apart from those of all others.
OTHER_SEED = 1


@final
@dataclass(frozen=True, eq=False)
class Slope:
    """What a pass over the data at θ found.

    Attributes:
        rows: N.
        observations: N times the number of positions where outputs are dense.
        log_likelihood: Σ log p(y∣f), a float64 scalar.
        gradient: its derivative in the random weights, shape (P,), float64.
        fingerprint: of the data.
        dtype: the coarsest that the network computed in.
        sample: some of the labelled rows that this process read, the same whatever their order.
    """

    rows: int
    observations: int
    log_likelihood: Tensor
    gradient: Tensor
    fingerprint: str
    dtype: torch.dtype
    sample: TrainingRows

    def require_same(self, rows: int, log_likelihood: Tensor) -> None:
        """Checks that another pass at the same weights has read the same data.

        Raises:
            InputError: if it has read other rows, or another log likelihood than rounding explains.
        """
        allowed = ROUNDINGS * torch.finfo(self.dtype).eps * (self.rows + abs(float(self.log_likelihood)))
        apart = abs(float(log_likelihood) - float(self.log_likelihood))
        if rows != self.rows or not apart <= allowed:
            raise InputError(
                f"data: expected every pass to give the same rows, got {self.rows} with the log likelihood "
                f"{float(self.log_likelihood):.8g} in one pass and {rows} with {float(log_likelihood):.8g} in another. "
                f"{DIFFERS}"
            )


def read_slope(
    module: nn.Module,
    weights: Weights,
    batches: Batches,
    likelihood: Likelihood,
    *,
    at_once: int | None = None,
    progress: bool = False,
    sampled_rows: int = ROWS,
) -> Slope:
    """Reads Σ log p(y∣f) and its gradient in the random weights at their present values, in eval mode.

    What draws in this pass and names no generator begins at another seed than in the others, which all have the same:
    a loader that shuffles gives the same rows in another order, while augmentation and draws with replacement give
    other ones, and are noticed.

    Of several processes each reads its own rows, and all get the sums.

    Args:
        module: the network; it stays unchanged.
        weights: which of its parameters are random.
        batches: the data.
        likelihood: p(y∣f).
        at_once: the most rows that are read together; ``None`` for those of a batch.
        progress: whether a bar is drawn.
        sampled_rows: the most rows that are kept.

    Raises:
        InputError: if the data do not fit the model or the likelihood, or an output is not finite.
    """
    processes = present()
    parameters, shard = weights.parameters(module), batches.shard
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    total, fingerprint, sample = torch.zeros((), dtype=torch.float64), Fingerprint(), RowSample(sampled_rows)
    rows = observed = 0
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    # Recurrent layers of cuDNN have no backward pass in eval mode; torch's own kernels do.
    cudnn = not any(isinstance(submodule, nn.RNNBase) for submodule in module.modules())
    with (
        processes.agreed(),
        reading(module),
        private_draws(OTHER_SEED),
        progress_bar("reading", visible=progress and processes.first) as report,
        torch.backends.cudnn.flags(enabled=cudnn),
    ):
        for inputs, targets in batches:
            report(rows, rows, "the gradient")
            labelled = likelihood.unweighted.labelled(likelihood.as_given(targets)[0])
            sample.add(fingerprint.add(inputs, targets), inputs, targets, labelled)
            for some in row_blocks(len(targets), 1, at_once or len(targets)):
                with torch.enable_grad(), explained(module, inputs):
                    f = call(module, owned(take_rows(inputs, some), copy=True))
                first = shard.first + rows * shard.step
                observations = Observations.read(likelihood, f, targets[some], first, shard.step)
                total += observations.log_likelihood().cpu()
                if f.requires_grad:
                    slope = likelihood.gradient(observations.f, observations.y).reshape(f.shape).to(f)
                    grads = torch.autograd.grad(f, list(parameters.values()), slope, allow_unused=True)
                    for name, gradient in zip(parameters, grads, strict=True):
                        if gradient is not None:
                            sums[name] += gradient
                rows, observed = rows + len(targets[some]), observed + len(observations.f)
                dtypes.add(f.dtype)
    batches.check_shards()
    numbers = processes.sum_numbers(rows, observed, float(total))
    rows, observed, log_likelihood = int(numbers[0]), int(numbers[1]), numbers[2]
    (gradient,) = processes.sum([weights.flatten(sums)])
    if not math.isfinite(log_likelihood):
        raise InputError(
            f"data: expected a finite log likelihood, got {log_likelihood} over {rows} rows. The model's outputs hold "
            "NaN or infinity for some of them."
        )
    return Slope(
        rows, observed, torch.tensor(log_likelihood, dtype=torch.float64), gradient,
        fingerprint.over(processes).hex(), _coarsest(row_parts(_coarsest(dtypes))), sample.over_all(),
    )  # fmt: skip


def _coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def positions(module: nn.Module, inputs: Inputs) -> int:
    """How many positions the outputs of a row have: 1 where they are no more than (N, C)."""
    with reading(module), torch.no_grad():
        return call(module, owned(inputs, copy=True)).shape[1:-1].numel()
