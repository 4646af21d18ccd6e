"""Training by default ends at a mode on the ten small tables of the benchmark of first answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bayescope.training import fit_map
from bench.first_answer_training import ten_tables

TABLES = dict(enumerate(ten_tables()))


@pytest.mark.parametrize("table", TABLES)
def test_a_network_at_the_end_of_its_training_has_nothing_more_to_learn(table: int) -> None:
    likelihood, data, (x, y), (inputs, outputs) = TABLES[table]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = nn.Sequential(nn.Linear(inputs, 30), nn.Tanh(), nn.Linear(30, outputs))
    common: dict[str, Any] = {"likelihood": likelihood, "generator": 0, "progress": False}
    found = fit_map(module, data, **common)
    later = fit_map(found.model, data, epochs=150, lr=0.003, optimizer="adam", schedule="cosine", **common)
    nll, later_nll = (-float(q.predict(x).log_prob(torch.as_tensor(y)).mean()) for q in (found, later))
    assert abs(nll - later_nll) < 0.03
    assert found.trace["loss"][-1] < later.trace["loss"][-1] + 0.1
