"""Split conformal prediction: intervals and sets that hold the truth as often as they say, whatever the model is worth.

Vovk, Gammerman & Shafer (2005); Lei, G'Sell, Rinaldo, Tibshirani & Wasserman (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, cast, final

import torch
from numpy.typing import ArrayLike
from scipy import special
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Gaussian, LogNormal, mixture_interval
from bayescope.predictive import Array, Predictive, label_probabilities, refuse_dense
from bayescope.special import log_ndtr
from bayescope.storage import stored
from bayescope.top_classes import refuse_all_classes

_REGRESSION = "predictive_interval"
_CLASSES = ("least_ambiguous", "adaptive")
_NOT_EXCHANGEABLE = (
    "The positions of a row are not exchangeable, and no guarantee holds for them: predict one position."
)


@stored("conformal")
@final
@dataclass(frozen=True)
class Conformal:
    """A model's predictions, corrected by how it did on held-out rows.

    Of rows that are exchangeable with the held-out ones (as those of one i.i.d. sample are), a share of at least
    `level` has its truth in `interval` or `sets`, and of at most level + 1/(rows + 1) where no scores are equal: on
    average over held-out sets and new rows. It says nothing of single rows or groups of them, nor of rows that come
    from elsewhere.

    Attributes:
        level: the share.
        method: of the scores.
        quantile: the ⌈(rows + 1) level⌉-th smallest score of the held-out rows, for each output or label.
        rows: how many were held out.
        likelihood: the name of p(y∣f) that the predictions have.
        outputs: how many outputs f has.
        randomized: whether scores, and so sets, are drawn.
    """

    level: float
    method: str
    quantile: tuple[float, ...]
    rows: int
    likelihood: str
    outputs: int
    randomized: bool = False

    def interval(self, predictive: Predictive[Array]) -> tuple[Array, Array]:
        """The corrected interval of y of each row and output: (low, high), each of shape (N, D).

        It is the predictive's own central interval at the level 2Φ(quantile) − 1.

        Raises:
            UnsupportedError: for classes.
            InputError: if the predictive is of another likelihood or of other outputs.
        """
        self._need(predictive)
        if predictive.likelihood.discrete:
            raise UnsupportedError("interval: a class label has no interval. Ask for sets(predictive).")
        components = _components(predictive)
        ends = mixture_interval(*components, self._thresholds(components[1]))
        low, high = (end.exp() for end in ends) if isinstance(predictive.likelihood, LogNormal) else ends
        return _give(low, predictive), _give(high, predictive)

    def sets(self, predictive: Predictive[Array], *, generator: torch.Generator | int | None = None) -> Array:
        """The classes that each row may have: a mask of shape (N, K), or (N, C, 2) for C labels a row.

        Sets that are "least_ambiguous" may be empty: no class is as probable as the truth mostly was.

        Args:
            predictive: of the same model, for N rows.
            generator: of randomised sets: a ``torch.Generator`` or an int.

        Raises:
            UnsupportedError: for a regression.
            InputError: if the predictive is of another likelihood or of other outputs, or a generator is given for sets
                that are not randomised.
        """
        self._need(predictive)
        if not predictive.likelihood.discrete:
            raise UnsupportedError("sets: a continuous outcome has no classes. Ask for interval(predictive).")
        probabilities = label_probabilities(predictive).detach()
        scores = _class_scores(probabilities, self.method, _uniform(self.randomized, generator))
        kept = scores <= self._thresholds(scores)[:, None]
        return _give(kept[:, 0] if kept.shape[1] == 1 else kept, predictive)

    def summary(self) -> str:
        """What holds, from how many rows, and how far the predictions had to be moved."""
        each = ", ".join(f"{value:.4g}" for value in self.quantile)
        if self.method == _REGRESSION:
            score = float(special.ndtri(0.5 + 0.5 * self.level))
            rule = f"intervals reach {each} normal scores to either side, where the predictive's own reach {score:.4g}"
        elif self.method == "least_ambiguous":
            rule = f"sets hold the classes whose probability is at least 1 − {each}"
        else:
            drawn = ", the last one by chance" if self.randomized else ""
            rule = f"sets hold the most probable classes until their sum exceeds {each}{drawn}"
        return "\n".join(
            [
                f"Conformal predictions at level {self.level:g}, from {self.rows} held-out rows",
                f"  scores: {self.method}",
                f"  {rule}",
                f"  guarantee: {self._share:.4g} of rows like the held-out ones, on average; give or take "
                f"{self._spread:.2g} for these held-out rows",
            ]
        )

    def __repr__(self) -> str:
        return self.summary()

    @property
    def _share(self) -> float:
        """The coverage to expect where no scores are equal; where some are, it is at least that."""
        return _rank(self.level, self.rows) / (self.rows + 1)

    @property
    def _spread(self) -> float:
        """Its standard deviation over held-out sets: it is distributed as Beta(k, rows + 1 − k) (Vovk 2012)."""
        return math.sqrt(self._share * (1.0 - self._share) / (self.rows + 2))

    def _thresholds(self, like: Tensor) -> Tensor:
        return torch.tensor(self.quantile, dtype=torch.float64, device=like.device)

    def _need(self, predictive: Predictive) -> None:
        _refuse_parts(predictive)
        got = predictive.likelihood.name, predictive.latent.mean.shape[-1]
        if got != (self.likelihood, self.outputs):
            raise InputError(
                f"predictive: expected the {self.likelihood} likelihood with {self.outputs} output(s), of which the "
                f"held-out rows were, got {got[0]} with {got[1]}. Predict with the same model."
            )


def conformal(
    predictive: Predictive,
    y: ArrayLike,
    *,
    level: float = 0.95,
    method: Literal["predictive_interval", "least_ambiguous", "adaptive"] | None = None,
    randomized: bool = False,
    generator: torch.Generator | int | None = None,
) -> Conformal:
    """Learns from held-out rows how far predictions have to be widened, or may be narrowed, to hold what they say.

    The scores, larger for outcomes that the predictive thought less of:

    - a regression, "predictive_interval": ∣Φ⁻¹(F(y))∣ with the predictive's distribution function F, noise included:
      the normal score of the central interval that just reaches y. For a Gaussian it is ∣y − mean∣/sd (Lei et al. 2018,
      section 5.2); skewed and multimodal predictives keep their shape. A log-normal y has the scores of log y, and its
      interval is the exponential of the interval of log y.
    - classes, "least_ambiguous" (the default): 1 − p_y, whose sets are the smallest on average (Sadinle, Lei &
      Wasserman 2019). Some may be empty.
    - classes, "adaptive": the sum of p over the classes more probable than y (Romano, Sesia & Candès 2020): larger
      sets, of more even coverage over easy and hard rows. They always hold the most probable class, and so hold more
      than the level where that one alone would do.

    Args:
        predictive: for rows that the model was not fitted on.
        y: their n outcomes, as `Predictive.log_prob` takes them.
        level: the share of truths to hold, in (0, 1), for each output or label by itself.
        method: of the scores; ``None`` for the default.
        randomized: whether "adaptive" counts a uniformly drawn part of p_y too: the coverage is then exact, and sets
            may be empty.
        generator: for that, a ``torch.Generator`` or an int.

    Raises:
        InputError: if there are fewer than level/(1 − level) rows, too few for a finite set; if outcomes do not
            fit, or outputs are dense, whose positions are not exchangeable.
        OptionError: for a method that is not one of these.
        UnsupportedError: for randomised scores of another method, by ``top=``, and for numbers that are neither
            Gaussian given f nor log-normal, or are censored.
    """
    _refuse_parts(predictive)
    likelihood, outputs = predictive.likelihood, predictive.latent.mean.shape[-1]
    level = checks.fraction("level", level)
    known = _CLASSES if likelihood.discrete else (_REGRESSION,)
    scored = checks.choice("method", known[0] if method is None else method, known)
    if checks.flag("randomized", randomized) and scored != "adaptive":
        raise UnsupportedError(f"randomized: expected False for method={scored!r}, got True. Take method='adaptive'.")
    targets = likelihood.targets(predictive.codes(y), outputs).to(predictive.latent.mean.device)
    rows = len(predictive)
    if len(targets) != rows:
        raise InputError(f"y: expected {rows} rows, got {len(targets)}.")
    rank = _rank(level, rows)
    if rank > rows:
        share = Fraction(repr(level))
        raise InputError(
            f"y: expected at least {math.ceil(share / (1 - share))} rows for level={level:g}, got {rows}: fewer hold "
            "no finite set to it. Hold out more rows, or lower the level."
        )
    if likelihood.discrete:
        probabilities = label_probabilities(predictive).detach()
        scores = _class_scores(probabilities, scored, _uniform(randomized, generator))
        labels = targets.reshape(rows, -1, 1).to(torch.int64)
        scores = scores.take_along_dim(labels, -1)[..., 0]
    else:
        _uniform(randomized, generator)
        if isinstance(likelihood, LogNormal):
            targets = _log_targets(targets, outputs)
        scores = _normal_scores(*_components(predictive), targets)
    quantile = scores.sort(0).values[rank - 1]
    return Conformal(level, scored, tuple(quantile.tolist()), rows, likelihood.name, outputs, randomized)


def _refuse_parts(predictive: Predictive) -> None:
    """Refuses several positions a row, and a few of the classes, whose columns are other classes in each row."""
    refuse_dense(predictive, _NOT_EXCHANGEABLE)
    if predictive.top is not None:
        refuse_all_classes("conformal")


def _components(predictive: Predictive) -> tuple[Tensor, Tensor, Tensor]:
    """The Gaussians that make up y; of a log-normal y, those that make up log y."""
    likelihood = predictive.likelihood
    gaussian = Gaussian(likelihood.known("sd").square()) if isinstance(likelihood, LogNormal) else likelihood
    if not gaussian.gaussian_outcome:
        raise UnsupportedError(
            f"predictive: expected classes, or numbers that are Gaussian or log-normal given f, got the likelihood "
            f"{likelihood.name!r}. Take its own intervals, and check them with bs.metrics.coverage."
        )
    return predictive.latent.components(gaussian)


def _log_targets(targets: Tensor, outputs: int) -> Tensor:
    """log y of exact outcomes."""
    if targets.shape[-1] != outputs:
        raise UnsupportedError(
            "y: expected exact outcomes, got censored ones, whose scores are not known. Give the rows whose events "
            "were seen, only if the others are missing at random."
        )
    return targets.log()


def _rank(level: float, rows: int) -> int:
    """⌈(rows + 1) level⌉ for the level as it is written: 0.55 · 100 is 55, and not a little more."""
    return math.ceil(Fraction(repr(level)) * (rows + 1))


def _normal_scores(log_weights: Tensor, means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """∣Φ⁻¹(F(y))∣ for mixtures of Gaussians, shape (N, K), from the logarithm of the smaller tail: no level is 1."""
    z = (y - means) / variances.sqrt()
    tails = [torch.logsumexp(log_weights[:, None, None] + log_ndtr(side), 0) for side in (z, -z)]
    smaller = torch.minimum(*tails).detach().cpu().numpy()
    # A tail of ½ is the median, whose score is 0 but for rounding
    return torch.from_numpy(-special.ndtri_exp(smaller)).clamp_min(0.0).to(y.device)


def _class_scores(p: Tensor, method: str, uniform: torch.Generator | None) -> Tensor:
    """The score of each class, of p's shape (N, G, L)."""
    if method == "least_ambiguous":
        return 1.0 - p
    order = p.argsort(dim=-1, descending=True, stable=True)
    ordered = p.take_along_dim(order, -1)
    before = torch.cat([torch.zeros_like(ordered[..., :1]), ordered[..., :-1].cumsum(-1)], -1)
    if uniform is not None:
        drawn = torch.rand(p.shape[:-1], dtype=torch.float64, generator=uniform).to(p.device)
        before = before + drawn[..., None] * ordered
    return torch.empty_like(p).scatter(-1, order, before)


def _uniform(randomized: bool, generator: torch.Generator | int | None) -> torch.Generator | None:
    if randomized:
        return checks.generator(generator)
    if generator is not None:
        raise InputError("generator: expected None where nothing is drawn, got one. Leave it out.")
    return None


def _give(value: Tensor, predictive: Predictive[Array]) -> Array:
    return cast(Array, value.cpu().numpy() if predictive.arrays else value)
