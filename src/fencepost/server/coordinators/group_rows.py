"""Groups and committed offsets in the store: the tables, and the conversion between rows and records.

A group is one row, and so is each member; fields that no query needs are JSON. Offsets have plain columns, because they
are written thousands of times a second.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from fencepost.core.groups.assignors import PartitionId, Partitions, in_order
from fencepost.core.groups.classic_messages import GroupRecord, MemberRecord, Protocols
from fencepost.core.groups.kip848_messages import (
    Changes,
    ClassicPart,
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    MemberState,
    TopicInfo,
)
from fencepost.core.groups.offsets import Committed
from fencepost.server.storage.store import Later, Queryable, Statement
from fencepost.types import Milliseconds, Offset, TopicPartition

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS groups (
        group_id TEXT PRIMARY KEY, type TEXT NOT NULL, empty_since_ms INTEGER, data TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS group_members (
        group_id TEXT NOT NULL, member_id TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (group_id, member_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS group_offsets (
        group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, expires_ms INTEGER,
        PRIMARY KEY (group_id, topic, partition)
    ) WITHOUT ROWID""",
)

MAX_ROWS_ON_LOOP: Final = 500
"""Offsets, or partitions of a transaction, whose rows are made on the loop; the store's thread makes more."""
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"

_PUT_GROUP: Final = "INSERT OR REPLACE INTO groups (group_id, type, empty_since_ms, data) VALUES (?, ?, ?, ?)"
_PUT_MEMBER: Final = "INSERT OR REPLACE INTO group_members (group_id, member_id, data) VALUES (?, ?, ?)"
_DROP_MEMBERS_OF_TYPE: Final = """DELETE FROM group_members
    WHERE group_id = ? AND EXISTS (SELECT 1 FROM groups WHERE group_id = ? AND type = ?)"""
_PUT_OFFSET: Final = """INSERT OR REPLACE INTO group_offsets
    (group_id, topic, partition, offset, leader_epoch, metadata, committed_ms, expires_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""


class StoredGroup(NamedTuple):
    group_id: str
    empty_since_ms: Milliseconds | None
    record: GroupRecord | tuple[ConsumerGroupRecord, list[ConsumerMemberRecord]]


# --- writing ---


def put_classic(group_id: str, record: GroupRecord, empty_since_ms: Milliseconds | None) -> list[Statement]:
    head = {
        "generation": record.generation,
        "protocol_type": record.protocol_type,
        "protocol": record.protocol,
        "leader": record.leader,
        "order": [member.member_id for member in record.members],
    }
    return [
        (_PUT_GROUP, (group_id, CLASSIC, empty_since_ms, json.dumps(head))),
        ("DELETE FROM group_members WHERE group_id = ?", (group_id,)),
        *((_PUT_MEMBER, (group_id, member.member_id, _pack_classic_member(member))) for member in record.members),
    ]


def put_consumer(group_id: str, changes: Changes, empty_since_ms: Milliseconds | None) -> Sequence[Statement]:
    """Store changes of a group; a member may have a hundred thousand partitions."""
    return Later(2 + len(changes.members), partial(_put_consumer, group_id, changes, empty_since_ms))


def _put_consumer(group_id: str, changes: Changes, empty_since_ms: Milliseconds | None) -> list[Statement]:
    group = changes.group
    head = {
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "known": {name: [info.topic_id.hex, info.partitions] for name, info in group.known.items()},
    }
    statements: list[Statement] = [
        # The last members of the other protocol may still be stored, if their removal failed.
        (_DROP_MEMBERS_OF_TYPE, (group_id, group_id, CLASSIC)),
        (_PUT_GROUP, (group_id, CONSUMER, empty_since_ms, json.dumps(head))),
    ]
    for member_id, member in changes.members.items():
        if member is None:
            statements.append(("DELETE FROM group_members WHERE group_id = ? AND member_id = ?", (group_id, member_id)))
        else:
            statements.append((_PUT_MEMBER, (group_id, member_id, _pack_consumer_member(member))))
    return statements


def put_offsets(group_id: str, offsets: Mapping[TopicPartition, Committed]) -> Sequence[Statement]:
    make = partial(_put_offsets, group_id, offsets)
    return make() if len(offsets) <= MAX_ROWS_ON_LOOP else Later(len(offsets), make)


def _put_offsets(group_id: str, offsets: Mapping[TopicPartition, Committed]) -> list[Statement]:
    return [
        (
            _PUT_OFFSET,
            (
                group_id,
                topic,
                partition,
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
                committed.committed_ms,
                committed.expires_ms,
            ),
        )
        for (topic, partition), committed in offsets.items()
    ]


def drop_offsets(group_id: str, partitions: Iterable[TopicPartition], before: Milliseconds | None) -> list[Statement]:
    """Delete offsets. With `before`, keep later commits: one may be on its way that the caller does not see."""
    sql = "DELETE FROM group_offsets WHERE group_id = ? AND topic = ? AND partition = ? AND committed_ms <= ?"
    limit = 2**63 - 1 if before is None else before
    return [(sql, (group_id, topic, partition, limit)) for topic, partition in partitions]


def drop_topic(topic: str) -> list[Statement]:
    return [("DELETE FROM group_offsets WHERE topic = ?", (topic,))]


def drop_members(group_id: str) -> list[Statement]:
    return [
        ("DELETE FROM groups WHERE group_id = ?", (group_id,)),
        ("DELETE FROM group_members WHERE group_id = ?", (group_id,)),
    ]


def drop_group(group_id: str) -> list[Statement]:
    return [*drop_members(group_id), ("DELETE FROM group_offsets WHERE group_id = ?", (group_id,))]


# --- reading ---


def load_groups(store: Queryable) -> list[StoredGroup]:
    members: dict[str, dict[str, dict[str, Any]]] = {}
    for group_id, member_id, data in store.query("SELECT group_id, member_id, data FROM group_members"):
        members.setdefault(group_id, {})[member_id] = json.loads(data)
    groups = []
    for group_id, kind, empty_since_ms, data in store.query("SELECT group_id, type, empty_since_ms, data FROM groups"):
        head = json.loads(data)
        of_group = members.get(group_id, {})
        record: GroupRecord | tuple[ConsumerGroupRecord, list[ConsumerMemberRecord]]
        if kind == CLASSIC:
            record = GroupRecord(
                head["generation"],
                head["protocol_type"],
                head["protocol"],
                head["leader"],
                tuple(_unpack_classic_member(member_id, of_group[member_id]) for member_id in head["order"]),
            )
        else:
            known = {name: TopicInfo(UUID(hex=topic_id), count) for name, (topic_id, count) in head["known"].items()}
            record = (
                ConsumerGroupRecord(head["epoch"], head["assignment_epoch"], head["assignor"], known),
                [_unpack_consumer_member(member_id, fields) for member_id, fields in of_group.items()],
            )
        groups.append(StoredGroup(group_id, empty_since_ms, record))
    return groups


def load_offsets(store: Queryable) -> dict[str, dict[TopicPartition, Committed]]:
    offsets: dict[str, dict[TopicPartition, Committed]] = {}
    sql = """SELECT group_id, topic, partition, offset, leader_epoch, metadata, committed_ms, expires_ms
        FROM group_offsets"""
    for group_id, topic, partition, offset, *rest in store.query(sql):
        offsets.setdefault(group_id, {})[TopicPartition(topic, partition)] = Committed(Offset(offset), *rest)
    return offsets


# --- members as JSON ---


def _pack_classic_member(member: MemberRecord) -> str:
    fields = member._asdict()
    del fields["member_id"]
    fields["protocols"] = _pack_protocols(member.protocols)
    fields["assignment"] = _text(member.assignment)
    return json.dumps(fields)


def _unpack_classic_member(member_id: str, fields: dict[str, Any]) -> MemberRecord:
    fields["protocols"] = _unpack_protocols(fields["protocols"])
    fields["assignment"] = base64.b64decode(fields["assignment"])
    return MemberRecord(member_id=member_id, **fields)


def _pack_consumer_member(member: ConsumerMemberRecord) -> str:
    fields = member._asdict()
    del fields["member_id"]
    fields["topic_names"] = sorted(member.topic_names)
    for name in ("assigned", "revoking", "target"):
        fields[name] = _pack_partitions(fields[name])
    if member.classic is None:
        del fields["classic"]
    else:
        fields["classic"] = [member.classic.session_timeout_ms, _pack_protocols(member.classic.protocols)]
    return json.dumps(fields)


def _unpack_consumer_member(member_id: str, fields: dict[str, Any]) -> ConsumerMemberRecord:
    fields["topic_names"] = frozenset(fields["topic_names"])
    fields["state"] = MemberState(fields["state"])
    for name in ("assigned", "revoking", "target"):
        fields[name] = _unpack_partitions(fields[name])
    if "classic" in fields:
        session_timeout_ms, protocols = fields["classic"]
        fields["classic"] = ClassicPart(session_timeout_ms, _unpack_protocols(protocols))
    return ConsumerMemberRecord(member_id=member_id, **fields)


def _pack_protocols(protocols: Protocols) -> list[list[str]]:
    return [[name, _text(metadata)] for name, metadata in protocols]


def _unpack_protocols(packed: list[list[str]]) -> Protocols:
    return tuple((name, base64.b64decode(metadata)) for name, metadata in packed)


def _pack_partitions(partitions: Partitions) -> dict[str, list[int]]:
    return {topic_id.hex: listed for topic_id, listed in in_order(partitions).items()}


def _unpack_partitions(packed: dict[str, list[int]]) -> Partitions:
    return frozenset(
        PartitionId(UUID(hex=topic_id), index) for topic_id, indexes in packed.items() for index in indexes
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
