"""The server's state at one moment, read on the loop.

Reading is all that happens on the loop; a thread makes text of it. Large servers are read in several turns, so that a
scrape delays nobody (`server/views`). Committed offsets are read before the ends of logs, which only grow.
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
from fencepost.server.net.turns import Turns, paced
from fencepost.server.views.groups import GroupRows, read_groups
from fencepost.server.views.partitions import TopicRows, read_topics
from fencepost.types import Milliseconds, Offset

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener
    from fencepost.server.storage.topics import Topic


class OpenTransaction(NamedTuple):
    name: str
    started_ms: Milliseconds
    partitions: int


class ServerState(NamedTuple):
    """Everything that a scrape tells. The last fields take longer to find out: a thread adds them."""

    taken_ms: Milliseconds
    topics: list[TopicRows]
    groups: list[GroupRows]
    """A thread adds the lags in records that must be counted."""
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


async def read_state(broker: Broker, listener: Listener) -> ServerState:
    turns = Turns()
    groups = await read_groups(list(broker.groups), broker.topics, turns)
    topics = list(broker.topics)
    topic_rows = await read_topics(topics, turns)
    sink_logs: dict[str, tuple[PartitionLog, Offset]] = {}
    async for topic in paced(topics):
        if topic.name.startswith(PROGRESS_TOPIC_PREFIX) and (log := _log(topic)) is not None:
            sink_logs[topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)] = log, log.last_stable_offset
    owned: Counter[str] = Counter()
    async for group, _, _ in paced(broker.owners.table):
        owned[group] += 1
    counters = broker.counters
    return ServerState(
        taken_ms=broker.clock.now_ms(),
        topics=topic_rows,
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
        open_files=(len(broker.handles), broker.handles.limit),
        store_commits=broker.store.commits,
        is_low_on_space=broker.space.is_low,
        troubles=broker.health.troubles,
        node_id=broker.config.node_id,
        most_producers=broker.config.max_producers,
        sink_logs=sink_logs,
    )


def _log(topic: Topic) -> PartitionLog | None:
    partition = topic.partition(0)
    return partition.log if partition is not None else None


def _connections(listener: Listener) -> dict[str, int]:
    counts = Counter(connection.session.listener.name for connection in listener.connections)
    return {name: counts[name] for name in listener.ports}
