"""Transactions in the store: one row per transactional id, with JSON for fields that no query needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.core.groups.offsets import Committed
from fencepost.core.producers.pid import Identity
from fencepost.core.transactions import TransactionMetadata, TransactionState
from fencepost.server.storage.store import Queryable, Statement
from fencepost.types import Epoch, Offset, Pid, TopicPartition

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS transactions (
        name TEXT PRIMARY KEY, pid INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL,
        updated_ms INTEGER NOT NULL, data TEXT NOT NULL
    ) WITHOUT ROWID""",
    # A separate table, because a commit of the group must not touch a transaction while that is being changed.
    """CREATE TABLE IF NOT EXISTS overruled_offsets (
        name TEXT NOT NULL, group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        PRIMARY KEY (name, group_id, topic, partition)
    ) WITHOUT ROWID""",
)

StagedOffsets: TypeAlias = Mapping[str, Mapping[TopicPartition, Committed]]
"""Offsets of an open transaction, by group."""


class Overruled(NamedTuple):
    """An offset of an open transaction that a later, plain commit of the group has replaced."""

    group: str
    partition: TopicPartition


class Stored(NamedTuple):
    transaction: TransactionMetadata
    staged: StagedOffsets
    overruled: set[Overruled]


def put(transaction: TransactionMetadata, staged: StagedOffsets) -> Statement:
    data = {
        "timeout_ms": transaction.timeout_ms,
        "last": list(transaction.last),
        "retired": list(transaction.retired),
        "started_ms": transaction.started_ms,
        "marker_epoch": transaction.marker_epoch,
        "partitions": sorted(transaction.partitions),
        "groups": sorted(transaction.groups),
        "staged": {
            group: [[*partition, *committed] for partition, committed in offsets.items()]
            for group, offsets in staged.items()
        },
    }
    return (
        "INSERT OR REPLACE INTO transactions (name, pid, epoch, state, updated_ms, data) VALUES (?, ?, ?, ?, ?, ?)",
        (
            transaction.name,
            transaction.pid,
            transaction.epoch,
            transaction.state.value,
            transaction.updated_ms,
            json.dumps(data, separators=(",", ":")),
        ),
    )


def drop(name: str) -> list[Statement]:
    return [("DELETE FROM transactions WHERE name = ?", (name,)), forget_overruled(name)]


def put_overruled(name: str, overruled: Overruled) -> Statement:
    sql = "INSERT OR REPLACE INTO overruled_offsets (name, group_id, topic, partition) VALUES (?, ?, ?, ?)"
    return sql, (name, overruled.group, *overruled.partition)


def drop_overruled(name: str, overruled: Overruled) -> Statement:
    sql = "DELETE FROM overruled_offsets WHERE name = ? AND group_id = ? AND topic = ? AND partition = ?"
    return sql, (name, overruled.group, *overruled.partition)


def forget_overruled(name: str) -> Statement:
    return "DELETE FROM overruled_offsets WHERE name = ?", (name,)


def load(store: Queryable) -> list[Stored]:
    overruled: dict[str, set[Overruled]] = {}
    for name, group, topic, index in store.query("SELECT name, group_id, topic, partition FROM overruled_offsets"):
        overruled.setdefault(name, set()).add(Overruled(group, TopicPartition(topic, index)))
    rows = store.query("SELECT name, pid, epoch, state, updated_ms, data FROM transactions")
    return [_stored(overruled.get(row[0], set()), *row) for row in rows]


def _stored(
    overruled: set[Overruled], name: str, pid: int, epoch: int, state: str, updated_ms: int, text: str
) -> Stored:
    data: dict[str, Any] = json.loads(text)
    transaction = TransactionMetadata(
        name=name,
        pid=Pid(pid),
        epoch=Epoch(epoch),
        timeout_ms=data["timeout_ms"],
        last=Identity(Pid(data["last"][0]), Epoch(data["last"][1])),
        retired=tuple(Pid(retired) for retired in data["retired"]),
        state=TransactionState(state),
        partitions={TopicPartition(topic, index) for topic, index in data["partitions"]},
        groups=set(data["groups"]),
        started_ms=data["started_ms"],
        updated_ms=updated_ms,
        marker_epoch=Epoch(data["marker_epoch"]),
    )
    staged = {
        group: {
            TopicPartition(topic, index): Committed(Offset(offset), leader_epoch, metadata, committed_ms, expires_ms)
            for topic, index, offset, leader_epoch, metadata, committed_ms, expires_ms in rows
        }
        for group, rows in data["staged"].items()
    }
    return Stored(transaction, staged, overruled)
