"""Batches in doubt: what became of them is read from the log (PROD-8, IDEM-4, OWN-9).

`LookBack` is one scan of the log for the batches of one pid. Only batch headers are read: they have the pid, epoch and
base sequence. The scan goes from an offset before the wanted batches to the end of the leader's log. Records above the
high watermark cannot be read yet and may still be truncated: while there are any, the scan fails and must be repeated
later. Records of open transactions count, as they are in the log.

`Aftermath` settles what was in flight when an owner lost its connection. A scan that finds a batch proves that it is in
the log. A scan that does not find it proves nothing while the server can still append from the lost connection. So the
producer first asks who owns what. Once the server no longer names the lost tokens, it has dropped the connection, and
everything it accepted before is readable. Then the log is scanned by pid and sequence, over a separate connection. What
is not found out in time stays unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.read.scan import batches_in
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.inflight import Sent, Stamp
from fencepost.errors import CorruptBatch, ErrorCode, FencepostError, Persisted, ServerError
from fencepost.kernel import BatchHeader
from fencepost.types import EARLIEST, LATEST, Offset, Pid
from fencepost.wire import hot
from fencepost.wire.apis import CONSUMER, DEBUGGER, FETCH_BY_NAME, Key

_MAX_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 100


class LookBack:
    """One scan. It calls `finished` with the batches found, or `failed`, once."""

    def __init__(
        self,
        connection: BrokerConnection,
        topic: str,
        partition: int,
        pid: Pid,
        start: Offset | None,
        finished: Callable[[dict[Stamp, Offset]], None],
        failed: Callable[[FencepostError], None],
        *,
        leader_epoch: int = -1,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._partition = partition
        self._pid = pid
        self._leader_epoch = leader_epoch
        self._end = Offset(0)
        self._finished = finished
        self._failed = failed
        self._found: dict[Stamp, Offset] = {}

        def ends_at(end: Offset) -> None:
            self._end = end
            if start is None:
                self._find(EARLIEST, CONSUMER, self._read_from)
            else:
                self._read_from(start)

        self._find(LATEST, DEBUGGER, ends_at)

    def _find(self, time: int, asker: int, found: Callable[[Offset], None]) -> None:
        """Request an offset. With the leader epoch, only the leader answers: a follower's log may be behind."""
        partition = {
            "partition_index": self._partition,
            "current_leader_epoch": self._leader_epoch,
            "timestamp": time,
        }
        fields = {
            "replica_id": asker,
            "isolation_level": 0,
            "topics": [{"name": self._topic, "partitions": [partition]}],
            "timeout": 30_000,
        }

        def answered(answer: Any) -> None:
            row = answer.topics[0].partitions[0]
            if row.error_code:
                self._failed(ServerError(ErrorCode.of(row.error_code)))
            else:
                found(Offset(row.offset))

        self._connection.ask(Key.LIST_OFFSETS, fields, answered, self._lost)

    def _read_from(self, offset: Offset) -> None:
        version = self._connection.version(Key.FETCH, FETCH_BY_NAME)
        wanted = hot.FetchPartition(self._partition, offset, _MAX_BYTES, self._leader_epoch)
        request = hot.FetchRequest(_MAX_WAIT_MS, 0, _MAX_BYTES, 0, [hot.FetchTopic(self._topic, None, [wanted])])

        def answered(version: int, body: memoryview) -> None:
            self._read(hot.decode_fetch_response(version, body), offset)

        self._connection.request(Key.FETCH, version, [hot.encode_fetch_request(version, request)], answered, self._lost)

    def _read(self, response: hot.FetchResponse, offset: Offset) -> None:
        if response.error_code:
            self._failed(ServerError(ErrorCode.of(response.error_code)))
            return
        fetched = response.topics[0].partitions[0]
        code = ErrorCode.of(fetched.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._read_from_start(offset)
            return
        if code is not ErrorCode.NONE:
            self._failed(ServerError(code))
            return
        position = offset
        try:
            for batch in batches_in(fetched.records):
                self._meet(*batch)
                position = max(position, batch.header.next_offset)
        except CorruptBatch as error:
            self._failed(error)
            return
        if position >= self._end:
            self._finished(self._found)
        elif position == offset:
            self._failed(ServerError(ErrorCode.OFFSET_NOT_AVAILABLE, "the end of the log is not replicated yet"))
        else:
            self._read_from(position)

    def _read_from_start(self, wanted: Offset) -> None:
        """Read from the start of the log, because retention deleted the wanted offset. Request where it starts: Kafka's
        OFFSET_OUT_OF_RANGE does not say."""

        def starts_at(first: Offset) -> None:
            if first > wanted:
                self._read_from(first)
            else:
                self._failed(ServerError(ErrorCode.OFFSET_OUT_OF_RANGE))

        self._find(EARLIEST, CONSUMER, starts_at)

    def _meet(self, header: BatchHeader, batch: memoryview) -> None:
        if header.pid == self._pid and not header.is_control:
            self._found[Stamp(header.pid, header.epoch, header.base_sequence)] = header.base_offset

    def _lost(self, error: FencepostError, left: bool) -> None:
        self._failed(error)


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
