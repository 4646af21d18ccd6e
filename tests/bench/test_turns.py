"""Ratios within one run, and whether a later run is slower."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import check
from bench.check import ALLOWED, middle, our_ratios, slower
from bench.suite import SUITE
from bench.turns import Machine, Work, fastest, in_turns, ratios, speed_table

UNIT = "a pass"


def clocked(seconds: dict[str, float]) -> tuple[Any, Any]:
    """A clock that each work's run moves on by the work's own seconds."""
    now = [0.0]

    def clock() -> float:
        return now[0]

    def run_of(name: str) -> Any:
        def run() -> None:
            now[0] += seconds[name]

        return run

    return clock, run_of


def test_a_ratio_is_per_row_and_in_its_turn() -> None:
    clock, run_of = clocked({UNIT: 2.0, "fit": 9.0, "theirs": 1.0})
    works = [
        Work(UNIT, run_of(UNIT), UNIT, rows=100),
        Work("fit", run_of("fit"), UNIT, rows=50, budget=10.0, flops=1e9),
        Work("fit", run_of("theirs"), UNIT, "peer, slow", rows=1),
    ]
    in_turns(works, 5, 2, clock)
    assert [len(work.seconds) for work in works] == [5, 5, 2]
    (record,) = ratios(works, Machine(1e9, 1e9))
    assert record["ratio"] == record["least"] == record["greatest"] == pytest.approx(9.0)
    assert record["over_floor"] == pytest.approx(9.0)
    assert record["peers"]["peer, slow"]["ratio"] == pytest.approx(50.0)
    assert "50 [50–50] (slow, 1 rows)" in speed_table([record])


def test_what_is_not_the_time_of_a_call_is_measured_by_its_own_rule() -> None:
    ran: list[str] = []

    def measure(work: Work) -> float:
        ran.append(work.name)
        work.run()
        return {UNIT: 2.0, "step": 6.0}[work.name]

    works = [Work(UNIT, lambda: None, UNIT), Work("step", lambda: None, UNIT)]
    in_turns(works, 2, measure=measure)
    assert ran == [UNIT, "step"] * 3  # once to warm up
    assert [work.seconds for work in works] == [[2.0, 2.0], [6.0, 6.0]]


def test_the_least_of_five_runs_counts_and_the_first_warms_up() -> None:
    seconds = [1.0, 7.0, 5.0, 3.0, 4.0, 9.0, 1.0]
    ran: list[int] = []
    now = iter([tick for start, taken in enumerate(seconds) for tick in (10.0 * start, 10.0 * start + taken)])
    assert fastest(lambda: ran.append(0), now.__next__) == 3.0
    assert len(ran) == 6


def test_a_peer_that_refuses_is_a_result_and_our_failure_is_not() -> None:
    def refuse() -> None:
        raise NotImplementedError("no such layer")

    works = [Work(UNIT, lambda: None, UNIT), Work("fit", lambda: None, UNIT), Work("fit", refuse, UNIT, "peer")]
    in_turns(works, 1, clock=iter(range(1000)).__next__)
    assert ratios(works)[0]["peers"]["peer"]["failure"] == "NotImplementedError: no such layer"
    with pytest.raises(NotImplementedError):
        in_turns([Work("fit", refuse, UNIT)], 1)


def test_what_has_grown_by_more_than_a_fifth_is_slower() -> None:
    committed = {"fit": 2.0, "predict": 5.0, "gone": 1.0}
    now = {"fit": 2.0 * ALLOWED + 0.01, "predict": 5.9}
    assert slower(committed, now) == {"fit": pytest.approx(ALLOWED + 0.005), "gone": math.inf}
    assert slower(committed, middle([now, {**now, "fit": 2.1}, {**now, "fit": 2.2}])) == {"gone": math.inf}
    assert middle([{"fit": 3.0}, {"fit": 1.0}, {}]) == {"fit": 3.0}


def test_a_check_compares_what_is_committed_and_fails_where_nothing_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def measured(benchmark: Any, _: Any) -> dict[str, float]:
        ran.append(benchmark.name)
        return {"fit": 2.0 if len(ran) == 1 else 1.0}

    for benchmark in SUITE:
        (tmp_path / f"{benchmark.name}.json").write_text(json.dumps({"ratios": [{"work": "fit", "ratio": 1.0}]}))
    assert check.main(["linear"], results=tmp_path, measure=measured) == 0  # noise of the machine in the first run
    assert ran == ["linear"] * 3
    assert check.main([], results=tmp_path, measure=lambda *_: {"fit": 1.3}) == 1
    assert "slower: linear: fit, 1.30 times" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="linear: expected committed ratios, got none"):
        check.main(["linear"], results=tmp_path / "empty", measure=measured)
    with pytest.raises(SystemExit):
        check.main(["posteriordb"])


def test_the_ratios_of_results_are_ours_alone() -> None:
    results = {"ratios": [{"work": "fit", "ratio": 3.0, "peers": {}}, {"work": "theirs", "peers": {"peer": {}}}]}
    assert our_ratios(results) == {"fit": 3.0}
    assert our_ratios({}) == {}
