"""The answers of the HTTP API: pages of rows, of what the caller may see. The console asks for the same ones.

Each asks the Kafka APIs' handlers, or reads what they read and checks the same ACLs. A table of owners or producers may
be long, so only one page becomes rows.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost._version import __version__
from fencepost.core.groups.assignment import read_assignment
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX
from fencepost.core.micro_batch.zombies import FencedWrite, SinkStory
from fencepost.core.producers.dedup import ProducerEntry
from fencepost.core.rows import (
    AclRow,
    BrokerRow,
    ClusterRow,
    ConfigRow,
    CredentialRow,
    GroupDetails,
    GroupMember,
    GroupOffset,
    GroupSummary,
    OwnerDescription,
    PartitionDetails,
    ProducerDetails,
    QuotaEntityRow,
    QuotaRow,
    SinkRow,
    TakenResourceRow,
    TakeoverRow,
    TopicDetailsRow,
    TopicRow,
    TransactionDetails,
    UserRow,
    WaitingClaimRow,
)
from fencepost.core.security.access import (
    CLUSTER_DESCRIBE,
    GROUP_DESCRIBE,
    TOPIC_DESCRIBE,
    TOPIC_READ,
    TRANSACTIONAL_ID_DESCRIBE,
)
from fencepost.core.security.acls import Operation, PatternType, Permission, ResourceType
from fencepost.core.security.credentials import Mechanism
from fencepost.core.transactions import RESTING, TransactionState
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.coordinators.takeovers import SeveredOwner
from fencepost.server.http.v1.asking import HttpCaller, check
from fencepost.server.http.v1.paging import BadQuery, Page, PagePlace, cut, write_cursor
from fencepost.server.net.router import ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic
from fencepost.server.views.partitions import partition_row
from fencepost.server.views.sinks import SinkTail
from fencepost.types import LATEST, NO_PID, Offset, Pid, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic


# -- the cluster and transactions -----------------------------------------------------------------------------


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


# -- topics, their partitions and their producers -------------------------------------------------------------


_TOPIC: Final = 2
_SOURCES: Final = {1: "topic", 4: "static", 5: "default"}
_READ_COMMITTED: Final = 1


async def list_topics(caller: HttpCaller, place: PagePlace) -> Page[TopicRow]:
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    seen = [topic async for topic in paced(list(caller.broker.topics)) if request.sees(TOPIC_DESCRIBE, topic.name)]
    rows, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page(
        [TopicRow(row.name, row.topic_id, row.partition_count, row.name.startswith("__")) for row in rows], cursor
    )


async def describe_topic(caller: HttpCaller, topic: str) -> TopicDetailsRow:
    row = await _described(caller, topic)
    asked = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
    [found] = (await caller.ask(Key.DESCRIBE_CONFIGS, resources=[asked], include_synonyms=False))["results"]
    configs = None
    if found["error_code"] == ErrorCode.NONE:
        configs = [ConfigRow(each["name"], each["value"], _SOURCES[each["config_source"]]) for each in found["configs"]]
    known = caller.broker.topics.require(topic)
    return TopicDetailsRow(topic, row["topic_id"], known.partition_count, row["is_internal"], configs)


async def _described(caller: HttpCaller, topic: str) -> Fields:
    """Return the topic as DescribeTopicPartitions does, or raise ServerError."""
    answer = await caller.ask(
        Key.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": topic}], cursor=None, response_partition_limit=1
    )
    [row] = answer["topics"]
    check(row, f"topic {topic!r}")
    return dict(row)


async def list_partitions(caller: HttpCaller, place: PagePlace, topic: str) -> Page[PartitionDetails]:
    await _described(caller, topic)
    return await partition_page(caller, caller.broker.topics.require(topic), place)


async def partition_page(caller: HttpCaller, topic: Topic, place: PagePlace) -> Page[PartitionDetails]:
    """Return a page of partitions, with the numbers of ListOffsets and DescribeLogDirs: a page that is watched asks
    every second, so it asks the logs themselves."""
    indexes, cursor = await cut(range(topic.partition_count), lambda index: (index,), place)
    with_sizes, node = sees_sizes(caller), caller.broker.config.node_id
    items = []
    for index in indexes:
        partition = caller.broker.partition(topic.name, index)
        row = partition_row(partition, partition.log or await partition.open())
        items.append(PartitionDetails(index, node, row.start, row.end, row.stable, row.size if with_sizes else None))
        await caller.turns()
    return Page(items, cursor)


def sees_sizes(caller: HttpCaller) -> bool:
    """Sizes are what DescribeLogDirs tells, and need the same permission."""
    return caller.request(Key.DESCRIBE_LOG_DIRS).sees(CLUSTER_DESCRIBE)


async def offsets(
    caller: HttpCaller, topic: str, indexes: list[int], timestamp: int, *, committed: bool = False
) -> dict[int, int]:
    """Return the offsets that ListOffsets finds, or raise ServerError."""
    partitions = [{"partition_index": index, "timestamp": timestamp} for index in indexes]
    answer = await caller.ask(
        Key.LIST_OFFSETS,
        replica_id=-1,
        isolation_level=_READ_COMMITTED if committed else 0,
        topics=[{"name": topic, "partitions": partitions}],
    )
    found = {}
    for row in answer["topics"][0]["partitions"]:
        check(row, f"partition {topic}-{row['partition_index']}")
        found[row["partition_index"]] = row["offset"]
    return found


async def list_producers(caller: HttpCaller, place: PagePlace, topic: str) -> Page[ProducerDetails]:
    """Return producers by partition and pid: partition after partition, because each may have very many."""
    await _described(caller, topic)
    caller.request(Key.DESCRIBE_PRODUCERS).require(TOPIC_READ, topic)
    first, pid = _place_of_producer(place)
    rows: list[ProducerDetails] = []
    for index in range(first, caller.broker.topics.require(topic).partition_count):
        log = await caller.broker.partition(topic, index).open()
        pids = log.producers.pids()
        left = place.limit - len(rows)
        start = bisect_right(pids, pid) if index == first else 0
        found = ((each, log.producers.get(each)) for each in pids[start : start + left])
        rows += [producer_row(caller, index, each, entry) for each, entry in found if entry is not None]
        if len(rows) == place.limit:
            return Page(rows, write_cursor((index, rows[-1].pid)))
        await caller.turns()
    return Page(rows, None)


def _place_of_producer(place: PagePlace) -> tuple[int, Pid]:
    """Return the partition and pid after which the page begins."""
    if place.after is None:
        return 0, NO_PID
    if len(place.after) != 2 or not all(isinstance(part, int) for part in place.after) or place.after[0] < 0:
        raise BadQuery("cursor is from another kind of list")
    return place.after[0], Pid(place.after[1])


def producer_row(caller: HttpCaller, index: int, pid: Pid, entry: ProducerEntry) -> ProducerDetails:
    name = caller.broker.transactions.name_of(pid)
    if name is not None and not caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, name):
        name = None
    return ProducerDetails(
        index,
        pid,
        entry.epoch,
        entry.last_sequence,
        entry.batches[-1].timestamp if entry.batches else -1,
        entry.transaction_start,
        entry.last_offset,
        entry.duplicates,
        name,
    )


# -- consumer groups and their lag ----------------------------------------------------------------------------


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


# -- owners, waiting claims, take-overs -----------------------------------------------------------------------


_PIECE: Final = 2000
"""Names to look at before others get their turn."""


def _request(caller: HttpCaller, group: str | None) -> ApiRequest:
    """Return a request for its checks of permissions, as DescribeOwners makes them: a group that is asked for by name
    must be allowed, others are left out."""
    request = caller.request(Key.DESCRIBE_OWNERS)
    if group is not None:
        request.require(GROUP_DESCRIBE, group)
    return request


async def list_owners(
    caller: HttpCaller, place: PagePlace, group: str | None, find: str = ""
) -> Page[OwnerDescription]:
    """Return owners by group and resource; with `find`, those whose group or resource contains the text."""
    request, owners, after = _request(caller, group), caller.broker.owners, place.after or ("", "")
    if len(after) != 2 or not all(isinstance(part, str) for part in after):
        raise BadQuery("cursor is from another kind of list")
    found: list[tuple[str, str]] = []
    for each in sorted(owners.table.groups()) if group is None else [group]:
        await caller.turns()
        if each < after[0] or not request.sees(GROUP_DESCRIBE, each):
            continue
        first = after[1] if each == after[0] else ""
        names = await _first_names(caller, each, find, first, place.limit + 1 - len(found))
        found += [(each, name) for name in names]
        if len(found) > place.limit:
            break
    cursor = write_cursor(found[place.limit - 1]) if len(found) > place.limit else None
    rows = []
    for owned_in, name in found[: place.limit]:
        holding = owners.table.ownership(owned_in, name)
        if holding is not None:  # else it was released meanwhile
            since, owner = owners.since.get((owned_in, name), -1), holding.owner
            rows.append(
                OwnerDescription(owned_in, name, holding.generation, holding.token, since, owner.peer, owner.client_id)
            )
    await asyncio.shield(caller.broker.syncer.barrier())  # as DescribeOwners: what they have written can be read
    return Page(rows, cursor)


async def _first_names(caller: HttpCaller, group: str, find: str, after: str, count: int) -> list[str]:
    """Return the first owned resources of the group behind `after`, in their order."""
    names, best = caller.broker.owners.table.names(group), list[str]()
    whole = find in group
    for at in range(0, len(names), _PIECE):
        best += [name for name in names[at : at + _PIECE] if (whole or find in name) and name > after]
        best = heapq.nsmallest(count, best)
        await caller.turns()
    return best


async def list_waiting_claims(
    caller: HttpCaller, place: PagePlace, group: str | None, find: str = ""
) -> Page[WaitingClaimRow]:
    request = _request(caller, group)
    places: Counter[str] = Counter()
    claims = []
    async for waiting in paced(caller.broker.owners.table.waiting()):
        if group not in (None, waiting.group) or not request.sees(GROUP_DESCRIBE, waiting.group):
            continue
        at = places[waiting.group]
        places[waiting.group] += 1
        names = tuple(claimed.name for claimed in waiting.resources)
        if find in waiting.group or any(find in name for name in names):
            claims.append(WaitingClaimRow(waiting.group, names, waiting.claimant.peer, waiting.claimant.client_id, at))
    return Page(*await cut(claims, lambda claim: (claim.group, claim.place), place))


async def list_takeovers(caller: HttpCaller, place: PagePlace, group: str | None, find: str = "") -> Page[TakeoverRow]:
    """Return take-overs, the newest first."""
    request = _request(caller, group)
    seen = [
        event
        async for event in paced(list(caller.broker.owners.takeovers))
        if group in (None, event.group)
        and request.sees(GROUP_DESCRIBE, event.group)
        and (find in event.group or any(find in row.name for row in event.resources))
    ]
    rows, cursor = await cut(seen, lambda event: (-event.number,), place)
    return Page([_takeover(row) for row in rows], cursor)


def _takeover(event: SeveredOwner) -> TakeoverRow:
    followed = event.by_time_ms >= 0
    return TakeoverRow(
        event.number,
        event.time_ms,
        event.group,
        [TakenResourceRow(row.name, row.generation, row.token) for row in event.resources],
        event.resource_count,
        event.reason,
        event.address,
        event.client_id,
        event.by_address if followed else None,
        event.by_client_id if followed else None,
        event.by_time_ms if followed else None,
        event.refused,
    )


# -- sinks of Spark jobs --------------------------------------------------------------------------------------


async def list_sinks(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[SinkRow]:
    """Return the sinks whose names contain `find`, in capitals or not."""
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    wanted = find.lower()
    seen = [
        topic
        async for topic in paced(list(caller.broker.topics))
        if topic.name.startswith(PROGRESS_TOPIC_PREFIX)
        and wanted in topic.name.removeprefix(PROGRESS_TOPIC_PREFIX).lower()
        and request.sees(TOPIC_DESCRIBE, topic.name)
    ]
    topics, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page([await _sink(caller, topic) for topic in topics], cursor)


async def _sink(caller: HttpCaller, topic: Topic) -> SinkRow:
    name = topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)
    if not caller.request(Key.FETCH).sees(TOPIC_READ, topic.name):
        return SinkRow(name, readable=False)
    fenced = None
    if caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, SINK_ID_PREFIX + name):
        fenced = caller.broker.fenced_writes.of(SINK_ID_PREFIX + name)
    try:
        tail = await _tail(caller, topic, far=False)
        if fenced is not None and not tail.is_whole and tail.story is not None and tail.story.announced is None:
            tail = await _tail(caller, topic, far=True)
    except FencepostError:
        return SinkRow(name, readable=False)
    if tail.story is None:
        return SinkRow(name)
    progress = tail.story.last
    wrote = progress.wrote_something
    return SinkRow(
        name,
        progress.query if wrote else None,
        progress.batch if wrote else None,
        progress.rows if wrote else None,
        progress.fence_ms,
        progress.look_ms,
        progress.freeze_ms,
        progress.publish_ms,
        progress.previous_commit_ms,
        progress.incarnation,
        progress.host,
        progress.process,
        progress.time_ms,
        describe_zombies(tail.story, fenced),
    )


async def _tail(caller: HttpCaller, topic: Topic, *, far: bool) -> SinkTail:
    log = await caller.broker.partition(topic.name, 0).open()
    tails, stable = caller.broker.sink_tails, log.last_stable_offset
    known = tails.known(topic.name, log, stable, far=far)
    if known is not None:
        return known
    return await caller.in_thread(partial(tails.read, topic.name, log, stable, far=far))


def describe_zombies(story: SinkStory, fenced: FencedWrite | None) -> list[str]:
    """Return sentences about writers that were replaced and still try."""
    warnings = []
    if fenced is not None and story.is_late(fenced):
        when, client = datetime.fromtimestamp(fenced.time_ms // 1000, UTC), fenced.client_id or "a client"
        warnings.append(
            f"A driver or task from before incarnation {story.last.incarnation} still wrote after it was replaced: at "
            f"{when:%Y-%m-%d %H:%M:%S} UTC the server refused a batch of {client} at {fenced.address} with epoch "
            f"{fenced.writer.epoch}. Stop it; nothing of the batch is in the log."
        )
    if story.rivals is not None:
        now, before = story.rivals
        warnings.append(
            f"Process {now.process} on {now.host} and process {before.process} on {before.host} take this sink from "
            f"each other: incarnation {before.incarnation} had replaced the former, which is back as incarnation "
            f"{now.incarnation}. Stop one of them."
        )
    return warnings


# -- users, ACLs and quotas -----------------------------------------------------------------------------------


async def list_users(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[UserRow]:
    """Return the users whose names contain `find`, in capitals or not."""
    answer = await caller.ask(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[])
    wanted = find.lower()
    there = [
        row
        async for row in paced(answer["results"])
        if row["error_code"] == ErrorCode.NONE and wanted in row["user"].lower()
    ]
    rows, cursor = await cut(there, lambda row: (row["user"],), place)
    users = [
        UserRow(
            row["user"],
            [
                CredentialRow(Mechanism(each["mechanism"]).sasl_name, each["iterations"])
                for each in row["credential_infos"]
            ],
        )
        for row in rows
    ]
    return Page(users, cursor)


async def list_acls(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[AclRow]:
    """Return the ACLs whose principal or resource contains `find`, in capitals or not."""
    answer = await caller.ask(
        Key.DESCRIBE_ACLS,
        resource_type_filter=ResourceType.ANY,
        pattern_type_filter=PatternType.ANY,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    found = []
    wanted = find.lower()
    async for resource in paced(answer["resources"]):
        for acl in resource["acls"]:
            if wanted not in acl["principal"].lower() and wanted not in resource["resource_name"].lower():
                continue
            found.append(
                AclRow(
                    ResourceType(resource["resource_type"]).name,
                    resource["resource_name"],
                    PatternType(resource["pattern_type"]).name,
                    acl["principal"],
                    acl["host"],
                    Operation(acl["operation"]).name,
                    Permission(acl["permission_type"]).name,
                )
            )
    return Page(*await cut(found, _acl_key, place))


def _acl_key(acl: AclRow) -> tuple[str, ...]:
    return acl.resource_type, acl.name, acl.pattern, acl.principal, acl.host, acl.operation, acl.permission


async def list_quotas(caller: HttpCaller, place: PagePlace) -> Page[QuotaRow]:
    answer = await caller.ask(Key.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    found = []
    async for row in paced(answer["entries"]):
        entity = [QuotaEntityRow(part["entity_type"], part["entity_name"]) for part in row["entity"]]
        found += [QuotaRow(entity, value["key"], value["value"]) for value in row["values"]]
    return Page(*await cut(found, _quota_key, place))


def _quota_key(quota: QuotaRow) -> tuple[str, ...]:
    named = [part for each in quota.entity for part in (each.type, "default" if each.name is None else f"={each.name}")]
    return *named, quota.quota
