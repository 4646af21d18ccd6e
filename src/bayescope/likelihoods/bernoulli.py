"""The Bernoulli likelihood, with logit or probit link, for one label or several, and that of preferences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.information import divergence, information_of_dirichlet
from bayescope.likelihoods.likelihood import Domain, Integral, Likelihood, Moments, variances
from bayescope.likelihoods.quasi_monte_carlo import log_expected, principal_root
from bayescope.likelihoods.targets import LabelError, numbers_in_columns
from bayescope.quadrature import activation_nodes, gauss_legendre, log_expected_sigmoid
from bayescope.special import inverse_mills, inverse_mills_slope, log_ndtr
from bayescope.storage import stored

_LINKS = ("logit", "probit")
_ROW_BLOCK = 4096
_ANGLES = 48


@stored("bernoulli")
@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """p(y = 1∣f) = σ(f) for the logit link and Φ(f) for the probit link; with s = (2y − 1) f, p(y∣f) = link(s).

    With C = 1 output, labels are 0 or 1 and the outcome columns are the K = 2 indicators of the classes 0 and 1.
    With C > 1 (multilabel), each output has a label of its own, independent of the others given f, and the K = C
    outcome columns are the labels. The canonical targets are float64 zeros and ones of shape (N, C). For the logit link
    they may be fractions q, which stand for the expectation q log p(1∣f) + (1 − q) log p(0∣f).

    Integrals over f ~ N(μ, σ²), per label:

    - logit, "quadrature": one-dimensional, right to 1e-10 (log probabilities to 1e-10 relative in the probability).
    - logit, "mackay": E[σ(f)] ≈ σ(κμ) with κ = (1 + πσ²/8)^(−½) (MacKay 1992; Bishop 2006, eq. 4.153–4.154). By Stein's
      identity E[p(1 − p)] = ∂E[p]/∂μ, so the aleatoric part is κ p̄(1 − p̄).
    - logit, "laplace_bridge": the Dirichlet that Hobbhahn, Kristiadi & Hennig (2022) match to a softmax of two outputs
      with difference f: a Beta with mean σ(μ), whatever σ² is, and variance v²σ²/(1 + vσ²), v = σ(μ)σ(−μ).
    - logit, "monte_carlo": for callers that hold draws of f; `predictive` does not take it.
    - probit: exact whichever is asked for: E[Φ(f)] = Φ(h), h = μ/√(1 + σ²).

    With several labels whose outputs are correlated, log p(y) is that of the joint by "quadrature" and "exact", through
    randomised quasi-Monte Carlo in those rows (relative error about 1e-3); the other integrals multiply marginals.

    Args:
        link: "logit" or "probit".

    Raises:
        OptionError: if the link is unknown.
    """

    link: Literal["logit", "probit"] = "logit"

    domain = Domain("binary")

    def __post_init__(self) -> None:
        checks.choice("link", self.link, _LINKS)

    @property
    def name(self) -> str:
        """``"bernoulli"`` for the logit link, ``"probit"`` for the probit link."""
        return "bernoulli" if self.link == "logit" else "probit"

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks labels of 0 and 1 (or booleans) and returns them in float64, shape (N, C).

        Args:
            y: shape (N,) or (N, 1) for C = 1, else (N, C).
            outputs: C.

        Raises:
            InputError: if the shape does not fit or a label is neither 0 nor 1.
        """
        labels = numbers_in_columns(y, outputs, outputs)
        wrong = (labels != 0) & (labels != 1)
        if wrong.any():
            row, column = torch.nonzero(wrong)[0].tolist()
            raise LabelError(
                "labels 0 and 1",
                f"{labels[row, column].item():g}",
                row,
                "Encode the two classes as 0 and 1, or use the categorical likelihood for more classes.",
            )
        return labels

    def soft_targets(self, y: ArrayLike, outputs: int) -> Tensor | None:
        """Fractions between 0 and 1 in float64, shape (N, C); ``None`` where all are labels, or for the probit link."""
        given = torch.as_tensor(y)
        if self.link != "logit" or not given.is_floating_point() or not ((given > 0) & (given < 1)).any():
            return None
        q = numbers_in_columns(y, outputs, outputs)
        wrong = (q < 0) | (q > 1)
        if wrong.any():
            row, column = torch.nonzero(wrong)[0].tolist()
            raise LabelError(
                "labels, or their probabilities, from 0 to 1", f"{q[row, column].item():g}", row, "Divide by the total."
            )
        return q

    def soft(self, y: Tensor) -> bool:
        return bool(((y > 0) & (y < 1)).any())

    def cross_entropy(self, y: Tensor, columns: Tensor) -> Tensor:
        one, zero = (columns[:, 1:], columns[:, :1]) if y.shape[-1] == 1 else (columns, 1.0 - columns)
        return -(torch.xlogy(y, one) + torch.xlogy(1.0 - y, zero)).sum(-1)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_c log link(s_c), shape (..., N); for fractions q the mean of log σ(s) and log σ(−s) = log σ(s) − s."""
        s = _sign(y, f) * f
        return (logsigmoid(s) - _rarer(y, f) * s if self.link == "logit" else log_ndtr(s)).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f: (2y − 1) σ(−s), or (2y − 1) φ(s)/Φ(s), shape (..., N, C)."""
        sign = _sign(y, f)
        s = sign * f
        return sign * (torch.sigmoid(-s) - _rarer(y, f) if self.link == "logit" else inverse_mills(s))

    def log_prob_and_gradient(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """For the logit link both from a = exp(−∣s∣), in NumPy on the CPU: exact in both tails."""
        if self.link != "logit" or self.soft(y):
            return self.log_prob(f, y), self.gradient(f, y)
        sign = 2.0 * y.numpy() - 1.0
        s = sign * f.numpy()
        a = np.exp(-np.abs(s))
        log_prob = np.minimum(s, 0.0)
        log_prob -= np.log1p(a)
        sign *= np.where(s > 0.0, a, 1.0)
        sign /= 1.0 + a
        summed = log_prob.sum(-1) if f.shape[-1] > 1 else log_prob[:, 0]
        return torch.from_numpy(summed), torch.from_numpy(sign)

    def observed(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        """Λ = σ(f)σ(−f), or v(s)(s + v(s)) with v = φ/Φ."""
        return self.expected(f) if self.link == "logit" else DiagonalLambdas(inverse_mills_slope(_sign(y, f) * f))

    def expected(self, f: Tensor) -> DiagonalLambdas:
        """Λ = σ(f)σ(−f), or φ(f)²/(Φ(f)Φ(−f)) as a product of two Mills ratios, which underflows in neither tail."""
        side = torch.sigmoid if self.link == "logit" else inverse_mills
        return DiagonalLambdas(side(f) * side(-f))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws labels, float64 zeros and ones of f's shape (..., N, C)."""
        uniform = torch.rand(f.shape, dtype=torch.float64, device=generator.device, generator=generator).to(f.device)
        return (uniform < self.probability(f.to(torch.float64))).to(torch.float64)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per outcome column, each (..., N, K)."""
        p, q = self.probability(f), self.probability(-f)
        return _columns(p, q), _columns(p * q, p * q)

    @property
    def integrals(self) -> Mapping[str, Integral]:
        if self.link == "probit":
            return {"exact": _LabelIntegral(self, _probit_sides, _probit_parts, _probit_log_side)}
        return {
            "quadrature": _LabelIntegral(self, _quadrature_sides, _quadrature_parts, log_expected_sigmoid),
            "mackay": ClosedForm(self, "mackay", mackay, needs_covariance=False),
            "laplace_bridge": ClosedForm(self, "laplace_bridge", _bridge, needs_covariance=False),
        }

    def probability(self, f: Tensor) -> Tensor:
        """The probability p(y = 1∣f) of each label, of f's shape."""
        return torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)


def _sign(y: Tensor, f: Tensor) -> Tensor:
    """1 for the label 1, or one that is more probable than not, and else −1."""
    return torch.where(y >= 0.5, 1.0, -1.0).to(f)


def _rarer(y: Tensor, f: Tensor) -> Tensor:
    """The probability of the less probable label: 0 where the label is known."""
    return torch.minimum(y, 1.0 - y).to(f)


def _columns(one: Tensor, zero: Tensor) -> Tensor:
    """Outcome columns: the classes 0 and 1 of a single label, or the labels themselves."""
    return torch.cat([zero, one], -1) if one.shape[-1] == 1 else one


@final
@dataclass(frozen=True)
class DifferenceIntegral(Integral):
    """The Bernoulli's integral over f₁ − f₀, for a likelihood of two outputs that depends on nothing else.

    Attributes:
        inner: the Bernoulli's.
    """

    inner: Integral

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        return self.inner.moments(*_difference(mean, cov))

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self.inner.mean(*_difference(mean, cov))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        return self.inner.log_prob(*_difference(mean, cov), y[..., None])

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self.inner.information(*_difference(mean, cov))

    def error(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self.inner.error(*_difference(mean, cov))


def _difference(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (N, 1) and variance (N, 1, 1) of f₁ − f₀.

    Rounding may carry the variance below 0 where the two outputs vary together alone.
    """
    variance = (cov[:, 1:, 1:] - cov[:, 1:, :1]) - (cov[:, :1, 1:] - cov[:, :1, :1])
    root = principal_root(variance, cov.diagonal(dim1=-2, dim2=-1).amax(-1))
    return mean[:, 1:] - mean[:, :1], root.square()


# A pair of numbers for each label: p̄ = E[p] and 1 − p̄, or E[p(1 − p)] and Var[p].
_Pair = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True)
class _LabelIntegral(Integral):
    """The integral over each label's f by itself; the joint of correlated labels by quasi-Monte Carlo.

    Attributes:
        likelihood: p(y∣f).
        sides: p̄ and 1 − p̄ from the mean and variance of f, any shape; neither is a difference.
        parts: E[p(1 − p)] and Var[p] from the same and p̄.
        log_side: log E[link(s)] from the mean and variance of s.
    """

    likelihood: Bernoulli
    sides: Callable[[Tensor, Tensor], _Pair]
    parts: Callable[[Tensor, Tensor, Tensor], _Pair]
    log_side: Callable[[Tensor, Tensor], Tensor]

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        variance = variances(cov)
        p, q = self.sides(mean, variance)
        blocks = zip(mean.split(_ROW_BLOCK), variance.split(_ROW_BLOCK), p.split(_ROW_BLOCK), strict=True)
        aleatoric, epistemic = (torch.cat(each) for each in zip(*(self.parts(*block) for block in blocks), strict=True))
        return Moments(_columns(p, q), _columns(aleatoric, aleatoric), _columns(epistemic, epistemic))

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        return _columns(*self.sides(mean, variances(cov)))

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        """log E[Π_c link((2y_c − 1) f_c)], shape (N,)."""
        variance = variances(cov)
        log_prob = self.log_side(_sign(y, mean) * mean, variance).sum(-1)
        correlated = (cov - torch.diag_embed(variance)).flatten(1).any(-1)
        if correlated.any():
            root = principal_root(cov[correlated], variance[correlated].amax(-1))
            joint = log_expected(self.likelihood, mean[correlated], root, y[correlated])
            log_prob = log_prob.index_put((correlated,), joint)
        return log_prob

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Σ_c I(y_c; f_c), by one-dimensional integrals right to 1e-10."""
        blocks = zip(mean.split(_ROW_BLOCK), variances(cov).split(_ROW_BLOCK), strict=True)
        return torch.cat([_information(self.likelihood.probability, *block) for block in blocks]).sum(-1)

    def error(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Zero: the means are right to 1e-10."""
        return torch.zeros_like(_columns(mean, mean))


@final
@dataclass(frozen=True)
class ClosedForm(Integral):
    """An approximation in closed form: p(y∣f) at other logits, and how its variance divides.

    Attributes:
        likelihood: of labels.
        name: of the approximation.
        form: from the mean and covariance of f to the logits, shape (N, C), and the aleatoric and the epistemic share
            of the variance, which broadcast with the outcome columns.
        needs_covariance: whether it depends on the covariances between outputs.
    """

    likelihood: Likelihood
    name: str
    form: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    needs_covariance: bool = True

    def moments(self, mean: Tensor, cov: Tensor) -> Moments:
        logits, aleatoric, epistemic = self.form(mean, cov)
        p, total = self.likelihood.conditional(logits)
        return Moments(p, aleatoric * total, epistemic * total)

    def mean(self, mean: Tensor, cov: Tensor) -> Tensor:
        return self.likelihood.conditional(self.form(mean, cov)[0])[0]

    def log_prob(self, mean: Tensor, cov: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_prob(self.form(mean, cov)[0], y)

    def information(self, mean: Tensor, cov: Tensor) -> Tensor:
        """That of the Dirichlet with the moments, summed over the labels."""
        moments = self.moments(mean, cov)
        if self.likelihood.domain.kind != "binary" or mean.shape[-1] == 1:
            return information_of_dirichlet(moments)
        others = self.likelihood.conditional(-self.form(mean, cov)[0])[0]
        pairs = ((others, moments.mean), (moments.aleatoric,) * 2, (moments.epistemic,) * 2)
        return information_of_dirichlet(Moments(*(torch.stack(pair, -1) for pair in pairs))).sum(-1)

    def error(self, mean: Tensor, cov: Tensor) -> Tensor:
        """Refused.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"integration_error: {self.name!r} is an approximation whose error is unknown. Ask for 'quadrature', "
            "whose error is known, and compare."
        )


def _information(probability: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """I(y; f) of each label, of the mean's shape."""
    nodes, log_weights = activation_nodes(mean, variance)
    weights, p = log_weights.exp()[..., None], torch.stack([probability(-nodes), probability(nodes)], -1)
    average = (weights * p).sum(-2, keepdim=True)
    return (weights[..., 0] * divergence(p, average)).sum(-1)


def _quadrature_sides(mean: Tensor, variance: Tensor) -> _Pair:
    rarer = log_expected_sigmoid(-mean.abs(), variance).exp()
    return torch.where(mean > 0, 1.0 - rarer, rarer), torch.where(mean > 0, rarer, 1.0 - rarer)


def _quadrature_parts(mean: Tensor, variance: Tensor, p: Tensor) -> _Pair:
    nodes, log_weights = activation_nodes(mean, variance)
    weights, at_nodes = log_weights.exp(), torch.sigmoid(nodes)
    aleatoric = (weights * at_nodes * torch.sigmoid(-nodes)).sum(-1)
    return aleatoric, (weights * (at_nodes - p[..., None]).square()).sum(-1)


def mackay(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """MacKay's logits κ μ, κ = (1 + πσ²/8)^(−½); the aleatoric share of the variance is κ."""
    scale = torch.rsqrt(1.0 + math.pi / 8.0 * variances(cov))
    return scale * mean, scale, 1.0 - scale


def _bridge(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A Beta of the mean σ(μ), the total count 1/(v σ²), v = σ(μ)σ(−μ), and the variance v/(count + 1)."""
    ratio = torch.sigmoid(mean) * torch.sigmoid(-mean) * variances(cov)
    return mean, 1.0 / (1.0 + ratio), ratio / (1.0 + ratio)


def _probit_score(mean: Tensor, variance: Tensor) -> Tensor:
    return mean * torch.rsqrt(1.0 + variance)


def _probit_parts(mean: Tensor, variance: Tensor, _: Tensor) -> _Pair:
    """With h = μ/√(1 + σ²) and ρ = σ²/(1 + σ²), Var[Φ(f)] = Φ₂(h, h; ρ) − Φ(h)².

    By Plackett's identity that is (1/2π) ∫₀^{asin ρ} exp(−h²/(1 + sin θ)) dθ, and the same integral from asin ρ to π/2
    is E[Φ(f)Φ(−f)]: both parts come without cancellation.
    """
    h = _probit_score(mean, variance)
    split = torch.atan2(variance, torch.sqrt(1.0 + 2.0 * variance))
    rest = torch.atan2(torch.sqrt(1.0 + 2.0 * variance), variance)
    fractions, weights = (part.to(h.device) for part in gauss_legendre(_ANGLES))

    def integral(start: Tensor, length: Tensor) -> Tensor:
        theta = start[..., None] + length[..., None] * fractions
        return length / (2 * math.pi) * (torch.exp(-h.square()[..., None] / (1.0 + theta.sin())) @ weights)

    return integral(split, rest), integral(torch.zeros_like(h), split)


def _probit_sides(mean: Tensor, variance: Tensor) -> _Pair:
    h = _probit_score(mean, variance)
    return torch.special.ndtr(h), torch.special.ndtr(-h)


def _probit_log_side(mean: Tensor, variance: Tensor) -> Tensor:
    return log_ndtr(_probit_score(mean, variance))
