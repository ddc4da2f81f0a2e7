"""The copy of one partition to another cluster, every record once and at its own offset.

`core/offset_copy.py` decides the steps. The target's end is the saved position: an interrupted copy goes on from there,
after it has compared the last records on both sides. Nobody else may write to the target meanwhile; a copy that is
answered an unexpected offset stops.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from fencepost.client.admin import Admin
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.ticket import Ticket
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader, ReadRecord
from fencepost.core.offset_copy import Head, OffsetOutOfReach, PlainWrite, Seal, Skip, copy_steps
from fencepost.errors import FencepostError
from fencepost.types import Offset, TopicPartition

_COMPARED: Final = 1000
"""Offsets before the target's end whose records are compared before a copy goes on."""
_LOOK_EVERY: Final = 20_000
"""Records between two looks at the offsets that the target gave."""
_SKIPPED_AT_ONCE: Final = 500_000
_MARKER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.002
_FILLED: Final = (b"", b"", ())
"""Key, value and headers of a record that only uses up an offset."""


class _Aborted(Exception):
    """Ends a transaction that only uses up offsets."""


class OffsetCopier:
    """Copies partitions, one after the other, with two producers: one without transactions, and one whose name fences
    an earlier run that may still be alive."""

    def __init__(self, source: ClientSettings, target: ClientSettings, name: str) -> None:
        self._source = source
        self._target = target
        self._from = Admin(source)
        self._to = Admin(target)
        self._plain = Producer(target, compression="lz4")
        self._sealed = Producer(target, name=name)
        self._checked: dict[TopicPartition, Offset] = {}
        """Partitions whose targets were compared with the source, with the ends up to which they were."""
        with self._sealed.transaction():
            pass  # ends what an earlier run left open

    def close(self) -> None:
        for each in (self._plain, self._sealed, self._from, self._to):
            each.close()

    def demand_copy(self, where: TopicPartition) -> None:
        """Raise FencepostError if the target has a partition that is not a copy of the source's. Change nothing."""
        topic, partition = where
        end = self._from.latest(topic, read_committed=True)[partition]
        at = self._settled_end(where)
        self._demand_same_tail(where, self._from.earliest(topic)[partition], at, end)
        self._checked[where] = at

    def copy(self, where: TopicPartition) -> int:
        """Copy the committed records that the target lacks, and return how many."""
        topic, partition = where
        end = self._from.latest(topic, read_committed=True)[partition]
        first = self._from.earliest(topic)[partition]
        at = self._settled_end(where)
        if self._checked.get(where) != at or at <= first:
            self._demand_same_tail(where, first, at, end)
        copied = 0
        records: dict[int, ReadRecord] = {}
        """Read, and not written yet: `copy_steps` is one record ahead."""

        def offsets() -> Iterator[int]:
            if at < end:
                with Reader(self._source, where, start=max(at, first), stop=end) as reader:
                    for record in reader:
                        records[record.offset] = record
                        yield record.offset

        ticket: Ticket | None = None
        last = -1
        """The time of the last record: records that only use up an offset must not look newer to retention."""
        position = int(at)
        try:
            for step in copy_steps(at, first, offsets(), end):
                if isinstance(step, PlainWrite):
                    record = records.pop(step.offset)
                    ticket, last = self._send(self._plain, where, record), record.timestamp
                    position = step.offset + 1
                    copied += 1
                    if copied % _LOOK_EVERY == 0:
                        self._demand_offset(where, ticket, position)
                    continue
                self._demand_offset(where, ticket, position)
                ticket = None
                if isinstance(step, Seal):
                    record = records.pop(step.offset)
                    with self._sealed.transaction():
                        written = self._send(self._sealed, where, record)
                    last, copied, position = record.timestamp, copied + 1, step.offset + 1
                    self._demand_offset(where, written, position)
                    position = position + 1
                elif isinstance(step, Skip):
                    self._skip(where, step.offsets, last)
                    position = position + step.offsets
                elif isinstance(step, Head):
                    self._use_up_head(where, step.offsets)
                    position = position + step.offsets
                self._await_end(where, position)
            self._demand_offset(where, ticket, position)
        except OffsetOutOfReach as error:
            raise self._unlike(where, str(error)) from error
        return copied

    def _send(self, producer: Producer, where: TopicPartition, record: ReadRecord) -> Ticket:
        return producer.send(
            where.topic, record.value, key=record.key, headers=record.headers, partition=where.partition,
            timestamp=record.timestamp,
        )  # fmt: skip

    def _skip(self, where: TopicPartition, count: int, timestamp: int) -> None:
        while count:
            # Each transaction within its timeout, and never a single offset left over.
            part = count if count < _SKIPPED_AT_ONCE + 2 else _SKIPPED_AT_ONCE
            with contextlib.suppress(_Aborted), self._sealed.transaction():
                for _ in range(part - 1):
                    self._fill(self._sealed, where, timestamp)
                self._sealed.flush()  # an abort drops what was not sent
                raise _Aborted
            count -= part

    def _use_up_head(self, where: TopicPartition, count: int) -> None:
        before = self._to.latest(where.topic)[where.partition]
        for _ in range(count):
            self._fill(self._plain, where, -1)
        self._plain.flush()
        self._to.delete_records(where.topic, {where.partition: before + count})

    def _fill(self, producer: Producer, where: TopicPartition, timestamp: int) -> Ticket:
        known = None if timestamp < 0 else timestamp
        key, value, headers = _FILLED
        return producer.send(where.topic, value, key=key, headers=headers, partition=where.partition, timestamp=known)

    # -- checks -------------------------------------------------------------------------------------------------

    def _demand_offset(self, where: TopicPartition, ticket: Ticket | None, position: int) -> None:
        """Wait for the records so far, and check that the last one is right before `position`."""
        if ticket is None:
            return
        offset = ticket.result().offset
        self._plain.flush()
        if offset != position - 1:
            raise FencepostError(
                f"{where.topic}-{where.partition}: the target gave offset {offset} instead of {position - 1}, so "
                "another program writes to it. Stop that program, delete the topic on the target, and start again"
            )

    def _await_end(self, where: TopicPartition, position: int) -> None:
        """Wait until markers are in the log: Kafka acknowledges the end of a transaction before it writes them."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while (end := self._to.latest(where.topic)[where.partition]) != position:
            if end > position or time.monotonic() > deadline:
                raise self._unlike(where, f"it ends at {end} instead of {position}")
            time.sleep(_POLL_SECONDS)

    def _settled_end(self, where: TopicPartition) -> Offset:
        """Return the target's end once no transaction is open there."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while True:
            end = self._to.latest(where.topic)[where.partition]
            if self._to.latest(where.topic, read_committed=True)[where.partition] == end:
                return end
            if time.monotonic() > deadline:
                raise FencepostError(f"{where.topic}-{where.partition} has an open transaction on the target")
            time.sleep(_POLL_SECONDS)

    def _demand_same_tail(self, where: TopicPartition, first: Offset, at: Offset, end: Offset) -> None:
        """Check that the target's last records are the source's. The source may have removed some of them since."""
        if at > end:
            raise self._unlike(where, f"it ends at {at}, the source at {end}")
        oldest = self._to.earliest(where.topic)[where.partition]
        start = max(at - _COMPARED, first, oldest)
        if start >= at:
            # Nothing can be compared, and all that the target has will be deleted, because the source has none of it.
            there = self._records(self._target, where, max(at - _COMPARED, oldest), at)
            if any(fields[1:] != _FILLED for fields in there.values()):
                raise self._unlike(where, f"it has records before {at}, and the source starts at {first}")
            return
        ours = self._records(self._source, where, start, at)
        theirs = self._records(self._target, where, start, at)
        for offset, record in ours.items():
            if theirs.get(offset) != record:
                raise self._unlike(where, f"its record {offset} is missing or another one")

    def _records(
        self, settings: ClientSettings, where: TopicPartition, start: int, stop: int
    ) -> dict[int, tuple[object, ...]]:
        with Reader(settings, where, start=start, stop=stop) as reader:
            return {each.offset: (each.timestamp, each.key, each.value, tuple(each.headers)) for each in reader}

    def _unlike(self, where: TopicPartition, why: str) -> FencepostError:
        return FencepostError(
            f"{where.topic}-{where.partition} on the target is not a copy that can be continued: {why}. Delete the "
            "topic there and start again, or leave the topic out (--topic)"
        )
