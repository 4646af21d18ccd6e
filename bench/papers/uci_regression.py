"""Regression on the published splits of Gal and Ghahramani (2016): the evidence beside MC dropout.

One hidden layer of 50 ReLU units, as published. The prior precision of each layer and the noise are learnt by the
evidence while training (Immer et al. 2021b): nothing is held out, and nothing is searched for. MC dropout's noise and
rate were searched for on validation rows, and it was trained 40 × 100 epochs (kin8nm 20 × 100).

With more than one mode, networks from as many starts are averaged with equal weights.

    python -m bench.papers.uci_regression [--sets yacht ...] [--seeds 0 1 ...] [--structure full] [--modes 1]

A seed is the number of a split, and that of the weights at the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import bayescope as bs
from bench.papers.common import Estimate, Record, chosen_of, experiment, mlp, options, timed, warned
from bench.papers.compared import section
from bench.papers.dropout_published import CAPPED, SETS, beside_dropout, missing_splits
from bench.papers.sets import regression_split
from bench.record import table

TRAINING: dict[str, Any] = {"lr": 1e-2, "optimizer": "adam", "schedule": "cosine", "steps": 10, "progress": False}
# More rows need fewer epochs. Fewer of kin8nm's splits are run, for time, and the table says how many.
PACES: dict[str, dict[str, int]] = {name: {"epochs": 400, "every": 20, "batch_size": 32} for name in SETS}
PACES["wine-quality-red"] = {"epochs": 100, "every": 10, "batch_size": 32}
PACES["kin8nm"] = {"epochs": 150, "every": 10, "batch_size": 128}
SPLITS = {"kin8nm": 10}
_METHOD = (
    "Not explained yet. It is the method, and neither the splits nor the network: our MC dropout is within two "
    "standard errors of the published figure there (`uci_regression_dropout.md`)."
)
CAUSES = {
    **{("log-likelihood", name): CAPPED for name in ("yacht", "energy")},
    **{(score, name): _METHOD for score in ("log-likelihood", "RMSE") for name in ("concrete", "kin8nm")},
    ("log-likelihood", "wine-quality-red"): _METHOD,
}


def task(name: str, split: int, *, structure: str, modes: int) -> Record:
    """One split."""
    rows = regression_split(name, split)
    record: Record = {"fit": {}}
    with warned(record["fit"]), timed(record["fit"]):
        posteriors = [
            bs.fit_evidence(
                mlp((rows.train.x.shape[1], 50, 1), nn.ReLU, start),
                tuple(rows.train),
                likelihood="gaussian",
                structure=structure,
                generator=start,
                **TRAINING,
                **PACES[name],
            )
            for start in range(split, split + 1000 * modes, 1000)
        ]
    # Each mode has learnt a noise of its own, so that predictives are averaged, and not posteriors.
    predictives = [q.predict(rows.test.x) for q in posteriors]
    each = torch.stack([p.log_prob(rows.test.y) for p in predictives])
    mean = torch.stack([p.mean[:, 0] for p in predictives]).mean(0)
    error = (mean - rows.test.y).numpy() * rows.scale
    low, high = predictives[0].interval(0.95)
    q = posteriors[0]
    return record | {
        "log_likelihood": float((each.logsumexp(0) - math.log(modes)).mean()) - math.log(rows.scale),
        "rmse": float(np.sqrt((error**2).mean())),
        "coverage": bs.metrics.coverage(low[:, 0], high[:, 0], rows.test.y),
        "noise_sd": float(q.likelihood.noise_variance) ** 0.5 * rows.scale,
        "epistemic_share": float((predictives[0].epistemic / predictives[0].variance).mean()),
        "log_evidence": float(q.log_evidence()),
        "effective_parameters": float(q.fit.effective_parameters()),
        "newton_decrement": float(q.fit.newton_decrement()),
    }


def tables(records: Sequence[Record], settings: Record) -> list[str]:
    """What was found, and the comparison with the published figures."""
    modes = settings.get("modes", 1)
    command = "python -m bench.papers.uci_regression" + (f" --modes {modes}" if modes > 1 else "")
    lines = [
        "# Regression on the published splits",
        "",
        f"Made by `{command}`. `fit_evidence` with a prior precision for each layer, the",
        f"GGN in the structure {settings['structure']},",
        f"{PACES['yacht']['epochs']} epochs in minibatches of {PACES['yacht']['batch_size']} (wine: "
        f"{PACES['wine-quality-red']['epochs']} epochs; kin8nm: {PACES['kin8nm']['epochs']} in minibatches of "
        f"{PACES['kin8nm']['batch_size']}), Adam at lr {TRAINING['lr']} falling to 0;",
        "in the units of the data, mean ± standard error over the splits that were run. No validation rows.",
        f"kin8nm is cut down to {SPLITS['kin8nm']} of its splits, for time.",
        f"Modes from {modes} start(s), equally weighted; coverage and γ are the first one's.",
        "",
    ]
    rows = []
    for name in SETS:
        ours = [record for record in records if record["set"] == name]
        if ours:
            rows.append(
                (
                    name,
                    str(len(ours)),
                    Estimate.of([record["log_likelihood"] for record in ours]).text(),
                    Estimate.of([record["rmse"] for record in ours]).text(),
                    f"{Estimate.of([record['coverage'] for record in ours]).mean:.2f}",
                    f"{np.median([record['noise_sd'] for record in ours]):.3g}",
                    f"{np.median([record['effective_parameters'] for record in ours]):.0f}",
                    f"{np.median([record['fit']['seconds'] for record in ours]):.0f}",
                )
            )
    header = ("set", "splits", "log-likelihood", "RMSE", "95 % coverage", "noise sd, median", "γ, median", "s, median")
    how = [
        "The published figures are MC dropout's (Gal and Ghahramani 2016): another method on the same network and the",
        "same splits, by which the differences are paired. Of this method the reference data hold no published figure.",
        missing_splits(records),
    ]
    return [*lines, table(header, rows), "", *section(beside_dropout(records), CAUSES, how)]


def main(
    argv: Sequence[str] | None = None,
    *,
    modes: int = 1,
    sets: Sequence[str] = SETS,
    module: str = "bench.papers.uci_regression",
) -> None:
    """Runs what is missing, prints and saves; so many modes of these sets unless the arguments say otherwise."""
    parser = options(__doc__, SETS, range(20))
    parser.set_defaults(sets=list(sets))
    parser.add_argument("--structure", default="full")
    parser.add_argument("--modes", type=int, default=modes)
    chosen = chosen_of(parser, module, argv)
    settings = {"structure": chosen.structure, "training": TRAINING, "paces": PACES}
    name = "uci_regression"
    if chosen.modes > 1:
        settings, name = settings | {"modes": chosen.modes}, f"uci_regression_{chosen.modes}_modes"
    keys = [(each, split) for each in chosen.sets for split in chosen.seeds if split < SPLITS.get(each, 20)]
    one = partial(task, structure=chosen.structure, modes=chosen.modes)
    experiment(chosen, name, settings, one, keys, partial(tables, settings=settings))


if __name__ == "__main__":
    main()
