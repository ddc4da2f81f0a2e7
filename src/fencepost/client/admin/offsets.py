"""Offsets, producers and deletions: questions about partitions that only their leaders answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fencepost.client.admin.results import OffsetAt
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.rows import ProducerState
from fencepost.errors import ErrorCode, ServerError, TimedOut, Unreachable
from fencepost.types import EARLIEST, LATEST, Epoch, Offset, Pid
from fencepost.types import Sequence as BatchSequence
from fencepost.wire.apis import CONSUMER, DEBUGGER, Key


class PartitionAdmin(Closing):
    """Administration of partitions. Threads may share one.

    Given `Routes` instead of servers, it uses their connections and leaves it to their owner to close them.
    """

    def __init__(self, servers: Servers | ClientSettings | Routes) -> None:
        self._is_guest = isinstance(servers, Routes)
        self._routes = servers if isinstance(servers, Routes) else Routes(ClientSettings.of(servers))
        self.settings = self._routes.settings

    def close(self) -> None:
        if not self._is_guest:
            self._routes.close()

    def earliest(self, topic: str) -> dict[int, Offset]:
        """Return the first offset of each partition."""
        return {partition: at.offset for partition, at in self.offsets(topic, EARLIEST).items()}

    def latest(self, topic: str, *, read_committed: bool = False) -> dict[int, Offset]:
        """Return the offset after the last readable record of each partition.

        With `read_committed` that is the last stable offset, otherwise the high watermark."""
        found = self.offsets(topic, LATEST, read_committed=read_committed)
        return {partition: at.offset for partition, at in found.items()}

    def offsets(
        self,
        topic: str,
        time: int,
        *,
        partitions: Iterable[int] | None = None,
        read_committed: bool = False,
        unreplicated: bool = False,
    ) -> dict[int, OffsetAt]:
        """Return the first offset of each partition whose record is not older than `time`.

        `time` is in ms since 1970, or EARLIEST or LATEST. LATEST means the end of what readers may read; with
        `unreplicated`, the end of the leader's own log."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            asked = [{"partition_index": index, "timestamp": time} for index in indexes]
            return {
                "replica_id": DEBUGGER if unreplicated else CONSUMER,
                "isolation_level": int(read_committed),
                "topics": [{"name": topic, "partitions": asked}],
                "timeout": self._timeout_ms,
            }

        def found() -> dict[int, OffsetAt]:
            return {
                partition.partition_index: OffsetAt(partition.partition_index, partition.offset, partition.timestamp)
                for partition in self._from_leaders(Key.LIST_OFFSETS, topic, wanted, fields)
            }

        wanted = None if partitions is None else list(partitions)
        return dict(sorted(self._routes.retried(found).items()))

    def producers(self, topic: str, *, partitions: Iterable[int] | None = None) -> tuple[ProducerState, ...]:
        """Return the idempotent producers that each partition remembers, with their last sequences."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            return {"topics": [{"name": topic, "partition_indexes": indexes}]}

        def found() -> list[ProducerState]:
            return [
                ProducerState(
                    partition.partition_index,
                    Pid(producer.producer_id),
                    Epoch(producer.producer_epoch),
                    BatchSequence(producer.last_sequence),
                    producer.last_timestamp,
                    Offset(producer.current_txn_start_offset) if producer.current_txn_start_offset >= 0 else None,
                )
                for partition in self._from_leaders(Key.DESCRIBE_PRODUCERS, topic, wanted, fields)
                for producer in partition.active_producers
            ]

        wanted = None if partitions is None else list(partitions)
        return tuple(sorted(self._routes.retried(found), key=lambda state: (state.partition, state.pid)))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, Offset]:
        """Delete the records before an offset per partition (HIGH_WATERMARK: all). Return the new first offsets."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            asked = [{"partition_index": index, "offset": before[index]} for index in indexes]
            return {"topics": [{"name": topic, "partitions": asked}], "timeout": self._timeout_ms}

        def deleted() -> dict[int, Offset]:
            answered = self._from_leaders(Key.DELETE_RECORDS, topic, list(before), fields)
            return {partition.partition_index: Offset(partition.low_watermark) for partition in answered}

        return dict(sorted(self._routes.retried(deleted).items()))

    @property
    def _timeout_ms(self) -> int:
        return int(self._routes.settings.request_timeout * 1000)

    def _from_leaders(
        self, key: Key, topic: str, wanted: list[int] | None, fields: Callable[[list[int]], Mapping[str, Any]]
    ) -> list[Any]:
        """Ask each leader for its partitions of one topic. Return the results of all partitions."""
        answered: list[Any] = []
        for leader, indexes in self._routes.leaders(topic, wanted).items():
            message = self._ask_leader(leader, key, fields(indexes), topic)
            for partition in (partition for found in message.topics for partition in found.partitions):
                where = f"{topic}-{partition.partition_index}"
                raise_for(partition.error_code, where, getattr(partition, "error_message", None))
                answered.append(partition)
        return answered

    def _ask_leader(self, leader: BrokerNode, key: Key, fields: Mapping[str, Any], topic: str) -> Any:
        """Treat a leader that does not answer as one that moves: the cluster will soon name another."""
        try:
            return self._routes.to(leader).request(key, fields).message
        except (Unreachable, TimedOut) as error:
            if keeps_us_out(error):
                raise
            where = f"{leader.host}:{leader.port}, a leader of {topic!r}"
            raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where}, does not answer: {error}") from error
