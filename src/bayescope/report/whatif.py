"""What if a row were another: what a page needs to predict any row of a linear or an additive model by itself."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from bayescope.errors import UnsupportedError
from bayescope.estimators.base import TableEstimator
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.plots.numbers import cell
from bayescope.report.judged import Judged
from bayescope.report.reasons import Explanations
from bayescope.report.summands import Choice, Sum, as_sum

# Numbers of the roots, which bounds what they add to the page: 2.7 bytes each.
MOST_NUMBERS = 120_000
# Roots are integers of 16 bits, times a scale for each summand.
LARGEST = 32_767
# Rows are predicted by the page to within this share of the latent's spread over them, or there is no what-if.
NEAR = 0.05


def what_if(estimator: TableEstimator, judged: Judged, reasons: Explanations) -> dict[str, Any] | str:
    """The sum that f is, as data for the page's script, or why there is none, as a sentence.

    Args:
        estimator: fitted.
        judged: the rows.
        reasons: of the rows from which one may start.
    """
    try:
        found = as_sum(estimator, judged, reasons.places)
        link, noise = _link(estimator.posterior_)
        numbers = sum(root.size for root in found.roots)
        if numbers > MOST_NUMBERS:
            raise UnsupportedError(f"the page would have to hold {numbers:,} numbers of its posterior")
        kept = _as_kept(found)
        rows = found.positions(judged, reasons.places)
        off = _difference(estimator, judged, reasons.places, kept, rows)
    except UnsupportedError as error:
        return f"This page does not predict other rows: {str(error).rstrip('.')}."
    return {
        "columns": [_column(choice, rows[:, place]) for place, choice in enumerate(found.choices)],
        "parts": [
            {
                "name": summand.name.replace(" & ", " × "),
                "columns": list(summand.columns),
                "grids": [_grid(grid) for grid in summand.grids],
                "mean": _base64(summand.mean.astype("<f4")),
                "group": group,
                "scale": _scale(root),
                "rank": root.shape[2],
                "root": _base64(np.round(root / _scale(root)).astype("<i2")),
            }
            for summand, root, group in zip(found.summands, found.roots, found.groups, strict=True)
        ],
        "order": _order(found),
        "outputs": found.summands[0].mean.shape[1],
        "link": link,
        "noise": noise,
        "rows": [[None if value != value else value for value in row] for row in rows.tolist()],
        "difference": off,
        "unit": reasons.unit,
        "target": judged.target,
        "classes": list(judged.classes),
    }


def _link(posterior: Any) -> tuple[str, float]:
    """How E(y∣f) comes from f, and the noise variance.

    Raises:
        UnsupportedError: where the page has no integral over f for it.
    """
    likelihood: Likelihood = posterior.likelihood.unweighted
    match likelihood:
        case Bernoulli() if posterior.function.outputs == 1:
            return likelihood.link, 0.0
        case Categorical():
            return "softmax", 0.0
        case Gaussian() if posterior.function.outputs == 1:
            return "identity", float(np.ravel(likelihood.noise_variance)[0])
    raise UnsupportedError(f"it has no integral over f for a {likelihood.name} likelihood")


def _as_kept(found: Sum) -> Sum:
    """With the roots as the page reads them."""
    roots = tuple(_scale(root) * np.round(root / _scale(root)) for root in found.roots)
    return Sum(found.choices, found.summands, roots, found.groups)


def _scale(root: np.ndarray) -> float:
    return float(np.abs(root).max(initial=0.0)) / LARGEST or 1.0


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _grid(values: np.ndarray) -> list[float] | dict[str, float]:
    """A grid's numbers, or its ends and length where they are evenly spaced."""
    even = np.linspace(values[0], values[-1], len(values))
    if len(values) > 2 and np.allclose(values, even, rtol=1e-12, atol=0.0):
        return {"from": float(values[0]), "to": float(values[-1]), "count": len(values)}
    listed: list[float] = values.astype(np.float64).tolist()
    return listed


def _difference(
    estimator: TableEstimator, judged: Judged, places: np.ndarray, kept: Sum, rows: np.ndarray
) -> dict[str, float]:
    """The largest difference between the page's f and the model's over the rows from which one may start.

    Raises:
        UnsupportedError: if it is so large that f is no sum over these columns.
    """
    whole = ~np.isnan(rows).any(axis=1)
    if not whole.any():
        return {"mean": 0.0, "sd": 0.0, "rows": 0}
    mean, covariance = kept.at(rows[whole])
    predictive = estimator.predict_distribution(judged.rows(places[whole]))
    latent, spread = np.asarray(predictive.latent_mean), np.asarray(predictive.latent_cov)
    outputs = latent.shape[1]
    if outputs > 1:
        centred = np.eye(outputs) - 1.0 / outputs
        latent, spread = latent @ centred, centred @ spread @ centred
    sds = [np.sqrt(np.clip(np.diagonal(each, axis1=1, axis2=2), 0.0, None)) for each in (covariance, spread)]
    off, off_sd = float(np.abs(mean - latent).max()), float(np.abs(sds[0] - sds[1]).max())
    if max(off, off_sd) > NEAR * max(float(latent.std()), float(sds[1].max()), 1e-12):
        raise UnsupportedError("its inputs mix columns, so that f is not a sum over them")
    return {"mean": off, "sd": off_sd, "rows": int(whole.sum())}


def _column(choice: Choice, rows: np.ndarray) -> dict[str, Any]:
    """A column's control: labels, those of most rows first, or numbers; and what is chosen first."""
    shown: dict[str, Any] = {"name": choice.column.name}
    if not choice.labels:
        grid = choice.values.astype(np.float64)
        return shown | {"grid": _grid(grid), "stops": choice.stops, "usual": choice.usual}
    counts = np.bincount(rows[~np.isnan(rows)].astype(int), minlength=len(choice.values))
    order = np.argsort(-counts, kind="stable").tolist()
    return shown | {
        "labels": [cell(value) for value in choice.values],
        "order": order,
        "usual": choice.values.tolist().index(choice.usual),
    }


def _order(found: Sum) -> list[int]:
    """Columns by how far their summands move f over their values."""
    size = np.zeros(len(found.choices))
    for summand in found.summands:
        size[list(summand.columns)] += float(summand.mean.std(axis=0).max())
    return np.argsort(-size, kind="stable").tolist()
