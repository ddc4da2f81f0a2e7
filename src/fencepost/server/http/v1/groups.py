"""Consumer groups and their lag."""

from __future__ import annotations

from fencepost.core.groups.assignment import read_assignment
from fencepost.core.rows import GroupDetails, GroupMember, GroupOffset, GroupSummary
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.v1.asking import HttpCaller, check
from fencepost.server.http.v1.paging import Page, PagePlace, cut
from fencepost.server.http.v1.topics import offsets
from fencepost.server.net.router import Fields
from fencepost.server.net.turns import paced
from fencepost.types import LATEST, Offset, TopicPartition
from fencepost.wire.apis import Key


async def list_groups(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[GroupSummary]:
    """Return the groups whose names contain `find`, in capitals or not."""
    answer = await caller.ask(Key.LIST_GROUPS)
    wanted = find.lower()
    seen = answer["groups"]
    if wanted:
        seen = [row async for row in paced(seen) if wanted in row["group_id"].lower()]
    rows, cursor = await cut(seen, lambda row: (row["group_id"],), place)
    return Page(
        [GroupSummary(row["group_id"], row["group_state"], row["group_type"], row["protocol_type"]) for row in rows],
        cursor,
    )


async def describe_group(caller: HttpCaller, group: str) -> GroupDetails:
    answer = await caller.ask(Key.CONSUMER_GROUP_DESCRIBE, group_ids=[group], include_authorized_operations=False)
    [found] = answer["groups"]
    if found["error_code"] != ErrorCode.GROUP_ID_NOT_FOUND:
        check(found, f"group {group!r}")
        members = tuple(_consumer_member(row) for row in found["members"])
        return GroupDetails(group, found["group_state"], "consumer", found["assignor_name"], members)
    answer = await caller.ask(Key.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    [found] = answer["groups"]
    check(found, f"group {group!r}")
    members = tuple(_classic_member(row) for row in found["members"])
    return GroupDetails(group, found["group_state"], "classic", found["protocol_data"], members)


def _consumer_member(row: Fields) -> GroupMember:
    topics = row["assignment"]["topic_partitions"]
    assigned = tuple(TopicPartition(topic["topic_name"], index) for topic in topics for index in topic["partitions"])
    return GroupMember(row["member_id"], row["instance_id"], row["client_id"], row["client_host"], assigned)


def _classic_member(row: Fields) -> GroupMember:
    assigned = tuple(TopicPartition(*where) for where in read_assignment(bytes(row["member_assignment"])))
    return GroupMember(row["member_id"], row["group_instance_id"], row["client_id"], row["client_host"], assigned)


async def list_offsets(caller: HttpCaller, place: PagePlace, group: str) -> Page[GroupOffset]:
    answer = await caller.ask(Key.OFFSET_FETCH, groups=[{"group_id": group, "topics": None}], require_stable=False)
    [found] = answer["groups"]
    check(found, f"group {group!r}")
    if caller.broker.groups.get(group) is None:
        raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    every = [(topic["name"], row) for topic in found["topics"] for row in topic["partitions"]]
    rows, cursor = await cut(every, lambda row: (row[0], row[1]["partition_index"]), place)
    indexes: dict[str, list[int]] = {}
    for topic, row in rows:
        indexes.setdefault(topic, []).append(row["partition_index"])
    # Ends are read after the committed offsets, and only grow: so a lag is never negative.
    ends = {topic: await _ends(caller, topic, wanted) for topic, wanted in indexes.items()}
    return Page([_offset(topic, row, ends[topic].get(row["partition_index"])) for topic, row in rows], cursor)


async def _ends(caller: HttpCaller, topic: str, indexes: list[int]) -> dict[int, int]:
    try:
        return await offsets(caller, topic, indexes, LATEST)
    except ServerError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return {}  # the topic was deleted meanwhile
        raise


def _offset(topic: str, row: Fields, end: int | None) -> GroupOffset:
    end_offset = Offset(end) if end is not None else None
    return GroupOffset(topic, row["partition_index"], Offset(row["committed_offset"]), end_offset, row["metadata"])
