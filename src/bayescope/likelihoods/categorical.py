"""The categorical likelihood: softmax over C ≥ 2 outputs, symmetric under relabelling the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope.errors import InputError
from bayescope.likelihoods.bernoulli import Bernoulli, ClosedForm, DifferenceIntegral, mackay
from bayescope.likelihoods.curvatures import Lambdas
from bayescope.likelihoods.information import divergence
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments
from bayescope.likelihoods.quasi_monte_carlo import (
    BIAS,
    NODES,
    SCRAMBLES,
    by_rows,
    log_means,
    log_means_of_many,
    nodes,
    principal_root,
)
from bayescope.likelihoods.targets import SUM_TOLERANCE, LabelError, labels_in_rows
from bayescope.storage import stored

# Up to this many classes are integrated by nested sums.
_FEW = 4
# A class of more is integrated by itself where fewer of the 2,048 nodes than this tell of it. Of more than `_MANY`
# classes that is left to the one whose log probability is asked for: it would take far longer than all the rest.
_SEEN, _MANY = 200.0, 32
# The label that torch's losses leave out where nothing else is said.
UNLABELLED = -100


@stored("categorical")
@final
@dataclass(frozen=True)
class Categorical(Likelihood):
    """p(y = c∣f) = softmax(f)_c for C ≥ 2 outputs. Canonical targets are integers 0…C−1, int64 of shape (N,).

    The outcome columns are the K = C indicators of the classes. Integrals over f ~ N(mean, cov):

    - "quadrature": for C = 2 the one-dimensional integral over f₁ − f₀, right to 1e-10; for C of 3 and 4 nested sums
      (`log_means`), whose standard error is below 1e-5 unless the covariance is nearly singular and standard
      deviations are large (above 10 for C = 4, above 300 for C = 3); for more classes randomised quasi-Monte Carlo on
      16 × 128 fixed nodes, where classes that few nodes see are integrated singly: up to 32 classes all of these,
      beyond that the label whose log probability is asked for. `integration_error` reports the standard error. The
      distribution of f along (1, …, 1), which softmax does not see, is taken out first.
    - "mackay": the mean-field form softmax(κ_c μ_c), κ_c = (1 + πσ_c²/8)^(−½) (Lu, Ie & Sha 2020, "mean-field 0"). It
      depends on where the origin of f lies. By Stein's identity E[p_c(1 − p_c)] = ∂E[p_c]/∂μ_c, so the aleatoric part
      is κ_c p̄_c(1 − p̄_c).
    - "laplace_bridge": the Dirichlet of Hobbhahn, Kristiadi & Hennig (2022), with (1, …, 1) taken out of f.
      For C > 2 it does not tend to softmax(μ) as cov → 0.
    - "monte_carlo": for callers that hold draws of f; `predictive` does not take it.

    Soft labels, probabilities q of the classes, stand for the expectation Σ_c q_c log p_c. Their canonical targets are
    float64 of shape (N, C).

    Attributes:
        ignored: the label of what has none, such as a token of padding: −100 in torch's losses. It counts as no
            observation: log p = 0 whatever f is. Without it such a label is refused.
    """

    ignored: int | None = None

    name = "categorical"

    @property
    def domain(self) -> Domain:
        return Domain("classes", self.ignored, elementwise=False)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks integer labels and returns them in int64, shape (N,).

        Args:
            y: shape (N,) or (N, 1); whole numbers of any dtype.
            outputs: C.

        Raises:
            InputError: if there are fewer than two outputs, or a label is neither one of 0…C−1 nor the ignored one.
        """
        if outputs < 2:
            raise InputError(
                f"outputs: expected at least 2 for the categorical likelihood, got {outputs}. "
                "Use the Bernoulli likelihood for two classes and one output."
            )
        labels = labels_in_rows(y, classes=outputs)
        if self.ignored is not None and 0 <= self.ignored < outputs:
            raise InputError(
                f"ignored: expected a label that is not a class 0…{outputs - 1}, got {self.ignored}. Take -100."
            )
        wrong = (labels < 0) | (labels >= outputs) | (labels != labels.floor())
        wrong = wrong if self.ignored is None else wrong & (labels != self.ignored)
        if wrong.any():
            row = int(torch.nonzero(wrong)[0])
            unlabelled = labels[row] == UNLABELLED and self.ignored is None
            raise LabelError(
                f"class labels 0…{outputs - 1} for {outputs} outputs",
                f"{labels[row].item():g}",
                row,
                "Where it stands for no label, take likelihood=bs.Categorical(ignored=-100)."
                if unlabelled
                else "Number the classes from 0, or give the model an output for each class.",
            )
        return labels.to(torch.int64)

    def soft_targets(self, y: ArrayLike, outputs: int) -> Tensor | None:
        """Probabilities of the classes, in float64 of shape (N, C); ``None`` for y of another shape.

        Raises:
            InputError: if a number is no probability, or those of a row do not sum to 1.
        """
        given = torch.as_tensor(y)
        if given.ndim != 2 or given.shape[1] != outputs or outputs < 2:
            return None
        q = given.to(torch.float64)
        wrong = ~((q >= 0) & (q <= 1)).all(1) | ~((q.sum(1) - 1.0).abs() <= SUM_TOLERANCE)
        if wrong.any():
            row = int(torch.nonzero(wrong)[0])
            raise LabelError(
                f"labels 0…{outputs - 1}, or probabilities of the {outputs} classes that sum to 1",
                f"{q[row].tolist()}",
                row,
                "For several labels at once take likelihood='bernoulli'.",
            )
        return q / q.sum(1, keepdim=True)

    def soft(self, y: Tensor) -> bool:
        return y.is_floating_point()

    def cross_entropy(self, y: Tensor, columns: Tensor) -> Tensor:
        return -torch.xlogy(y, columns).sum(-1)

    def labelled(self, y: Tensor) -> Tensor | None:
        """Which canonical targets are labels; ``None`` where none are ignored."""
        return None if self.ignored is None or y.is_floating_point() else y != self.ignored

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """f_y − log Σ_c exp f_c, shape (..., N), 0 for an ignored label; for soft labels its expectation."""
        if y.is_floating_point():
            return (y.to(f) * torch.log_softmax(f, -1)).sum(-1)
        values, labelled = torch.log_softmax(f, -1), self.labelled(y)
        found = values.take_along_dim(self._places(y).expand(values.shape[:-1])[..., None], -1)[..., 0]
        return found if labelled is None else torch.where(labelled, found, 0.0)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """[c = y] − p_c, shape (..., N, C), the entry of y as Σ_{c≠y} p_c, which does not cancel as p_y → 1.

        For soft labels it is q_c − p_c, as q_c Σ_{j≠c} p_j − p_c Σ_{j≠c} q_j.
        """
        p, labelled = torch.softmax(f, -1), self.labelled(y)
        if y.is_floating_point():
            q = y.to(f)
            return q * _others(p) - p * _others(q)
        place = self._places(y).expand(f.shape[:-1])[..., None]
        others = p.scatter(-1, place, 0.0).sum(-1, keepdim=True)
        gradient = (-p).scatter(-1, place, others)
        return gradient if labelled is None else torch.where(labelled[..., None], gradient, 0.0)

    def observed(self, f: Tensor, y: Tensor) -> SoftmaxLambdas:
        """Λ = diag(p) − p pᵀ, which is the expected one; 0 for an ignored label."""
        labelled = self.labelled(y)
        return self.expected(f) if labelled is None else self.expected(f).times(labelled.to(f.dtype))

    def expected(self, f: Tensor) -> SoftmaxLambdas:
        """Λ = diag(p) − p pᵀ."""
        return SoftmaxLambdas(torch.softmax(f, -1))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws labels, int64 of shape (..., N), as the first arrival of C exponential clocks with rates p."""
        log_p = torch.log_softmax(f.to(torch.float64), -1)
        clocks = torch.empty(f.shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        return (log_p - clocks.log().to(f.device)).argmax(-1)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per class, each (..., N, C)."""
        p = torch.softmax(f, -1)
        return p, p * _others(p)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        return {
            "quadrature": _ClassQuadrature(),
            "mackay": ClosedForm(self, "mackay", mackay, needs_covariance=False),
            "laplace_bridge": ClosedForm(self, "laplace_bridge", _bridge),
        }

    def _places(self, y: Tensor) -> Tensor:
        """The labels as indices: that of an ignored one is 0."""
        labelled = self.labelled(y)
        return y if labelled is None else torch.where(labelled, y, 0)


@final
@dataclass(frozen=True)
class SoftmaxLambdas(Lambdas):
    """w (diag(p) − p pᵀ), the diagonal as p_c Σ_{j≠c} p_j.

    Attributes:
        p: the probabilities, shape (..., N, C).
        weights: w, shape (..., N) or fewer dimensions before N; ``None`` for 1.
    """

    p: Tensor
    weights: Tensor | None = None

    def dense(self) -> Tensor:
        matrix = -self.p[..., :, None] * self.p[..., None, :]
        matrix.diagonal(dim1=-2, dim2=-1).copy_(self.p * _others(self.p))
        return self._weighted(matrix, self.weights)

    def diagonal(self) -> Tensor:
        return self._weighted(self.p * _others(self.p), self.weights)

    def sum(self) -> Tensor:
        weighted = self._weighted(self.p, self.weights)
        total = -(weighted.mT @ self.p)
        total.diagonal(dim1=-2, dim2=-1).copy_((weighted * _others(self.p)).sum(-2))
        return total

    def times(self, weights: Tensor) -> SoftmaxLambdas:
        return SoftmaxLambdas(self.p, weights if self.weights is None else self.weights * weights)

    def root(self) -> Tensor:
        """A root with as many columns as the rank, shape (..., N, C, C − 1).

        With q = √p, S = diag(q) − p qᵀ is a root, and S q = 0. The reflection H = I − v vᵀ/(1 + q_C), v = q + e_C,
        takes e_C to −q, so that the last column of the root S H is 0. The others are, for the classes but the last,
        q_c ([c = k] − q_c q_k/(1 + q_C)), and for the last −q_C q_k; on the diagonal that is
        q_c (Σ_{j≠c} p_j + q_C)/(1 + q_C). Nothing cancels as a p_c → 1.
        """
        p, q = self.p, self.p.sqrt()
        most, last = q[..., :-1], q[..., -1:]
        lean = p[..., :-1] / (1.0 + last)
        root = -torch.cat([lean, last], -1)[..., :, None] * most[..., None, :]
        root.diagonal(dim1=-2, dim2=-1).copy_(most * (_others(p)[..., :-1] + last) / (1.0 + last))
        return self._weighted(root, self._root_weights)

    def root_below(self, matrix: Tensor) -> Tensor:
        """Wᵀ S for S = diag(√p) − p √pᵀ, without S, shape (..., N, H, C).

        The columns are √p_c (W_c − Σ_j p_j W_j): C H products a row, and not C² H. A difference of rows is right to its
        size where one p_c nears 1 and all that is left is small.
        """
        columns = self.p.sqrt()[..., None, :] * (matrix.mT - (self.p @ matrix)[..., None])
        return self._weighted(columns, self._root_weights)

    @property
    def _root_weights(self) -> Tensor | None:
        return None if self.weights is None else self.weights.sqrt()

    def _weighted(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Values (..., N, *any) times the weights of the rows."""
        if weights is None:
            return values
        return values * weights.reshape(*weights.shape, *[1] * (values.ndim - self.p.ndim + 1))


def _others(p: Tensor) -> Tensor:
    """1 − p_c, as the sum of the other probabilities where p_c > ½ and the difference would cancel."""
    rest = torch.where(p > 0.5, 0.0, p)
    return torch.where(p > 0.5, rest.sum(-1, keepdim=True), 1.0 - p)


def _centred(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (N, C) and root (N, C, C − 1) of f minus its average over the classes, whose rank is at most C − 1."""
    projected = _project(cov)
    scale = cov.diagonal(dim1=-2, dim2=-1).abs().amax(-1)
    return mean - mean.mean(-1, keepdim=True), principal_root(projected, scale)[..., :-1]


def _project(cov: Tensor) -> Tensor:
    """P cov P with P = I − 1 1ᵀ/C."""
    rows = cov - cov.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def _at_nodes(mean: Tensor, root: Tensor) -> Tensor:
    """softmax(f) at the nodes, shape (SCRAMBLES, NODES, n, C)."""
    dim = root.shape[-1]
    shift = torch.einsum("nck,sk->snc", root, nodes(dim).reshape(-1, dim).to(mean.device))
    return torch.softmax(mean + shift, -1).unflatten(0, (SCRAMBLES, NODES))


def _log_answers(mean: Tensor, root: Tensor, classes: Tensor | None = None) -> Tensor:
    """log E[softmax(f)] of three classes or more, an answer for each randomisation of the nodes, shape (R, N, C).

    Args:
        mean: of f, shape (N, C).
        root: of its covariance, shape (N, C, K).
        classes: the class of each row that is to be right in the tail however many classes there are, shape (N,).
    """
    rows, outputs = mean.shape
    if outputs > _FEW:
        chosen = torch.zeros_like(mean, dtype=torch.bool)
        if classes is not None:
            chosen = chosen.scatter(-1, classes[:, None], True)
        found = by_rows(lambda at: (_scrambled(mean[at], root[at], chosen[at]).transpose(0, 1),), *mean.shape)[0]
        return found.transpose(0, 1)
    # Each class is integrated separately, so that the relative error of a small probability is small. The sum of the
    # integrals must be 1: dividing by it keeps every probability positive, however large the errors are.
    row, wanted = torch.ones_like(mean).nonzero().unbind(-1)
    return torch.log_softmax(_log_single(mean[row], root[row], wanted).unflatten(-1, (rows, outputs)), -1)


def _log_mean(answers: Tensor) -> Tensor:
    """The logarithm of the mean over randomisations, shape (N, C)."""
    return torch.logsumexp(answers, 0) - math.log(len(answers))


def _log_single(mean: Tensor, root: Tensor, classes: Tensor) -> Tensor:
    """log E[softmax(f)_k] of one class k a row, an answer for each randomisation of the nodes, shape (R, N)."""
    outputs = mean.shape[-1]
    others = torch.tensor([[j for j in range(outputs) if j != k] for k in range(outputs)], device=mean.device)[classes]
    differences = mean.take_along_dim(others, -1) - mean.take_along_dim(classes[:, None], -1)
    of_class = root.take_along_dim(classes[:, None, None], -2)
    contrasts = root.take_along_dim(others[..., None], -2) - of_class
    integrate = log_means if outputs <= _FEW else log_means_of_many
    return integrate(differences, contrasts @ contrasts.mT)


def _effective_nodes(at_nodes: Tensor) -> Tensor:
    """(Σ p)²/Σ p² over the nodes, the number of equal values with the same sum, shape (N, C)."""
    mean, squares = at_nodes.detach().mean((0, 1)), at_nodes.detach().square().mean((0, 1))
    return NODES * SCRAMBLES * mean.square() / torch.where(squares > 0, squares, 1.0)


def _scrambled(mean: Tensor, root: Tensor, chosen: Tensor) -> Tensor:
    """log E[softmax(f)] of many classes, an answer for each scrambling of the nodes, shape (SCRAMBLES, n, C).

    A class that the nodes see too little of is integrated by itself, where there are not too many or it is among the
    chosen, bool (n, C). The probabilities of a scrambling are divided by their sum.
    """
    at_nodes = _at_nodes(mean, root)
    alone = (_effective_nodes(at_nodes) < _SEEN) & (chosen if mean.shape[-1] > _MANY else True)
    logs = at_nodes.mean(1).masked_fill(alone, 1.0).clamp_min(torch.finfo(mean.dtype).tiny).log()
    if not alone.any():
        return logs
    rows, classes = torch.nonzero(alone).unbind(-1)
    return torch.log_softmax(logs.masked_scatter(alone, _log_single(mean[rows], root[rows], classes)), -1)


@final
@dataclass(frozen=True)
class _ClassQuadrature(Integral):
    """By nodes; for two classes the Bernoulli's integral over f₁ − f₀."""

    def for_outputs(self, outputs: int) -> Integral:
        return _TWO if outputs == 2 else self

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        mean, root = _centred(mean, cov)
        found = Moments(*by_rows(lambda rows: _moments_at_nodes(mean[rows], root[rows]), *mean.shape))
        # The nodes tell how the variance divides; its sum follows from the mean.
        sums = found.aleatoric + found.epistemic
        share = torch.where(sums > 0, found.epistemic / torch.where(sums > 0, sums, 1.0), 0.0)
        p = _log_mean(_log_answers(mean, root)).exp()
        total = p * _others(p)
        return Moments(p, (1.0 - share) * total, share * total)

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        return _log_mean(_log_answers(*_centred(mean, cov))).exp()

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """The logarithm of `mean`, also below what a float holds, but for rare classes of more than 32."""
        return _log_mean(_log_answers(*_centred(mean, cov), y)).take_along_dim(y[:, None], -1)[:, 0]

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        mean, root = _centred(mean, cov)
        return by_rows(lambda rows: (_information(mean[rows], root[rows]),), *mean.shape)[0]

    def error(self, mean: Tensor, cov: Tensor) -> Tensor:
        """The standard deviation over independent randomisations of the nodes, over the root of their number.

        Of more than 32 classes those that few nodes see have at least the share of two nodes.
        """
        outputs = mean.shape[-1]
        mean, root = _centred(mean, cov)
        answers = _log_answers(mean, root).exp()
        error = answers.std(0) / math.sqrt(len(answers))
        if outputs <= _FEW:
            return torch.hypot(error, error.new_tensor(BIAS))
        if outputs <= _MANY:
            return error
        rare = by_rows(lambda rows: (_effective_nodes(_at_nodes(mean[rows], root[rows])) < _SEEN,), *mean.shape)[0]
        return torch.where(rare, error.clamp_min(2.0 / (NODES * SCRAMBLES)), error)


_LOGIT = Bernoulli("logit")
_TWO = DifferenceIntegral(_LOGIT.integrals["quadrature"])


def _moments_at_nodes(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = _at_nodes(mean, root)
    average = p.mean((0, 1))
    return average, (p * (1.0 - p)).mean((0, 1)), (p - average).square().mean((0, 1))


def _information(mean: Tensor, root: Tensor) -> Tensor:
    p = _at_nodes(mean, root)
    return divergence(p, p.mean((0, 1))).mean((0, 1))


def _bridge(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log α_k, α_k = (1 − 2/C + C⁻² e^{μ_k} Σ_l e^{−μ_l}) / Σ_kk for the centred f, and Var[p] = p(1 − p)/(Σ α + 1)."""
    outputs = mean.shape[-1]
    mean, variance = mean - mean.mean(-1, keepdim=True), _project(cov).diagonal(dim1=-2, dim2=-1)
    if (variance <= 0).any():
        row = int(torch.nonzero((variance <= 0).any(-1))[0])
        raise InputError(
            f"cov: expected a positive variance of every output about their average for the Laplace bridge, got "
            f"{variance[row].tolist()} in row {row}. Use integral='quadrature'."
        )
    weights = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2.0 * math.log(outputs)
    if outputs > 2:
        weights = torch.logaddexp(weights, torch.full_like(weights, math.log1p(-2.0 / outputs)))
    log_counts = weights - variance.log()
    log_total = torch.logsumexp(log_counts, -1, keepdim=True)
    return log_counts, torch.sigmoid(log_total), torch.sigmoid(-log_total)


@stored("bradley_terry")
@final
@dataclass(frozen=True)
class BradleyTerry(Likelihood):
    """p(y = 1∣f) = σ(f₁ − f₀) for the rewards f = (f₀, f₁) of two items, y the index of the preferred one.

    Bradley & Terry (1952). It is the logit Bernoulli of the difference, and depends on nothing else: a reward common to
    both items changes no answer, and Λ = p(1 − p) ((1, −1), (−1, 1)) has rank one. Canonical targets are int64 of shape
    (N,); the K = 2 outcome columns are the indicators of the two items. The integrals over f ~ N(mean, cov) are the
    Bernoulli's over f₁ − f₀.
    """

    name = "bradley_terry"
    domain = Domain("classes", elementwise=False)
    integrals = {name: DifferenceIntegral(each) for name, each in _LOGIT.integrals.items()}  # noqa: RUF012

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks labels of 0 and 1 and returns them in int64, shape (N,).

        Args:
            y: shape (N,) or (N, 1): the index of the preferred item.
            outputs: 2.

        Raises:
            InputError: if there are not two rewards, or a label is neither 0 nor 1.
        """
        if outputs != 2:
            raise InputError(
                f"outputs: expected the rewards of two items, got {outputs}. bayescope.layers.Pairwise(reward) gives "
                "both from a model of one."
            )
        return _LOGIT.targets(labels_in_rows(y, "the preferred item of each pair,"), 1)[:, 0].to(torch.int64)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return _LOGIT.log_prob(f.diff(), y[..., None])

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        slope = _LOGIT.gradient(f.diff(), y[..., None])
        return torch.cat([-slope, slope], -1)

    def expected(self, f: Tensor) -> SoftmaxLambdas:
        """Λ of two classes, whose probabilities depend on f₁ − f₀ alone, too."""
        return SoftmaxLambdas(torch.softmax(f, -1))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return _LOGIT.sample(f.diff(), generator)[..., 0].to(torch.int64)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return _LOGIT.conditional(f.diff())
