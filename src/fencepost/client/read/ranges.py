"""The record batches of a range of offsets, as they are in the log, for the Spark source and for copies.

A range is done when the fetch *position* reaches its end. Counting records would not do: markers, aborted batches and
compaction leave gaps. The next fetch is in flight while the caller works on the last answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes
from fencepost.client.read.scan import FetchedBatch, visible_batches
from fencepost.errors import LEADER_IN_DOUBT, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import Record, decode_batch
from fencepost.types import EARLIEST, LATEST
from fencepost.wire.hot import FetchedPartition

MAX_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 500
_PAUSE: Final = 0.1

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
    position = wanted.start
    channel: BlockingConnection | None = None
    deadline = time.monotonic() + patience

    def ask() -> BlockingConnection:
        nonlocal channel, leader
        if channel is None:
            asked = leader
            if asked is None:
                (asked,) = routes.leaders(wanted.topic, [wanted.partition])
            leader = None  # if it fails, there may be another one
            channel = BlockingConnection(Address(asked.host, asked.port), routes.settings)
        channel.send_fetch(
            wanted.topic, wanted.partition, position, max_bytes=max_bytes, max_wait_ms=_MAX_WAIT_MS, committed=committed
        )
        return channel

    try:
        while position < wanted.stop:
            try:
                asked = channel if channel is not None and channel.waiting else ask()
                answer = asked.receive_fetched()
                _raise_for(answer, wanted, position)
                batches, reached = visible_batches(
                    answer, position, wanted.stop, committed=committed, every_batch=every_batch
                )
                if reached > position:
                    deadline = time.monotonic() + patience
                    position = reached
                    if position < wanted.stop:
                        ask()
                elif time.monotonic() > deadline:
                    raise _nothing_came(routes, wanted, position, patience)
            except DataLost as lost:
                if fail_on_data_loss:
                    raise
                left = wanted.stop if lost.is_behind else _first_left(routes, wanted, position)
                if left > position:
                    position, deadline = left, time.monotonic() + patience
                elif time.monotonic() > deadline:
                    raise
                else:
                    time.sleep(_PAUSE)  # the offset exists: the log has changed between the two requests
                continue
            except (Unreachable, TimedOut, ServerError) as error:
                known = isinstance(error, Unreachable | TimedOut) or error.code in CURED_BY_WAITING
                if not known or keeps_us_out(error) or time.monotonic() > deadline:
                    raise
                if channel is not None:
                    channel.close()
                    channel = None
                time.sleep(_PAUSE)
                continue
            if batches:
                yield batches
    finally:
        if channel is not None:
            channel.close()


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
