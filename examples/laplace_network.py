"""A network on two moons: trained, turned into a posterior, tuned, judged and drawn.

Run it with the picture to write: `python examples/laplace_network.py moons.png`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import make_moons
from torch import nn

import bayescope as bs
from bayescope.plots import decision_surfaces, style


def main(path: str) -> None:
    """Draws p(lower moon) by the trained network and by its posterior, and prints what each loses on new rows."""
    train, held_out, new = (make_moons(rows, noise=0.25, random_state=rows) for rows in (60, 100, 2000))
    network = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    weak = 0.1  # the prior precision that the network is trained with, and Laplace's too: it is one model
    point = bs.fit_map(network, train, likelihood="bernoulli", prior_precision=weak, optimizer="lbfgs", epochs=20)
    q = bs.laplace(point.model, train, likelihood="bernoulli", prior_precision=weak)
    tuned = bs.tune_prior(q, method="validation", data=held_out)
    posteriors = {"map": point, "laplace": q, "Laplace, tuned": tuned}
    for name, posterior in posteriors.items():
        print(f"{name}: NLL {bs.metrics.nll(posterior.predict(new[0]).probs, new[1]):.3f}")
    print(tuned.summary())
    predictors = {name: lambda x, p=p: np.asarray(p.predict(x).probs) for name, p in posteriors.items()}
    style.save(decision_surfaces(predictors, *train, names=("x₁", "x₂"), classes=("upper", "lower")), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
