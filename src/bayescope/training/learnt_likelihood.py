"""A likelihood whose hyperparameters are learnt while a network is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.likelihoods import Likelihood
from bayescope.network.batches import row_parts, row_total, row_totals

# Of the outputs that an epoch has made this many rows are kept, the last ones: of a Gaussian's noise variance they
# determine all but 0.5 %.
KEPT = 2**16
# Of L-BFGS after an epoch; the next epochs go on from there.
STEPS = 3


def first_likelihood(likelihood: Likelihood, targets: Callable[[], Tensor]) -> Likelihood:
    """A likelihood with first values of the hyperparameters that are to be learnt, the same ones on all processes.

    A Gaussian's noise variance is one number for all outputs, which is a factor of the curvature, and 1 for targets
    that do not vary.

    Args:
        likelihood: p(y∣f).
        targets: gives the canonical ones of the rows that this process reads; called where something is to be learnt.
    """
    if not likelihood.learnable:
        return likelihood
    every = torch.cat(row_parts(targets()))
    first = likelihood.starting(every)
    noise = first.unweighted.noise_variance
    if not isinstance(noise, Tensor):
        return first
    return first.with_noise_variance(1.0 if bool((every == every[:1]).all()) else noise.mean())


@final
class LearntLikelihood(nn.Module):
    """Hyperparameters that are fitted, after each epoch, to the outputs of the epoch, by `Likelihood.fitted`.

    They are buffers, so that snapshots and checkpoints have them.

    Args:
        likelihood: p(y∣f), with its first values where it is learnt.
        names: of the hyperparameters that are learnt, maybe none.
    """

    def __init__(self, likelihood: Likelihood, names: tuple[str, ...]) -> None:
        super().__init__()
        self._given, self.names = likelihood, names
        for name in names:
            self.register_buffer(name, likelihood.known(name).clone())
        self._outputs: list[tuple[Tensor, Tensor]] = []

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood under the hyperparameters of the moment."""
        return self._given.with_hyperparameters(**{name: self.get_buffer(name) for name in self.names})

    def begin(self) -> None:
        """Forgets the outputs of the last epoch."""
        self._outputs.clear()

    def observe(self, f: Tensor, y: Tensor) -> None:
        """Hears of outputs (..., N, C) of an epoch, and their canonical targets."""
        if not self.names:
            return
        self._outputs.append((f.detach().to(torch.float64), y))
        while len(self._outputs) > 1 and sum(len(each) for _, each in self._outputs[1:]) >= KEPT:
            self._outputs.pop(0)

    @torch.no_grad()
    def refit(self) -> None:
        """Moves the hyperparameters to where the outputs of the epoch make the targets most probable."""
        if not self.names:
            return
        parts = zip(*self._outputs, strict=True)
        f, y = (torch.cat(part, axis) for part, axis in zip(parts, (-2, 0), strict=True))
        if row_totals(float(not torch.isfinite(f).all()))[0]:  # on any process: all have to go on alike
            return
        present = self.likelihood
        self.take(present.fitted(self.names, f, y.to(f.device), row_total, steps=STEPS))

    def take(self, likelihood: Likelihood) -> None:
        """Takes the hyperparameters of a likelihood."""
        for name in self.names:
            self.get_buffer(name).copy_(likelihood.known(name))

    def entries(self) -> Mapping[str, Any]:
        """What a trace gets of them."""
        values = {name: self.get_buffer(name) for name in self.names}
        return {name: float(value) if value.numel() == 1 else value.tolist() for name, value in values.items()}
