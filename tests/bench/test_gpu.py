"""The page of a GPU: what it compares, and that it can be written on a machine that has none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.large_models import largest_error
from tests.device_paths import EXACT, in_dtype, problem

CPU = torch.device("cpu")


def test_ratios_are_those_to_the_unit_of_each() -> None:
    seconds = {"forward+backward": 0.5, "forward": 0.2, "fit": 1.5, "prediction": 1.0}
    found = gpu.ratios(seconds, {"prediction": "forward"}, {"fit": (3.5, 2.5)}, 7)
    assert [row["ratio"] for row in found] == pytest.approx([1.0, 0.4, 3.0, 5.0])
    assert found[2]["budget"] == 3.5
    text = gpu.speeds_text(found)
    assert "| fit | 7 | 1500.00 | 3.00 × forward+backward | 3.5 | 2.5 |" in text
    assert "| prediction | 7 | 1000.00 | 5.00 × forward | – | – |" in text


def test_errors_and_failures_are_told_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: str) -> list[torch.Tensor]:
        if device == "meta":
            raise RuntimeError("no kernel")
        return [torch.ones(2, dtype=torch.float64)]

    def shifted(device: str) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 2.0 + (device == "meta")], dtype=torch.float64)]

    monkeypatch.setitem(EXACT, "refused", refused)
    monkeypatch.setitem(EXACT, "shifted", shifted)
    found = gpu.agreement(torch.device("meta"), ["refused", "shifted"])
    text = gpu.agreement_text(found, torch.device("meta"))
    assert "2 public paths: 2 failed, 1 differ in float64" in text
    assert "- refused (meta float64): RuntimeError: no kernel" in text
    assert found[1]["errors"] == {"meta float64": 0.5, "meta float32": 0.5, "cpu float32": 0.0}


def test_paths_are_run_in_the_type_that_is_asked_for() -> None:
    with in_dtype(torch.float32):
        module, _ = problem("perceptron", "cpu")
        single = EXACT["ggn-diagonal"]("cpu")
    assert next(module.parameters()).dtype == torch.float32
    assert next(problem("perceptron", "cpu")[0].parameters()).dtype == torch.float64
    errors = [largest_error(*pair) for pair in zip(single, EXACT["ggn-diagonal"]("cpu"), strict=True)]
    assert 0 < max(errors) < 1e-4


def test_memory_beside_the_plan() -> None:
    rows = [{"network": "MLP", "structure": "kfac", "planned": 2_000_000, "peak": 1_000_000}]
    assert "| MLP | kfac | 2 MB | 1 MB | 0.50 |" in gpu.memory_text(rows)
    assert "| MLP | kfac | 2 MB | – | – |" in gpu.memory_text([{**rows[0], "peak": None}])


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
def test_the_page_is_written_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    monkeypatch.setattr(gpu, "FEW_PATHS", ("ggn-diagonal",))
    monkeypatch.setattr(gpu, "QUICK_SIZES", (32, 16, 4))
    monkeypatch.setattr(
        gpu, "speeds", lambda device, rows, last_rows, turns: gpu.last_layer(device, 100, last_rows, turns)
    )
    gpu.main()
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert text.startswith("# Networks on a CPU (")
    assert "1 public paths: 0 failed, 0 differ" in text
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert {row["peak"] for row in found["memory"]} == {None}
    assert found["speed"][0]["work"] == "forward"
