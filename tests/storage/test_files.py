"""A file gives back what was saved: predictions bit by bit, identity, bytes; in a process of its own too."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import nn

import bayescope as bs
from bayescope import storage
from bayescope.errors import FileError, InputError, InputTypeError, UnsupportedError
from bayescope.tape import block_limit
from tests.conditions import file_limit
from tests.storage.saved import (
    ESTIMATORS,
    MLP,
    POSTERIORS,
    Residual,
    answers,
    data,
    estimator,
    mixed,
    plain,
    posterior,
    same,
    seeded,
    told,
)

ROOT = Path(__file__).resolve().parents[2]


def dtype_of(name: str) -> torch.dtype:
    return torch.float64 if name.endswith("float64") else torch.float32


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_that_was_loaded_answers_with_the_same_bits(name, tmp_path):
    q, dtype = posterior(name), dtype_of(name)
    before = answers(q, dtype=dtype)
    path = q.save(tmp_path / "q.bayes")
    model = seeded(Residual) if name == "custom network" else None
    loaded = bs.load(path, model=model)
    assert type(loaded) is type(q)
    for first, second in zip(before, answers(loaded, dtype=dtype), strict=True):
        assert same(first, second)
    assert loaded.save(tmp_path / "again.bayes").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_that_was_loaded_answers_with_the_same_bits(name, tmp_path):
    fitted = estimator(name)
    before = told(fitted)
    path = fitted.save(tmp_path / "model.bayes")
    loaded = bs.load(path)
    assert type(loaded) is type(fitted)
    check_is_fitted(loaded)
    for first, second in zip(before, told(loaded), strict=True):
        assert same(first, second)
    assert loaded.save(tmp_path / "again.bayes").read_bytes() == path.read_bytes()
    assert vars(clone(loaded)).keys() == vars(clone(fitted)).keys()


def test_a_loaded_estimator_can_be_fitted_again(tmp_path):
    loaded = bs.load(estimator("logistic, pipeline").save(tmp_path / "model.bayes"))
    x = np.random.default_rng(3).normal(size=(30, 2))
    again = loaded.fit(x, x[:, 0] > 0)
    assert again.score(x, x[:, 0] > 0) > 0.8


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_densities_come_back_with_their_transforms(tmp_path):
    def log_density(x):
        return -0.5 * ((x.log() - 0.3) ** 2).sum() - x.log().sum()

    start = torch.ones(2, dtype=torch.float64)
    made = {
        "laplace": bs.density.laplace(log_density, start, transform="positive"),
        "variational": bs.density.variational(log_density, 2, transform=["positive", "positive"], generator=0),
        "metropolis": bs.density.metropolis(log_density, start, transform="positive", draws=20, tune=20, generator=0),
    }
    for q in made.values():
        loaded = bs.load(q.save(tmp_path / "q.bayes"))
        assert torch.equal(loaded.mean, q.mean)
        assert torch.equal(loaded.sample(3, generator=1), q.sample(3, generator=1))
        if q.record.evidence is not None:
            assert torch.equal(loaded.log_evidence(), q.log_evidence())


SCRIPT = """
import sys, numpy as np, torch
torch.set_num_threads(1)
import bayescope as bs
q, est = bs.load(sys.argv[1] + "/q.bayes"), bs.load(sys.argv[1] + "/est.bayes")
with np.load(sys.argv[1] + "/inputs.npz") as inputs:
    x, rows = torch.from_numpy(inputs["x"]), inputs["rows"]
p = q.predict(x, generator=1)
np.savez(sys.argv[1] + "/answers.npz", mean=p.mean, variance=p.variance, proba=est.predict_proba(rows))
"""


def test_a_fresh_process_answers_with_the_same_bits(tmp_path):
    q, fitted = posterior("laplace, kfac, float32"), estimator("logistic, pipeline")
    x, rows = data()[0], np.random.default_rng(4).normal(size=(9, 2))
    p = q.predict(x, generator=1)
    q.save(tmp_path / "q.bayes")
    fitted.save(tmp_path / "est.bayes")
    np.savez(tmp_path / "inputs.npz", x=x.numpy(), rows=rows)
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, cwd=ROOT, timeout=100)
    with np.load(tmp_path / "answers.npz") as found:
        np.testing.assert_array_equal(found["mean"], np.asarray(p.mean))
        np.testing.assert_array_equal(found["variance"], np.asarray(p.variance))
        np.testing.assert_array_equal(found["proba"], fitted.predict_proba(rows))


def test_what_was_one_object_is_one_again(tmp_path):
    fitted = estimator("additive, numbers")
    loaded = bs.load(fitted.save(tmp_path / "model.bayes"))
    assert loaded.additive_.posterior is loaded.posterior_
    assert loaded.posterior_.function is loaded.additive_.model
    shared = torch.arange(3.0)
    first, second = storage.load(storage.save([shared, shared], tmp_path / "pair.bayes"))
    assert first is second
    assert storage.read_manifest(tmp_path / "pair.bayes").tensors == {"list[0]": ("F32", (3,))}


def test_no_row_of_the_table_is_in_the_file(tmp_path):
    """Of the 60 rows of three columns, no tensor or array has all columns of any; nor the targets."""
    fitted = estimator("additive, numbers")
    assert fitted.additive_.fit is not None
    path = fitted.save(tmp_path / "model.bayes")
    assert bs.load(path).additive_.fit is None
    shapes = [shape for _, shape in bs.storage.read_manifest(path).tensors.values()]
    rows = len(fitted.additive_.fit.problem.weights)
    assert not [shape for shape in shapes if rows in shape and 3 in shape]
    logistic = bs.storage.read_manifest(estimator("logistic, none").save(tmp_path / "logistic.bayes"))
    assert max(int(np.prod(shape)) for _, shape in logistic.tensors.values()) < 20


def test_the_manifest_tells_what_is_in_a_file(tmp_path):
    q = posterior("laplace, kfac, float32")
    path = q.save(tmp_path / "q.bayes", metadata={"run": 7, "tags": ["a", None], "where": {"north": True}})
    told = bs.storage.read_manifest(path)
    assert (told.format_version, told.bayescope_version, told.kind) == (1, bs.__version__, "gaussian_posterior")
    assert told.summary == q.summary()
    assert told.metadata == {"run": 7, "tags": ["a", None], "where": {"north": True}}
    assert told.file_size == path.stat().st_size
    assert told.packages.keys() == {"torch", "numpy", "scikit-learn"}
    assert told.tensors["gaussian_posterior.location"] == ("F64", (26,))
    kind = bs.storage.read_manifest(estimator("linear, none").save(tmp_path / "est.bayes")).kind
    assert kind == "BayesianLinearRegression"


def test_other_programs_read_the_tensors(tmp_path):
    from safetensors.torch import load_file

    found = load_file(posterior("laplace, kfac, float32").save(tmp_path / "q.bayes"))
    assert torch.equal(found["gaussian_posterior.location"], posterior("laplace, kfac, float32").location)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_saving_before_and_after_predictions_gives_the_same_bytes(tmp_path):
    for structure in ("full", "kfac", "low_rank", "diagonal"):
        q = bs.laplace(plain(), data(), likelihood="categorical", structure=structure, **RANK.get(structure, {}))
        before = q.save(tmp_path / "before.bayes").read_bytes()
        q.predict(data()[0])
        assert q.save(tmp_path / "after.bayes").read_bytes() == before


RANK = {"low_rank": {"rank": 3}}


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path):
    q = posterior("laplace, full, float32")
    path = q.save(tmp_path / "q.bayes")
    before = path.read_bytes()

    with file_limit(len(before) - 1), pytest.raises(InputError, match="File too large"):
        q.save(path, metadata={"n": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_where_something_cannot_be_saved(tmp_path):
    from sklearn.preprocessing import FunctionTransformer

    x = np.random.default_rng(0).normal(size=(30, 2))
    fitted = bs.BayesianLogisticRegression(features=FunctionTransformer(np.tanh)).fit(x, x[:, 0] > 0)
    with pytest.raises(
        UnsupportedError, match=r"got a numpy.ufunc \(tanh\) at BayesianLogisticRegression.features.func"
    ):
        fitted.save(tmp_path / "new" / "model.bayes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_rows_that_are_read_from_the_data_are_not_saved(tmp_path):
    with block_limit(1):
        q = bs.function_space(plain(), data(), likelihood="categorical")
    with pytest.raises(UnsupportedError, match="Files keep no data: take approximation='subset' or 'nystrom'"):
        q.save(tmp_path / "q.bayes")
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_read_again_is_not_saved(tmp_path):
    record = bs.fit_map(plain(), data(), likelihood="categorical", epochs=1, progress=False).record
    broken = replace(record, instead=3)
    with pytest.raises(UnsupportedError, match="could not be read again: the instead of a Record is not one"):
        storage.save(broken, tmp_path / "record.bayes")
    assert list(tmp_path.iterdir()) == []


def test_a_transform_of_the_users_own_is_refused_by_its_path(tmp_path):
    class Shifted:
        def forward(self, u):
            return u + 1

        def inverse(self, x):
            return x - 1

        def log_jacobian(self, u):
            return torch.zeros_like(u[..., 0])

    start = torch.zeros(1, dtype=torch.float64)
    q = bs.density.laplace(lambda x: -(x**2).sum(), start, transform=Shifted())
    with pytest.raises(UnsupportedError, match=r"Shifted at gaussian_posterior\.transform"):
        q.save(tmp_path / "q.bayes")


def test_an_estimator_that_is_not_fitted_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        bs.BayesianLinearRegression().save(tmp_path / "model.bayes")
    with pytest.raises(NotFittedError):
        bs.NeuralAdditiveRegressor().save(tmp_path / "model.bayes")


def endless() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = [found]
    return found


@pytest.mark.parametrize(
    ("metadata", "error", "match"),
    [
        ("text", InputTypeError, "metadata: expected a mapping, got str"),
        ({1: 2}, InputTypeError, "metadata: expected names that are text, got 1"),
        ({"a": {2: 3}}, InputTypeError, r"metadata\['a'\]: expected names"),
        ({"a": float("nan")}, InputError, r"metadata\['a'\]: expected a finite number, got nan"),
        ({"a": 10**5000}, InputError, r"metadata\['a'\]: expected a number of at most 64 bits"),
        (endless(), InputError, "metadata: expected values that do not hold themselves"),
        ({"a": [np.ones(2)]}, InputTypeError, r"metadata\['a'\]\[0\]: expected text, .*, got ndarray"),
    ],
)
def test_metadata_are_checked(metadata, error, match, tmp_path):
    with pytest.raises(error, match=match):
        posterior("map").save(tmp_path / "q.bayes", metadata=metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 3, ["q.bayes"]])
def test_paths_are_text_or_paths(path):
    for act in (bs.load, bs.storage.read_manifest, posterior("map").save):
        with pytest.raises(InputTypeError, match="path: expected a path as text or a pathlib"):
            act(path)


def test_files_that_cannot_be_opened_are_named(tmp_path):
    for place in (tmp_path / "absent.bayes", tmp_path):
        for read in (bs.load, bs.storage.read_manifest):
            with pytest.raises(FileError, match="expected a file that can be read"):
                read(place)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.bayes")
    with pytest.raises(FileError, match="got a named pipe"):
        bs.load(tmp_path / "pipe.bayes")


def test_files_are_read_onto_the_cpu_whatever_the_default_is(tmp_path):
    q = posterior("laplace, kfac, float32")
    path = q.save(tmp_path / "q.bayes")
    with torch.device("meta"):
        loaded = bs.load(path)
    assert torch.equal(loaded.mean, q.mean)


def test_what_is_loaded_in_inference_mode_is_of_use_outside(tmp_path):
    q = posterior("laplace, kfac, float32")
    path = q.save(tmp_path / "q.bayes")
    with torch.inference_mode():
        loaded = bs.load(path)
    x = data()[0][:3]
    assert torch.equal(loaded.sample_functions(x, 2, generator=1), q.sample_functions(x, 2, generator=1))
    assert not any(parameter.is_inference() for parameter in loaded.model.parameters())


def test_no_path_of_a_checkpoint_is_in_a_file(tmp_path):
    fitted = mixed(bs.BayesianMLPRegressor, posterior="map", checkpoint=tmp_path / "fit.pt", **MLP)
    path = fitted.save(tmp_path / "model.bayes")
    assert b"fit.pt" not in path.read_bytes()
    assert bs.load(path).get_params() == {**fitted.get_params(), "checkpoint": None}


def test_folders_are_made_and_paths_may_be_text(tmp_path):
    path = posterior("map").save(str(tmp_path / "deep" / "down" / "q.bayes"))
    assert isinstance(bs.load(str(path)), bs.PointPosterior)


def test_loading_draws_nothing(tmp_path):
    path = posterior("dropout").save(tmp_path / "q.bayes")
    before = torch.get_rng_state()
    bs.load(path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_rows_of_other_shapes_are_traced_anew(tmp_path):
    """The first rows that a loaded network sees may have another length than the next."""
    net = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x, y = torch.randn(12, 5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(12, 5, dtype=torch.long)
    y[::2] = 1
    q = bs.laplace(net, (x, y), likelihood="categorical")
    loaded = bs.load(q.save(tmp_path / "q.bayes"))
    for length in (2, 5, 2, 1):
        np.testing.assert_array_equal(loaded.predict(x[:, :length]).variance, q.predict(x[:, :length]).variance)


def test_a_fit_in_two_threads_answers_with_the_same_bits_once_it_is_loaded(tmp_path):
    """The fit asks for factors inside of its own threads, the loaded estimator in those of the process."""
    source = np.random.default_rng(0)
    X = source.normal(size=(400, 30))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fitted = bs.BayesianLogisticRegression().fit(X, X[:, 0] + source.normal(size=400) > 0)
        loaded = bs.load(fitted.save(tmp_path / "model.bayes"))
        assert np.array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    finally:
        torch.set_num_threads(before)
