"""Outcomes of real tables that are no Gaussian numbers: rentals, visits, claims, costs and survival, beside peers.

Each table is split three times at random. Scores are means over the test rows of all splits: NLL is the negative log
probability of the outcome as it is (of a whole number k for a Gaussian that of k − ½ to k + ½, of a cost of 0 that of 0
and below), CRPS and RMSE have the unit of the outcome, coverage is the share of test rows in the central 90 % interval,
and *below 0* the share of intervals that begin there. Peers that predict a mean alone have the likelihood that is
named, with hyperparameters fitted to their training rows; EBM has 2 outer bags, since 14 take minutes. Our estimators
have their defaults. Times are of the fit, in seconds of CPU.

    python -m bench.outcomes --data FOLDER [--tables bikes,visits] [--no-peers] [--quick]

The folder holds tables that packages carry: Bikeshare.csv (ISLP), randhie.csv (statsmodels), Insurance.csv (MASS) and
MedExp.csv (Ecdat, both in pydataset), gbsg2.csv and rossi.csv (lifelines), and wine-quality-red/data.txt (UCI). A table
that is not there is left out.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike

import bayescope as bs
from bayescope.latent import GaussianLatent
from bayescope.likelihoods import Likelihood
from bayescope.predictive import Predictive
from bench import record

SPLITS, QUICK_ROWS, RATINGS = 3, 150, 11
Numbers = np.ndarray


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table: inputs, outcomes (times and events for lifetimes) and exposures."""

    X: pd.DataFrame
    y: Numbers
    exposure: Numbers | None = None

    def taken(self, at: Numbers) -> Rows:
        """Some of them."""
        return Rows(self.X.iloc[at], self.y[at], None if self.exposure is None else self.exposure[at])

    @property
    def offset(self) -> Numbers | None:
        """The log of the exposure."""
        return None if self.exposure is None else np.log(self.exposure)

    @property
    def numbers(self) -> pd.DataFrame:
        """The inputs with a column of 0 and 1 for each label but the first."""
        return pd.get_dummies(self.X, drop_first=True).astype(float)


# What a model answers for new rows, from the rows that it was fitted to: a `Predictive`, or what has its scores
Model = Callable[[Rows, Rows], Any]


def point(f: ArrayLike, likelihood: Likelihood) -> Predictive:
    """The answer of a peer that says f alone."""
    mean = torch.as_tensor(np.asarray(f, dtype=np.float64)).reshape(-1, 1)
    return Predictive(GaussianLatent(mean, torch.zeros_like(mean), "quadrature"), likelihood)


def fitted(likelihood: Likelihood, f: ArrayLike, y: Numbers) -> Likelihood:
    """The likelihood with the hyperparameters under which the training rows are most probable."""
    targets = likelihood.targets(y, 1)
    names = likelihood.learnable
    outputs = torch.as_tensor(np.asarray(f, dtype=np.float64)).reshape(-1, 1)
    return likelihood.starting(targets).fitted(names, outputs, targets) if names else likelihood


def ours(kind: str, likelihood: str, categorical: tuple[str, ...] = ()) -> Model:
    """One of our estimators, with its defaults."""

    def answer(train: Rows, new: Rows) -> Predictive:
        if kind == "GLM":
            labels = [name for name in categorical if name in train.X]
            model: Any = bs.BayesianGeneralizedLinearModel(likelihood=likelihood, categorical=labels or None)
        else:
            more = {"interactions": "auto"} if kind == "additive with pairs" else {}
            make: Any = bs.BayesianMLPRegressor if kind == "MLP" else bs.NeuralAdditiveRegressor
            model = make(likelihood=likelihood, random_state=0, **more)
        X, X_new, options, options_new = train.X, new.X, {}, {}
        if train.exposure is not None and likelihood != "gaussian" and kind != "MLP":
            options, options_new = {"offset": train.offset}, {"offset": new.offset}
        elif train.exposure is not None:
            X, X_new = X.assign(log_exposure=train.offset), X_new.assign(log_exposure=new.offset)
        y = bs.Censored(*train.y.T) if train.y.ndim == 2 else train.y
        return model.fit(X, y, **options).predict_distribution(X_new, **options_new)

    return answer


@cache
def boosting(objective: str, train: Rows) -> Any:
    """interpret's explainable boosting machine, fitted once for all likelihoods of its means."""
    from interpret.glassbox import ExplainableBoostingRegressor

    model = ExplainableBoostingRegressor(objective=objective, random_state=0, n_jobs=1, outer_bags=2)
    return model.fit(train.X, train.y, init_score=train.offset)


def boosted(objective: str, likelihood: Likelihood) -> Model:
    """Its means with a likelihood."""

    def answer(train: Rows, new: Rows) -> Predictive:
        model = boosting(objective, train)
        means = [np.asarray(model.predict(rows.X, init_score=rows.offset)) for rows in (train, new)]
        f, f_new = (np.log(np.maximum(mean, 1e-12)) for mean in means)
        return point(f_new, fitted(likelihood, f, train.y))

    return answer


def natural(train: Rows, new: Rows) -> Predictive:
    """NGBoost with a Poisson distribution."""
    from ngboost import NGBRegressor
    from ngboost.distns import Poisson

    model = NGBRegressor(Dist=Poisson, random_state=0, verbose=False).fit(train.numbers.to_numpy(), train.y)
    rate = model.pred_dist(new.numbers.to_numpy()).params["mu"]
    return point(np.log(rate), bs.Poisson())


def negative_binomial(train: Rows, new: Rows) -> Predictive:
    """statsmodels' negative binomial, whose dispersion is learnt with the weights."""
    from statsmodels import api

    X, X_new = train.numbers, new.numbers
    keep = X.columns[X.std() > 0]
    design, design_new = (api.add_constant(each[keep], has_constant="add") for each in (X, X_new))
    found = api.NegativeBinomial(train.y, design, offset=train.offset).fit(disp=0, maxiter=500, method="bfgs")
    f = design_new.to_numpy() @ found.params.to_numpy()[:-1]
    offset = 0.0 if new.offset is None else new.offset
    return point(f + offset, bs.NegativeBinomial(float(found.params.iloc[-1])))


def accelerated(name: str) -> Model:
    """lifelines' fitter of an accelerated failure time."""

    def answer(train: Rows, new: Rows) -> Predictive:
        import lifelines

        keep = train.numbers.columns[train.numbers.std() > 0]
        frame = train.numbers[keep].assign(time=train.y[:, 0], event=train.y[:, 1])
        found = getattr(lifelines, name)().fit(frame, "time", "event").params_
        place, spread = ("lambda_", "rho_") if name == "WeibullAFTFitter" else ("mu_", "sigma_")
        f = new.numbers[keep].to_numpy() @ found[place][keep].to_numpy() + found[place]["Intercept"]
        value = float(np.exp(found[spread]["Intercept"]))
        return point(f, bs.Weibull(value) if name == "WeibullAFTFitter" else bs.LogNormal(value))

    return answer


def ordered(make: Callable[[], Any]) -> Callable[[Rows, Rows], Numbers]:
    """The probabilities of the ratings 0 to 10, shape (N, 11): of a Gaussian those of all numbers that round to one."""

    def answer(train: Rows, new: Rows) -> Numbers:
        model = make()
        gaussian = getattr(model, "likelihood", None) == "gaussian" or isinstance(model, bs.BayesianLinearRegression)
        model.fit(train.X, train.y if gaussian else train.y.astype(int))
        found = np.zeros((len(new.y), RATINGS))
        classes = np.unique(train.y.astype(int))
        if gaussian:
            p = model.predict_distribution(new.X)
            inner = [np.asarray(p.cdf(np.full(len(new.y), c + 0.5)))[:, 0] for c in classes[:-1]]
            found[:, classes] = np.diff([np.zeros(len(new.y)), *inner, np.ones(len(new.y))], axis=0).T
        else:
            found[:, classes] = model.predict_proba(new.X)
        return found

    return answer


@final
@dataclass(frozen=True)
class TwoParts:
    """Whether a cost is above 0 by logistic regression, and how high it then is by a log-normal model: by draws."""

    above: Numbers
    height: Predictive
    draws: Numbers

    @classmethod
    def of(cls, train: Rows, new: Rows) -> TwoParts:
        """Both linear models with their defaults."""
        some = train.y > 0
        above = bs.BayesianLogisticRegression().fit(train.X, some).predict_proba(new.X)[:, 1]
        model = bs.BayesianGeneralizedLinearModel(likelihood="log_normal").fit(train.X[some], train.y[some])
        height = model.predict_distribution(new.X)
        draws = height.sample(2000, generator=0)[..., 0]
        return cls(above, height, draws * (np.random.default_rng(0).random(draws.shape) < above))

    @property
    def mean(self) -> Numbers:
        """The expected costs."""
        return (self.above * np.asarray(self.height.mean)[:, 0])[:, None]

    def log_prob(self, y: Numbers) -> Numbers:
        """Of a 0 its probability."""
        density = np.asarray(self.height.log_prob(np.where(y > 0, y, 1.0)))
        return np.where(y > 0, np.log(self.above) + density, np.log1p(-self.above))

    def interval(self, level: float) -> tuple[Numbers, Numbers]:
        """Between quantiles of the draws."""
        low, high = np.quantile(self.draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        return low[:, None], high[:, None]

    def crps(self, y: Numbers) -> Numbers:
        """E∣Y − y∣ − ½ E∣Y − Y'∣ over the draws."""
        half = len(self.draws) // 2
        return np.abs(self.draws - y).mean(0) - 0.5 * np.abs(self.draws[:half] - self.draws[half:]).mean(0)


def score(kind: str, p: Any, y: Numbers) -> dict[str, float]:
    """The scores of predictions, each a mean over the rows."""
    if kind == "lifetimes":
        log_prob = np.asarray(p.log_prob(bs.Censored(*y.T)))
        return {"NLL": -log_prob.mean(), "concordance": concordance(np.asarray(p.latent_mean)[:, 0], *y.T)}
    if kind == "ordered":
        ratings = np.arange(RATINGS)
        return {
            "NLL": -np.log(p[np.arange(len(y)), y.astype(int)]).mean(),
            "CRPS": ((p.cumsum(1) - (ratings >= y[:, None])) ** 2).sum(1).mean(),
            "RMSE": np.sqrt(((p @ ratings - y) ** 2).mean()),
            "accuracy": (p.argmax(1) == y).mean(),
        }
    low, high = (np.asarray(end)[:, 0] for end in p.interval(0.9))
    return {
        "NLL": -log_probability(kind, p, y).mean(),
        "coverage": ((low <= y) & (y <= high)).mean(),
        "CRPS": np.asarray(p.crps(y)).mean(),
        "RMSE": np.sqrt(((np.asarray(p.mean)[:, 0] - y) ** 2).mean()),
        "below 0": (low < 0).mean(),
    }


def log_probability(kind: str, p: Any, y: Numbers) -> Numbers:
    """Of the outcomes as they are: for a Gaussian that of all numbers that round to a count, or up to a cost of 0."""
    log_prob = np.asarray(p.log_prob(y))
    if not getattr(p, "likelihood", bs.Poisson()).gaussian_outcome:
        return log_prob
    if kind == "costs":
        return np.where(y > 0, log_prob, np.log(np.asarray(p.cdf(np.zeros_like(y)))[:, 0]))
    mass = np.asarray(p.cdf(y + 0.5) - p.cdf(y - 0.5))[:, 0]
    return np.where(mass > 1e-12, np.log(np.maximum(mass, 1e-300)), log_prob)


def concordance(order: Numbers, times: Numbers, events: Numbers) -> float:
    """The share of pairs whose first event is known that are predicted in that order (Harrell's C)."""
    first = (times[:, None] < times) & (events[:, None] == 1)
    right = (order[:, None] < order) + 0.5 * (order[:, None] == order)
    return float(right[first].mean())


@final
@dataclass(frozen=True)
class Table:
    """A table and the models that are compared on it.

    Attributes:
        title: of the table, with the unit of the outcome.
        file: in the folder.
        kind: what the outcomes are: "counts", "costs", "ordered" or "lifetimes".
        train: how many rows are fitted.
        read: the rows from the file.
        models: by name.
        test: how many other rows are predicted at most.
    """

    title: str
    file: str
    kind: str
    train: int
    read: Callable[[pd.DataFrame], Rows]
    models: Mapping[str, Model]
    test: int = 500


def bikes(d: pd.DataFrame) -> Rows:
    """The hour is a number, but for linear models a label."""
    X = d[
        ["season", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "atemp", "hum", "windspeed"]
    ]
    return Rows(X.assign(season=X["season"].astype(str)), d["bikers"].to_numpy(float))


def visits(d: pd.DataFrame) -> Rows:
    """All columns but the first are inputs."""
    return Rows(d.drop(columns="mdvis"), d["mdvis"].to_numpy(float))


def claims(d: pd.DataFrame) -> Rows:
    """Groups of drivers; their number is the exposure."""
    X = d[["District", "Group", "Age"]].astype({"District": str})
    return Rows(X, d["Claims"].to_numpy(float), d["Holders"].to_numpy(float))


def costs(d: pd.DataFrame) -> Rows:
    """Medical costs of a year, of which a quarter are 0."""
    return Rows(d.drop(columns=["Unnamed: 0", "med"]), d["med"].to_numpy(float))


def ratings(d: pd.DataFrame) -> Rows:
    """Chemistry of red wines, and the rating by tasters."""
    return Rows(d.iloc[:, :-1], d.iloc[:, -1].to_numpy(float))


def relapses(d: pd.DataFrame) -> Rows:
    """Times and events."""
    return Rows(d.drop(columns=["time", "cens"]), d[["time", "cens"]].to_numpy(float))


def arrests(d: pd.DataFrame) -> Rows:
    """Times and events."""
    return Rows(d.drop(columns=["week", "arrest"]), d[["week", "arrest"]].to_numpy(float))


KINDS = ("GLM", "additive", "MLP")
COUNTS: dict[str, Model] = {
    **{
        f"{kind}, {name}": ours(kind, name, ("hr",))
        for kind in KINDS
        for name in ("gaussian", "poisson", "negative_binomial")
    },
    "additive with pairs, negative_binomial": ours("additive with pairs", "negative_binomial"),
    "EBM, poisson": boosted("poisson_deviance", bs.Poisson()),
    "EBM, negative_binomial": boosted("poisson_deviance", bs.NegativeBinomial()),
    "NGBoost, poisson": natural,
    "statsmodels, negative_binomial": negative_binomial,
}
COSTS: dict[str, Model] = {
    **{f"{kind}, {name}": ours(kind, name) for kind in KINDS for name in ("gaussian", "tweedie")},
    "two GLMs, logistic and log_normal": TwoParts.of,
    "EBM, tweedie": boosted("tweedie_deviance:variance_power=1.5", bs.Tweedie()),
}
LIFETIMES: dict[str, Model] = {
    **{f"{kind}, {name}": ours(kind, name) for kind in KINDS for name in ("weibull", "log_normal")},
    "lifelines, weibull": accelerated("WeibullAFTFitter"),
    "lifelines, log_normal": accelerated("LogNormalAFTFitter"),
}
ORDERED: dict[str, Model] = {
    "GLM, ordinal": ordered(partial(bs.BayesianGeneralizedLinearModel, likelihood="ordinal")),
    "GLM, gaussian": ordered(bs.BayesianLinearRegression),
    "GLM, categorical": ordered(bs.BayesianLogisticRegression),
    "additive, ordinal": ordered(partial(bs.NeuralAdditiveRegressor, likelihood="ordinal", random_state=0)),
    "additive, gaussian": ordered(partial(bs.NeuralAdditiveRegressor, random_state=0)),
    "additive, categorical": ordered(partial(bs.NeuralAdditiveClassifier, random_state=0)),
    "MLP, ordinal": ordered(partial(bs.BayesianMLPRegressor, likelihood="ordinal", random_state=0)),
    "MLP, gaussian": ordered(partial(bs.BayesianMLPRegressor, random_state=0)),
    "MLP, categorical": ordered(partial(bs.BayesianMLPClassifier, random_state=0)),
}
PEERS = ("EBM", "NGBoost", "statsmodels", "lifelines")
CLAIMS = {name: model for name, model in COUNTS.items() if not name.startswith(("NGBoost", "MLP", "additive with"))}
TABLES = {
    "bikes": Table("Bike rentals an hour", "Bikeshare.csv", "counts", 1500, bikes, COUNTS),
    "visits": Table("Visits to a doctor in a year", "randhie.csv", "counts", 1000, visits, COUNTS),
    "claims": Table("Claims of groups of drivers, who are the exposure", "Insurance.csv", "counts", 48, claims, CLAIMS),
    "costs": Table("Medical costs of a year, in dollars", "MedExp.csv", "costs", 1000, costs, COSTS, test=150),
    "wine": Table("Ratings of red wines", "wine-quality-red/data.txt", "ordered", 1200, ratings, ORDERED),
    "gbsg2": Table("Days without a relapse of breast cancer", "gbsg2.csv", "lifetimes", 450, relapses, LIFETIMES),
    "rossi": Table("Weeks to an arrest", "rossi.csv", "lifetimes", 290, arrests, LIFETIMES),
}
NOTES = {
    "bikes": (
        "A Poisson has the variance of its mean, which is much too little; the fit warns of it. The hour is a label "
        "for our linear models, else a number. The hours of a Sunday are others than those of a working day: EBM adds "
        "such pairs of features by default, our additive models on request, and are as good then. Without pairs ours "
        "and the networks have a worse CRPS and RMSE than EBM."
    ),
    "visits": (
        "The mean of a Poisson network explodes in a row that is unlike the others, of which predict warns; with a "
        "dispersion the network is as good as the other models."
    ),
    "claims": (
        "The test has 16 groups: a difference of 0.02 is noise. For a Gaussian the log of the exposure is an input."
    ),
    "costs": (
        "Costs have a heavier tail than a sum of Gamma amounts: one model of whether there are any and another of how "
        "high they then are predict better than a Tweedie, be it ours or the peer's."
    ),
    "wine": (
        "Of linear and of additive models the ordinal one is better than the Gaussian one, and behind weights or "
        "curves for each rating; of networks it has the best NLL, while that of classes has the best accuracy."
    ),
}


def frame(path: Path) -> pd.DataFrame:
    """The table of a file."""
    return pd.read_csv(path, sep=r"\s+", header=None) if path.suffix == ".txt" else pd.read_csv(path)


def splits(table: Table, rows: Rows, quick: bool) -> Iterator[tuple[Rows, Rows]]:
    """Training and test rows."""
    train = min(table.train, QUICK_ROWS) if quick else table.train
    for seed in range(1 if quick else SPLITS):
        order = np.random.default_rng(seed).permutation(len(rows.y))
        yield rows.taken(order[:train]), rows.taken(order[train : train + table.test])


def measured(table: Table, path: Path, quick: bool, peers: bool) -> list[dict[str, Any]]:
    """A row of scores for each model: means over the splits."""
    parts = list(splits(table, table.read(frame(path)), quick))
    found = []
    for name, model in table.models.items():
        if name.startswith(PEERS) and not peers:
            continue
        each = []
        for train, test in parts:
            start = time.process_time()
            p = model(train, test)
            seconds = time.process_time() - start
            each.append({**score(table.kind, p, test.y), "seconds": seconds})
        found.append({"model": name, **{key: float(np.mean([one[key] for one in each])) for key in each[0]}})
        sys.stderr.write(f"{found[-1]}\n")
    return found


def shown(table: Table, part: Mapping[str, Any], note: str) -> str:
    """The scores of a table, the best NLL of ours and of the peers, and what was found."""
    digits = dict.fromkeys(("NLL", "coverage", "concordance", "accuracy"), ".3f") | {"below 0": ".2f", "seconds": ".1f"}
    rows = part["scores"]
    cells = [
        [row["model"], *(format(value, digits.get(key, ".4g")) for key, value in list(row.items())[1:])] for row in rows
    ]
    best = {
        peers: min(
            (row for row in rows if row["model"].startswith(PEERS) == peers), key=lambda row: row["NLL"], default=None
        )
        for peers in (False, True)
    }
    said = [f"{part['rows']:,} rows, {part['train']:,} for training."]
    if best[False] and best[True]:
        said.append(
            f"Best NLL of ours: {best[False]['NLL']:.3f} ({best[False]['model']}); of the peers: "
            f"{best[True]['NLL']:.3f} ({best[True]['model']})."
        )
    text = " ".join([*said, note]).strip()
    return f"## {table.title}\n\n{text}\n\n{record.table(list(rows[0]), cells)}\n\n{record.origin_text(part['made'])}"


def main() -> None:
    """Measures the tables that are there, and shows all that were measured."""
    parser = record.arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("real"), help="the folder of the tables")
    parser.add_argument(
        "--tables", default=",".join(TABLES), help="names, such as bikes,visits; all of them by default"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    options = parser.parse_args()
    names = options.tables.split(",")
    if unknown := set(names) - set(TABLES):
        parser.error(f"--tables: expected some of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    into = record.folder(options)
    parts = record.load(into, "outcomes").get("tables", {})
    for name in names:
        table, path = TABLES[name], options.data / TABLES[name].file
        if not path.exists():
            sys.stderr.write(f"{name}: left out, {path} is not there\n")
            continue
        found = measured(table, path, options.quick, options.peers)
        train = min(table.train, QUICK_ROWS) if options.quick else table.train
        made = {"made": record.made("bench.outcomes"), "rows": len(frame(path)), "train": train}
        parts[name] = {**made, "scores": found}
    if not parts:
        sys.stderr.write(f"No table in {options.data}: name a folder with --data.\n")
        return
    kept = {name: parts[name] for name in TABLES if name in parts}
    sections = [shown(TABLES[name], part, NOTES.get(name, "")) for name, part in kept.items()]
    text = record.page("Outcomes of real tables", None, record.method_in(__doc__), sections)
    record.save(into, "outcomes", {"made": record.oldest(kept, TABLES), "tables": kept}, text)


if __name__ == "__main__":
    main()
