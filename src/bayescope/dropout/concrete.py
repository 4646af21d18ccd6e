"""Concrete dropout: masks that are nearly 0 or 1 and differentiable in their rate, so that the rate can be learnt.

Gal, Hron and Kendall 2017, "Concrete dropout", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.private_draws import by_row, generator_on

# The temperature t of the relaxation (section 4 of the paper has 0.1 throughout), and the rate that learning starts at.
TEMPERATURE = 0.1
START = 0.1


@final
class ConcreteDropout(nn.Module):
    """Dropout at a learnt rate r: x (1 − z)/(1 − r), z = σ((logit r + logit u)/t), u uniform (Eq. 5).

    In eval mode it does nothing, as all dropout.

    Args:
        kind: the dropout that this one is a relaxation of.
        units: K, how many units are dropped or not: the columns of the weight after it.
        like: a tensor of the device and the dtype of that weight.

    Attributes:
        logit: logit r, a scalar parameter.
        units: K.
    """

    def __init__(self, kind: type[nn.Module], units: int, like: Tensor) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(START, dtype=torch.float64).logit().to(like.device, like.dtype))
        self.units, self._kind = units, kind

    def forward(self, x: Tensor) -> Tensor:
        """x with its units dropped, nearly or nearly not."""
        if not self.training:
            return x
        shape = x.shape if self._kind is nn.Dropout else torch.Size([*x.shape[:2], *[1] * (x.ndim - 2)])

        def draw(wanted: Sequence[int]) -> Tensor:
            return torch.rand(wanted, dtype=x.dtype, device=x.device, generator=generator_on(x.device))

        noise = by_row(draw, shape, 0).logit()  # ±∞ at the ends, where σ is flat
        kept = torch.sigmoid(-(self.logit + noise) / TEMPERATURE)
        return x * kept / torch.sigmoid(-self.logit)

    def rate(self) -> float:
        """The dropout rate that has been learnt so far."""
        return float(torch.sigmoid(self.logit.detach().to(torch.float64)))

    def odds(self) -> Tensor:
        """r/(1 − r), in autograd's graph."""
        return self.logit.exp()

    def entropy(self) -> Tensor:
        """K H(r), H(r) = −r ln r − (1 − r) ln(1 − r): the entropy of a row's masks, in autograd's graph."""
        r = torch.sigmoid(self.logit)
        return -self.units * (r * F.logsigmoid(self.logit) + (1 - r) * F.logsigmoid(-self.logit))

    def settled(self) -> nn.Module:
        """Dropout at the rate that was learnt."""
        return self._kind(self.rate())

    def extra_repr(self) -> str:
        """The kind of dropout, and over how many units."""
        return f"{self._kind.__name__}, units={self.units}"
