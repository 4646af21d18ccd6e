"""The predictive: the answer for a batch of inputs, immutable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import TypeVar

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.latent import Latent
from bayescope.likelihoods import Binomial, Likelihood, Moments, entropy
from bayescope.memory import draw_count
from bayescope.models import among, among_pairs
from bayescope.notebook import plots, shows
from bayescope.predictive.table import columns_of, first_rows
from bayescope.tables.frames import table_of
from bayescope.top_classes import TopClasses, refuse_all_classes

if TYPE_CHECKING:
    from bayescope.notebook import Canvas

Array = TypeVar("Array", bound=Tensor | np.ndarray, covariant=True, default=Tensor | np.ndarray)
RowIndex = int | slice | Sequence[int] | Sequence[bool] | Tensor | np.ndarray


@final
@dataclass(frozen=True, eq=False)
class Predictive(Generic[Array]):
    """p(y∣x, data) for N inputs.

    Columns are outcomes: the K classes of a classifier (two for a Bernoulli with one output), the outputs of a
    regression. Answers are NumPy arrays where the inputs were, and tensors where they were tensors.

    Attributes:
        latent: the distribution of the model's outputs f.
        likelihood: p(y∣f).
        arrays: whether answers are NumPy arrays.
        notes: what each option that was left open resolved to.
        shape: (N, *positions): where outputs are dense, N in the shapes below stands for it; ``None`` for (N,).
        top: where the most probable classes alone were asked for, which they are: K in the shapes below is then their
            number, and ``latent`` has the outputs that are integrated with them; else ``None``.
        imputed: for each row of an estimator's table, how many missing or unseen values a stand-in was put for, int64
            of shape (N,); ``None`` where the inputs were no such table.
        names: what an estimator calls the columns: the labels of its K classes, of several labels a row or of several
            outputs; empty where they have no names.
        frame: the library of the table that was predicted, as narwhals names it, whose tables `to_frame` gives.
        dtype: the floating-point type of tensors that are answered: of a network that of its parameters, but float32
            for half precision. All is computed in float64.
    """

    latent: Latent
    likelihood: Likelihood
    arrays: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    top: TopClasses | None = None
    imputed: np.ndarray | None = None
    names: tuple[Any, ...] = ()
    frame: str = "pandas"
    dtype: torch.dtype = torch.float64

    @property
    def classes(self) -> Array:
        """The class that each column stands for, int64 of shape (N, K): by ``top=``, the most probable first."""
        self._need_classes("classes")
        if self.top is not None:
            return self._give(self.top.classes)
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
    def sd(self) -> Array:
        """The root of `variance`, shape (N, K)."""
        return self._give((self._moments.aleatoric + self._moments.epistemic).sqrt())

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
        return self._give(self.latent.entropy(self.likelihood))

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
        return self._give(self._of_top(self.latent.mean))

    @property
    def latent_cov(self) -> Array:
        """Cov[f] per row, shape (N, C, C)."""
        if self.top is not None and self.top.covariance is not None:
            return self._give(self.top.covariance)
        return self._give(among_pairs(self.latent.cov, self.top and self.top.columns))

    @property
    def integration_error(self) -> Array:
        """The standard error of `mean` as an integral over f, shape (N, K): what more nodes or draws would change.

        It is 0 where the rule is right to 1e-10. Draws of the weights or of f count as independent.

        Raises:
            UnsupportedError: for approximations whose error is unknown: "mackay" and "laplace_bridge", and ``top=``
                of classes so many that the others are taken together.
        """
        if self.top is not None and self.top.covariance is not None:
            raise UnsupportedError(
                "integration_error: some of the other classes stand for all of them, an approximation whose error "
                "is unknown. Predict without top= to integrate over all of them."
            )
        return self._give(self._of_top(self.latent.integration_error(self.likelihood)))

    def interval(
        self, level: float = 0.95, *, of: Literal["outcome", "mean", "latent"] | None = None
    ) -> tuple[Array, Array]:
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
        kind = self._kind(of)
        low, high = (self._quantile(at, kind) for at in (tail, 1.0 - tail))
        return self._give(low), self._give(high)

    def quantile(self, q: float, *, of: Literal["outcome", "mean", "latent"] | None = None) -> Array:
        """The number that the outcome is at most with probability q, shape (N, K).

        Args:
            q: in (0, 1); 0.5 for the median.
            of: as for `interval`.

        Raises:
            InputError: if q is outside (0, 1).
            OptionError: for another name.
            UnsupportedError: for the outcome of a classifier.
        """
        return self._give(self._quantile(checks.fraction("q", q), self._kind(of, "quantile")))

    def cdf(self, y: ArrayLike) -> Array:
        """P(outcome ≤ y) of each number by itself, shape (N, K): uniform over rows where predictions are calibrated.

        Raises:
            InputError: if y has another shape, or a number outside the domain.
            UnsupportedError: for classes.
        """
        if self.likelihood.discrete:
            raise UnsupportedError(
                f"cdf: expected an outcome of numbers, got that of a {self.likelihood.name} likelihood. Ask for probs."
            )
        return self._give(self.latent.outcome_cdf(self.likelihood, self._targets(y)))

    def _kind(self, of: str | None, what: str = "interval") -> str:
        """What an interval or quantile is of."""
        usual = "mean" if self.likelihood.discrete else "outcome"
        kind = checks.choice("of", usual if of is None else of, ("outcome", "mean", "latent"))
        if kind == "outcome" and self.likelihood.discrete:
            raise UnsupportedError(
                f"{what}: a class label has none. Ask for of='mean' (the class probability) or of='latent'."
            )
        return kind

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
            sd = sd.take_along_dim(best.indices, -1) if best.values.shape[-1] == 1 else sd
            if probability is not None:
                fails |= (best.values < checks.fraction("probability", probability)).any(-1)
        elif probability is not None:
            self._need_classes("abstains(probability=...)")
        if epistemic is not None:
            fails |= (sd > checks.positive_number("epistemic", epistemic)).any(-1)
        return self._give(fails)

    def codes(self, y: ArrayLike) -> ArrayLike:
        """The code 0…K−1 of each row's label, shape (N,), by `names`; what has no names, or is codes, as it is.

        Raises:
            InputError: if a label is none of the classes.
        """
        labels, given = np.asarray(self.names), y if isinstance(y, Tensor) else np.asarray(y)
        numbers = isinstance(given, Tensor) or given.dtype.kind in "iufb"
        plain = labels.dtype.kind not in "iuf" or np.array_equal(labels, np.arange(len(labels)))
        if not self.names or not self.likelihood.discrete or (numbers and plain):
            return y
        if given.ndim != 1:
            if numbers or not any(isinstance(label, str) for label in given.ravel().tolist()):
                return y
            raise InputError(f"y: expected labels of shape ({len(self)},), got {tuple(given.shape)}. Pass one column.")
        places = {label: code for code, label in enumerate(self.names)}
        codes = [places.get(label, -1) for label in given.tolist()]
        if -1 in codes:
            row, known = codes.index(-1), list(self.names)
            raise InputError(f"y: expected labels among the classes {known}, got {given.tolist()[row]!r} in row {row}.")
        return np.array(codes, dtype=np.int64)

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y∣x, data) per row, shape (N,).

        Args:
            y: outcomes; of classes their labels, where `names` has them and they are text or other numbers than the
                codes 0…K−1, else the codes. Soft labels q of shape (N, K) give Σ q log p, the negative cross-entropy.

        Raises:
            InputError: if a label is outside the likelihood's domain or the number of rows differs.
            UnsupportedError: by ``top=``, since it may be that of another class.
        """
        if self.top is not None:
            refuse_all_classes("log_prob")
        return self._give(self.latent.log_prob(self.likelihood, self._targets(y)))

    def crps(self, y: ArrayLike) -> Array:
        """The continuous ranked probability score ∫ (F(x) − 1{x ≥ y})² dx per row, shape (N,), in the unit of y.

        F is the distribution function of the outcome. The score is proper, the smaller the better, and ∣prediction − y∣
        for a prediction that is certain (Gneiting & Raftery 2007, section 4.2). For several outputs it is their mean.

        It is right to 1e-9 standard deviations for an outcome that is Gaussian given f, to 1e-6 for rows of counts
        below 256, to about 2e-3 for larger counts, and to about 1e-4 for others. Of 256 draws of f and more,
        neighbours may be averaged, which moves a probability by about 1e-5. Of ordered classes, 1 apart, it is the
        ranked probability score Σ_k (P(y' ≤ k) − 1{y ≤ k})².

        Raises:
            InputError: if an outcome is outside the likelihood's domain or the number of rows differs.
            UnsupportedError: for classes without an order; `bs.metrics.brier` is the score that corresponds to it.
        """
        if self.likelihood.domain.kind == "ordered":
            below = self._moments.mean.cumsum(-1)[:, :-1]
            reached = self._targets(y)[:, None] <= torch.arange(below.shape[1], device=below.device)
            return self._give((below - reached.to(below)).square().sum(-1))
        if self.likelihood.discrete:
            raise UnsupportedError(
                f"crps: expected an outcome of numbers, got that of a {self.likelihood.name} likelihood, whose labels "
                "have no distances. Ask for metrics.brier."
            )
        targets = self._targets(y)
        if self.likelihood.domain.joined and targets.shape[-1] > self.latent.mean.shape[-1]:
            raise UnsupportedError(
                "crps: expected exact numbers, got intervals or trials. Score the rows whose events were seen, or ask "
                "for log_prob."
            )
        return self._give(self.latent.crps(self.likelihood, targets).mean(-1))

    def sample(self, n: int = 1, *, generator: torch.Generator | int | None = None) -> Array:
        """n outcomes a row: f from its marginal, then y ~ p(y∣f), shape (n, N, ...); not by ``top=``."""
        if self.top is not None:
            refuse_all_classes("sample")
        source = checks.generator(generator)
        f = self.latent.sample(draw_count(n, self.latent.mean.numel()), source)
        return self._give(self.likelihood.sample(f, source), leading=1)

    def to_frame(
        self, *, classes: object = None, outputs: Sequence[str] | None = None, level: float | None = 0.95
    ) -> Any:
        """The predictions and how far to trust them as a table, a row for each row of the inputs, numbered from 0.

        - Classes: ``predicted`` (the most probable one), ``p(<class>)`` for each, ``low`` and ``high`` of the predicted
          class's probability (it lies between them with probability ``level``), ``epistemic_sd`` of it, ``entropy`` and
          ``mutual_information`` in nats.
        - Several labels a row: ``probability``, ``low``, ``high`` and ``epistemic_sd`` of each, in columns named
          ``<label>: probability`` and so on, then ``entropy`` and ``mutual_information``, sums over the labels.
        - By ``top=``: ``1: class``, ``1: p``, ``1: low`` and ``1: high`` of the most probable class, ``2: class``
          and so on, ``remaining``, ``entropy`` and ``mutual_information``.
        - A regression: ``mean``, ``sd``, ``low`` and ``high`` of the outcome (noise included), ``epistemic_sd`` and
          ``aleatoric_sd``, with sd² = epistemic_sd² + aleatoric_sd²; for several outputs in columns named
          ``<output>: mean`` and so on.

        If rows lack values, ``imputed`` is the number of values of each row that were replaced by a stand-in.

        It is a table of the library whose table was predicted (pandas, polars, pyarrow), else of pandas.

        Args:
            classes: labels of all classes, in their order; `names`, or 0, 1, …, if not given.
            outputs: the names of a regression's D outputs; with one output there is no prefix. `names`, or y0, y1, …,
                if not given.
            level: the probability of the intervals; ``None`` for a table without ``low`` and ``high``, which for three
                classes and more are most of the work.

        Raises:
            InputError: if names do not fit, the level is outside (0, 1), or outputs are dense.
        """
        refuse_dense(self, "Read a dense answer's arrays: its positions are no rows of a table.")
        # This one has its integrals at hand.
        p = self if self.arrays else replace(self, arrays=True, dtype=torch.float64)
        return table_of(columns_of(p, classes, outputs, level), self.frame)

    def plot(
        self,
        y: ArrayLike | None = None,
        *,
        x: ArrayLike | None = None,
        level: float | None = 0.95,
        curve: bool | None = None,
        most: int | None = None,
        ax: Canvas | None = None,
    ) -> Canvas:
        """A picture of the predictions with their intervals, and of what happened where y is given.

        - A regression: a panel for each output, with its mean, the interval of the mean (dark: what more data would
          narrow) and that of the outcome (light).
        - Two classes: the probability of the second one with its interval; of several labels a row, a panel for each.
        - More classes: the probability of the most probable one in its colour, with its interval; with ``x``, the
          probabilities of all classes.

        Args:
            y: what happened, as for `log_prob`: one for each row.
            x: where the rows stand along the axis, N numbers such as one feature. By default they are sorted by what
                is predicted.
            level: the probability of the intervals; ``None`` for none, which of very many classes are most of the work.
            curve: whether predictions are joined to a curve with a band, which needs x. By default they are where no
                number in x comes twice.
            most: how many rows are drawn, evenly chosen along the axis. By default all for a curve, else 200, and fewer
                of three classes and more, whose intervals take longer.
            ax: the axes to draw into, one for each panel; a new figure if not given.

        Returns:
            A matplotlib figure, which a notebook shows; or the axes that were given.

        Raises:
            InputError: if outcomes, x or axes do not fit, or outputs are dense.
        """
        drawn: Canvas = plots().predictions(self, y, x=x, level=level, curve=curve, most=most, ax=ax)
        return drawn

    def summary(self) -> str:
        """A few lines: what was predicted, how, and what options resolved to."""
        outputs, positions = self._of_top(self.latent.mean).shape[1], self._shape[1:]
        dense = f" of {' x '.join(map(str, positions))} positions" if positions else ""
        latent = f"{outputs} latent output{'s' * (outputs != 1)}"
        first = f"Predictive for {len(self)} rows{dense}, {latent}, {self.likelihood.name} likelihood"
        return "\n".join([first, *(f"  {name}: {value}" for name, value in self.notes.items())])

    def __repr__(self) -> str:
        return self.summary()

    @shows
    def _repr_html_(self) -> str:
        return first_rows(self)

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, rows: RowIndex) -> Predictive[Array]:
        """The predictive of some rows: each of its answers is those rows of this predictive's answer.

        Args:
            rows: a row's number (from the end where it is negative), a slice, a mask of shape (N,), or an array or list
                of numbers. For one number it is a predictive of one row.

        Raises:
            InputError: if a row is not there, or the index is of another kind.
        """
        chosen = _row_numbers(rows, len(self))
        places = torch.from_numpy(np.arange(math.prod(self._shape)).reshape(self._shape)[chosen].ravel())
        places = places.to(self.latent.mean.device)
        return replace(
            self,
            latent=self.latent.taken(places),
            shape=None if self.shape is None else (len(chosen), *self.shape[1:]),
            top=self.top and self.top.taken(places),
            imputed=None if self.imputed is None else self.imputed[chosen],
        )

    def __iter__(self) -> Iterator[Predictive[Array]]:
        return (self[row] for row in range(len(self)))

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.latent.mean.shape[:1]) if self.shape is None else self.shape

    def _targets(self, y: ArrayLike) -> Tensor:
        """Outcomes as the likelihood takes them, one for each row."""
        known = self._flat(self.codes(y))
        rows, outputs = self.latent.mean.shape
        soft = self.likelihood.soft_targets(known, outputs)
        targets = self.likelihood.targets(known, outputs) if soft is None else soft
        if len(targets) != rows:
            raise InputError(f"y: expected {rows} rows, got {len(targets)}.")
        return targets.to(self.latent.mean.device)

    def _flat(self, y: ArrayLike) -> ArrayLike:
        """Outcomes with each position as a row of its own."""
        if len(self._shape) == 1:
            return y
        values = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
        if tuple(values.shape[: len(self._shape)]) != self._shape:
            raise InputError(f"y: expected shape {self._shape} and what an outcome has, got {tuple(values.shape)}.")
        return values.flatten(0, len(self._shape) - 1)

    @cached_property
    def _moments(self) -> Moments:
        found = self.latent.moments(self.likelihood)
        return Moments(*map(self._of_top, (found.mean, found.aleatoric, found.epistemic)))

    def _of_top(self, values: Tensor) -> Tensor:
        """The columns that were asked for."""
        return among(values, self.top and self.top.columns)

    def _quantile(self, level: float, of: str) -> Tensor:
        if of == "latent":
            return self._of_top(self.latent.quantile(level))
        if of == "mean":
            return self._of_top(self.latent.expected_quantile(self.likelihood, level))
        return self.latent.outcome_quantile(self.likelihood, level)

    def _need_classes(self, name: str) -> None:
        if not self.likelihood.discrete:
            raise UnsupportedError(f"{name}: a {self.likelihood.name} outcome has no classes. Ask for mean.")

    def _give(self, value: Tensor, *, leading: int = 0) -> Array:
        if len(self._shape) > 1:
            value = value.unflatten(leading, self._shape)
        # Answers are copies: a caller's write must not reach the frozen result.
        given = value.to(self.dtype if value.is_floating_point() else value.dtype, copy=True)
        return cast(Array, given.detach().cpu().numpy() if self.arrays else given)


def by_trials(predictive: Predictive, trials: np.ndarray | None) -> Iterator[tuple[np.ndarray, Predictive]]:
    """Rows with equally many trials, and the predictive of their successes; all rows, of one trial, if none are given.

    Args:
        predictive: of a binomial outcome, whose likelihood leaves the trials to the targets.
        trials: whole numbers of at least 1, shape (N,).
    """
    if trials is None:
        yield np.arange(len(predictive)), predictive
        return
    for count in np.unique(trials):
        rows = np.flatnonzero(trials == count)
        yield rows, replace(predictive[rows], likelihood=Binomial(int(count)))


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


def _row_numbers(rows: RowIndex, count: int) -> np.ndarray:
    """The numbers of the rows that an index names, shape (R,)."""
    index = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else rows
    if isinstance(index, int | np.integer) and not isinstance(index, bool) and not -count <= index < count:
        raise InputError(f"rows: expected a row from −{count} to {count - 1}, got {index}.")
    try:
        chosen = np.atleast_1d(np.arange(count)[index])
    except IndexError as error:
        raise InputError(
            f"rows: expected numbers of rows below {count}, a slice or a mask of shape ({count},), got another index "
            f"({error}). Index one of the {count} rows."
        ) from None
    if chosen.ndim > 1:
        raise InputError(f"rows: expected an index of one dimension, got one of {chosen.ndim}. Index the rows alone.")
    return chosen


def _rest(columns: Tensor) -> Tensor:
    """What the probabilities of some classes leave, shape (N, 1); rounding may put their sum just above 1."""
    return (1.0 - columns.sum(-1, keepdim=True)).clamp_min(0.0)


def most_informative(
    predictive: Predictive[Array], n: int = 1, *, diverse: bool = False, generator: torch.Generator | int | None = None
) -> Array:
    """The n rows whose labels would tell most of the model, by mutual information (BALD; Houlsby et al. 2011).

    The n best rows are often alike: the label of one says what the others would have said. ``diverse=True`` draws them
    instead, without replacement and with probability proportional to their information, which does as well as
    costlier choices of whole batches (power sampling with exponent 1; Kirsch, Farquhar, Atighehchian, Jesson,
    Branchaud-Charron & Gal 2023). For one row at a time it is the worse of the two.

    Args:
        predictive: for the N rows of a pool without labels. Dense rows count the sum over their positions.
        n: how many, from 1 to N.
        diverse: whether to draw them.
        generator: for that, a ``torch.Generator`` or an int.

    Returns:
        Their indices, shape (n,), the most informative first (in the order drawn, for ``diverse``), ties by index.

    Raises:
        InputError: if n is not between 1 and N, no row has information, or a generator is given where nothing is drawn.
    """
    rows = len(predictive)
    if checks.count("n", n) > rows:
        raise InputError(f"n: expected at most the {rows} rows of the pool, got {n}.")
    if generator is not None and not checks.flag("diverse", diverse):
        raise InputError("generator: expected None where nothing is drawn, got one. Leave it out, or ask for diverse.")
    scores = torch.as_tensor(predictive.mutual_information).detach().reshape(rows, -1).sum(1)
    if not (scores > 0).any():
        raise InputError(
            "predictive: expected mutual information above 0 in some row, got 0 in all, as from a point estimate. "
            "Predict with a posterior over the weights, such as bs.laplace."
        )
    if checks.flag("diverse", diverse):
        # The first arrivals of exponential clocks with these rates; log of a rate of 0 is −∞: last, and by index
        clocks = torch.empty(rows, dtype=torch.float64).exponential_(generator=checks.generator(generator))
        scores = scores.log() - clocks.to(scores.device).log()
    best = scores.argsort(descending=True, stable=True)[:n]
    return cast(Array, best.cpu().numpy() if predictive.arrays else best)
