"""Batches and markers that follow each other to a partition without waiting, while its leader refuses some of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli import migrate_copy
from fencepost.cli.migrate_copy import OffsetWriter
from fencepost.client.cluster.addresses import Address
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError, Unreachable
from fencepost.kernel import encode_batch, read_header
from fencepost.types import Epoch, Pid, TopicPartition
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.hot import ProducedPartition

pytestmark = pytest.mark.unit

WHERE = TopicPartition("t", 0)
WHO = Identity(Pid(7), Epoch(0))
MARKER = "marker"


class Leader:
    """A partition's leader that handles one request after the other, and the only channel to it."""

    address = Address("leader", 9092)

    def __init__(self, refuses: set[int], code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self.versions = {Key.WRITE_TXN_MARKERS: (1, 1)}
        self.log: list[object] = []
        """The sequence of each record, and the markers."""
        self.refuses, self.code = refuses, code
        self.handled = 0
        self.next = 0
        self.cuts_at: int | None = None
        self._answers: deque[Any] = deque()
        self.admin = self

    def producers(self, _topic: str, *, partitions: list[int]) -> list[Any]:
        known = {"pid": WHO.pid, "epoch": WHO.epoch, "last_sequence": self.next - 1}
        return [SimpleNamespace(partition=partition, **known) for partition in partitions]

    def to_leader(self, _where: TopicPartition) -> Leader:
        return self

    def drop(self, _channel: Leader) -> None:
        self._answers.clear()

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    def send_batches(self, batches: dict[TopicPartition, bytearray], _name: None) -> None:
        (batch,) = batches.values()
        first, count = read_header(batch).base_sequence, read_header(batch).count
        code = self._refusal()
        if code is ErrorCode.NONE and first != self.next:
            code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER if first < self.next else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        at = len(self.log) if code is ErrorCode.NONE else -1
        if code is ErrorCode.NONE:
            self.log.extend(range(first, first + count))
            self.next += count
        self._answers.append(ProducedPartition(0, int(code), at))

    def send(self, key: int, encode: Callable[[int], list[bytes]], *, at_most: int) -> None:
        version = at_most
        asked = messages.decode_request(key, version, memoryview(b"".join(encode(version))))
        code = self._refusal()
        if code is ErrorCode.NONE:
            self.log.extend([MARKER] * len(asked.markers))
        partition = {"partition_index": 0, "error_code": int(code)}
        topics = [{"name": "t", "partitions": [partition]}]
        answer = {"markers": [{"producer_id": marker.producer_id, "topics": topics} for marker in asked.markers]}
        self._answers.append((version, memoryview(messages.encode_response(key, version, answer))))

    def receive_produced(self) -> list[tuple[str, ProducedPartition]]:
        return [("t", self._answer())]

    def receive(self) -> tuple[int, memoryview]:
        return self._answer()  # type: ignore[no-any-return]

    def _answer(self) -> Any:
        if self.cuts_at is not None and self.handled >= self.cuts_at:
            raise Unreachable("cut")
        return self._answers.popleft()

    def _refusal(self) -> ErrorCode:
        self.handled += 1
        return self.code if self.handled in self.refuses else ErrorCode.NONE


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_copy, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(migrate_copy, "_LONGEST_PAUSE", 0.0)


def copy(leader: Leader, runs: list[tuple[int, int]]) -> list[object]:
    """Write runs of records, each with the markers behind it. Return the log as it should be."""
    writer = OffsetWriter(leader, WHO, WHERE)  # type: ignore[arg-type]
    expected: list[object] = []
    sequence = 0
    for records, gap in runs:
        writer.write_at(len(expected), encode_batch([(b"k", b"v", 1, None)] * records))
        expected += range(sequence, sequence + records)
        sequence += records
        writer.write_markers(WHO, gap)
        expected += [MARKER] * gap
    writer.finish()
    return expected


RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=12)


@given(runs=RUNS, first=st.integers(1, 30), count=st.integers(0, 20))
def test_a_leader_that_refuses_for_a_while_gets_everything_in_order(
    runs: list[tuple[int, int]], first: int, count: int
) -> None:
    """As while another broker becomes the leader: from one request on it refuses all, also those in flight."""
    leader = Leader(set(range(first, first + max(count, 6) if count else first)))
    assert copy(leader, runs) == leader.log


@given(runs=RUNS, refused=st.integers(1, 24))
def test_a_copy_never_ends_well_with_a_wrong_log(runs: list[tuple[int, int]], refused: int) -> None:
    """One request is refused, and what comes behind it is not: a marker may then take the offset of a record."""
    leader = Leader({refused})
    try:
        expected = copy(leader, runs)
    except FencepostError as error:
        assert "elete the topic on the target, and start again" in str(error)  # noqa: PT017 - or it ends well
    else:
        assert leader.log == expected


def test_a_marker_behind_a_refused_batch_is_told_as_what_it_is() -> None:
    leader = Leader({3})  # the second batch
    with pytest.raises(FencepostError, match=r"t-0: the target refused a part of the copy .* wrote what comes behind"):
        copy(leader, [(1, 1), (1, 1)])
    assert leader.log == [0, MARKER, MARKER]


def test_batches_do_not_wait_for_the_markers_between_them() -> None:
    leader = Leader(set())
    writer = OffsetWriter(leader, WHO, WHERE)  # type: ignore[arg-type]
    for number in range(3):
        writer.write_at(2 * number, encode_batch([(b"k", b"v", 1, None)]))
        writer.write_markers(WHO, 1)
    assert leader.in_flight == 5  # the first batch goes alone, and then five may be in flight
    writer.finish()
    assert leader.in_flight == 0


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.REQUEST_TIMED_OUT])
def test_what_may_have_been_written_and_what_cannot_be_cured_end_the_run(code: ErrorCode) -> None:
    leader = Leader({4}, code)
    with pytest.raises(ServerError) as caught:
        copy(leader, [(1, 1), (1, 1)])
    assert caught.value.code is code


def test_markers_without_an_answer_are_not_sent_again() -> None:
    leader = Leader(set())
    leader.cuts_at = 4
    with pytest.raises(Unreachable):
        copy(leader, [(1, 1), (1, 1), (1, 1)])
    assert leader.log.count(MARKER) <= 3
    assert leader.handled <= 6
