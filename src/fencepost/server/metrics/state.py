"""The server's state at one moment, read on the loop.

Reading is all that happens on the loop; a thread makes text of it. Large servers are read in several turns, so that a
scrape delays nobody. A lag is still never negative: the lag of a group is computed with the end of the log in the same
turn, and committed offsets are read before the ends of logs, which only grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fencepost.core.micro_batch import PROGRESS_TOPIC_PREFIX, Progress
from fencepost.core.transactions import RESTING
from fencepost.log.partition import PartitionLog
from fencepost.server.counters import Distribution
from fencepost.server.health import Trouble
from fencepost.server.metrics.record_lag import LagSpan, lag_without_counting
from fencepost.server.net.turns import paced
from fencepost.types import Milliseconds, Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topic


class PartitionState(NamedTuple):
    """An open partition. A closed one is not known without reading its files."""

    topic: str
    number: int
    start: Offset
    end: Offset
    """The high watermark: readers see what is before it."""
    stable: Offset
    """The last stable offset: what readers of committed records see ends there."""
    size: int
    appended_bytes: int
    appended_records: int
    producers: int


class TopicState(NamedTuple):
    name: str
    partitions: int


class CommittedOffset(NamedTuple):
    where: TopicPartition
    committed: Offset
    lag: int | None
    """None: the partition is closed, so its end is not known."""
    records: int | None = None
    """The lag in records, if it is known without counting."""
    span: LagSpan | None = None
    """What to count otherwise."""


class GroupRow(NamedTuple):
    name: str
    state: str
    members: int
    offsets: list[CommittedOffset]


class OpenTransaction(NamedTuple):
    name: str
    started_ms: Milliseconds
    partitions: int


class ServerState(NamedTuple):
    """Everything that a scrape tells. The last fields take longer to find out: a thread adds them."""

    taken_ms: Milliseconds
    topics: list[TopicState]
    partitions: list[PartitionState]
    groups: list[GroupRow]
    transactions: list[OpenTransaction]
    transactional_ids: int
    owned: dict[str, int]
    """Resources that have an owner, by group."""
    known_resources: int
    waiting_claims: int
    connections: dict[str, int]
    """By the name of their listener."""
    connections_accepted: int
    requests: Mapping[str, Distribution]
    sync_rounds: Distribution
    duplicates: int
    fenced_by_epoch: int
    fenced_by_owner: int
    refused: Mapping[str, int]
    takeovers: int
    severed_silent: int
    request_memory: tuple[int, int]
    """Used bytes, and the bound."""
    answer_memory: tuple[int, int]
    group_memory: tuple[int, int]
    open_files: tuple[int, int]
    store_commits: int
    is_low_on_space: bool
    troubles: tuple[Trouble, ...]
    node_id: int
    most_producers: int
    sink_logs: dict[str, tuple[PartitionLog, Offset]]
    """The open progress topics by sink, with their last stable offsets."""
    sinks: Mapping[str, Progress] = MappingProxyType({})
    record_lags: Mapping[tuple[str, TopicPartition], int] = MappingProxyType({})
    """Those that had to be counted, by group and partition; without those that are not counted yet."""

    def record_lag(self, group: str, row: CommittedOffset) -> int | None:
        """Return a lag in records, or None if it is not known."""
        return row.records if row.span is None else self.record_lags.get((group, row.where))


async def read_state(broker: Broker, listener: Listener) -> ServerState:
    groups = await _groups(broker)
    topics: list[TopicState] = []
    partitions: list[PartitionState] = []
    sink_logs: dict[str, tuple[PartitionLog, Offset]] = {}
    async for topic in paced(list(broker.topics)):
        topics.append(TopicState(topic.name, topic.partition_count))
        partitions.extend([row async for each in paced(topic.touched()) if (row := _partition(each)) is not None])
        if topic.name.startswith(PROGRESS_TOPIC_PREFIX) and (log := _log(topic, 0)) is not None:
            sink_logs[topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)] = log, log.last_stable_offset
    owned: Counter[str] = Counter()
    async for group, _, _ in paced(broker.owners.table):
        owned[group] += 1
    counters = broker.counters
    return ServerState(
        taken_ms=broker.clock.now_ms(),
        topics=topics,
        partitions=partitions,
        groups=groups,
        transactions=[
            OpenTransaction(each.name, each.started_ms, len(each.partitions))
            async for each in paced(list(broker.transactions))
            if each.state not in RESTING
        ],
        transactional_ids=len(broker.transactions),
        owned=dict(owned),
        known_resources=broker.owners.table.known,
        waiting_claims=len(broker.owners.table.waiting()),
        connections=_connections(listener),
        connections_accepted=counters.connections_accepted,
        requests={name: histogram.read() for name, histogram in counters.requests.items()},
        sync_rounds=counters.sync_rounds.read(),
        duplicates=counters.duplicates,
        fenced_by_epoch=counters.fenced_by_epoch,
        fenced_by_owner=counters.fenced_by_owner,
        refused=dict(counters.refused),
        takeovers=counters.takeovers,
        severed_silent=counters.severed_silent,
        request_memory=(listener.memory.used, broker.config.request_memory),
        answer_memory=(broker.answers.used, broker.config.answer_memory),
        group_memory=(broker.groups.memory_used, broker.config.group_memory),
        open_files=(len(broker.handles), broker.config.open_files),
        store_commits=broker.store.commits,
        is_low_on_space=broker.space.is_low,
        troubles=broker.health.troubles,
        node_id=broker.config.node_id,
        most_producers=broker.config.max_producers,
        sink_logs=sink_logs,
    )


async def _groups(broker: Broker) -> list[GroupRow]:
    rows = []
    async for entry in paced(list(broker.groups)):
        offsets = []
        async for where in paced(list(entry.offsets)):
            committed = entry.offsets.get(where)
            if committed is None:
                continue  # deleted in the meantime
            log = _log(broker.topics.get(where.topic), where.partition)
            if log is None:
                offsets.append(CommittedOffset(where, committed.offset, None))
                continue
            lag = max(log.high_watermark - committed.offset, 0)  # a client may commit any offset, also one behind it
            records = lag_without_counting(log, committed.offset)
            span = LagSpan(log, committed.offset, log.last_stable_offset) if records is None else None
            offsets.append(CommittedOffset(where, committed.offset, lag, records, span))
        rows.append(GroupRow(entry.group_id, entry.group.state.value, len(entry.group.members), offsets))
    return rows


def _log(topic: Topic | None, index: int) -> PartitionLog | None:
    partition = topic.partition(index) if topic is not None else None
    return partition.log if partition is not None else None


def _partition(partition: Partition) -> PartitionState | None:
    log = partition.log
    if log is None:
        return None
    return PartitionState(
        partition.topic.name,
        partition.index,
        log.start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.size,
        partition.appended_bytes,
        partition.appended_records,
        len(log.producers),
    )


def _connections(listener: Listener) -> dict[str, int]:
    counts = Counter(connection.session.listener.name for connection in listener.connections)
    return {name: counts[name] for name in listener.ports}
