"""The cluster and transactions."""

from __future__ import annotations

from fencepost._version import __version__
from fencepost.core.rows import (
    BrokerRow,
    ClusterRow,
    TransactionDetails,
)
from fencepost.core.transactions import RESTING, TransactionState
from fencepost.errors import ErrorCode
from fencepost.server.http.v1.asking import HttpCaller, check
from fencepost.server.http.v1.paging import Page, PagePlace, cut
from fencepost.server.net.router import Fields
from fencepost.server.net.turns import paced
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key


async def describe_cluster(caller: HttpCaller) -> ClusterRow:
    found = await caller.ask(Key.DESCRIBE_CLUSTER, include_cluster_authorized_operations=False, endpoint_type=1)
    brokers = [BrokerRow(row["broker_id"], row["host"], row["port"]) for row in found["brokers"]]
    return ClusterRow(found["cluster_id"], found["controller_id"], brokers, __version__)


async def list_transactions(caller: HttpCaller, place: PagePlace) -> Page[TransactionDetails]:
    answer = await caller.ask(Key.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[])
    rows, cursor = await cut(answer["transaction_states"], lambda row: (row["transactional_id"],), place)
    names = [row["transactional_id"] for row in rows]
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=names)
    there = [row for row in answer["transaction_states"] if row["error_code"] == ErrorCode.NONE]
    return Page([_transaction(row) async for row in paced(there)], cursor)


async def describe_transaction(caller: HttpCaller, name: str) -> TransactionDetails:
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
    [found] = answer["transaction_states"]
    check(found, f"transactional id {name!r}")
    return _transaction(found)


def _transaction(row: Fields) -> TransactionDetails:
    is_open = TransactionState(row["transaction_state"]) not in RESTING
    return TransactionDetails(
        row["transactional_id"],
        row["transaction_state"],
        row["producer_id"],
        row["transaction_start_time"] if is_open else None,
        row["producer_epoch"],
        row["transaction_timeout"],
        tuple(TopicPartition(topic["topic"], index) for topic in row["topics"] for index in topic["partitions"]),
    )
