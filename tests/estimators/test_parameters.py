"""Parameters are declared once: the names in the types are those that a fit knows, and a checker finds others."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import bayescope as bs
from bayescope.errors import OptionError

ESTIMATORS = [
    bs.BayesianLinearRegression, bs.BayesianLogisticRegression, bs.BayesianMLPClassifier, bs.BayesianMLPRegressor,
    bs.NeuralAdditiveClassifier, bs.NeuralAdditiveRegressor,
]  # fmt: skip
NAMED = [
    (bs.BayesianLogisticRegression, "posterior"), (bs.BayesianMLPClassifier, "posterior"),
    (bs.BayesianMLPClassifier, "activation"), (bs.BayesianMLPRegressor, "encoding"),
    (bs.NeuralAdditiveRegressor, "structure"), (bs.NeuralAdditiveRegressor, "likelihood"),
    (bs.BayesianMLPRegressor, "likelihood"),
]  # fmt: skip


def named(annotation: Any) -> list[str]:
    """Every name in a type, which may be a union of several sets of names and of objects."""
    return (
        [annotation] if isinstance(annotation, str) else [name for part in get_args(annotation) for name in named(part)]
    )


@pytest.mark.parametrize(("estimator", "option"), NAMED)
def test_the_names_in_the_type_are_those_that_a_fit_knows(estimator: type, option: str) -> None:
    with pytest.raises(OptionError) as error:
        estimator(**{option: "none of them"}).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    names = named(get_type_hints(estimator)[option])
    assert all(repr(name) in str(error.value) for name in names)
    assert str(error.value).count("', '") == len(names) - 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_is_learnt_is_no_parameter(estimator: Any) -> None:
    names = list(inspect.signature(estimator).parameters)
    assert sorted(names) == sorted(estimator().get_params())
    assert not any(name.startswith("_") or name.endswith("_") for name in names)
    assert sorted(vars(estimator())) == sorted(names)


SCRIPT = """
import torch
import bayescope as bs
net, data = torch.nn.Linear(1, 1), (torch.zeros(4, 1), torch.zeros(4, 1))
mean, sd = bs.BayesianLinearRegression().fit([[0.0]], [1.0]).predict([[0.0]], return_std=True)
print(mean.shape, sd.shape)
bs.fit_map(net, data, likelihood="gaussian", optimizer="lbfgs", epochs=3)
bs.swag(net, data, likelihood="gaussian", optimizer=torch.optim.RMSprop, schedule="cyclic", batch_size=2)
bs.laplace(net, data, likelihood="gaussian", structure="samples")
bs.BayesianLogisticRegression(posterior="laplase")
bs.fit_map(net, data, likelihood="gaussian", optimizer="adm")
bs.ensemble([net], data, likelihood="gaussian", schedule="cosinus")
bs.variational(net, data, likelihood="gaussian", optimizer="ivn")
bs.mc_dropout(net, data, likelihood="gaussian", rate=0.1, epoch=3)
bs.fit_evidence(net, data, likelihood="gaussian", keep="lst")
bs.laplace(net, data, likelihood="gaussian", structure="kfca")
"""
MISSPELT = ("laplase", "adm", "cosinus", "ivn", "epoch", "lst", "kfca")


def test_a_type_checker_finds_each_name_that_is_misspelt(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(bs.__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), str(script)]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    errors = [line for line in told.splitlines() if ": error:" in line]
    assert len(errors) == len(MISSPELT), told
    first = SCRIPT.splitlines().index('bs.BayesianLogisticRegression(posterior="laplase")') + 1
    for place, (line, name) in enumerate(zip(errors, MISSPELT, strict=True)):
        assert f"script.py:{first + place}: error" in line
        assert name in line
