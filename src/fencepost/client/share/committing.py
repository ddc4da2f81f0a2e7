"""OffsetCommit requests, and their order: the one in which they were asked for, whether the caller waits or not.

A commit that nobody waits for is sent by a thread. Those that come meanwhile are put together: of each partition only
the newest offset is stored. A commit that is waited for takes along what was asked for before it, so that an older
offset never overwrites a newer one.

Requests name topics by id where the server allows it. By name, the position in a topic that was deleted and created
again would be stored for the new one, and its first records would be skipped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.client.cluster.routing import Routes
from fencepost.core.groups.membership import Identity
from fencepost.errors import ErrorCode, FencepostError
from fencepost.types import TopicPartition
from fencepost.wire.apis import OFFSET_COMMIT_BY_NAME

log = logging.getLogger("fencepost.reader")


class OffsetCommit:
    """An OffsetCommit request."""

    def __init__(
        self, group: str, offsets: Mapping[TopicPartition, int], who: Identity, ids: Mapping[TopicPartition, UUID]
    ) -> None:
        """`ids`: of the topics in which the offsets are, as far as they are known."""
        self._ids = {partition: ids.get(partition) for partition in sorted(offsets)}
        self.newest = OFFSET_COMMIT_BY_NAME if None in self._ids.values() else None
        """The newest version in which it may be sent; None: any."""
        topics: dict[tuple[str, UUID | None], list[dict[str, Any]]] = {}
        for partition, topic_id in self._ids.items():
            row = {"partition_index": partition.partition, "committed_offset": offsets[partition]}
            topics.setdefault((partition.topic, topic_id), []).append({**row, "committed_metadata": ""})
        self._names = {topic_id: name for name, topic_id in topics}
        self.fields = {
            "group_id": group,
            "generation_id": who.epoch,
            "generation_id_or_member_epoch": who.epoch,
            "member_id": who.member_id,
            "group_instance_id": who.instance_id,
            "topics": [{"name": name, "topic_id": key, "partitions": rows} for (name, key), rows in topics.items()],
        }

    def refused(self, answer: Any) -> dict[TopicPartition, ErrorCode]:
        """Return the offsets that were not stored."""
        found: dict[TopicPartition, ErrorCode] = {}
        for topic in answer.topics:
            name = self._names[topic.topic_id] if hasattr(topic, "topic_id") else topic.name
            for row in topic.partitions:
                if row.error_code:
                    found[TopicPartition(name, row.partition_index)] = ErrorCode.of(row.error_code)
        return found

    def of_gone(self, refused: Mapping[TopicPartition, ErrorCode], routes: Routes) -> set[TopicPartition]:
        """Return those of the refused partitions whose topic was deleted, whether or not there is a new one of its
        name. Of a new topic the coordinator may not have heard yet: those are not among them."""
        unknown = {partition for partition, code in refused.items() if code is ErrorCode.UNKNOWN_TOPIC_ID}
        if not unknown:
            return unknown
        topics = routes.view({partition.topic for partition in unknown}).topics
        ids = {topic.name: topic.topic_id for topic in topics if topic.error_code == ErrorCode.NONE}
        return {partition for partition in unknown if ids.get(partition.topic) != self._ids[partition]}


class Commits:
    def __init__(self, store: Callable[[Mapping[TopicPartition, int]], None]) -> None:
        self._store = store
        # Held while offsets are stored: one commit at a time.
        self._storing = threading.RLock()
        # Guards what follows, and is never held while something waits.
        self._lock = threading.RLock()
        self._later: dict[TopicPartition, int] = {}
        self._is_running = False
        self._failed: FencepostError | None = None

    def commit(self, offsets: Mapping[TopicPartition, int], *, wait: bool) -> None:
        """Store the offsets. Raise the error of an earlier commit that nobody waited for, if it failed."""
        if is_mine(self._lock) or is_mine(self._storing):
            raise interrupted("reader")
        with self._lock:
            failed, self._failed = self._failed, None
            if failed is None and not wait:
                self._later |= offsets
                if self._later and not self._is_running:
                    self._is_running = True
                    threading.Thread(target=self._run, name="fencepost-commit", daemon=True).start()
        if failed is not None:
            raise failed
        if wait:
            with self._storing:
                earlier = self._take()
                if together := {**earlier, **offsets}:
                    self._store(together)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what was not sent of these: they are another member's now."""
        with self._lock:
            for partition in partitions:
                self._later.pop(partition, None)

    def flush(self) -> None:
        """Store what was asked for, before the reader closes or releases partitions."""
        with self._storing:
            if earlier := self._take():
                self._store(earlier)

    def _take(self) -> dict[TopicPartition, int]:
        with self._lock:
            earlier, self._later = self._later, {}
            return earlier

    def _run(self) -> None:
        while True:
            with self._storing:
                with self._lock:
                    if not self._later:
                        self._is_running = False
                        return
                try:
                    if earlier := self._take():
                        self._store(earlier)
                except FencepostError as error:
                    log.warning("a commit that nobody waited for failed: %s", error)
                    with self._lock:
                        self._failed = error
