"""What the page is answered is what the library's own estimators say, and what the code on the page prints."""

from __future__ import annotations

import math
import runpy

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PolynomialFeatures
from torch.distributions import Gamma

import bayescope as bs
from bayescope.errors import BayescopeError, ConvergenceError
from bayescope.estimators import RadialBasis
from bayescope.explore import answer, densities, surfaces, tables
from bayescope.explore.densities import DENSITIES
from bayescope.explore.presets import PRESETS, presets
from bayescope.gallery import linear_models
from bayescope.plots import marks

# Laplace says so where it is far from the posterior, which these tests are not about.
pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
VIEW = [[-3.0, 3.0], [-2.0, 2.5]]
PLAIN = {"standardize": False, "intercept_prior_precision": 1e-4, "random_state": 0}


def points(rows=21, seed=0):
    source = np.random.default_rng(seed)
    y = np.arange(rows) % 3 == 0
    X = source.standard_normal((rows, 2)) + np.where(y, 1.0, -0.4)[:, None]
    return np.column_stack([X.clip(-2, 2), y]).round(3).tolist()


def curve(rows=17, seed=1):
    x = np.random.default_rng(seed).uniform(-3, 3, rows)
    return np.column_stack([x, np.sin(x)]).round(3).tolist()


def classes(**controls):
    return {"ask": "answer", "kind": "classes", "points": points(), "view": VIEW, **controls}


def numbers(**controls):
    return {"ask": "answer", "kind": "numbers", "points": curve(), "view": VIEW, **controls}


def parts(question, last=None):
    """The parts of an answer by their names, up to the last one that is wanted."""
    found = {}
    for part in answer(question):
        found[part["part"]] = part
        if part["part"] == last:
            break
    return found


def rows(question):
    table = np.array(question["points"])
    return table[:, :-1], table[:, -1].astype(int if question["kind"] == "classes" else float)


@pytest.mark.parametrize(
    ("model", "controls", "features"),
    [
        ("linear", {}, None),
        ("polynomial", {"degree": 2}, PolynomialFeatures(2, include_bias=False)),
        ("rbf", {"bumps": "points", "count": 7, "width": 0.9}, RadialBasis(centres=7, width=0.9)),
    ],
)
@pytest.mark.parametrize("posterior", ["map", "laplace", "variational"])
def test_surfaces_are_the_estimators(model, controls, features, posterior):
    asked = classes(model=model, posterior=posterior, prior_precision=0.7, temperature=2.0, **controls)
    X, y = rows(asked)
    estimator = bs.BayesianLogisticRegression(features=features, posterior=posterior, prior_precision=0.7, **PLAIN)
    estimator.fit(X, y, sample_weight=np.full(len(y), 0.5))
    grid = surfaces.grid(tables.span(VIEW))[2]
    p = estimator.predict_distribution(grid)
    found = parts(asked, "surface")["surface"]
    assert found["p"] == pytest.approx(p.probs[:, 1], abs=6e-5)
    assert found["sd"] == pytest.approx(np.sqrt(p.epistemic[:, 1]), abs=6e-5)
    assert len(found["p"]) == surfaces.UP * found["across"]


def test_the_temperature_widens_the_posterior():
    warm, cold = (parts(classes(temperature=T), "surface")["surface"]["sd"] for T in (4.0, 0.25))
    assert np.mean(warm) > np.mean(cold)


def test_functions_marginals_and_evidence_are_the_posteriors():
    asked = classes(posterior="mean_field", prior_precision=2.0)
    X, y = rows(asked)
    given = {"prior_precision": 2.0, **PLAIN}
    laplace = bs.BayesianLogisticRegression(posterior="laplace", **given).fit(X, y)
    independent = bs.BayesianLogisticRegression(posterior="mean_field", **given).fit(X, y)
    found = parts(asked)
    weights = found["weights"]["weights"]
    assert [row["name"] for row in weights] == list(laplace.weight_names_)
    for place, row in enumerate(weights):
        for key, fit in (("laplace", laplace), ("posterior", independent)):
            sd = float(fit.posterior_.sd[place])
            assert max(row[key]["y"]) == pytest.approx(1 / (sd * math.sqrt(2 * math.pi)), rel=1e-4)
            assert np.mean(row[key]["x"]) == pytest.approx(float(fit.posterior_.mean[place]), rel=1e-3, abs=1e-4)
    known = dict(map(tuple, found["evidence"]["log_evidence"]))
    for precision in (0.001, 1.0, 1000.0):
        at = bs.BayesianLogisticRegression(posterior="laplace", **{**given, "prior_precision": precision}).fit(X, y)
        assert known[precision] == pytest.approx(float(at.log_evidence_), rel=1e-9)
    f = independent.posterior_.sample_functions([[-3.0, -2.0]], surfaces.FUNCTIONS, generator=0)[:, 0, 0].numpy()
    assert len(found["functions"]["lines"]) == len(f)


def test_while_a_point_moves_only_what_is_quick_is_answered():
    assert list(parts(classes(moving=True, reference=True))) == ["surface", "functions", "weights"]


def test_a_reference_that_fails_says_why(monkeypatch):
    fit = tables.fitted

    def fails(task):
        if task.posterior == "nuts":
            raise ConvergenceError("nuts: the chains went astray.")
        return fit(task)

    monkeypatch.setattr(surfaces, "MANY", np.ones(1))
    monkeypatch.setattr(surfaces, "why_not", lambda model, posterior: None)
    monkeypatch.setattr(surfaces, "fitted", fails)
    assert parts(classes(reference=True))["reference"] == {"part": "reference", "why": "nuts: the chains went astray."}


def test_nuts_is_the_reference(monkeypatch):
    monkeypatch.setattr(surfaces, "MANY", np.ones(1))
    pytest.importorskip("nutpie", reason="pip install 'bayescope[nuts]' brings nutpie")
    monkeypatch.setitem(tables.LINEAR_OPTIONS, "nuts", {"draws": 200, "tune": 100, "chains": 1})
    found = parts(classes(points=points(9), posterior="laplace", reference=True))
    assert 0 < found["reference"]["distance"] < 0.1
    for nuts, row in zip(found["reference"]["weights"], found["weights"]["weights"], strict=True):
        assert sum(nuts["heights"]) * np.diff(nuts["edges"]).mean() == pytest.approx(1, abs=0.01)
        assert min(row["laplace"]["x"]) < np.mean(nuts["edges"]) < max(row["laplace"]["x"])


def test_numbers_are_the_exact_regression():
    asked = numbers(model="polynomial", degree=3, noise_sd=0.4, prior_precision=0.5)
    X, y = rows(asked)
    exact = bs.BayesianLinearRegression(
        features=PolynomialFeatures(3, include_bias=False), prior_precision=0.5, noise_variance=0.16, **PLAIN
    ).fit(X, y)
    found = parts(asked)
    x = surfaces.line(tables.span(VIEW))
    p = exact.predict_distribution(x)
    assert found["curve"]["mean"] == pytest.approx(p.mean[:, 0], rel=1e-4, abs=1e-4)
    for name, of in (("mean", "mean"), ("outcome", "outcome")):
        for end, expected in zip(found["curve"]["bands"][name], p.interval(0.95, of=of), strict=True):
            assert end == pytest.approx(expected[:, 0], rel=1e-4, abs=1e-4)
    known = dict(map(tuple, found["evidence"]["log_evidence"]))
    one = exact.set_params(prior_precision=1.0).fit(X, y)
    assert known[1.0] == pytest.approx(float(one.log_evidence_), rel=1e-9)


@pytest.mark.parametrize("kind", [classes, numbers])
def test_networks_and_additive_models_answer(kind, monkeypatch):
    monkeypatch.setattr(surfaces, "FEW", np.array([0.1, 1.0]))
    network = parts(kind(model="network", hidden=3))
    assert len(network["evidence"]["log_evidence"]) == 2
    assert "weights" not in network
    additive = parts(kind(model="additive", hidden=3), last="effects")
    assert len(additive["effects"]["effects"]) == (2 if kind is classes else 1)
    first = "surface" if kind is classes else "curve"
    assert additive[first] != network[first]


def test_a_posterior_that_is_not_offered_says_why():
    for model, reasons in next(iter(answer({"ask": "start"})))["why_not"].items():
        for posterior, reason in reasons.items():
            if reason is not None:
                with pytest.raises(BayescopeError) as refused:
                    tables.Task.read(classes(model=model, posterior=posterior))
                assert reason in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"points": [[0, 0, 1]]},
        {"points": [[0, 0, 2], [0, 0, 1]]},
        {"points": [[0, 0, math.nan], [0, 0, 1]]},
        {"points": [[0, 0], [1, 1]]},
        {"points": "all"},
        {"points": [[0, 0, 0], [1e7, 0, 1]]},
        {"points": [[0, 0, 0], [10**400, 0, 1]]},
        {"view": [[-1e300, 1e300], [0, 1]]},
        {"prior_precision": 10**400},
        {"prior_precision": True},
        {"noise_sd": 1e308},
        {"temperature": 1e-308},
        {"width": 1e-308},
        {"model": "polynomial", "degree": 2.5},
        {"points": [[0, 0, k % 2] for k in range(tables.MOST_POINTS + 1)]},
        {"view": [[1, 0], [0, 1]]},
        {"kind": "lists"},
        {"model": "forest"},
        {"prior_precision": -1},
        {"temperature": 0},
        {"model": "polynomial", "degree": 99},
        {"model": "network", "hidden": 10**6},
        {"width": "wide"},
        {"bumps": None},
        {"ask": "everything"},
    ],
)
def test_questions_that_cannot_be_answered_are_refused(changed):
    with pytest.raises(BayescopeError):
        list(answer({**classes(), **changed}))


# The code ------------------------------------------------------------------------------------------------------------
def run(question, folder):
    path = folder / "code.py"
    path.write_text(next(iter(answer({**question, "ask": "code"})))["code"], encoding="utf-8")
    return runpy.run_path(str(path))


@pytest.mark.parametrize(
    "asked",
    [
        classes(temperature=2.0),
        classes(model="polynomial", posterior="variational", prior_precision=0.3),
        classes(model="rbf", side=4, posterior="ep"),
        classes(model="rbf", bumps="points", count=9),
        classes(model="additive", hidden=4),
        numbers(model="rbf", noise_sd=0.2),
        numbers(model="network", hidden=4, posterior="map"),
    ],
)
def test_the_code_gives_the_answer_of_the_page(asked, tmp_path, capsys):
    done = run(asked, tmp_path)
    task = tables.Task.read(asked)
    p = tables.fitted(task).estimator.predict_distribution(task.rows[0])
    expected = p.probs[:, 1] if asked["kind"] == "classes" else p.mean[:, 0]
    assert done["mean"] == pytest.approx(expected, abs=1e-12)
    assert done["sd"] == pytest.approx(np.sqrt(p.epistemic[:, -1]), abs=1e-12)
    printed = capsys.readouterr().out
    for number in (expected[0], math.sqrt(p.epistemic[0, -1])):
        assert str(round(float(number), 3)) in printed
    assert ("log evidence:" in printed) == (task.posterior == "laplace")


def density_question(name):
    state = next(preset["state"] for preset in presets() if preset["state"].get("density") == name)
    return {"ask": "answer", **state}


@pytest.mark.parametrize("name", DENSITIES)
def test_the_code_of_a_density_gives_its_fits(name, tmp_path, capsys):
    asked = density_question(name)
    found = {fit["title"]: fit for fit in parts(asked)["density"]["fits"]}
    done = run(asked, tmp_path)
    for name, q in done["fits"].items():
        assert found[name]["mean"] == pytest.approx(float(q.mean[0]), abs=1e-10)
        assert found[name]["sd"] == pytest.approx(float(q.sd[0]), rel=1e-10)
    printed = dict(line.rsplit(maxsplit=2)[::2] for line in capsys.readouterr().out.splitlines())
    assert set(found) <= {*printed}
    assert float(printed["min KL(p‖q)"]) == pytest.approx(found["min KL(p‖q)"]["sd"], rel=1e-6)


# Densities -----------------------------------------------------------------------------------------------------------
def test_a_gamma_density_has_its_moments_and_its_normaliser():
    found = parts(density_question("gamma"))["density"]
    exact = Gamma(torch.tensor(2.5, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    assert found["log_z"] == pytest.approx(math.lgamma(2.5), abs=1e-5)
    assert (found["mean"], found["sd"]) == pytest.approx((2.5, math.sqrt(2.5)), rel=1e-4)
    x, p = np.array(found["x"]), np.array(found["p"], dtype=float)
    assert p[x > 0] == pytest.approx(exact.log_prob(torch.from_numpy(x[x > 0])).exp().numpy(), rel=1e-3, abs=1e-6)
    fits = {fit["name"]: fit for fit in found["fits"]}
    assert fits["laplace"]["mean"] == pytest.approx(1.5)
    assert fits["laplace"]["kl_qp"] == "∞"
    assert (fits["covering"]["mean"], fits["covering"]["sd"]) == pytest.approx((found["mean"], found["sd"]))


def test_each_optimum_is_the_least_divergence_in_its_direction():
    found = parts(density_question("mixture"))["density"]
    fits = {fit["name"]: fit for fit in found["fits"]}
    assert fits["seeking"]["kl_qp"] == min(fit["kl_qp"] for fit in fits.values())
    assert fits["covering"]["kl_pq"] == min(fit["kl_pq"] for fit in fits.values())


def test_the_start_leads_to_its_mode():
    asked = density_question("mixture")
    left, right = (parts({**asked, "start": start})["density"]["fits"][0]["mean"] for start in (-2.0, 2.0))
    assert left == pytest.approx(-2.1, abs=0.01)
    assert right == pytest.approx(2.1, abs=0.01)


@pytest.mark.parametrize(
    "changed", [{"density": "none"}, {"parameters": {}}, {"start": 99}, {"start": None}, {"start": []}]
)
def test_densities_that_cannot_be_answered_are_refused(changed):
    with pytest.raises(BayescopeError):
        list(answer({**density_question("beta"), **changed}))
    with pytest.raises(BayescopeError):
        densities.DensityTask.read({**density_question("gamma"), "parameters": {"shape": 1e9}})


# Presets -------------------------------------------------------------------------------------------------------------
def test_presets_are_the_gallerys_pictures():
    scene = linear_models.moons()._replace(X=linear_models.moons().X.round(3), span=((-1.0, 2.0), (-1.0, 1.5)))
    expected = linear_models.surfaces(scene, size=9, posteriors=("laplace",))["laplace"]
    state = {preset.name: preset for preset in PRESETS}["moons"].state()
    estimator = tables.fitted(tables.Task.read({**state, "posterior": "laplace"})).estimator
    found = estimator.predict_proba(marks.lattice(scene.span, 9))[:, 1].reshape(9, 9)
    assert found == pytest.approx(expected, abs=1e-9)


def test_each_preset_can_be_asked():
    for preset in presets():
        state = preset["state"]
        reader = densities.DensityTask if state["kind"] == "density" else tables.Task
        reader.read({**state, "points": state.get("points")})
        assert preset["caption"]
