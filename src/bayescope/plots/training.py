"""Training curves: the negative log likelihood, the KL divergence and the ELBO over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayescope.errors import InputError
from bayescope.plots import style

# The quantities of a trace that have a panel, in this order, and how they are headed.
QUANTITIES = {
    "nll": "−log p(y∣f)",
    "validation_nll": "−log p(y∣f), validation",
    "penalty": "penalty",
    "kl": "KL(q∥p)",
    "elbo": "ELBO",
}
# The share of the epochs, from the first, that a panel's limits do not follow: there a curve may leave the panel.
FALL = 0.1


def training_curves(
    traces: Mapping[str, Mapping[str, Sequence[float]]], *, log_evidence: float | None = None
) -> Figure:
    """One panel a quantity, one line a training; sums over all rows, in nats.

    Args:
        traces: by the name of a posterior its `Posterior.trace`, lists with a number per epoch. Drawn is what they have
            of "nll", "validation_nll", "penalty" (½ (θ−m)ᵀP₀(θ−m)), "kl" and "elbo".
        log_evidence: log p(y), where it is known: no ELBO lies above that line.

    Raises:
        InputError: if no trace has one of these quantities.
    """
    chosen = [name for name in QUANTITIES if any(len(trace.get(name, ())) for trace in traces.values())]
    if not chosen:
        known = ", ".join(sorted({name for trace in traces.values() for name in trace})) or "nothing"
        raise InputError(f"traces: expected one with any of {', '.join(QUANTITIES)}, got {known}. Train first.")
    key = [Line2D([], [], color=style.colour(name), ls=style.dash(name), label=style.label(name)) for name in traces]
    if log_evidence is not None:
        key.append(Line2D([], [], color=style.MUTED, lw=1, ls=":", label="log evidence"))
    with style.house():
        figure, axes = style.panels(
            len(chosen),
            width=2.9,
            height=2.5,
            key=key,
            title="Training",
            subtitle="Sums over all rows, in nats; each row as the epoch meets it.",
        )
        for panel, quantity in zip(axes, chosen, strict=True):
            curves = {name: np.asarray(trace[quantity]) for name, trace in traces.items() if trace.get(quantity)}
            _draw(panel, curves)
            panel.set_title(QUANTITIES[quantity])
            if quantity == "elbo" and log_evidence is not None:
                low, high = panel.get_ylim()
                panel.axhline(log_evidence, color=style.MUTED, lw=1, ls=":", zorder=1)
                panel.set_ylim(low, max(high, log_evidence + 0.05 * (log_evidence - low)))
        figure.supxlabel("epoch", fontsize=9.5)
    return figure


def _draw(panel: Axes, curves: Mapping[str, np.ndarray]) -> None:
    for name, values in curves.items():
        look = {"color": style.colour(name), "ls": style.dash(name), "lw": 1.4}
        panel.plot(np.arange(1, len(values) + 1), values, **look)  # type: ignore[arg-type]
    settled = np.concatenate([values[int(FALL * len(values)) :] for values in curves.values()])
    low, high = float(settled.min()), float(settled.max())
    margin = 0.05 * (high - low) or 0.5
    panel.set_ylim(low - margin, high + margin)
    panel.locator_params(axis="x", nbins=5, integer=True)
