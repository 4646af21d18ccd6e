"""The predictive: the answer for a batch of inputs, immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.curvature.memory import draw_count
from bayescope.errors import InputError, UnsupportedError
from bayescope.latent import Latent, mixture_quantile
from bayescope.likelihoods import Likelihood, Moments
from bayescope.likelihoods.information import entropy, entropy_of_mixture
from bayescope.top_classes import refuse_all_classes

Array = Tensor | np.ndarray


@final
@dataclass(frozen=True, eq=False)
class Predictive:
    """p(y∣x, data) for N inputs.

    Columns are outcomes: the K classes of a classifier (two for a Bernoulli with one output), the outputs of a
    regression. Answers are NumPy arrays where the inputs were, and tensors where they were tensors.

    Attributes:
        latent: the distribution of the model's outputs f.
        likelihood: p(y∣f).
        arrays: whether answers are NumPy arrays.
        notes: what each option that was left open resolved to.
        shape: (N, *positions): where outputs are dense, N in the shapes below stands for it; ``None`` for (N,).
        top: where the most probable classes alone were asked for, which they are, int64 of shape (N, K), K in the
            shapes below being their number; else ``None``.
        imputed: for each row of an estimator's table, how many missing or unseen values a stand-in was put for, int64
            of shape (N,); ``None`` where the inputs were no such table.
    """

    latent: Latent
    likelihood: Likelihood
    arrays: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    top: Tensor | None = None
    imputed: np.ndarray | None = None

    @property
    def classes(self) -> Array:
        """The class that each column stands for, int64 of shape (N, K): by ``top=``, the most probable first."""
        self._need_classes("classes")
        if self.top is not None:
            return self._give(self.top)
        columns = self._moments.mean
        return self._give(torch.arange(columns.shape[1], device=columns.device).expand(columns.shape).contiguous())

    @property
    def remaining(self) -> Array:
        """The probability of all classes that no column stands for, shape (N,): 0 unless ``top=`` was given."""
        self._need_classes("remaining")
        columns = self._moments.mean
        return self._give(columns.new_zeros(len(columns)) if self.top is None else _rest(columns)[:, 0])

    @property
    def mean(self) -> Array:
        """E[y], shape (N, K): for classes, their probabilities."""
        return self._give(self._moments.mean)

    @property
    def probs(self) -> Array:
        """The class probabilities, shape (N, K).

        Raises:
            UnsupportedError: for a continuous outcome, which has a `mean`.
        """
        self._need_classes("probs")
        return self.mean

    @property
    def variance(self) -> Array:
        """Var[y] = aleatoric + epistemic, shape (N, K): for classes, of the indicator of each class."""
        return self._give(self._moments.aleatoric + self._moments.epistemic)

    @property
    def epistemic(self) -> Array:
        """Var_q[E(y∣f)], shape (N, K): what more data would remove."""
        return self._give(self._moments.epistemic)

    @property
    def aleatoric(self) -> Array:
        """E_q[Var(y∣f)], shape (N, K): the noise that no data remove."""
        return self._give(self._moments.aleatoric)

    @property
    def entropy(self) -> Array:
        """H[y] = −E log p(y∣x, data) in nats, shape (N,): all the uncertainty there is, whichever its kind.

        Several labels or outputs of a row count each for itself and are summed. For a continuous y it is the
        differential entropy, which may be negative and moves with the unit of y; that of a mixture of Gaussians (draws,
        mixtures, a noise variance that is an output) by quadrature over y, right to 1e-8.
        """
        if self.top is not None:
            return self._give(entropy(torch.cat([self._moments.mean, _rest(self._moments.mean)], -1)))
        if self.likelihood.discrete:
            return self._give(entropy(label_probabilities(self)).sum(-1))
        return self._give(entropy_of_mixture(*self.latent.components(self.likelihood)))

    @property
    def mutual_information(self) -> Array:
        """I(y; f) = H[y] − E H[y∣f] ≥ 0 in nats, shape (N,): what seeing y would tell of the model.

        It is the score of Bayesian active learning by disagreement (BALD; Houlsby, Huszár, Ghahramani & Lengyel 2011,
        eq. 2) and the epistemic part of the entropy; `entropy` less this is the aleatoric part (Depeweg,
        Hernández-Lobato, Doshi-Velez & Udluft 2018). It is 0 for a point, and at most log S for S draws.

        A Gaussian f is integrated as for `mean`: classes by quadrature, right to 1e-10 for two and to about 1e-3 of the
        answer for more; ½ log(1 + Var[f]/noise) for constant noise; quadrature over y, right to 1e-8, for a mixture of
        Gaussians. The integrals "mackay" and "laplace_bridge" give that of the Dirichlet with their moments. Several
        labels or outputs of a row count each for itself and are summed.
        """
        return self._give(self.latent.mutual_information(self.likelihood))

    @property
    def latent_mean(self) -> Array:
        """The mean E[f] of the latent function, shape (N, C)."""
        return self._give(self.latent.mean)

    @property
    def latent_cov(self) -> Array:
        """Cov[f] per row, shape (N, C, C)."""
        return self._give(self.latent.cov)

    @property
    def integration_error(self) -> Array:
        """The standard error of `mean` as an integral over f, shape (N, K): what more nodes or draws would change.

        It is 0 where the rule is right to 1e-10. Draws of the weights or of f count as independent.

        Raises:
            UnsupportedError: for approximations whose error is unknown: "mackay" and "laplace_bridge", and ``top=``
                of so many classes that the others are taken together.
        """
        return self._give(self.latent.integration_error(self.likelihood))

    def interval(self, level: float = 0.95, *, of: str | None = None) -> tuple[Array, Array]:
        """The central interval that holds the given probability.

        Args:
            level: its probability, in (0, 1).
            of: "outcome" for y itself (noise included), "mean" for E(y∣f), which for classes is the class
                probability, "latent" for f. The default is "outcome" for a continuous y and "mean" for classes.

        Returns:
            (low, high), each of shape (N, K), or (N, C) for the latent.

        Raises:
            InputError: if the level is outside (0, 1).
            OptionError: for another name.
            UnsupportedError: for the outcome of a classifier, which has no interval.
        """
        tail = 0.5 * (1.0 - checks.fraction("level", level))
        if of is None:
            of = "mean" if self.likelihood.discrete else "outcome"
        of = checks.choice("of", of, ("outcome", "mean", "latent"))
        if of == "outcome" and self.likelihood.discrete:
            raise UnsupportedError(
                "interval: a class label has no interval. Ask for of='mean' (the class probability) or of='latent'."
            )
        low, high = (self._quantile(at, of) for at in (tail, 1.0 - tail))
        return self._give(low), self._give(high)

    def abstains(self, *, probability: float | None = None, epistemic: float | None = None) -> Array:
        """The rows that are better left undecided, a mask of shape (N,): those that fail either threshold.

        Args:
            probability: what the most probable class has to reach, in (0, 1): Chow's rule (1970) for the cost
                1 − probability of no answer, an error having cost 1.
            epistemic: what the epistemic standard deviation may be at most: of the most probable class's probability,
                or of a regression's mean, in the unit of y.

        Returns:
            True where any of a row's labels or outputs fails.

        Raises:
            InputError: if neither is given, or one is out of range.
            UnsupportedError: for the probability of a continuous outcome.
        """
        if probability is None and epistemic is None:
            raise InputError("abstains: expected probability=, epistemic= or both, got neither. Give a threshold.")
        sd, fails = self._moments.epistemic.sqrt(), torch.zeros(len(self._moments.mean), dtype=torch.bool)
        fails = fails.to(sd.device)
        if self.likelihood.discrete:
            best = label_probabilities(self).max(-1)
            sd = sd.gather(-1, best.indices) if best.values.shape[-1] == 1 else sd
            if probability is not None:
                fails |= (best.values < checks.fraction("probability", probability)).any(-1)
        elif probability is not None:
            self._need_classes("abstains(probability=...)")
        if epistemic is not None:
            fails |= (sd > checks.positive_number("epistemic", epistemic)).any(-1)
        return self._give(fails)

    def log_prob(self, y: Any) -> Array:
        """log p(y∣x, data) per row, shape (N,).

        Raises:
            InputError: if a label is outside the likelihood's domain or the number of rows differs.
            UnsupportedError: by ``top=``, since it may be that of another class.
        """
        if self.top is not None:
            refuse_all_classes("log_prob")
        targets = self.likelihood.targets(self._flat(y), self.latent.mean.shape[-1]).to(self.latent.mean.device)
        if targets.shape[0] != self.latent.mean.shape[0]:
            raise InputError(f"y: expected {self.latent.mean.shape[0]} rows, got {targets.shape[0]}.")
        return self._give(self.latent.log_prob(self.likelihood, targets))

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Array:
        """n outcomes a row: f from its marginal, then y ~ p(y∣f), shape (n, N, ...); not by ``top=``."""
        source = checks.generator(generator)
        f = self.latent.sample(draw_count(n, self.latent.mean.numel()), source)
        return self._give(self.likelihood.sample(f, source), leading=1)

    def summary(self) -> str:
        """A few lines: what was predicted, how, and what options resolved to."""
        outputs, positions = self.latent.mean.shape[1], self._shape[1:]
        dense = f" of {' x '.join(map(str, positions))} positions" if positions else ""
        lines = [f"Predictive for {len(self)} rows{dense}, {outputs} latent outputs, {self.likelihood.name} likelihood"]
        lines += [f"  {name}: {value}" for name, value in self.notes.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.latent.mean.shape[:1]) if self.shape is None else self.shape

    def _flat(self, y: Any) -> Any:
        """Outcomes with each position as a row of its own."""
        if len(self._shape) == 1:
            return y
        values = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
        if tuple(values.shape[: len(self._shape)]) != self._shape:
            raise InputError(f"y: expected shape {self._shape} and what an outcome has, got {tuple(values.shape)}.")
        return values.flatten(0, len(self._shape) - 1)

    @cached_property
    def _moments(self) -> Moments:
        return self.latent.moments(self.likelihood)

    def _quantile(self, level: float, of: str) -> Tensor:
        if of == "latent":
            return self.latent.quantile(level)
        if of == "mean":
            return self.latent.expected_quantile(self.likelihood, level)
        return mixture_quantile(*self.latent.components(self.likelihood), level)

    def _need_classes(self, name: str) -> None:
        if not self.likelihood.discrete:
            raise UnsupportedError(f"{name}: a {self.likelihood.name} outcome has no classes. Ask for mean.")

    def _give(self, value: Tensor, *, leading: int = 0) -> Array:
        if len(self._shape) > 1:
            value = value.unflatten(leading, self._shape)
        # NumPy answers are copies: a caller's write must not reach the frozen result.
        return value.detach().cpu().numpy().copy() if self.arrays else value.clone()


def label_probabilities(predictive: Predictive) -> Tensor:
    """The distribution of each of G labels over its L classes, shape (N, G, L)."""
    return predictive.likelihood.distributions(predictive._moments.mean, predictive.latent.mean.shape[-1])


def refuse_dense(predictive: Predictive, advice: str) -> None:
    """Refuses a predictive with several positions a row.

    Raises:
        InputError: if it has them; ``advice`` says why, and what to do.
    """
    if len(predictive._shape) > 1:
        raise InputError(f"predictive: expected one answer a row, got the shape {predictive._shape}. {advice}")


def _rest(columns: Tensor) -> Tensor:
    """What the probabilities of some classes leave, shape (N, 1); rounding may put their sum just above 1."""
    return (1.0 - columns.sum(-1, keepdim=True)).clamp_min(0.0)
