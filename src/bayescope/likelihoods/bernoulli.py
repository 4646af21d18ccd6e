"""The Bernoulli likelihood, with logit or probit link, for one label or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import OptionError
from bayescope.likelihoods.information import divergence, information_of_dirichlet
from bayescope.likelihoods.likelihood import INTEGRALS, Moments, refuse_components, refuse_unknown_error, variances
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
class Bernoulli:
    """p(y = 1∣f) = σ(f) for the logit link and Φ(f) for the probit link; with s = (2y − 1) f, p(y∣f) = link(s).

    With C = 1 output, labels are 0 or 1 and the outcome columns are the K = 2 indicators of the classes 0 and 1.
    With C > 1 (multilabel), each output has a label of its own, independent of the others given f, and the K = C
    outcome columns are the labels. The canonical targets are float64 zeros and ones of shape (N, C).

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

    link: str = "logit"

    def __post_init__(self) -> None:
        checks.choice("link", self.link, _LINKS)

    @property
    def name(self) -> str:
        """``"bernoulli"`` for the logit link, ``"probit"`` for the probit link."""
        return "bernoulli" if self.link == "logit" else "probit"

    @property
    def discrete(self) -> bool:
        """True: y is a label."""
        return True

    @property
    def elementwise(self) -> bool:
        """True: a label's probability rises with its own output."""
        return True

    def targets(self, y: Any, outputs: int) -> Tensor:
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

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_c log link(s_c), shape (..., N)."""
        return self._log_link(_sign(y, f) * f).sum(-1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f: (2y − 1) σ(−s), or (2y − 1) φ(s)/Φ(s), shape (..., N, C)."""
        sign = _sign(y, f)
        s = sign * f
        return sign * (torch.sigmoid(-s) if self.link == "logit" else inverse_mills(s))

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """The observed Λ, diagonal, shape (..., N, C, C): σ(f)σ(−f), or v(s)(s + v(s)), v = φ/Φ."""
        return _diagonal(self._observed(f, y))

    def ggn_diagonal(self, f: Tensor, y: Tensor) -> Tensor:
        """The diagonal of Λ, shape (..., N, C)."""
        return self._observed(f, y)

    def ggn_sum(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ_n Λ_n, diagonal, shape (..., C, C)."""
        return torch.diag_embed(self._observed(f, y).sum(-2))

    def ggn_sqrt(self, f: Tensor, y: Tensor) -> Tensor:
        """The diagonal root of `hessian`, shape (..., N, C, C)."""
        return _diagonal(self._observed(f, y).sqrt())

    def fisher_sqrt(self, f: Tensor) -> Tensor:
        """The diagonal root of the expected Λ, σ(f)σ(−f) or φ(f)²/(Φ(f)Φ(−f)), shape (..., N, C, C)."""
        if self.link == "logit":
            return _diagonal((torch.sigmoid(f) * torch.sigmoid(-f)).sqrt())
        # φ²/(Φ(f)Φ(−f)) is the product of the two Mills ratios: no underflow in either tail
        return _diagonal((inverse_mills(f) * inverse_mills(-f)).sqrt())

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws labels, float64 zeros and ones of f's shape (..., N, C)."""
        uniform = torch.rand(f.shape, dtype=torch.float64, device=generator.device, generator=generator).to(f.device)
        return (uniform < self._link(f.to(torch.float64))).to(torch.float64)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """p and p(1 − p) per outcome column, each (..., N, K)."""
        p, q = self._link(f), self._link(-f)
        return _columns(p, q), _columns(p * q, p * q)

    def integral(self, name: str | None, outputs: int) -> str:
        """Resolves the integral over f: "quadrature" by default for the logit link, "exact" for the probit link.

        Raises:
            OptionError: if the name is unknown.
        """
        if self.link == "probit" and name in (None, "exact", *INTEGRALS):
            return "exact"
        return checks.choice("integral", "quadrature" if name is None else name, INTEGRALS)

    def needs_covariance(self, integral: str) -> bool:
        """Not where labels are multiplied as if independent: by "mackay" and "laplace_bridge"."""
        return integral not in ("mackay", "laplace_bridge")

    def predictive(self, mean: Tensor, cov: Tensor, integral: str) -> Moments:
        """Moments of the outcome columns, each (N, K), from the labels' marginals.

        Raises:
            OptionError: if the integral is not a deterministic one of this link.
        """
        p, q, aleatoric, epistemic = self._rule(integral, _MOMENTS)(mean.to(torch.float64), variances(cov))
        return Moments(_columns(p, q), _columns(aleatoric, aleatoric), _columns(epistemic, epistemic))

    def predictive_mean(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """The labels' probabilities, shape (N, K): most of the work of `predictive` is in its variances.

        Raises:
            OptionError: if the integral is not a deterministic one of this link.
        """
        return _columns(*self._rule(integral, _MEANS)(mean.to(torch.float64), variances(cov)))

    def predictive_log_prob(self, mean: Tensor, cov: Tensor, y: Tensor, integral: str) -> Tensor:
        """log E[Π_c link((2y_c − 1) f_c)], shape (N,).

        Raises:
            OptionError: if the integral is not a deterministic one of this link.
        """
        mean, cov, variance = mean.to(torch.float64), cov.to(torch.float64), variances(cov)
        log_prob = self._rule(integral, _LOG_PROBS)(_sign(y, mean) * mean, variance).sum(-1)
        if not self.needs_covariance(integral):
            return log_prob
        correlated = (cov - torch.diag_embed(variance)).flatten(1).any(-1)
        if correlated.any():
            root = principal_root(cov[correlated], variance[correlated].amax(-1))
            joint = log_expected(self, mean[correlated], root, y[correlated])
            log_prob = log_prob.index_put((correlated,), joint)
        return log_prob

    def distributions(self, columns: Tensor, outputs: int) -> Tensor:
        """One distribution over the classes 0 and 1 for each label, shape (..., N, C, 2)."""
        return columns[..., None, :] if outputs == 1 else torch.stack([1.0 - columns, columns], -1)

    def mutual_information(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """Σ_c I(y_c; f_c), shape (N,): one-dimensional integrals, right to 1e-10, by "quadrature" and "exact".

        By "mackay" and "laplace_bridge" it is that of the Beta with the moments that they give.

        Raises:
            OptionError: if the integral is not a deterministic one of this link.
        """
        mean, variance = mean.to(torch.float64), variances(cov)
        moments = self._rule(integral, _MOMENTS)
        if integral in ("quadrature", "exact"):
            blocks = zip(mean.split(_ROW_BLOCK), variance.split(_ROW_BLOCK), strict=True)
            return torch.cat([self._information(*block) for block in blocks]).sum(-1)
        p, q, aleatoric, epistemic = moments(mean, variance)
        both = (torch.stack(pair, -1) for pair in ((q, p), (aleatoric, aleatoric), (epistemic, epistemic)))
        return information_of_dirichlet(Moments(*both)).sum(-1)

    def integration_error(self, mean: Tensor, cov: Tensor, integral: str) -> Tensor:
        """Zero, shape (N, K): the means are one-dimensional integrals, right to 1e-10.

        Raises:
            UnsupportedError: for "mackay" and "laplace_bridge".
        """
        refuse_unknown_error(integral)
        self._rule(integral, _MOMENTS)
        zero = torch.zeros_like(mean, dtype=torch.float64)
        return _columns(zero, zero)

    def components(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Refused: a label is no mixture of Gaussians."""
        refuse_components(self.name)

    def _rule(self, integral: str, table: dict[str, Any]) -> Any:
        names = ["exact"] if self.link == "probit" else [name for name in table if name != "exact"]
        if integral not in names:
            raise OptionError.unknown("integral", integral, names)
        return table[integral]

    def _link(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)

    def _information(self, mean: Tensor, variance: Tensor) -> Tensor:
        """I(y; f) of each label, of the mean's shape."""
        nodes, log_weights = activation_nodes(mean, variance)
        weights, p = log_weights.exp()[..., None], torch.stack([self._link(-nodes), self._link(nodes)], -1)
        average = (weights * p).sum(-2, keepdim=True)
        return (weights[..., 0] * divergence(p, average)).sum(-1)

    def _log_link(self, s: Tensor) -> Tensor:
        return logsigmoid(s) if self.link == "logit" else log_ndtr(s)

    def _observed(self, f: Tensor, y: Tensor) -> Tensor:
        if self.link == "logit":
            return torch.sigmoid(f) * torch.sigmoid(-f)
        return inverse_mills_slope(_sign(y, f) * f)


def _sign(y: Tensor, f: Tensor) -> Tensor:
    return 2.0 * y.to(f) - 1.0


def _diagonal(entries: Tensor) -> Tensor:
    """Diagonal matrices; for one output without a copy."""
    return entries[..., None] if entries.shape[-1] == 1 else torch.diag_embed(entries)


def _columns(one: Tensor, zero: Tensor) -> Tensor:
    """Outcome columns: the classes 0 and 1 of a single label, or the labels themselves."""
    return torch.cat([zero, one], -1) if one.shape[-1] == 1 else one


# The rules take the mean and variance of f, any shape, and return p̄ = E[p], 1 − p̄, E[p(1 − p)] and Var[p].
_Rule = tuple[Tensor, Tensor, Tensor, Tensor]


def _quadrature(mean: Tensor, variance: Tensor) -> _Rule:
    p, q = _quadrature_mean(mean, variance)
    blocks = zip(mean.split(_ROW_BLOCK), variance.split(_ROW_BLOCK), p.split(_ROW_BLOCK), strict=True)
    parts = [_quadrature_parts(*block) for block in blocks]
    return p, q, torch.cat([aleatoric for aleatoric, _ in parts]), torch.cat([epistemic for _, epistemic in parts])


def _quadrature_mean(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    rarer = log_expected_sigmoid(-mean.abs(), variance).exp()
    return torch.where(mean > 0, 1.0 - rarer, rarer), torch.where(mean > 0, rarer, 1.0 - rarer)


def _quadrature_parts(mean: Tensor, variance: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    nodes, log_weights = activation_nodes(mean, variance)
    weights, at_nodes = log_weights.exp(), torch.sigmoid(nodes)
    aleatoric = (weights * at_nodes * torch.sigmoid(-nodes)).sum(-1)
    return aleatoric, (weights * (at_nodes - p[..., None]).square()).sum(-1)


def _sides(link: Callable[[Tensor], Tensor], score: Tensor) -> tuple[Tensor, Tensor]:
    """p̄ and 1 − p̄, of which neither is a difference."""
    return link(score), link(-score)


def _mackay_scale(variance: Tensor) -> Tensor:
    return torch.rsqrt(1.0 + math.pi / 8.0 * variance)


def _mackay(mean: Tensor, variance: Tensor) -> _Rule:
    scale = _mackay_scale(variance)
    p, q = _sides(torch.sigmoid, scale * mean)
    return p, q, scale * p * q, (1.0 - scale) * p * q


def _laplace_bridge(mean: Tensor, variance: Tensor) -> _Rule:
    # The Beta's total count is 1/(v σ²), and its variance p(1 − p)/(count + 1).
    p, q = _sides(torch.sigmoid, mean)
    ratio = p * q * variance
    return p, q, p * q / (1.0 + ratio), p * q * ratio / (1.0 + ratio)


def _probit_score(mean: Tensor, variance: Tensor) -> Tensor:
    return mean * torch.rsqrt(1.0 + variance)


def _probit(mean: Tensor, variance: Tensor) -> _Rule:
    """E[Φ(f)] = Φ(h) and, with ρ = σ²/(1 + σ²), Var[Φ(f)] = Φ₂(h, h; ρ) − Φ(h)².

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

    return *_sides(torch.special.ndtr, h), integral(split, rest), integral(torch.zeros_like(h), split)


_MOMENTS = {"quadrature": _quadrature, "mackay": _mackay, "laplace_bridge": _laplace_bridge, "exact": _probit}
# The same for p̄ and 1 − p̄ alone.
_MEANS = {
    "quadrature": _quadrature_mean,
    "mackay": lambda mean, variance: _sides(torch.sigmoid, _mackay_scale(variance) * mean),
    "laplace_bridge": lambda mean, variance: _sides(torch.sigmoid, mean),
    "exact": lambda mean, variance: _sides(torch.special.ndtr, _probit_score(mean, variance)),
}
# The same for log E[link(s)], from the mean and variance of s.
_LOG_PROBS = {
    "quadrature": log_expected_sigmoid,
    "mackay": lambda mean, variance: logsigmoid(_mackay_scale(variance) * mean),
    "laplace_bridge": lambda mean, variance: logsigmoid(mean),
    "exact": lambda mean, variance: log_ndtr(_probit_score(mean, variance)),
}
