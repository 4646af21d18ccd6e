"""A neural additive model of the progression of diabetes: what it says of each feature, and of one patient.

Run it with the picture to write: `python examples/additive_effects.py effects.png`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import bayescope as bs
from bayescope import plots


def main(path: str) -> None:
    """Fits, judges the model on patients left out, explains one of them and draws the most important effects."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X, X_new, y, y_new = train_test_split(X, y, test_size=0.25, random_state=0)
    model = bs.NeuralAdditiveRegressor(categorical=["sex"], random_state=0).fit(X, y)
    print(model.summary())
    answer = model.predict_distribution(X_new)
    low, high = answer.interval(0.95)
    inside = (low[:, 0] <= y_new) & (y_new <= high[:, 0])
    print(f"new patients: NLL {-np.mean(answer.log_prob(y_new)):.3f}, 95 % intervals hold {inside.mean():.0%} of y")
    print(model.explain(X_new[:1]).as_frame().round(1).to_string(index=False))
    important = model.importance()
    print(important.as_frame().round(2).to_string(index=False))
    curves = [model.effects(important.names[place]) for place in important.order[:6]]
    plots.style.save(plots.effects(curves, unit="progression"), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
