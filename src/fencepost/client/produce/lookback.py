"""A scan of the log for the batches of one pid, which settles batches in doubt (PROD-8, IDEM-4).

Only batch headers are read: they have the pid, epoch and base sequence. The scan goes from an offset before the wanted
batches to the end of the leader's log. Records above the high watermark cannot be read yet and may still be truncated:
while there are any, the scan fails and must be repeated later. Records of open transactions count, as they are in the
log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.read.scan import batches_in
from fencepost.core.producers.inflight import Stamp
from fencepost.errors import CorruptBatch, ErrorCode, FencepostError, ServerError
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
