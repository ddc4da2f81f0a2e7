"""Consumer groups for administrators: members, lag, and resetting offsets.

Two kinds exist side by side: `classic` groups, whose assignments are opaque bytes to the coordinator, and `consumer`
groups (KIP-848), whose assignments it computes. Each kind has its own Describe API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.admin.results import GroupDescription, OffsetAt, OffsetChange
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.core.groups.resets import LogRange, at_time, check_no_members, check_within, shifted
from fencepost.core.groups.subscription import read_assignment
from fencepost.core.rows import GroupMember, GroupOffset, GroupSummary
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import EARLIEST, LATEST, Offset, TopicPartition
from fencepost.wire.apis import OFFSET_COMMIT_BY_NAME, OFFSET_FETCH_BY_NAME, Key


class GroupAdmin(PartitionAdmin):
    """Administration of consumer groups."""

    def groups(self) -> tuple[GroupSummary, ...]:
        """Return the groups of all coordinators, sorted by name."""
        found: dict[str, GroupSummary] = {}
        for broker in self._routes.view().brokers.values():
            answer = self._routes.retried(lambda broker=broker: self._groups_at(broker))  # type: ignore[misc]
            for group in answer.groups:
                found[group.group_id] = GroupSummary(
                    group.group_id,
                    getattr(group, "group_state", ""),
                    getattr(group, "group_type", "").lower() or "classic",
                    group.protocol_type,
                )
        return tuple(found[name] for name in sorted(found))

    def _groups_at(self, broker: BrokerNode) -> Any:
        answer = self._routes.to(broker).request(Key.LIST_GROUPS, {}).message
        raise_for(answer.error_code, "listing groups")
        return answer

    def describe_group(self, group: str) -> GroupDescription:
        return self._routes.retried(lambda: self._describe_group(group))

    def _describe_group(self, group: str) -> GroupDescription:
        coordinator = self._routes.coordinator(group)
        channel = self._routes.to(coordinator)
        if channel.offers(Key.CONSUMER_GROUP_DESCRIBE):
            fields = {"group_ids": [group], "include_authorized_operations": False}
            described = channel.request(Key.CONSUMER_GROUP_DESCRIBE, fields).message.groups[0]
            if described.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                raise_for(described.error_code, f"group {group!r}", described.error_message)
                return GroupDescription(
                    group,
                    described.group_state,
                    "consumer",
                    described.assignor_name,
                    tuple(_consumer_member(member) for member in described.members),
                    coordinator,
                )
        fields = {"groups": [group], "include_authorized_operations": False}
        described = channel.request(Key.DESCRIBE_GROUPS, fields).message.groups[0]
        # From version 6 on an unknown group is an error; before, it is described as dead.
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND or described.group_state == "Dead":
            raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
        raise_for(described.error_code, f"group {group!r}", getattr(described, "error_message", None))
        return GroupDescription(
            group,
            described.group_state,
            "classic",
            described.protocol_data,
            tuple(_classic_member(member) for member in described.members),
            coordinator,
        )

    def group_offsets(self, group: str) -> tuple[GroupOffset, ...]:
        """Return the group's committed offset per partition, with the end of the partition for the lag."""
        committed = self._routes.retried(lambda: self._committed(group))
        ends = self._ends({partition.topic for partition in committed})
        return tuple(
            GroupOffset(*partition, offset, ends.get(partition), metadata)
            for partition, (offset, metadata) in sorted(committed.items())
        )

    def _committed(self, group: str) -> dict[TopicPartition, tuple[Offset, str]]:
        """Return all committed offsets of the group, with their metadata."""
        fields = {
            "group_id": group,  # up to version 7 one group …
            "topics": None,
            "groups": [{"group_id": group, "topics": None}],  # … from 8 on several
            "require_stable": False,
        }
        channel = self._routes.to(self._routes.coordinator(group))
        answer = channel.request(Key.OFFSET_FETCH, fields, at_most=OFFSET_FETCH_BY_NAME)
        found = answer.message.groups[0] if answer.version >= 8 else answer.message
        raise_for(getattr(found, "error_code", 0), f"offsets of group {group!r}")
        committed = {}
        for topic in found.topics:
            for partition in topic.partitions:
                raise_for(partition.error_code, f"offset of {topic.name}-{partition.partition_index}")
                if partition.committed_offset >= 0:
                    where = TopicPartition(topic.name, partition.partition_index)
                    committed[where] = (Offset(partition.committed_offset), partition.metadata or "")
        return committed

    def _ends(self, topics: Iterable[str]) -> dict[TopicPartition, Offset]:
        ends = {}
        for topic in topics:
            try:
                found = self.offsets(topic, LATEST)
            except ServerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                continue  # the topic was deleted; the group's offsets outlive it
            ends.update({TopicPartition(topic, at.partition): at.offset for at in found.values()})
        return ends

    def reset_group(
        self, group: str, topic: str, to: int, *, partitions: Iterable[int] | None = None, dry_run: bool = False
    ) -> tuple[OffsetChange, ...]:
        """Move the group's committed offsets of a topic to a time (ms since 1970, EARLIEST or LATEST).

        The group must have no members. A time newer than every record means the end."""
        wanted = None if partitions is None else list(partitions)
        found = self.offsets(topic, to, partitions=wanted)
        ends = {}
        if any(at.offset < 0 for at in found.values()):
            ends = self.offsets(topic, LATEST, partitions=wanted)
        targets = at_time(_plain(found), _plain(ends))
        return self.set_group_offsets(group, topic, targets, dry_run=dry_run)

    def shift_group(
        self, group: str, topic: str, by: int, *, partitions: Iterable[int] | None = None, dry_run: bool = False
    ) -> tuple[OffsetChange, ...]:
        """Move the group's committed offsets of a topic forward, or backward if `by` is negative.

        The group must have no members. No offset moves beyond the ends of its log. Partitions without a committed
        offset stay without one."""
        committed = self._routes.retried(lambda: self._committed(group))
        before = {where.partition: int(offset) for where, (offset, _) in committed.items() if where.topic == topic}
        if partitions is not None:
            before = {index: before[index] for index in partitions if index in before}
        targets = shifted(before, by, self._ranges(topic, before)) if before else {}
        return self.set_group_offsets(group, topic, targets, dry_run=dry_run)

    def set_group_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        metadata: Mapping[int, str] | None = None,
        dry_run: bool = False,
    ) -> tuple[OffsetChange, ...]:
        """Commit these offsets (partition → offset) for a group that has no members. `metadata`: text to keep with an
        offset, by partition."""
        self._demand_no_members(group)
        if offsets:
            check_within(topic, offsets, self._ranges(topic, offsets))
        before = self._routes.retried(lambda: self._committed(group))
        changes = tuple(
            OffsetChange(topic, index, before.get(TopicPartition(topic, index), (None, ""))[0], Offset(offset))
            for index, offset in sorted(offsets.items())
        )
        if changes and not dry_run:
            self.commit_group_offsets(group, topic, offsets, metadata=metadata)
        return changes

    def commit_group_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, metadata: Mapping[int, str] | None = None
    ) -> None:
        """Commit offsets without any check, as a consumer does that assigns its partitions itself."""
        self._routes.retried(lambda: self._commit_offsets(group, topic, offsets, metadata or {}))

    def _demand_no_members(self, group: str) -> None:
        try:
            described = self.describe_group(group)
        except ServerError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return  # a group may get offsets before its first member joins
            raise
        check_no_members(group, described.state, len(described.members))

    def _ranges(self, topic: str, partitions: Iterable[int]) -> dict[int, LogRange]:
        first = self.offsets(topic, EARLIEST, partitions=partitions)
        end = self.offsets(topic, LATEST, partitions=partitions)
        return {index: LogRange(first[index].offset, end[index].offset) for index in first}

    def _commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], metadata: Mapping[int, str]) -> None:
        asked = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata.get(index, "")}
            for index, offset in offsets.items()
        ]
        fields = {
            "group_id": group,
            "generation_id": -1,  # no member: allowed while the group has none …
            "generation_id_or_member_epoch": -1,  # … the name from version 9 on
            "member_id": "",
            "topics": [{"name": topic, "partitions": asked}],
        }
        channel = self._routes.to(self._routes.coordinator(group))
        answer = channel.request(Key.OFFSET_COMMIT, fields, at_most=OFFSET_COMMIT_BY_NAME).message
        for found in answer.topics:
            for partition in found.partitions:
                raise_for(partition.error_code, f"committing {found.name}-{partition.partition_index} for {group!r}")

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with its offsets."""
        self._routes.retried(lambda: self._delete_group(group))

    def _delete_group(self, group: str) -> None:
        channel = self._routes.to(self._routes.coordinator(group))
        result = channel.request(Key.DELETE_GROUPS, {"groups_names": [group]}).message.results[0]
        if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
        if result.error_code == ErrorCode.NON_EMPTY_GROUP:
            raise ServerError(ErrorCode.NON_EMPTY_GROUP, f"group {group!r} has members: stop its consumers first")
        raise_for(result.error_code, f"deleting group {group!r}")


def _consumer_member(member: Any) -> GroupMember:
    assignment = tuple(
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    )
    return GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host, assignment)


def _classic_member(member: Any) -> GroupMember:
    return GroupMember(
        member.member_id,
        getattr(member, "group_instance_id", None),
        member.client_id,
        member.client_host,
        read_assignment(member.member_assignment),
    )


def _plain(found: Mapping[int, OffsetAt]) -> dict[int, int]:
    return {index: int(at.offset) for index, at in found.items()}
