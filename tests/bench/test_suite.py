"""The list of benchmarks is true: each is there, and what it writes is found by its name."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from bench import record
from bench.suite import SUITE, Benchmark

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("benchmark", SUITE, ids=lambda each: each.name)
def test_each_is_there(benchmark: Benchmark) -> None:
    spec = importlib.util.find_spec(benchmark.module)
    assert spec is not None
    assert f"python -m {benchmark.module}" in Path(str(spec.origin)).read_text(encoding="utf-8")


def test_all_modules_that_can_be_run_are_in_it() -> None:
    runnable = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "bench").rglob("*.py")
        if re.search(r"(record|turns)\.arguments\(|chosen_of\(", path.read_text(encoding="utf-8"))
    }
    assert runnable - {"bench.papers.common", "bench.record", "bench.turns"} <= {each.module for each in SUITE}


def test_results_are_written_whole_with_what_made_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = record.made("bench.curvature")
    text = record.page("Title", origin, "What was done.", [record.table(["a", "b"], [[1, 2]])])
    record.save(tmp_path / "new", "name", {"made": origin, "numbers": [1.5]}, text)
    assert json.loads((tmp_path / "new" / "name.json").read_text())["made"]["code"] == record.code("bench.curvature")
    assert record.load(tmp_path / "new", "name")["numbers"] == [1.5]
    assert (tmp_path / "new" / "name.md").read_text() == text == capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["name.json", "name.md"]
    assert record.load(tmp_path, "absent") == {}


def test_a_column_for_each_entry_of_records() -> None:
    rows = [{"of": "a", "rows": 1000, "error": 0.01234}, {"of": "b", "rows": 3, "error": 2e-9}]
    told = "| of | rows | error |\n|---|---|---|\n| a | 1000 | 0.012 |\n| b | 3 | 2e-09 |"
    assert record.table_of(rows, ".2g") == told


def test_the_results_of_a_gpu_are_found_by_its_name() -> None:
    named, gpu = {each.name: each for each in SUITE}, "NVIDIA H100 80GB HBM3"
    assert named["large_models"].result_on(None) == "large_models"
    assert named["large_models"].result_on(gpu) == "large_models_nvidia_h100_80gb_hbm3"
    assert named["papers.mnist"].result_on(gpu) == "papers/mnist"  # this benchmark runs on the CPU of any machine
    assert record.gpu_of(torch.device("cpu")) is None
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    assert named["large_models"].result == named["large_models"].result_on(here)


def test_the_code_of_a_result_is_that_of_the_library_and_of_the_benchmark() -> None:
    assert record.code("bench.curvature") == record.code("bench.curvature") != record.code("bench.predict")


def test_the_code_of_a_result_has_all_that_the_benchmark_imports() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in record.sources("bench.predict")}
    assert {"bench/predict.py", "bench/turns.py", "bench/networks.py", "bench/floors.py", "bench/peers.py"} <= names
    assert "bench/record.py" not in names  # how results are written is not what they say
    assert "tests/curvature/reference.py" in {
        path.relative_to(ROOT).as_posix() for path in record.sources("bench.agreement")
    }  # fmt: skip
