"""The catalogue of topics, with their partitions and configs.

Handlers read it from memory. A change is committed to the store before it becomes visible, so that a crash never takes
back what a client was told. While a topic is created its name is reserved, so that many creations can share one commit
without taking the same name. A topic has one change at a time (`Topics.changing`): the next change sees the result of
this one, or learns that the topic was deleted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fencepost.clock import Clock
from fencepost.errors import ErrorCode, ServerError
from fencepost.log.config import LogConfig
from fencepost.server.storage.partition import Disk, Partition
from fencepost.server.storage.store import Statement, Store
from fencepost.server.storage.topic_config import check_config, check_guards, log_config, timestamp_slack, writer_ids
from fencepost.types import Milliseconds, fault_of_topic_name

MAX_PARTITIONS: Final = 100_000
KAFKAS_OWN: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics in which Kafka keeps its state. Here the store has it, so that a topic of this name would only mislead: tools
that read Kafka's would find it empty."""


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION with the reason unless `name` is valid."""
    fault = fault_of_topic_name(name)
    if fault is not None:
        raise ServerError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)


class Topic:
    def __init__(
        self,
        name: str,
        topic_id: uuid.UUID,
        partition_count: int,
        configs: Mapping[str, str],
        *,
        folder: Path,
        disk: Disk,
        producer_expiry_ms: Milliseconds,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_count = partition_count
        self.deleted = False
        self.lock = asyncio.Lock()
        """Held during a change of the topic, from the first check until the change is stored and visible."""
        self.folder = folder
        self._disk = disk
        self._producer_expiry_ms = producer_expiry_ms
        self._partitions: dict[int, Partition] = {}
        self.configs: dict[str, str] = {}
        self.log_config: LogConfig
        self.timestamp_slack = (0, 0)
        """Milliseconds that a record's timestamp may be before and after the server's time."""
        self.checks_records = True
        """Decode the records of every batch before appending it."""
        self.writer_group = ""
        """If set, only the owner of a partition in this group may write to it (guarded topics)."""
        self.reader_group = ""
        self.writer_ids: tuple[str, ...] = ()
        """If set, only the newest producers of these transactional ids may write."""
        self.configure(configs)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Set the topic's own configs, also for open logs."""
        self.configs = dict(configs)
        self.log_config = log_config(self.configs, producer_expiry_ms=self._producer_expiry_ms)
        self.timestamp_slack = timestamp_slack(self.configs)
        self.checks_records = self.configs.get("fencepost.check.records") != "false"
        self.writer_group = self.configs.get("fencepost.writer.group", "")
        self.reader_group = self.configs.get("fencepost.reader.group", "")
        self.writer_ids = writer_ids(self.configs)
        for partition in self._partitions.values():
            partition.reconfigure()

    def partition(self, index: int) -> Partition | None:
        """Return the partition, or None if the topic has fewer. The object is made on first use."""
        found = self._partitions.get(index)
        if found is None and 0 <= index < self.partition_count:
            found = self._partitions[index] = Partition(self, index, self.folder / str(index), self._disk)
        return found

    def touched(self) -> list[Partition]:
        """Return the partitions that were used since the server started."""
        return list(self._partitions.values())

    def open_indexes(self) -> set[int]:
        """Return the partitions whose logs are open."""
        return {index for index, partition in self._partitions.items() if partition.log is not None}

    @property
    def is_compacted(self) -> bool:
        return self.log_config.compacts


class Topics:
    def __init__(
        self,
        store: Store,
        disk: Disk,
        folder_of: Callable[[str, uuid.UUID], Path],
        *,
        producer_expiry_ms: Milliseconds,
        most_topics: int = 2**31 - 1,
        most_partitions: int = 2**31 - 1,
    ) -> None:
        self._store = store
        self._disk = disk
        self._folder_of = folder_of
        self._producer_expiry_ms = producer_expiry_ms
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._metric_names: set[str] = set()
        """Names with '_' for '.'. As in Kafka two topics may not share one, because metrics could not tell them
        apart."""
        self._reserved: dict[str, int] = {}
        """Names of topics that are being created, with their numbers of partitions."""
        self._most_topics = most_topics
        self._most_partitions = most_partitions
        self.partition_count = 0
        """Number of partitions of all topics."""
        self.version = 0
        """Grows with every change, for caches of data derived from the catalogue."""
        self._load()

    def _load(self) -> None:
        configs: dict[str, dict[str, str]] = {}
        for topic, name, value in self._store.query("SELECT topic, name, value FROM topic_configs"):
            configs.setdefault(topic, {})[name] = value
        for name, id_bytes, count in self._store.query("SELECT name, id, partitions FROM topics"):
            self._show(self._make(name, uuid.UUID(bytes=id_bytes), count, configs.get(name, {})))

    def _make(self, name: str, topic_id: uuid.UUID, count: int, configs: Mapping[str, str]) -> Topic:
        return Topic(
            name,
            topic_id,
            count,
            configs,
            folder=self._folder_of(name, topic_id),
            disk=self._disk,
            producer_expiry_ms=self._producer_expiry_ms,
        )

    def _show(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._metric_names.add(topic.name.replace(".", "_"))
        self.partition_count += topic.partition_count
        self.version += 1

    # -- reading ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def require(self, name: str) -> Topic:
        """Return the topic, or raise UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None:
            raise _no_such_topic(name)
        return topic

    # -- changing ---------------------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> dict[str, str]:
        """Return the configs as they would be stored, or raise ServerError or ConfigError if the topic is invalid."""
        check_topic_name(name)
        if name in KAFKAS_OWN:
            raise ServerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} is where Kafka keeps its state; fencepost has no such topic: use the admin APIs (groups, "
                "offsets, transactions)",
            )
        if name in self._by_name or name in self._reserved:
            raise ServerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        if name.replace(".", "_") in self._metric_names:
            raise ServerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} differs from an existing topic only in '.' and '_'; choose another name",
            )
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ServerError(
                ErrorCode.INVALID_PARTITIONS, f"a topic must have 1 to {MAX_PARTITIONS} partitions, not {partitions}"
            )
        if len(self._by_name) + len(self._reserved) >= self._most_topics:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"there are already {len(self._by_name)} topics: delete some, or raise the server's max_topics",
            )
        self.check_more_partitions(partitions)
        accepted = {config: check_config(config, value) for config, value in configs.items()}
        check_guards(accepted)
        return accepted

    def check_more_partitions(self, more: int) -> None:
        """Raise POLICY_VIOLATION if `more` partitions would exceed the limit."""
        if self.partition_count + sum(self._reserved.values()) + more > self._most_partitions:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"there are already {self.partition_count} partitions, and {more} more would exceed the limit: "
                "delete topics, or raise the server's max_partitions",
            )

    @asynccontextmanager
    async def changing(self, name: str) -> AsyncIterator[Topic]:
        """Lock the topic against other changes and return it; raise UNKNOWN_TOPIC_OR_PARTITION if it is deleted."""
        topic = self.require(name)
        async with topic.lock:
            if topic.deleted:
                raise _no_such_topic(name)
            yield topic

    async def create(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> Topic:
        accepted = self.check_new(name, partitions, configs)
        topic = self._make(name, uuid.uuid4(), partitions, accepted)
        self._reserved[name] = partitions
        try:
            await self._store.execute(
                [
                    (
                        "INSERT INTO topics (name, id, partitions, created_ms) VALUES (?, ?, ?, ?)",
                        (name, topic.topic_id.bytes, partitions, self._disk.clock.now_ms()),
                    ),
                    # An earlier version could leave configs behind when it deleted a topic of this name.
                    ("DELETE FROM topic_configs WHERE topic = ?", (name,)),
                    *_config_rows(name, accepted),
                ]
            )
        finally:
            self._reserved.pop(name, None)
        self._show(topic)
        return topic

    async def delete(self, topic: Topic) -> None:
        """Remove the topic from the catalogue; the caller removes its folder."""
        async with topic.lock:
            if topic.deleted:
                raise _no_such_topic(topic.name)
            await self._store.execute(
                [
                    ("DELETE FROM topics WHERE name = ?", (topic.name,)),
                    ("DELETE FROM topic_configs WHERE topic = ?", (topic.name,)),
                    ("INSERT OR IGNORE INTO deleted_folders (folder) VALUES (?)", (topic.folder.name,)),
                    self._disk.pids.note_deletion(),
                ],
                frees=True,
            )
            topic.deleted = True
            self._disk.pids.note_deletion()  # again, for pids issued during the commit
            del self._by_id[topic.topic_id]
            del self._by_name[topic.name]
            self._metric_names.discard(topic.name.replace(".", "_"))
            self.partition_count -= topic.partition_count
            self.version += 1
        for partition in topic.touched():
            partition.wake()

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Raise the number of partitions to `count`. The caller must be `changing` the topic."""
        await self._store.execute([("UPDATE topics SET partitions = ? WHERE name = ?", (count, topic.name))])
        self.partition_count += count - topic.partition_count
        topic.partition_count = count
        self.version += 1

    async def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the topic's own configs. The caller must be `changing` the topic and have checked the configs."""
        await self._store.execute(
            [("DELETE FROM topic_configs WHERE topic = ?", (topic.name,)), *_config_rows(topic.name, configs)]
        )
        topic.configure(configs)
        self.version += 1


def _no_such_topic(name: str) -> ServerError:
    return ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")


def _config_rows(topic: str, configs: Mapping[str, str]) -> list[Statement]:
    sql = "INSERT INTO topic_configs (topic, name, value) VALUES (?, ?, ?)"
    return [(sql, (topic, name, value)) for name, value in configs.items()]


_COUNT_SECONDS: Final = 1.0


class ProducerLimit:
    """The limit on the producers that all partitions remember together (`max_producers`), and the current count. From
    half of it on, those that were idle for some minutes fade: they take little memory, and count little. It
    counts again now and then, because producers expire and partitions open."""

    def __init__(self, topics: Iterable[Topic], most: int, clock: Clock) -> None:
        self._topics = topics
        self._most = most
        self._clock = clock
        self._count = 0
        self._counted_at = -_COUNT_SECONDS

    def is_half_reached(self) -> bool:
        """Return whether idle producers should make room: so many are remembered that the limit is in sight."""
        self._count_again()
        return self._count * 2 >= self._most

    def check_new(self) -> None:
        """Count one more producer; raise POLICY_VIOLATION if the limit is reached."""
        self._count_again()
        if self._count >= self._most:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"the server remembers {self._count} producers, the limit: raise max_producers, "
                "or wait until idle producers expire (producer_expiry_ms)",
            )
        self._count += 1

    def _count_again(self) -> None:
        now = self._clock.monotonic()
        if now - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = now
            logs = (partition.log for topic in self._topics for partition in topic.touched())
            self._count = sum(log.producers.weight for log in logs if log is not None)
