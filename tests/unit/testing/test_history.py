"""The history checker finds a planted anomaly of every class, and none in a history that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fencepost.testing.history import History, Kind, Recorder, Report, check
from fencepost.types import Offset, TopicPartition

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)
Event = tuple[Any, ...]


def transaction(process: str, outcome: str, *writes: tuple[int, str] | tuple[int, str, str]) -> list[Event]:
    events: list[Event] = [(process, "begin")]
    for partition, value, *work in writes:
        events.append((process, "send", "out", partition, value, work[0] if work else None))
    return events if outcome == "unknown" else [*events, (process, outcome)]


def reads(reader: str, *records: tuple[int, int, str]) -> list[Event]:
    return [(reader, "read", "out", *record) for record in records]


GOOD: list[Event] = [
    *transaction("a", "committed", (0, "a1", "w1"), (1, "a2", "w2"), (0, "a3", "w3")),
    *transaction("a", "aborted", (0, "a4", "w4")),
    *transaction("a", "unknown", (0, "a5", "w4"), (1, "a6", "w5")),
    *transaction("b", "unknown", (0, "b1", "w6")),
    *reads("r", (0, 0, "a1"), (1, 0, "a2"), (0, 1, "a3"), (0, 5, "a5")),
    *reads("late", (0, 1, "a3"), (0, 5, "a5")),
]
LOG = {P0: [(0, "a1"), (1, "a3"), (5, "a5")], P1: [(0, "a2"), (2, "a6")]}


def report_of(events: list[Event], log: dict[TopicPartition, list[tuple[int, str]]], **how: Any) -> Report:
    history = History()
    for event in events:
        history.note(*event)
    typed = {partition: [(Offset(offset), value) for offset, value in records] for partition, records in log.items()}
    return check(history, typed, **how)


def test_a_history_that_is_right_has_no_anomaly() -> None:
    report = report_of(GOOD, LOG, done=["w1", "w2", "w3", "w4", "w5"])
    assert report.anomalies == []
    assert (report.transactions["committed"], report.writes, report.reads, report.records) == (1, 7, 6, 5)


def without(value: str) -> dict[TopicPartition, list[tuple[int, str]]]:
    return {partition: [record for record in records if record[1] != value] for partition, records in LOG.items()}


def with_record(partition: TopicPartition, offset: int, value: str) -> dict[TopicPartition, list[tuple[int, str]]]:
    return {**LOG, partition: sorted([*LOG[partition], (offset, value)])}


PLANTED: list[tuple[Kind, str, list[Event], dict[TopicPartition, list[tuple[int, str]]]]] = [
    ("lost", "a2 in out-1", GOOD[:5], without("a2")),
    ("lost", "r read a2", GOOD, without("a2")),
    ("lost", "r passed over b1", GOOD, with_record(P0, 3, "b1")),
    ("aborted read", "a4 is in out-0", GOOD, with_record(P0, 7, "a4")),
    ("aborted read", "r read a4", [*GOOD, *reads("r", (0, 9, "a4"))], LOG),
    ("torn", "a5 is there, a6 is not", GOOD, without("a6")),
    ("duplicate", "a5 is in out-0 at 5, out-0 at 8", GOOD, with_record(P0, 8, "a5")),
    ("duplicate", "a1 is in out-0 at 0, out-1 at 8", GOOD, with_record(P1, 8, "a1")),
    ("duplicate", "work w4 was done by a5 and c1", [*GOOD, *transaction("c", "unknown", (1, "c1", "w4"))],
     with_record(P1, 9, "c1")),
    ("duplicate", "r was given out-0 1 after 5", [*GOOD, *reads("r", (0, 1, "a3"))], LOG),
    ("reordered", "a3 was sent after a1", GOOD[:5], {P0: [(0, "a3"), (1, "a1")], P1: [(0, "a2")]}),
    ("reordered", "late was given out-0 0 after 5", [*GOOD, *reads("late", (0, 0, "a1"))], LOG),
    ("changed", "out-0 at 1: a3, but r2 read a1", [*GOOD, *reads("r2", (0, 1, "a1"))], LOG),
    ("phantom", "who? is in out-1 at 9", GOOD, with_record(P1, 9, "who?")),
    ("phantom", "r read who?", [*GOOD, *reads("r", (1, 9, "who?"))], LOG),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "what", "events", "log"), PLANTED, ids=[f"{kind}: {what}" for kind, what, *_ in PLANTED]
)
def test_a_planted_anomaly_is_found(
    kind: Kind, what: str, events: list[Event], log: dict[TopicPartition, list[tuple[int, str]]]
) -> None:
    found = report_of(events, log).of(kind)
    assert any(what in text for text in found), found


def test_work_that_left_no_record_is_lost() -> None:
    assert report_of(GOOD, LOG, done=["w1", "w9"]).of("lost") == ["work w9 left no record"]


def test_a_value_that_is_written_twice_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="written twice"):
        report_of([*GOOD, *transaction("c", "committed", (0, "a1"))], LOG)


def test_notes_survive_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a", "a")
    recorder.begin()
    recorder.send("out", 0, "a1", "w1")
    recorder.committed()
    recorder.read("out", 0, 0, "a1")
    recorder.fault("kill")
    recorder.begin()
    recorder.send("out", 0, "a2")
    recorder.close()
    with (tmp_path / "a").open("a") as notes:
        notes.write('["a", "commi')
    history = History.load([tmp_path / "a"])
    assert [(entry.outcome, len(entry.writes)) for entry in history.transactions] == [("committed", 1), ("unknown", 1)]
    report = check(history, {P0: [(Offset(0), "a1")]})
    assert report.anomalies == []
    assert str(report).splitlines() == [
        "operations: 2 transactions (1 committed, 0 aborted, 1 unknown), 2 writes, 1 reads",
        "log: 1 committed records",
        "faults: 1 kill",
        "anomalies: 0",
    ]
