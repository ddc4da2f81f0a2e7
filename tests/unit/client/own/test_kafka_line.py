"""Waiting in line on Apache Kafka, as far as it goes without one: nobody waits for who gave up (OWN-8)."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from fencepost.client.own.kafka_line import wait_in_line
from fencepost.core.own.kafka_records import Claimant, OwnerRecord, Records, WaitingClaimRecord, is_next
from fencepost.core.own.kafka_steps import DescribeWriter, FenceClaims, FenceWriters, ReadRecords, WriteRecords
from fencepost.core.own.ownership import ClaimedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import Unreachable
from fencepost.types import Epoch, Generation, Pid

pytestmark = pytest.mark.unit

ME = Claimant("g", "me", "claim", session_ms=10_000)
WHO = Identity(Pid(7), Epoch(0))


class Group:
    """A group's records in memory, and a view of them that fails when its claimant waits for the second time."""

    def __init__(self, failure: BaseException) -> None:
        taken = OwnerRecord(Generation(1), 1, "other", session_ms=10_000)
        self.records = Records({"b": taken}, {})
        self.failure = failure
        self.waits = 0

    def carry_out(self, steps: Any) -> Any:
        step = next(steps)
        try:
            while True:
                step = steps.send(self._do(step))
        except StopIteration as end:
            return end.value

    def _do(self, step: Any) -> Any:
        match step:
            case FenceWriters(write_ids):
                return tuple(WHO for _ in write_ids)
            case FenceClaims() | DescribeWriter():
                return WHO
            case ReadRecords():
                return self.records
            case WriteRecords(_, owners, line):
                lined_up: dict[str, WaitingClaimRecord | None] = {**self.records.line, **line}
                kept = {write_id: each for write_id, each in lined_up.items() if each is not None}
                self.records = Records({**self.records.owners, **owners}, kept)
        return None

    def follow(self) -> Group:
        return self

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def wait(self, seconds: float) -> None:
        self.waits += 1
        if self.waits == 2:
            raise self.failure


class EverybodyIsThere:
    def gone(self, write_ids: Any) -> set[str]:
        return set()


@pytest.mark.parametrize("failure", [Unreachable("no broker"), KeyboardInterrupt()], ids=["unreachable", "ctrl-c"])
def test_a_wait_that_ends_by_any_error_leaves_the_line(failure: BaseException) -> None:
    """An owner of something else lives on, and with it its place: what it waited for would never be free for others."""
    group = Group(failure)
    with pytest.raises(type(failure)):
        wait_in_line(
            cast("Any", group),
            cast("Any", EverybodyIsThere()),
            ME,
            [ClaimedResource("b")],
            60.0,
            threading.Event(),
            [WHO],
        )
    assert group.waits == 2
    assert not group.records.line
    freed = group.records._replace(owners={"b": OwnerRecord(Generation(0), 1, None)})
    assert is_next(freed, "somebody behind", ["b"], gone=())
