"""The categorical likelihood: softmax over C ≥ 2 outputs, symmetric under relabelling the classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.information import divergence, information_of_dirichlet
from bayescope.likelihoods.likelihood import INTEGRALS, Moments, refuse_components, refuse_unknown_error, variances
from bayescope.likelihoods.nested_sums import BIAS, log_means, log_means_of_many
from bayescope.likelihoods.quasi_monte_carlo import NODES, SCRAMBLES, by_rows, nodes, principal_root
from bayescope.likelihoods.targets import LabelError
from bayescope.storage import stored

# Up to so many classes are integrated by nested sums.
_FEW = 4
# A class of more is integrated by itself where fewer of the 2,048 nodes than this tell of it. Of more than `_MANY`
# classes that is left to the one whose log probability is asked for: it would take far longer than all the rest.
_SEEN, _MANY = 200.0, 32
# The label that torch's losses leave out where nothing else is said.
UNLABELLED = -100


@stored("categorical")
@final
@dataclass(frozen=True)
class Categorical:
    """p(y = c∣f) = softmax(f)_c for C ≥ 2 outputs. Canonical targets are integers 0…C−1, int64 of shape (N,).

    The outcome columns are the K = C indicators of the classes. Integrals over f ~ N(mean, cov):

    - "quadrature": for C = 2 the one-dimensional integral over f₁ − f₀, right to 1e-10; for C of 3 and 4 nested sums
      (`nested_sums`), whose standard error is below 1e-5 unless the covariance is nearly singular and standard
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

    Attributes:
        ignored: the label of what has none, such as a token of padding: −100 in torch's losses. It counts as no
            observation: log p = 0 whatever f is. Without it such a label is refused.
    """

    ignored: int | None = None

    @property
    def name(self) -> str:
        """``"categorical"``, as ``likelihood=`` spells it."""
        return "categorical"

    @property
    def discrete(self) -> bool:
        """True: y is a label."""
        return True

    @property
    def elementwise(self) -> bool:
        """False: a class probability depends on every output."""
        return False

    def targets(self, y: Any, outputs: int) -> Tensor:
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
        labels = checks.float64("y", y)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            advice = " Give y.argmax(1) for one-hot labels." if labels.shape[1:] == (outputs,) else ""
            raise InputError(f"y: expected class labels of shape (N,), got {tuple(labels.shape)}.{advice}")
        if self.ignored is not None and 0 <= self.ignored < outputs:
            raise InputError(
                f"ignored: expected a label that is no class 0…{outputs - 1}, got {self.ignored}. Take -100."
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

    def labelled(self, y: Tensor) -> Tensor | None:
        """Which canonical targets are labels; ``None`` where none are ignored."""
        return None if self.ignored is None else y != self.ignored

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """f_y − log Σ_c exp f_c, shape (..., N)."""
        return self._pick(torch.log_softmax(f, -1), y)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """[c = y] − p_c, shape (..., N, C), the entry of y as Σ_{c≠y} p_c, which does not cancel as p_y → 1."""
        p = torch.softmax(f, -1)
        place = self._places(y).expand(f.shape[:-1])[..., None]
        others = p.scatter(-1, place, 0.0).sum(-1, keepdim=True)
        return self._told((-p).scatter(-1, place, others), y, 1)

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """Λ = diag(p) − p pᵀ, its diagonal p_c Σ_{j≠c} p_j, shape (..., N, C, C)."""
        p = torch.softmax(f, -1)
        hessian = -p[..., :, None] * p[..., None, :]
        hessian.diagonal(dim1=-2, dim2=-1).copy_(p * _others(p))
        return self._told(hessian, y, 2)

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """p_c Σ_{j≠c} p_j, shape (..., N, C)."""
        p = torch.softmax(f, -1)
        return self._told(p * _others(p), y, 1)

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """diag(Σ_n p_n) − Σ_n p_n p_nᵀ, its diagonal Σ_n p_nc Σ_{j≠c} p_nj, shape (..., C, C)."""
        p = self._told(torch.softmax(f, -1), y, 1)
        total = -(p.mT @ p)
        total.diagonal(dim1=-2, dim2=-1).copy_((p * _others(p)).sum(-2))
        return total

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """A root of C − 1 columns, shape (..., N, C, C − 1); observed and expected Λ are the same."""
        return self._told(self.fisher_sqrt(f), y, 2)

    def ggn_sqrt_below(self, f: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
        """Wᵀ S for a root S of Λ and W of shape (C, H), shape (..., N, H, C), without S.

        With S = diag(√p) − p √pᵀ the columns are √p_c (W_c − Σ_j p_j W_j): C H products a row, and not C² H. A
        difference of rows is right to its own size where one p_c nears 1 and all that is left is small.
        """
        p = torch.softmax(f, -1)
        columns = p.sqrt()[..., None, :] * (matrix.mT - (p @ matrix)[..., None])
        return self._told(columns, y, 2)

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """A root of Λ with as many columns as its rank, shape (..., N, C, C − 1).

        With q = √p, S = diag(q) − p qᵀ is a root, and S q = 0. The reflection H = I − v vᵀ/(1 + q_C), v = q + e_C,
        takes e_C to −q, so that the last column of the root S H is 0. The others are, for the classes but the last,
        q_c ([c = k] − q_c q_k/(1 + q_C)), and for the last −q_C q_k; on the diagonal that is
        q_c (Σ_{j≠c} p_j + q_C)/(1 + q_C). Nothing cancels as a p_c → 1.
        """
        p = torch.softmax(f, -1)
        q = p.sqrt()
        most, last = q[..., :-1], q[..., -1:]
        lean = p[..., :-1] / (1.0 + last)
        root = -torch.cat([lean, last], -1)[..., :, None] * most[..., None, :]
        root.diagonal(dim1=-2, dim2=-1).copy_(most * (_others(p)[..., :-1] + last) / (1.0 + last))
        return root

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws labels, int64 of shape (..., N), as the first arrival of C exponential clocks with rates p."""
        log_p = torch.log_softmax(f.to(torch.float64), -1)
        clocks = torch.empty(f.shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        return (log_p - clocks.log().to(f.device)).argmax(-1)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per class, each (..., N, C)."""
        p = torch.softmax(f, -1)
        return p, p * _others(p)

    def integral(self, name: str | None, outputs: int) -> str:
        """Resolves the integral over f: "quadrature" by default.

        Raises:
            OptionError: if the name is unknown.
        """
        return checks.choice("integral", "quadrature" if name is None else name, INTEGRALS)

    def needs_covariance(self, integral: str) -> bool:
        """Whether an integral needs covariances of the outputs: all but "mackay" do."""
        return integral != "mackay"

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of the class indicators, each (N, C).

        Raises:
            OptionError: if the integral is not "quadrature", "mackay" or "laplace_bridge".
        """
        return _rule(integral, _MOMENTS)(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The class probabilities, shape (N, C).

        Raises:
            OptionError: if the integral is not "quadrature", "mackay" or "laplace_bridge".
        """
        return _rule(integral, _MEANS)(mean.to(torch.float64), cov.to(torch.float64))

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log E[p_y] per row, shape (N,), right in the tails by "quadrature".

        It is the logarithm of `predictive_mean`, also below what a float holds, but for rare classes of more than 32.

        Raises:
            OptionError: if the integral is not "quadrature", "mackay" or "laplace_bridge".
        """
        mean, cov = mean.to(torch.float64), cov.to(torch.float64)
        if integral != "quadrature":
            return self._pick(_rule(integral, _LOG_PROBS)(mean, cov), y)
        mean, root = _centred(mean, cov)
        places = self._places(y)
        if mean.shape[-1] == 2:
            found = Bernoulli().predictive_log_prob(*_difference(mean, root), places[:, None], "quadrature")
        else:
            found = _log_mean(_log_answers(mean, root, places)).gather(-1, places[:, None])[:, 0]
        return self._told(found, y, 0)

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """The one distribution over the classes, shape (..., N, 1, C)."""
        return columns[..., None, :]

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """I(y; f), shape (N,): at the nodes of `predictive` by "quadrature"; else of the Dirichlet with its moments.

        Raises:
            OptionError: if the integral is not "quadrature", "mackay" or "laplace_bridge".
        """
        mean, cov = mean.to(torch.float64), cov.to(torch.float64)
        if integral != "quadrature":
            return information_of_dirichlet(_rule(integral, _MOMENTS)(mean, cov))
        mean, root = _centred(mean, cov)
        if mean.shape[-1] == 2:
            return Bernoulli().mutual_information(*_difference(mean, root), "quadrature")
        return by_rows(lambda rows: (_information(mean[rows], root[rows]),), *mean.shape)[0]

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str = "quadrature") -> Tensor:
        """The standard error of the means that `predictive` gives by "quadrature", shape (N, C).

        It is the standard deviation of the means of independent scramblings or shifts of the nodes, over the root of
        how many there are; for C = 2 it is 0, the integral being one-dimensional. Of more than 32 classes those that
        few nodes see have at least the share of two nodes as their error.

        Raises:
            UnsupportedError: for "mackay" and "laplace_bridge".
        """
        refuse_unknown_error(integral)
        _rule(integral, _MOMENTS)
        mean, root = _centred(mean.to(torch.float64), cov.to(torch.float64))
        outputs = mean.shape[-1]
        if outputs == 2:
            return torch.zeros_like(mean)
        answers = _log_answers(mean, root).exp()
        error = answers.std(0) / math.sqrt(len(answers))
        if outputs <= _FEW:
            return torch.hypot(error, error.new_tensor(BIAS))
        if outputs <= _MANY:
            return error
        rare = by_rows(lambda rows: (_effective_nodes(_at_nodes(mean[rows], root[rows])) < _SEEN,), *mean.shape)[0]
        return torch.where(rare, error.clamp_min(2.0 / (NODES * SCRAMBLES)), error)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Refused: a label is no mixture of Gaussians."""
        refuse_components(self.name)

    def _pick(self, values: Tensor, y: Tensor) -> Tensor:
        """The value of each label, shape (..., N)."""
        places = self._places(y).expand(values.shape[:-1])[..., None]
        return self._told(values.gather(-1, places)[..., 0], y, 0)

    def _places(self, y: Tensor) -> Tensor:
        """The labels as indices: that of an ignored one is 0."""
        labelled = self.labelled(y)
        return y if labelled is None else torch.where(labelled, y, 0)

    def _told(self, values: Tensor, y: Tensor, dims: int) -> Tensor:
        """Values (..., N, *dims) of the labels, 0 where there is none."""
        labelled = self.labelled(y)
        return values if labelled is None else torch.where(labelled.reshape(*labelled.shape, *[1] * dims), values, 0.0)


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


def _difference(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, 1) and variance (N, 1, 1) of f₁ − f₀."""
    variance = (root[:, 1] - root[:, 0]).square().sum(-1)
    return mean[:, 1:] - mean[:, :1], variance[:, None, None]


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
    differences = mean.gather(-1, others) - mean.gather(-1, classes[:, None])
    own = root.gather(-2, classes[:, None, None].expand(-1, 1, root.shape[-1]))
    contrasts = root.gather(-2, others[..., None].expand(-1, -1, root.shape[-1])) - own
    integrate = log_means if outputs <= _FEW else log_means_of_many
    return integrate(differences, contrasts @ contrasts.mT)


def _effective_nodes(at_nodes: Tensor) -> Tensor:
    """(Σ p)²/Σ p² over the nodes, as of so many with equal values, shape (N, C)."""
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


def _rule(integral: str, table: dict[str, Any]) -> Any:
    if integral not in table:
        raise OptionError.unknown("integral", integral, _MOMENTS)
    return table[integral]


def _quadrature(mean: Tensor, cov: Tensor) -> Moments:
    mean, root = _centred(mean, cov)
    if mean.shape[-1] == 2:
        return Bernoulli().predictive(*_difference(mean, root), "quadrature")
    found = Moments(*by_rows(lambda rows: _quadrature_block(mean[rows], root[rows]), *mean.shape))
    # The nodes tell how the variance divides; its sum follows from the mean.
    p, sums = _log_mean(_log_answers(mean, root)).exp(), found.aleatoric + found.epistemic
    share = torch.where(sums > 0, found.epistemic / torch.where(sums > 0, sums, 1.0), 0.0)
    total = p * _others(p)
    return Moments(p, (1.0 - share) * total, share * total)


def _quadrature_mean(mean: Tensor, cov: Tensor) -> Tensor:
    mean, root = _centred(mean, cov)
    if mean.shape[-1] == 2:
        return Bernoulli().predictive_mean(*_difference(mean, root), "quadrature")
    return _log_mean(_log_answers(mean, root)).exp()


def _quadrature_block(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = _at_nodes(mean, root)
    average = p.mean((0, 1))
    return average, (p * (1.0 - p)).mean((0, 1)), (p - average).square().mean((0, 1))


def _information(mean: Tensor, root: Tensor) -> Tensor:
    p = _at_nodes(mean, root)
    return divergence(p, p.mean((0, 1))).mean((0, 1))


def _mackay_logits(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.rsqrt(1.0 + math.pi / 8.0 * variances(cov))
    return scale, scale * mean


def _mackay(mean: Tensor, cov: Tensor) -> Moments:
    scale, logits = _mackay_logits(mean, cov)
    p = torch.softmax(logits, -1)
    total = p * _others(p)
    return Moments(p, scale * total, (1.0 - scale) * total)


def _bridge_log_counts(mean: Tensor, cov: Tensor) -> Tensor:
    """log α_k, α_k = (1 − 2/C + C⁻² e^{μ_k} Σ_l e^{−μ_l}) / Σ_kk for the centred f, shape (N, C)."""
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
    return weights - variance.log()


def _laplace_bridge(mean: Tensor, cov: Tensor) -> Moments:
    log_counts = _bridge_log_counts(mean, cov)
    p = torch.softmax(log_counts, -1)
    # Var[p] = p(1 − p)/(A + 1) for the total count A
    share = torch.sigmoid(-torch.logsumexp(log_counts, -1, keepdim=True))
    total = p * _others(p)
    return Moments(p, (1.0 - share) * total, share * total)


_MOMENTS = {"quadrature": _quadrature, "mackay": _mackay, "laplace_bridge": _laplace_bridge}
# The same for E[p] alone, and for log E[p].
_MEANS = {
    "quadrature": _quadrature_mean,
    "mackay": lambda mean, cov: torch.softmax(_mackay_logits(mean, cov)[1], -1),
    "laplace_bridge": lambda mean, cov: torch.softmax(_bridge_log_counts(mean, cov), -1),
}
_LOG_PROBS = {
    "mackay": lambda mean, cov: torch.log_softmax(_mackay_logits(mean, cov)[1], -1),
    "laplace_bridge": lambda mean, cov: torch.log_softmax(_bridge_log_counts(mean, cov), -1),
}
