"""The way of frozen record batches from a task to the commit: in Spark's commit message, or through the stage topic.

`client/micro_batch/topics.py` has the rules. A task whose batches exceed its share writes all of them to the stage with
an ordinary idempotent producer. Each record batch is the value of one record, so the server neither decompresses nor
checks it twice, and its records' times do not decide about retention. The commit reads the values back in the order in
which it publishes them, a few ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.patience import patiently
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import Target
from fencepost.client.micro_batch.topics import AROUND, Staged, open_stage, partition_for
from fencepost.client.produce.ticket import UNKNOWN_OFFSET, Ticket
from fencepost.client.producer import Producer
from fencepost.client.read.ranges import Picked, fetch_values
from fencepost.errors import FencepostError
from fencepost.kernel import Buffer
from fencepost.spark.freeze import FrozenBatch
from fencepost.types import TopicPartition

_BATCH_BYTES: Final = 64 << 10
"""Bytes of a batch of the stage, unless one value is larger. For each value the commit fetches the whole batch that it
is in, so values of about this size and more are alone in theirs."""
_BUFFER_BYTES: Final = 16 << 20
"""Unsettled bytes of a task, which waits beyond them."""


def carried(
    frozen: Iterator[FrozenBatch], limit: int, open_writer: Callable[[], StageWriter]
) -> tuple[FrozenBatch, ...]:
    """Return a task's batches for its commit message. Stage all of them if they exceed the limit."""
    held: deque[FrozenBatch] = deque()
    size = 0
    for batch in frozen:
        held.append(batch)
        size += batch.entry.size
        if size > limit:
            break
    else:
        return tuple(held)
    with open_writer() as stage:
        while held:
            stage.put(held.popleft())
        for batch in frozen:
            stage.put(batch)
        return stage.finish()


class StageWriter(Closing):
    """Writes the batches of one task to the stage."""

    def __init__(self, settings: ClientSettings, stage: Target) -> None:
        self._stage = stage
        self.producer = Producer(
            settings,
            batch_size=max(1, min(_BATCH_BYTES, stage.max_bytes - AROUND)),
            buffer_memory=max(_BUFFER_BYTES, 2 * stage.max_bytes),
            max_request_size=stage.max_bytes + AROUND,
            allow_topic_creation=False,
            exit_timeout=0.0,
        )
        self._put: list[tuple[FrozenBatch, Ticket | None]] = []
        self._unsettled: deque[tuple[Ticket, int]] = deque()
        self._unsettled_bytes = 0

    @classmethod
    def open(
        cls, settings: ClientSettings, sink: str, targets: Iterable[Target], *, retention: float, patience: float
    ) -> StageWriter:
        known = list(targets)
        with TopicAdmin(settings) as admin:
            stage = patiently(
                lambda: open_stage(admin, sink, known, retention),
                f"sink {sink}: looking for its stage topic",
                patience=patience,
            )
        return cls(settings, stage)

    def put(self, batch: FrozenBatch) -> None:
        if batch.entry.size + AROUND > self._stage.max_bytes:
            # The stage does not accept as much as the target.
            self._put.append((batch, None))
            return
        # The producer's own buffer has room for two of the largest batches, which may be gigabytes.
        while self._unsettled and self._unsettled_bytes + batch.entry.size > _BUFFER_BYTES:
            ticket, size = self._unsettled.popleft()
            ticket.result()
            self._unsettled_bytes -= size
        partition = partition_for(batch.where, self._stage.partitions)
        ticket = self.producer.send(self._stage.topic, batch.payload, partition=partition)
        self._put.append((batch._replace(content=None), ticket))
        self._unsettled.append((ticket, batch.entry.size))
        self._unsettled_bytes += batch.entry.size

    def finish(self) -> tuple[FrozenBatch, ...]:
        """Wait until the stage has all batches. Return them, with their places."""
        return tuple(batch if ticket is None else self._placed(batch, ticket) for batch, ticket in self._put)

    def _placed(self, batch: FrozenBatch, ticket: Ticket) -> FrozenBatch:
        found = ticket.result()
        if found.offset == UNKNOWN_OFFSET:
            raise FencepostError(f"{found.topic} has a batch of this task, but its offset is not known: run it again")
        return batch._replace(content=Staged(found.partition, found.offset))

    def close(self) -> None:
        self.producer.close(0)


def contents(routes: Routes, stage: str, batches: Sequence[FrozenBatch]) -> Iterator[Buffer]:
    """Yield the record batches themselves, those of the topic `stage` read back. The caller compares them."""
    wanted = [
        Picked(TopicPartition(stage, content.partition), content.offset, entry.size)
        for _, entry, content in batches
        if isinstance(content, Staged)
    ]
    values = fetch_values(routes, wanted)
    for batch in batches:
        yield (next(values) or b"") if isinstance(batch.content, Staged) else batch.payload
