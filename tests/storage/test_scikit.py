"""scikit-learn's transformers come back by their names, parameters and learned attributes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from bayescope import storage
from bayescope.errors import BayescopeWarning, UnsupportedError
from bayescope.storage import Reader
from tests.storage.mutants import framed, parts

SOURCE = np.random.default_rng(0)
NUMBERS = SOURCE.normal(size=(60, 3))
GAPS = np.where(SOURCE.random((60, 3)) < 0.1, np.nan, NUMBERS)
LABELS = SOURCE.choice(np.array(["a", "b", "c"], dtype=object), (60, 2))
TRANSFORMERS = {
    "standard": (StandardScaler(), NUMBERS),
    "quantile": (QuantileTransformer(n_quantiles=9, output_distribution="normal"), NUMBERS),
    "polynomial": (PolynomialFeatures(2, interaction_only=True), NUMBERS),
    "min max": (MinMaxScaler((-1, 1)), NUMBERS),
    "robust": (RobustScaler(), NUMBERS),
    "most": (MaxAbsScaler(), NUMBERS),
    "power": (PowerTransformer(), NUMBERS),
    "spline": (SplineTransformer(4, knots="quantile"), NUMBERS),
    "nystroem": (Nystroem(n_components=4, random_state=np.random.RandomState(0)), NUMBERS),
    "fourier": (RBFSampler(n_components=4, random_state=0), NUMBERS),
    "imputer": (SimpleImputer(add_indicator=True), GAPS),
    "labels imputed": (SimpleImputer(strategy="most_frequent"), LABELS),
    "missing": (MissingIndicator(features="all"), GAPS),
    "one hot": (OneHotEncoder(handle_unknown="ignore", sparse_output=False), LABELS),
    "one hot, rare ones": (OneHotEncoder(min_frequency=20, handle_unknown="infrequent_if_exist"), LABELS),
    "ordinal": (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), LABELS),
    "target": (TargetEncoder(random_state=0), LABELS),
    "bins": (KBinsDiscretizer(3, encode="ordinal", strategy="uniform"), NUMBERS),
    "nothing": (FunctionTransformer(), NUMBERS),
    "pipeline": (make_pipeline(SimpleImputer(), StandardScaler(), PolynomialFeatures()), GAPS),
    "union": (FeatureUnion([("a", StandardScaler()), ("b", SplineTransformer())]), NUMBERS),
    "columns": (
        ColumnTransformer([("a", StandardScaler(), [0]), ("b", MinMaxScaler(), slice(1, 2))], remainder="passthrough"),
        NUMBERS,
    ),
}  # fmt: skip


def dense(table):
    return table.toarray() if hasattr(table, "toarray") else table


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_transform_as_they_did(name, tmp_path):
    transformer, table = TRANSFORMERS[name]
    fitted = transformer.fit(table, NUMBERS[:, 0])
    path = storage.save(fitted, tmp_path / "t.bayes")
    back = storage.load(path)
    np.testing.assert_array_equal(dense(back.transform(table)), dense(fitted.transform(table)))
    assert vars(back).keys() == vars(fitted).keys()
    assert storage.save(back, tmp_path / "again.bayes").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("transformer", "match"),
    [
        (FunctionTransformer(np.log1p), r"got a numpy.ufunc( \(log1p\))? at FunctionTransformer\.func"),
        (Pipeline([("a", StandardScaler())], memory="/tmp/cache"), "Pipeline.memory to be None, got '/tmp/cache'"),
        (ColumnTransformer([("a", StandardScaler(), [0])], n_jobs=4), "ColumnTransformer.n_jobs to be None, got 4"),
        (make_pipeline(StandardScaler(), type("Mine", (BaseEstimator,), {})()), r"Mine at Pipeline\.steps\[1\]\[1\]"),
    ],
)
def test_what_would_be_code_is_refused(transformer, match, tmp_path):
    with pytest.raises(UnsupportedError, match=match):
        storage.save(transformer, tmp_path / "t.bayes")


@pytest.mark.parametrize(
    ("node", "match"),
    [
        ({"Popen": {}}, "the class 'Popen' is not known"),
        ({"StandardScaler": {"transform": 1}}, "'transform' is not learnt by StandardScaler"),
        ({"StandardScaler": {"__class__": 1}}, "'__class__' is not learnt"),
        ({"StandardScaler": {"a b": 1}}, "'a b' is not learnt"),
        ({"BayesianMLPRegressor": {"checkpoint": "/tmp/x"}}, "a parameter leads out of the file"),
        ({"Pipeline": {"steps": [], "memory": "/tmp"}}, "a parameter leads out of the file"),
    ],
)
def test_learned_attributes_are_checked(node, match):
    with pytest.raises((ValueError, TypeError), match=match):
        Reader({}).value(node)


def test_another_scikit_learn_is_told(tmp_path):
    path = storage.save(StandardScaler().fit(NUMBERS), tmp_path / "t.bayes")
    manifest, tensors = parts(path.read_bytes())
    manifest["packages"]["scikit-learn"] = "1.2.3"
    path.write_bytes(framed(manifest, tensors))
    with pytest.warns(BayescopeWarning, match="transformers of scikit-learn 1.2.3, and this is"):
        storage.load(path)
