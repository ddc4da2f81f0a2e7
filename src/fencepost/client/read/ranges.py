"""Ranges of offsets and single records, as they are in the log: for the Spark source, copies, and staged content.

A range is done when the fetch *position* reaches its end. Counting records would not do: markers, aborted batches and
compaction leave gaps. The next fetch is in flight while the caller works on the last answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection, raise_for
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes
from fencepost.client.read.scan import FetchedBatch, visible_batches
from fencepost.errors import LEADER_IN_DOUBT, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import Record, decode_batch
from fencepost.types import EARLIEST, LATEST, TopicPartition
from fencepost.wire.apis import FETCH_BY_NAME, Key
from fencepost.wire.hot import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)

MAX_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 500
_PAUSE: Final = 0.1
AHEAD_BYTES: Final = 4 << 20
_OVERHEAD: Final = 256
"""More than the bytes of a batch around the value of its only record."""
_ABSENT_PATIENCE: Final = 5.0
"""Seconds to wait for a record behind the end of the log, or a topic that a broker does not know: a new leader may
learn of it late."""

CURED_BY_WAITING: Final = LEADER_IN_DOUBT | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}


class DataLost(FencepostError):
    """Records of the range no longer exist: retention deleted them, or the topic was recreated."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    is_behind = False
    """The log ends before the range does, and no more of it will come."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets start … stop−1 of one partition."""

    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.stop})"


def fetch(
    routes: Routes,
    wanted: Range,
    *,
    committed: bool = True,
    fail_on_data_loss: bool = True,
    max_bytes: int = MAX_BYTES,
    patience: float = 60.0,
    every_batch: bool = False,
    leader: BrokerNode | None = None,
) -> Iterator[list[FetchedBatch]]:
    """Yield the whole batches with records of the range, those of one answer at a time; with `every_batch`, also those
    without records. `leader`: who is asked first, if that is known.

    The first and the last batch may hold records outside the range, which the caller drops."""
    where, position = TopicPartition(wanted.topic, wanted.partition), wanted.start
    with _Requests(routes, patience, committed=committed, known={} if leader is None else {where: leader}) as requests:
        while position < wanted.stop:
            try:
                if not requests.waiting:
                    requests.send(where, position, max_bytes)
                answer = requests.receive()
                _raise_for(answer, wanted, position)
                batches, reached = visible_batches(
                    answer, position, wanted.stop, committed=committed, every_batch=every_batch
                )
                if reached == position and not requests.may_wait():
                    raise _nothing_came(routes, wanted, position, patience)
            except DataLost as lost:
                if fail_on_data_loss:
                    raise
                left = wanted.stop if lost.is_behind else _first_left(routes, wanted, position)
                if left > position:
                    requests.went_on()
                    position = left
                elif not requests.may_wait():
                    raise
                else:
                    time.sleep(_PAUSE)  # the offset exists: the log has changed between the two requests
            except (Unreachable, TimedOut, ServerError) as error:
                if not may_pass(error) or not requests.may_wait():
                    raise
                requests.begin_again()
            else:
                if reached > position:
                    requests.went_on()
                    position = reached
                    if position < wanted.stop:
                        requests.send(where, position, max_bytes)
                if batches:
                    yield batches


def fetch_records(routes: Routes, wanted: Range, *, patience: float = 60.0) -> Iterator[Record]:
    """Yield the committed records of the range, decoded."""
    for batches in fetch(routes, wanted, patience=patience):
        for batch in batches:
            yield from (record for record in decode_batch(batch.data) if wanted.start <= record.offset < wanted.stop)


def _first_left(routes: Routes, wanted: Range, position: int) -> int:
    """Return where to go on when `position` is out of the log's range; Apache Kafka's answer does not say that.

    Behind the log's end nothing of the range is left: the topic was recreated."""
    admin = PartitionAdmin(routes)
    first, end = (
        admin.offsets(wanted.topic, which, partitions=[wanted.partition])[wanted.partition].offset
        for which in (EARLIEST, LATEST)
    )
    return wanted.stop if position > end else min(wanted.stop, max(position, first))


def _nothing_came(routes: Routes, wanted: Range, position: int, patience: float) -> FencepostError:
    """Return the error for a range that existed when it was planned and cannot be read to its end."""
    found = PartitionAdmin(routes).offsets(wanted.topic, LATEST, partitions=[wanted.partition])
    end = found[wanted.partition].offset
    if end >= wanted.stop:
        return TimedOut(f"{wanted}: nothing more came from offset {position} within {patience:g} s")
    lost = DataLost(
        f"{wanted}: the log ends at {end}. Was the topic recreated? failOnDataLoss=false goes on with what is left"
    )
    lost.is_behind = True
    return lost


def _raise_for(answer: FetchedPartition, wanted: Range, position: int) -> None:
    code = ErrorCode.of(answer.error_code)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise DataLost(
            f"{wanted}: offset {position} no longer exists. Did retention delete it, or was the topic recreated? "
            "failOnDataLoss=false goes on with what is left"
        )
    if code is not ErrorCode.NONE:
        raise ServerError(code, f"fetching {wanted}")


# --- single records ---


class Picked(NamedTuple):
    """A record to fetch."""

    where: TopicPartition
    offset: int
    size: int
    """The bytes of its value."""


def fetch_values(
    routes: Routes, wanted: Sequence[Picked], *, ahead_bytes: int = AHEAD_BYTES, patience: float = 60.0
) -> Iterator[bytes | None]:
    """Yield the values of single records in the given order: content that a sink has staged. Raise DataLost if one of
    them does not exist.

    Each request asks for one record and no more bytes than it needs, because its neighbours belong to others. Several
    requests are in flight, limited by the bytes that they ask for."""
    with _Requests(routes, patience, committed=False) as requests:
        done = asked = waiting = 0  # numbers of records, and the bytes between them
        while done < len(wanted):
            try:
                while asked < len(wanted) and (asked == done or waiting + wanted[asked].size <= ahead_bytes):
                    requests.send(wanted[asked].where, wanted[asked].offset, wanted[asked].size + _OVERHEAD)
                    waiting += wanted[asked].size
                    asked += 1
                value = _value(requests.receive(), wanted[done])
            except (Unreachable, TimedOut, ServerError, DataLost) as error:
                absent = isinstance(error, _Absent) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not (absent or may_pass(error)) or not requests.may_wait(_ABSENT_PATIENCE if absent else patience):
                    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise DataLost(f"{wanted[done].where} does not exist any more") from error
                    raise
                requests.begin_again()
                asked, waiting = done, 0
                continue
            requests.went_on()
            waiting -= wanted[done].size
            done += 1
            yield value


class _Absent(DataLost):
    """Nothing came: the log ends before the record."""


def _value(answer: FetchedPartition, wanted: Picked) -> bytes | None:
    code = ErrorCode.of(answer.error_code)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise DataLost(f"{wanted.where}: offset {wanted.offset} does not exist any more")
    if code is not ErrorCode.NONE:
        raise ServerError(code, f"fetching {wanted.where}, offset {wanted.offset}")
    found, reached = visible_batches(answer, wanted.offset, wanted.offset + 1, committed=False)
    if reached == wanted.offset:
        raise _Absent(f"{wanted.where}: the log ends before offset {wanted.offset}")
    for batch in found:
        # No check of the checksum: the caller compares the value.
        for record in decode_batch(batch.data, check=False):
            if record.offset == wanted.offset:
                return record.value
    raise DataLost(f"{wanted.where}: offset {wanted.offset} has no record")


# --- requests ---


def may_pass(error: FencepostError) -> bool:
    """Return whether a request that failed so may succeed later, or at another broker."""
    known = isinstance(error, Unreachable | TimedOut) or error.code in CURED_BY_WAITING
    return known and not keeps_us_out(error)


class _Requests(Closing):
    """Fetches in flight to the leaders, answered in the order in which they were sent."""

    def __init__(
        self,
        routes: Routes,
        patience: float,
        *,
        committed: bool,
        known: Mapping[TopicPartition, BrokerNode] = MappingProxyType({}),
    ) -> None:
        """`patience`: seconds without progress. `known`: leaders that need not be looked up, the first time."""
        self._routes = routes
        self._patience = patience
        self._committed = committed
        self._leaders = dict(known)
        self._connections: dict[Address, BlockingConnection] = {}
        self._sent: deque[BlockingConnection] = deque()
        self._stuck_since: float | None = None

    @property
    def waiting(self) -> int:
        """The number of answers that were not received yet."""
        return len(self._sent)

    def send(self, where: TopicPartition, offset: int, max_bytes: int) -> None:
        if where not in self._leaders:
            (self._leaders[where],) = self._routes.leaders(where.topic, [where.partition])
        address = Address(self._leaders[where].host, self._leaders[where].port)
        if address not in self._connections:
            self._connections[address] = BlockingConnection(address, self._routes.settings)
        partition = FetchPartition(where.partition, offset, max_bytes)
        request = FetchRequest(
            _MAX_WAIT_MS, 1, max_bytes, int(self._committed), [FetchTopic(where.topic, None, [partition])]
        )
        connection = self._connections[address]
        connection.send(Key.FETCH, lambda version: [encode_fetch_request(version, request)], at_most=FETCH_BY_NAME)
        self._sent.append(connection)

    def receive(self) -> FetchedPartition:
        connection = self._sent.popleft()
        answer = decode_fetch_response(*connection.receive())
        raise_for(answer.error_code, f"fetching from {connection.address}")
        return answer.topics[0].partitions[0]

    def went_on(self) -> None:
        self._stuck_since = None

    def may_wait(self, patience: float = float("inf")) -> bool:
        """Return whether to try again: nothing came this time."""
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        return now - self._stuck_since < min(patience, self._patience)

    def begin_again(self) -> None:
        """Pause, and ask again who leads. Answers that nobody waits for any more may come on these connections."""
        self.close()
        time.sleep(_PAUSE)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()
        self._sent.clear()
