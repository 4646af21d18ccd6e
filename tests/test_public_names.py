"""Laws of `import bayescope`: it loads nothing that is not asked for, and its names are those of its list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import bayescope as bs

HEAVY = ("torch", "scipy", "sklearn", "pandas", "matplotlib", "rich", "typer", "jinja2")
# Prints which heavy packages are loaded after the import and after each name that is asked for.
LOADED = f"""
import json, sys
heavy = lambda: sorted(set({HEAVY}) & sys.modules.keys())
import bayescope
seen = [heavy()]
for name in sys.argv[1:]:
    getattr(bayescope, name)
    seen.append(heavy())
print(json.dumps(seen))
"""
X = np.random.default_rng(0).normal(size=(30, 2))
y = X[:, 0] + np.random.default_rng(1).normal(size=30)


def loaded(*names: str) -> list[list[str]]:
    done = subprocess.run([sys.executable, "-c", LOADED, *names], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_the_import_loads_none_of_the_packages_it_stands_on():
    assert loaded() == [[]]


def test_its_names_are_the_public_names():
    assert dir(bs) == sorted(bs.__all__)
    assert {"laplace", "BayesianLinearRegression", "density", "report", "load"} < set(dir(bs))
    modules = {name for name in dir(bs) if isinstance(getattr(bs, name), ModuleType)}
    assert modules == {
        "density", "distributed", "errors", "integrations", "layers", "metrics", "plots", "precision", "storage",
    }  # fmt: skip


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'bayescope' has no attribute 'laplase'"):
        bs.laplase  # noqa: B018


def test_modules_do_not_hide_the_functions_of_their_names():
    code = """
import bayescope.laplace, bayescope.report, bayescope.conformal
import bayescope as bs
from bayescope import laplace, report, conformal
assert all(map(callable, (laplace, report, conformal, bs.laplace, bs.report, bs.conformal)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.global_rng
def test_a_program_that_only_loads_knows_every_class_of_a_file(tmp_path: Path):
    bs.BayesianLinearRegression().fit(X, y).save(tmp_path / "table.bayes")
    bs.laplace(torch.nn.Linear(2, 1), (X, y), likelihood="gaussian").save(tmp_path / "network.bayes")
    code = """
import sys
from bayescope import load
from bayescope.storage.codec import EVERY_FORM, FORMS, every_form
from bayescope.storage.functions import _FUNCTIONS
print(*(type(load(path)).__name__ for path in sys.argv[1:]))
known, functions = set(every_form()), set(_FUNCTIONS)
import importlib, pkgutil, bayescope
for module in pkgutil.walk_packages(bayescope.__path__, "bayescope."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert known == set(FORMS), set(FORMS) - known
assert functions == set(_FUNCTIONS), set(_FUNCTIONS) - functions
"""
    paths = [tmp_path / "table.bayes", tmp_path / "network.bayes"]
    done = subprocess.run([sys.executable, "-c", code, *paths], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["BayesianLinearRegression", "GaussianPosterior"]
