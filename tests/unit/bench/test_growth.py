"""The curves of `python -m bench growth`: the plan, and the pictures that are drawn from a saved run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import payload
from bench.brokers import KAFKA, OS
from bench.growth import plan
from bench.growth.measure import CLIENT_MEMORY, RATE, SERVER_MEMORY
from bench.growth.plan import FULL, QUICK, Plan
from bench.report import growth
from bench.results import Results

pytestmark = pytest.mark.unit

ABOUT = {
    "date": "today",
    "machine": {"cores": 2, "cpu": "one", "load_before": 0.1},
    "versions": {"Apache Kafka": "4"},
    "run": "quick",
}


@pytest.mark.parametrize("chosen", [QUICK, FULL])
def test_every_question_has_a_rising_curve(chosen: Plan) -> None:
    assert list(chosen.points) == list(plan.AXES)
    for points in chosen.points.values():
        assert len(points) > 1
        assert [point.at for point in points] == sorted({point.at for point in points})


def test_a_curve_can_end_earlier() -> None:
    assert [point.at for point in FULL.up_to(100).points[plan.PARTITIONS]] == [1, 10, 100]


@pytest.mark.parametrize("at", [0, 1, 1000, 1_000_000])
def test_a_place_on_a_curve_is_read_back_from_its_label(at: int) -> None:
    assert plan.place(plan.label(at)) == at


def test_each_question_of_a_saved_run_gets_a_picture(tmp_path: Path) -> None:
    results = Results(ABOUT, tmp_path / "run.json")
    for at in (1, 10_000):
        for target in (OS, KAFKA):
            results.add(plan.section(plan.PARTITIONS, RATE), (plan.label(at),), target, "", 1000 / at)
            results.add(plan.section(plan.PARTITIONS, CLIENT_MEMORY), (plan.label(at),), target, "MiB", -0.5 * at)
    results.add(plan.section(plan.LOG, SERVER_MEMORY), (plan.label(0),), OS, "MiB", 50.0)
    drawn = growth.draw(Results.load(tmp_path / "run.json"), tmp_path / "run.png")
    assert [path.name for path in drawn] == ["run-partitions.png", "run-log.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_a_run_of_something_else_has_no_curves(tmp_path: Path) -> None:
    results = Results(ABOUT)
    results.add("produce", ("raw",), OS, "MB/s", 1.0)
    assert growth.draw(results, tmp_path / "run.png") == []


@pytest.mark.parametrize("size", [10, 100, 1024, 1_000_000])
def test_records_of_every_size_have_it_exactly(size: int) -> None:
    pool = payload.values(size)
    assert {len(value) for value in pool} == {size}
    assert len(pool) & (len(pool) - 1) == 0, "clients choose by a mask"
