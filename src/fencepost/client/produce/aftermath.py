"""The outcome of the batches that were in flight when an owner lost its connection, read from the log (OWN-9).

A batch whose answer was lost may be in the log. A scan that finds it proves that it is. A scan that does not find it
proves nothing while the server can still append from the lost connection. So the producer first asks who owns what.
Once the server no longer names the lost tokens, it has dropped the connection, and everything it accepted before is
readable. Then the log is scanned by pid and sequence, over a separate connection. What is not found out in time stays
unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce.lookback import LookBack
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.inflight import Sent, Stamp
from fencepost.errors import FencepostError, Persisted
from fencepost.types import Offset
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.producer")

Found = Callable[[Sent[ProducerBatch], Offset], None]
Missing = Callable[[Sent[ProducerBatch], Persisted], None]


class Aftermath:
    """Runs on the send thread, turn by turn, until everything is settled or the time is over."""

    def __init__(
        self,
        brokers: Brokers,
        lost: Mapping[tuple[str, str], OwnedResource],
        doubtful: Mapping[PartitionQueue, Sequence[Sent[ProducerBatch]]],
        now: float,
        *,
        patience: float,
        backoff: float,
        found: Found,
        missing: Missing,
    ) -> None:
        self._brokers = brokers  # separate ones: the owner's connections are not dialled again
        groups = {group for group, _ in lost}
        self._group = groups.pop() if len(groups) == 1 else None
        self._tokens = {held.token for held in lost.values()}
        self._doubtful = {queue: list(batches) for queue, batches in doubtful.items()}
        self._deadline = now + patience
        self._backoff = backoff
        self._found = found
        self._missing = missing
        self._is_released = False
        self._asking = False
        self._not_before = now
        self._looking: set[PartitionQueue] = set()

    @property
    def is_over(self) -> bool:
        return not self._doubtful

    def turn(self, now: float) -> float:
        """Take the next steps, and return when to look again."""
        if now >= self._deadline:
            self.give_up()
        self._expire(now)
        if self.is_over:
            self._brokers.close()
            return float("inf")
        self._brokers.check_deadlines(now)
        connection = self._brokers.any() if now >= self._not_before else None
        if connection is not None and not self._asking:
            if not self._is_released:
                self._ask_who_owns(connection, now)
            else:
                for queue in [queue for queue in self._doubtful if queue not in self._looking]:
                    self._look_back(connection, queue, now)
        waiting = self._not_before if now < self._not_before else float("inf")
        deadline = min(sent.batch.deadline for batches in self._doubtful.values() for sent in batches)
        return min(self._deadline, deadline, waiting, self._brokers.next_moment(now))

    def _expire(self, now: float) -> None:
        """Fail batches whose `delivery_timeout` is over as unknown."""
        for queue, batches in list(self._doubtful.items()):
            for sent in [sent for sent in batches if sent.batch.deadline <= now]:
                batches.remove(sent)
                self._missing(sent, "unknown")
            if not batches:
                del self._doubtful[queue]

    def give_up(self) -> None:
        """Fail the remaining batches as unknown."""
        for queue in list(self._doubtful):
            log.warning("%s: could not find out in time whether the last batches are in the log", queue.name)
            for sent in self._doubtful.pop(queue):
                self._missing(sent, "unknown")

    def _ask_who_owns(self, connection: BrokerConnection, now: float) -> None:
        def answered(answer: Any) -> None:
            self._asking = False
            if self._tokens.isdisjoint(row.token for row in answer.owners):
                self._is_released = True
            else:
                self._not_before = now + self._backoff

        def lost(error: FencepostError, left: bool) -> None:
            self._asking = False
            self._not_before = now + self._backoff

        self._asking = True
        try:
            connection.ask(Key.DESCRIBE_OWNERS, {"group": self._group}, answered, lost)
        except FencepostError as error:
            lost(error, False)

    def _look_back(self, connection: BrokerConnection, queue: PartitionQueue, now: float) -> None:
        first = self._doubtful[queue][0]

        def finished(there: dict[Stamp, Offset]) -> None:
            self._looking.discard(queue)
            for sent in self._doubtful.pop(queue, ()):  # empty if the scan ended too late
                offset = there.get(sent.stamp)
                if offset is not None:
                    self._found(sent, offset)
                else:
                    self._missing(sent, "no")

        def failed(error: FencepostError) -> None:
            log.info("%s: could not read the log: %s", queue.name, error)
            self._looking.discard(queue)
            self._not_before = now + self._backoff

        self._looking.add(queue)
        try:
            LookBack(connection, queue.topic.name, queue.index, first.stamp.pid, first.follows, finished, failed)
        except FencepostError as error:
            failed(error)
