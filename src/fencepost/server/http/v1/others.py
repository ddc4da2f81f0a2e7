"""The cluster, transactions and sinks."""

from __future__ import annotations

from functools import partial

from fencepost._version import __version__
from fencepost.core.micro_batch import PROGRESS_TOPIC_PREFIX, Progress
from fencepost.core.security.access import TOPIC_DESCRIBE, TOPIC_READ
from fencepost.core.transactions import RESTING, TransactionState
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.http.v1.answers import (
    AssignedJson,
    BrokerJson,
    ClusterJson,
    SinkJson,
    TransactionJson,
)
from fencepost.server.http.v1.asking import HttpCaller, check
from fencepost.server.http.v1.paging import Page, PagePlace, cut
from fencepost.server.net.router import Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.sink_progress import last_progress
from fencepost.server.storage.topics import Topic
from fencepost.wire.apis import Key


async def describe_cluster(caller: HttpCaller) -> ClusterJson:
    found = await caller.ask(Key.DESCRIBE_CLUSTER, include_cluster_authorized_operations=False, endpoint_type=1)
    brokers = [BrokerJson(row["broker_id"], row["host"], row["port"]) for row in found["brokers"]]
    return ClusterJson(found["cluster_id"], found["controller_id"], brokers, __version__)


async def list_transactions(caller: HttpCaller, place: PagePlace) -> Page[TransactionJson]:
    answer = await caller.ask(Key.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[])
    rows, cursor = await cut(answer["transaction_states"], lambda row: (row["transactional_id"],), place)
    names = [row["transactional_id"] for row in rows]
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=names)
    there = [row for row in answer["transaction_states"] if row["error_code"] == ErrorCode.NONE]
    return Page([_transaction(row) async for row in paced(there)], cursor)


async def describe_transaction(caller: HttpCaller, name: str) -> TransactionJson:
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
    [found] = answer["transaction_states"]
    check(found, f"transactional id {name!r}")
    return _transaction(found)


def _transaction(row: Fields) -> TransactionJson:
    is_open = TransactionState(row["transaction_state"]) not in RESTING
    return TransactionJson(
        row["transactional_id"],
        row["transaction_state"],
        row["producer_id"],
        row["producer_epoch"],
        row["transaction_start_time"] if is_open else None,
        row["transaction_timeout"],
        [AssignedJson(topic["topic"], index) for topic in row["topics"] for index in topic["partitions"]],
    )


async def list_sinks(caller: HttpCaller, place: PagePlace) -> Page[SinkJson]:
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    seen = [
        topic
        async for topic in paced(list(caller.broker.topics))
        if topic.name.startswith(PROGRESS_TOPIC_PREFIX) and request.sees(TOPIC_DESCRIBE, topic.name)
    ]
    topics, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page([await _sink(caller, topic) for topic in topics], cursor)


async def _sink(caller: HttpCaller, topic: Topic) -> SinkJson:
    name = topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)
    progress: Progress | None = None
    readable = caller.request(Key.FETCH).sees(TOPIC_READ, topic.name)
    if readable:
        try:
            log = await caller.broker.partition(topic.name, 0).open()
            progress = await caller.in_thread(partial(last_progress, log, log.last_stable_offset))
        except FencepostError:
            readable = False
    if progress is None:
        return SinkJson(name, None, None, None, None, None, None, readable)
    wrote = progress.wrote_something
    return SinkJson(
        name,
        progress.query if wrote else None,
        progress.batch if wrote else None,
        progress.incarnation,
        progress.host,
        progress.process,
        progress.time_ms,
        readable,
    )
