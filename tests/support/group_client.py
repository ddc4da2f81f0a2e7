"""Members of groups over the wire, one connection each, for tests that say every request themselves."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import fencepost
from fencepost.errors import ErrorCode
from tests.support.raw import RawClient

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69

NOT_READY: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
"""What a Kafka that has just started says, until its offsets topic is there."""


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription v1: version INT16, topics [STRING], user data BYTES, owned partitions []."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


def await_coordinator(client: RawClient, group_id: str) -> None:
    while True:
        answer = client.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group_id])
        if ErrorCode.of(answer.coordinators[0].error_code) not in NOT_READY:
            break
    while True:
        answer = client.call(DESCRIBE_GROUPS, 5, groups=[group_id], include_authorized_operations=False)
        if ErrorCode.of(answer.groups[0].error_code) not in NOT_READY:
            break


class GroupMember:
    """A member of a classic group."""

    def __init__(self, client: RawClient, group_id: str, *topics: str, instance_id: str | None = None) -> None:
        self.client = client
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.protocols = [{"name": "range", "metadata": subscription(*topics)}]

    # --- joining ---

    def send_join(self, version: int = 9, **fields: Any) -> None:
        request = {
            "group_id": self.group_id,
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": self.protocols,
            "reason": None,
        }
        self.client.send(JOIN_GROUP, version, **{**request, **fields})

    def receive_join(self) -> Any:
        _, answer = self.client.receive()
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if answer.error_code == ErrorCode.NONE:
            self.generation = answer.generation_id
            self.leader = answer.leader
        return answer

    def ask_for_id(self, **fields: Any) -> None:
        self.send_join(**fields)
        assert self.receive_join().error_code == ErrorCode.MEMBER_ID_REQUIRED

    def join(self, version: int = 9, **fields: Any) -> Any:
        """Sends a JoinGroup and waits for the answer; a new dynamic member comes back with its id by itself."""
        self.send_join(version, **fields)
        answer = self.receive_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join(version, **fields)
            answer = self.receive_join()
        return answer

    def sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5, **fields: Any) -> Any:
        self.send_sync(assignments, version, **fields)
        return self.client.receive()[1]

    def send_sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5, **fields: Any) -> None:
        request = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                {"member_id": member_id, "assignment": part} for member_id, part in (assignments or {}).items()
            ],
        }
        self.client.send(SYNC_GROUP, version, **{**request, **fields})

    def enter(self) -> None:
        """Joins a group that nobody is in, as its only member, assigned b'all'."""
        assert self.join().error_code == ErrorCode.NONE
        assert self.sync({self.member_id: b"all"}).error_code == ErrorCode.NONE

    # --- staying and leaving ---

    def heartbeat(self, version: int = 4, **fields: Any) -> ErrorCode:
        request = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        return ErrorCode.of(self.client.call(HEARTBEAT, version, **{**request, **fields}).error_code)

    def leave(self) -> ErrorCode:
        leaving = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": None}
        answer = self.client.call(LEAVE_GROUP, 5, group_id=self.group_id, members=[leaving])
        return ErrorCode.of(answer.error_code or answer.members[0].error_code)

    def commit(self, topic: str, offset: int, **fields: Any) -> ErrorCode:
        how = {"member_id": self.member_id, "generation": self.generation, "instance_id": self.instance_id, **fields}
        return commit(self.client, self.group_id, topic, offset, **how)


class ConsumerMember:
    """A member of a group of the new protocol."""

    def __init__(self, client: RawClient, group_id: str, member_id: str, *topics: str, **fields: Any) -> None:
        self.client = client
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 0
        self.owned: set[tuple[UUID, int]] = set()
        self.fields = {"subscribed_topic_names": list(topics), **fields}
        self.instance_id: str | None = fields.get("instance_id")

    def beat(self, version: int = 1, **fields: Any) -> Any:
        """A heartbeat that says all there is to say, and takes over what the answer says."""
        request: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rebalance_timeout": 60_000,
            "topic_partitions": [] if self.epoch == 0 else by_topic(self.owned),
            **self.fields,
        }
        answer = self.client.call(CONSUMER_GROUP_HEARTBEAT, version, **{**request, **fields})
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            self.member_id = answer.member_id
            if answer.assignment is not None:
                self.owned = {
                    (topic.topic_id, index)
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                }
        return answer

    def quick_beat(self, **fields: Any) -> Any:
        """A heartbeat that says nothing new."""
        request = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        return self.client.call(CONSUMER_GROUP_HEARTBEAT, 1, **{**request, **fields})

    def leave(self, epoch: int = -1) -> Any:
        self.owned = set()
        return self.quick_beat(member_epoch=epoch)

    def commit(self, topic: str, offset: int, **fields: Any) -> ErrorCode:
        how = {"member_id": self.member_id, "generation": self.epoch, **fields}
        return commit(self.client, self.group_id, topic, offset, **how)


def by_topic(partitions: Iterable[tuple[UUID, int]]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in partitions:
        topics.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in topics.items()]


def commit(
    client: RawClient,
    group_id: str,
    topic: str | UUID,
    offset: int,
    *,
    partition: int = 0,
    metadata: str | None = "",
    leader_epoch: int = -1,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    version: int = 9,
) -> ErrorCode:
    """OffsetCommit of one partition: its error code."""
    answer = client.call(
        OFFSET_COMMIT,
        version,
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time=-1,
        topics=[
            {
                "name": topic,
                "topic_id": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": leader_epoch,
                        "committed_metadata": metadata,
                    }
                ],
            }
        ],
    )
    return ErrorCode.of(answer.topics[0].partitions[0].error_code)


def fetch_offsets(
    client: RawClient,
    group_id: str,
    topics: Mapping[Any, list[int]] | None,
    *,
    version: int = 9,
    **fields: Any,
) -> dict[tuple[Any, int], Any]:
    """OffsetFetch of one group: (topic, partition) → what the answer says of it."""
    wanted = None
    if topics is not None:
        wanted = [{"name": key, "topic_id": key, "partition_indexes": indexes} for key, indexes in topics.items()]
    group = {"group_id": group_id, "topics": wanted, "member_id": None, "member_epoch": -1, **fields}
    if version >= 8:
        [answer] = client.call(OFFSET_FETCH, version, groups=[group], require_stable=False).groups
    else:
        answer = client.call(OFFSET_FETCH, version, **group, require_stable=False)
    error = ErrorCode.of(getattr(answer, "error_code", 0))
    assert error is ErrorCode.NONE, error.name
    return {
        (topic.topic_id if version >= 10 else topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


def describe(client: RawClient, group_id: str, version: int = 5) -> Any:
    [group] = client.call(DESCRIBE_GROUPS, version, groups=[group_id], include_authorized_operations=False).groups
    return group


def delete_group(client: RawClient, group_id: str, version: int = 2) -> ErrorCode:
    [result] = client.call(DELETE_GROUPS, version, groups_names=[group_id]).results
    return ErrorCode.of(result.error_code)


def await_offsets(admin: fencepost.Admin, group: str, expected: list[int], *, topic: str | None = None) -> None:
    """Wait until the group's committed offsets, of one topic if it is named, are these.

    Apache Kafka answers the end of a transaction before it writes the marker that makes its offsets visible."""
    deadline = time.monotonic() + 60
    while True:
        stored = [each.committed for each in admin.group_offsets(group) if topic in (None, each.topic)]
        if stored == expected:
            return
        assert time.monotonic() < deadline, f"{group} has {stored}, not {expected}"
        time.sleep(0.05)  # nothing tells when the marker is there
