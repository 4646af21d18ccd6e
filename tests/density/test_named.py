"""Densities of named parameters: the same answers as for a flat vector, under their names and in their shapes."""

from __future__ import annotations

import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UndefinedQuantityError
from bayescope.log_density import CallableDensity
from tests.density.targets import vector

SHAPES = {"mean": (), "scale": (), "matrix": (2, 3)}
START = {"mean": 0.0, "scale": 1.0, "matrix": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]}
NAMES = ("mean", "scale", *(f"matrix[{i}, {j}]" for i in range(2) for j in range(3)))
CENTRE = torch.arange(6, dtype=torch.float64).reshape(2, 3)


def by_name(mean, scale, matrix):
    return -0.5 * (mean - 1.0) ** 2 + 3.0 * scale.log() - 2.0 * scale - 0.5 * (matrix - CENTRE).square().sum()


def flat(x):
    return by_name(x[0], x[1], x[2:].reshape(2, 3))


FLAT_START = [0.0, 1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
FLAT_TRANSFORM = [None, "positive", *[None] * 6]
TRANSFORM = {"scale": "positive"}


def laplace(log_density, named, **options):
    start = START if named else FLAT_START
    return bs.density.laplace(log_density, start=start, **options)


def variational(log_density, named, **options):
    return bs.density.variational(log_density, SHAPES if named else 8, start=START if named else FLAT_START, **options)


def nuts(log_density, named, **options):
    dim = SHAPES if named else 8
    return bs.density.nuts(log_density, dim, draws=30, tune=30, chains=1, generator=0, progress=False, **options)


def metropolis(log_density, named, **options):
    start = START if named else FLAT_START
    return bs.density.metropolis(log_density, start, draws=60, tune=60, generator=0, **options)


INFERENCES = {"laplace": laplace, "variational": variational, "nuts": nuts, "metropolis": metropolis}


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
@pytest.mark.parametrize("infer", INFERENCES.values(), ids=INFERENCES.keys())
def test_names_change_nothing_but_the_names(infer, tmp_path):
    q = infer(by_name, True, transform=TRANSFORM)
    other = infer(flat, False, transform=FLAT_TRANSFORM)
    torch.testing.assert_close(q.mean, other.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.covariance, other.covariance, rtol=1e-9, atol=1e-9)
    assert q.mean.shape == (8,)
    assert q.record.parameters.names == NAMES
    assert other.record.parameters is None

    drawn = q.sample(4, generator=1)
    named = q.named(drawn)
    assert {name: tuple(each.shape) for name, each in named.items()} == {n: (4, *s) for n, s in SHAPES.items()}
    assert torch.equal(named["matrix"][:, 1, 0], drawn[:, 5])
    assert float(q.named(q.mean)["scale"]) == float(q.mean[1])

    variables = q.groups(None, 50, 0)["posterior"]
    assert {name: each.shape[2:] for name, each in variables.items()} == SHAPES

    back = bs.load(q.save(tmp_path / "q.bayes"))
    assert back.record.parameters == q.record.parameters
    assert torch.equal(back.named(back.mean)["matrix"], q.named(q.mean)["matrix"])


def test_to_arviz_has_the_variables():
    q = laplace(by_name, True, transform=TRANSFORM)
    assert q.to_arviz(draws=20, generator=0).posterior["matrix"].shape == (1, 20, 2, 3)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_whole_parameters_are_transformed_along_their_last_axes():
    def log_density(p, R, ages):
        return (p.log().sum() + R[..., 0, 1].mul(0.5).sum() - ages.sum()).squeeze()

    start = {"p": [[0.2, 0.8], [0.5, 0.5]], "R": torch.eye(3).expand(2, 3, 3), "ages": [1.0, 2.0]}
    transform = {"p": "simplex", "R": "correlation", "ages": bs.density.between(0.0, 120.0)}
    q = bs.density.metropolis(log_density, start, transform=transform, draws=100, tune=100, chains=4, generator=0)
    drawn = q.named(q.flat)
    torch.testing.assert_close(drawn["p"].sum(-1), torch.ones(400, 2, dtype=torch.float64))
    assert (torch.linalg.eigvalsh(drawn["R"]) > 0).all()
    assert ((drawn["ages"] > 0) & (drawn["ages"] < 120)).all()


def test_a_list_of_entries_for_one_parameter_and_one_name_for_all():
    q = bs.density.laplace(
        lambda a, b: 3 * a[1].log() - a[1] - a[0] ** 2 - b**2,
        start={"a": [0.0, 1.0], "b": 0.5},
        transform={"a": [None, "positive"]},
    )
    assert q.transform.names == (None, "positive", None)
    q = bs.density.laplace(
        lambda a, b: (a.log() - a).sum() + b.log() - b, {"a": [1.0, 1.0], "b": 1.0}, transform="positive"
    )
    assert q.transform.names == ("positive",) * 3


def test_several_starts():
    def two(x):
        return torch.logaddexp(-2.0 * (x - 3.0).square(), -2.0 * (x + 3.0).square())

    q = bs.density.laplace(two, [{"x": -2.5}, {"x": 2.0}], modes=2)
    assert sorted(part.mean.item() for part in q.components) == pytest.approx([-3.0, 3.0])
    assert q.named(q.sample(5, generator=0))["x"].shape == (5,)


def test_importance_and_divergence_call_the_density_by_its_names():
    def log_density(rate, other):
        return 2.0 * rate.log() - rate - 0.5 * other**2

    q = bs.density.laplace(log_density, {"rate": 1.0, "other": 0.1}, transform={"rate": "positive"})
    checked = bs.density.importance(log_density, q, draws=500, generator=0)
    assert float(checked.log_evidence) == pytest.approx(0.6931 + 0.9189, abs=0.05)
    assert 0.0 < float(bs.density.kl(q, log_density)) < 0.1


class TestMessages:
    def test_parameters_that_the_function_does_not_take(self):
        with pytest.raises(InputTypeError, match=r"takes the parameters mean, scal as keyword arguments \(.*'scale'"):
            bs.density.laplace(lambda mean, scale: mean + scale, {"mean": 0.0, "scal": 1.0})

    def test_unknown_parameter_of_a_transform(self):
        with pytest.raises(OptionError, match="transform: expected one of 'mean', 'scale', 'matrix', got 'scle'"):
            laplace(by_name, True, transform={"scle": "positive"})

    def test_unknown_name_of_a_transform(self):
        with pytest.raises(OptionError, match="Did you mean 'positive'"):
            laplace(by_name, True, transform={"scale": "positiv"})

    def test_a_shape_that_is_no_matrix(self):
        with pytest.raises(InputError, match=r"a square matrix .* of 'matrix' for 'correlation', got shape \(2, 3\)"):
            laplace(by_name, True, transform={"matrix": "correlation"})
        with pytest.raises(InputError, match="at least one axis of 'scale' for 'simplex'"):
            laplace(by_name, True, transform={"scale": "simplex"})

    def test_a_list_for_all_parameters(self):
        with pytest.raises(InputTypeError, match="a dict from parameters to names"):
            laplace(by_name, True, transform=FLAT_TRANSFORM)

    def test_points_outside_are_named(self):
        with pytest.raises(InputError, match="start: expected positive numbers, got -1 in scale"):
            bs.density.laplace(by_name, {**START, "scale": -1.0}, transform=TRANSFORM)

    def test_starts_of_other_parameters_or_shapes(self):
        with pytest.raises(InputError, match="for each of mean, scale, matrix, got none for matrix"):
            bs.density.variational(by_name, SHAPES, start={"mean": 0.0, "scale": 1.0})
        with pytest.raises(InputError, match=r"start\['mean'\]: expected shape \(\), got \(1,\)"):
            bs.density.variational(by_name, SHAPES, start={**START, "mean": [0.0]})
        with pytest.raises(InputTypeError, match="a dict with a value for each of mean, scale, matrix"):
            bs.density.nuts(by_name, SHAPES, start=FLAT_START)
        with pytest.raises(InputTypeError, match="dim= the shapes"):
            bs.density.nuts(flat, 8, start=START)

    def test_integers_have_no_laplace_approximation(self):
        with pytest.raises(InputTypeError, match=r"start\['mean'\]: expected floating-point"):
            bs.density.laplace(by_name, {**START, "mean": 0})

    def test_shapes(self):
        with pytest.raises(InputError, match="the shape of 'mean'"):
            bs.density.nuts(by_name, {"mean": (0,)})
        with pytest.raises(InputError, match="at least one"):
            bs.density.nuts(by_name, {})

    def test_a_density_over_a_flat_vector(self):
        with pytest.raises(InputError, match="a function of named parameters"):
            bs.density.laplace(CallableDensity(flat, 8), START)

    def test_posteriors_without_names(self):
        with pytest.raises(UndefinedQuantityError, match="over a flat vector"):
            bs.density.laplace(lambda x: -x @ x, vector(0.1)).named([0.0])
        with pytest.raises(InputError, match="8"):
            laplace(by_name, True, transform=TRANSFORM).named([0.0])
