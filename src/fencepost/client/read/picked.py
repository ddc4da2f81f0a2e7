"""Single large records by their offsets, in the caller's order: for content that a sink has staged.

Each request asks for one record and no more bytes than it needs, because its neighbours belong to others. Several
requests are in flight, limited by the bytes that they ask for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.routing import Routes
from fencepost.client.read.ranges import CURED_BY_WAITING, DataLost
from fencepost.client.read.scan import visible_batches
from fencepost.errors import ErrorCode, ServerError, TimedOut, Unreachable
from fencepost.kernel import decode_batch
from fencepost.types import TopicPartition
from fencepost.wire.hot import FetchedPartition

AHEAD_BYTES: Final = 4 << 20
_OVERHEAD: Final = 256
"""More than the bytes of a batch around the value of its only record."""
_MAX_WAIT_MS: Final = 500
_PAUSE: Final = 0.1
_ABSENT_PATIENCE: Final = 5.0
"""Seconds to wait for a record behind the end of the log, or a topic that a broker does not know: a new leader may
learn of it late."""


class Picked(NamedTuple):
    """A record to fetch."""

    where: TopicPartition
    offset: int
    size: int
    """The bytes of its value."""


def fetch_values(
    routes: Routes, wanted: Sequence[Picked], *, ahead_bytes: int = AHEAD_BYTES, patience: float = 60.0
) -> Iterator[bytes | None]:
    """Yield the values of the records in the given order. Raise DataLost if one of them does not exist."""
    with _Requests(routes) as requests:
        done = asked = waiting = 0  # numbers of records, and the bytes between them
        failing_since: float | None = None
        while done < len(wanted):
            try:
                while asked < len(wanted) and (asked == done or waiting + wanted[asked].size <= ahead_bytes):
                    requests.ask(wanted[asked])
                    waiting += wanted[asked].size
                    asked += 1
                value = _value(requests.answer(), wanted[done])
            except (Unreachable, TimedOut, ServerError, DataLost) as error:
                now = time.monotonic()
                failing_since = failing_since or now
                if not _may_pass(error, now - failing_since, patience):
                    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise DataLost(f"{wanted[done].where} does not exist any more") from error
                    raise
                requests.drop()
                asked, waiting = done, 0
                time.sleep(_PAUSE)
                continue
            failing_since = None
            waiting -= wanted[done].size
            done += 1
            yield value


def _may_pass(error: Unreachable | TimedOut | ServerError | DataLost, failing_for: float, patience: float) -> bool:
    if isinstance(error, _Absent) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return failing_for < min(patience, _ABSENT_PATIENCE)
    known = isinstance(error, Unreachable | TimedOut) or error.code in CURED_BY_WAITING
    return known and not keeps_us_out(error) and failing_for < patience


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


class _Requests(Closing):
    """Requests in flight to the leaders, answered in the order in which they were sent."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._leaders: dict[TopicPartition, Address] = {}
        self._channels: dict[Address, BlockingConnection] = {}
        self._sent: deque[BlockingConnection] = deque()

    def ask(self, wanted: Picked) -> None:
        channel = self._to_leader(wanted.where)
        channel.send_fetch(
            *wanted.where, wanted.offset, max_bytes=wanted.size + _OVERHEAD, max_wait_ms=_MAX_WAIT_MS, committed=False
        )
        self._sent.append(channel)

    def _to_leader(self, where: TopicPartition) -> BlockingConnection:
        if where not in self._leaders:
            (leader,) = self._routes.leaders(where.topic, [where.partition])
            self._leaders[where] = Address(leader.host, leader.port)
        address = self._leaders[where]
        if address not in self._channels:
            self._channels[address] = BlockingConnection(address, self._routes.settings)
        return self._channels[address]

    def answer(self) -> FetchedPartition:
        return self._sent.popleft().receive_fetched()

    def drop(self) -> None:
        """Close the connections: answers that nobody waits for any more may come on them."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._leaders.clear()
        self._sent.clear()

    def close(self) -> None:
        self.drop()
