"""Committed offsets and the lags of groups.

A lag is the number of offsets from the committed one to the end, as `fencepost group describe` prints it. The end of a
partition that nobody has used since the server started is not known without opening its log, so the lag of its group is
only known to be at least that of the other partitions. Offset and end are read in one turn, so a lag is never negative.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from fencepost.core.groups.subscription import read_assignment
from fencepost.core.rows import GroupDetails, GroupMember, GroupOffset, GroupSummary, lag_between
from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.net.turns import Turns, paced
from fencepost.server.views.asking import HttpCaller, check
from fencepost.server.views.paging import Page, PagePlace, cut
from fencepost.server.views.record_lag import LagSpan
from fencepost.server.views.topics import PIECE, offsets
from fencepost.types import LATEST, Offset, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.coordinators.group_memory import GroupEntry
    from fencepost.server.net.router import Fields
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topics


class OffsetRow(NamedTuple):
    partition: int
    committed: int
    lag: int | None = None
    """None: the partition is closed."""
    records: int | None = None
    """The lag in records. None: the partition is closed, or they are not counted yet."""
    span: LagSpan | None = None
    """What must be counted to know `records`."""


def offset_row(partition: Partition, committed: Offset) -> OffsetRow:
    log = partition.log
    if log is None:
        return OffsetRow(partition.index, committed)
    lag, stable = lag_between(committed, log.high_watermark), log.last_stable_offset
    if committed >= log.dense_from and committed >= log.cleaned_offset:
        return OffsetRow(partition.index, committed, lag, lag_between(committed, stable))
    return OffsetRow(partition.index, committed, lag, None, LagSpan(log, committed, stable))


class GroupLag(NamedTuple):
    known: int = 0
    """The sum over the partitions whose ends are known."""
    closed: int = 0
    """Partitions whose ends are not."""
    partitions: int = 0
    """Partitions with a committed offset."""
    committed_ms: int = -1
    """When the group last committed an offset of these."""

    def plus(self, other: GroupLag) -> GroupLag:
        return GroupLag(
            self.known + other.known,
            self.closed + other.closed,
            self.partitions + other.partitions,
            max(self.committed_ms, other.committed_ms),
        )

    @classmethod
    def of(cls, rows: Iterable[OffsetRow], committed_ms: int = -1) -> GroupLag:
        lags = [row.lag for row in rows]
        known = [lag for lag in lags if lag is not None]
        return cls(sum(known), len(lags) - len(known), len(lags), committed_ms)


class GroupRows(NamedTuple):
    name: str
    members: int
    topics: dict[str, list[OffsetRow]]
    lag: GroupLag


async def read_groups(entries: Iterable[GroupEntry], topics: Topics, turns: Turns) -> list[GroupRows]:
    """Read the committed offsets of these groups, in pieces."""
    found = []
    work = 0
    for entry in entries:
        of: dict[str, list[OffsetRow]] = {}
        lag = GroupLag()
        offsets = list(zip(entry.offsets, entry.offsets.values(), strict=True))
        for at in range(0, len(offsets), PIECE):
            rows, newest, last, topic = [], -1, None, None
            for (name, index), committed in offsets[at : at + PIECE]:
                if name != last:
                    last, topic = name, topics.get(name)
                partition = topic.partition(index) if topic is not None else None
                if partition is not None:  # else it was deleted in the meantime
                    rows.append(row := offset_row(partition, committed.offset))
                    of.setdefault(name, []).append(row)
                    newest = max(newest, committed.committed_ms)
            lag = lag.plus(GroupLag.of(rows, newest))
            work += len(offsets[at : at + PIECE])
            if work >= PIECE:
                work = 0
                await turns()
        found.append(GroupRows(entry.group_id, len(entry.group.members), of, lag))
        work += 1
    return found


async def lag_seen(caller: HttpCaller, group: GroupRows) -> GroupLag:
    """Return the lag of a group in the topics that the caller sees."""
    if not caller.authorizer.enabled:
        return group.lag
    request, lag = caller.request(Key.OFFSET_FETCH), GroupLag()
    for topic, rows in group.topics.items():
        for at in range(0, len(rows), PIECE) if request.sees(TOPIC_DESCRIBE, topic) else ():
            lag = lag.plus(GroupLag.of(rows[at : at + PIECE]))
            await caller.turns()
    return lag


# -- pages of rows ------------------------------------------------------------------------------------------


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
