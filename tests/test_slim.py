"""The slim install: saved models load and predict where nothing can draw, write reports or read commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import bayescope as bs

ROOT = Path(__file__).resolve().parents[1]
MISSING = {"matplotlib", "contourpy", "jinja2", "markupsafe", "typer", "rich"}
# In this process those packages are not installed.
WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
SERVE = """
import numpy as np
import bayescope as bs
X = np.load(sys.argv[1])
answers = []
for path in sys.argv[3:]:
    model = bs.load(path)
    p = model.predict(X) if isinstance(model, bs.Posterior) else model.predict_distribution(X)
    answers.append(np.concatenate([p.probs, p.epistemic], axis=1))
np.save(sys.argv[2], answers)
"""
REFUSE = """
import bayescope as bs
from bayescope.errors import MissingDependencyError
for name in ("compare", "report"):
    try:
        getattr(bs, name)
    except MissingDependencyError as error:
        print(name, error)
try:
    bs.BayesianLinearRegression().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 3.0]).predict_distribution([[1.0]]).plot()
except MissingDependencyError as error:
    print("plot", error)
sys.argv = ["bayescope", "--help"]
import bayescope_command
bayescope_command.main()
"""


@pytest.mark.global_rng  # the layer's weights
def test_saved_models_predict_without_pictures_reports_and_commands(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = (X[:, 0] + np.random.default_rng(1).normal(size=30) > 0).astype(int)
    models = {
        "linear": bs.BayesianLogisticRegression().fit(X, y),
        "additive": bs.NeuralAdditiveClassifier(interactions=0, random_state=0).fit(X, y),
        "network": bs.laplace(torch.nn.Linear(2, 1), (X, y), likelihood="bernoulli"),
    }
    paths = [model.save(tmp_path / f"{name}.bayes") for name, model in models.items()]
    np.save(tmp_path / "X.npy", X[:4])
    command = [sys.executable, "-c", WITHOUT + SERVE, tmp_path / "X.npy", tmp_path / "answers.npy", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    distributions = [models["linear"].predict_distribution(X[:4]), models["additive"].predict_distribution(X[:4])]
    expected = [
        np.concatenate([p.probs, p.epistemic], axis=1) for p in (*distributions, models["network"].predict(X[:4]))
    ]
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, rtol=1e-6)


def test_what_needs_more_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT + REFUSE], capture_output=True, text=True, check=False)
    reasons = done.stdout.splitlines()
    found = [re.sub(r" is needed here.*", "", line) for line in reasons]
    assert found == ["compare matplotlib", "report matplotlib", "plot matplotlib"]
    assert done.returncode == 1
    assert re.fullmatch(r"bayescope: \w+ is needed here and is not installed: pip install bayescope.*\n", done.stderr)


def test_the_page_names_all_other_dependencies() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.match(r"[\w-]+", each)[0] for each in dependencies}  # type: ignore[index]
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\$ pip install --no-deps \.\n\$ pip install (.*)$", page, re.MULTILINE)
    assert set(listed.split()) == names - MISSING
