"""The plan of a migration: what the source has, what becomes of it on the target, and what cannot be kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple, TypeAlias

from fencepost.cli.output import counted
from fencepost.client.admin.lasting import copied_configs
from fencepost.client.admin.results import ClientQuotas, NewTopic
from fencepost.client.admin_client import Admin
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX as STAGES
from fencepost.client.own.kafka_topic import TOPIC_PREFIX as OWNERS
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX as SINKS
from fencepost.core.migration import OffsetTransfer, transfer
from fencepost.core.quotas import describe_entity, entity_of
from fencepost.core.rows import GroupOffset, GroupSummary
from fencepost.core.security.acls import Acl, ResourceType, narrowed
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.types import TopicPartition

Fate: TypeAlias = Literal["copy", "keep", "left", "lost", "refused"]

GUARDS: Final = frozenset({"fencepost.writer.group", "fencepost.reader.group", "fencepost.writer.transactional.ids"})
_LIFETIME: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
"""Configs that decide which records are removed. The target gets them also if the source has them by default: its own
defaults may be others, and remove what was just copied."""
_MIN_INSYNC: Final = "min.insync.replicas"
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_NO_MEMBERS: Final = frozenset({"Empty", "Dead"})
_NO_AUTHORIZER: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION})


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """One thing of the source."""

    kind: str
    name: str
    fate: Fate
    """`copy`; `keep`: set on the target; `left`: not touched there; `lost`: the target cannot have it; `refused`: it
    stops the migration."""
    detail: str


@dataclass
class TopicPlan:
    name: str
    partitions: int
    configs: dict[str, str]
    """The topic's own."""
    lifetime: dict[str, str]
    """Those that decide which records are removed, own or not."""
    guards: dict[str, str]
    first: dict[int, int]
    end: dict[int, int]
    """The last stable offsets: up to here it is copied."""
    written: dict[int, int]
    """The ends of the logs, with open transactions; read before the last stable offsets."""
    exists: bool
    """On the target, too."""


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


@dataclass
class MigrationPlan:
    topics: list[TopicPlan] = field(default_factory=list)
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    acls: list[Acl] = field(default_factory=list)
    quotas: list[ClientQuotas] = field(default_factory=list)
    items: list[PlannedItem] = field(default_factory=list)

    @property
    def refused(self) -> list[PlannedItem]:
        return [item for item in self.items if item.fate == "refused"]


def make_plan(
    source: Admin, target: Admin, patterns: Iterable[str], *, without_guards: bool, set_back: bool = False
) -> MigrationPlan:
    """Look at both clusters, and change nothing."""
    plan = MigrationPlan()
    wanted = list(patterns)
    names = [each.name for each in source.topics(internal=True) if each.name not in _INTERNAL]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise FencepostError(f"--topic {pattern}: the source has no such topic; `fencepost topic list` shows all")
    there = {each.name: each.partitions for each in target.topics(internal=True)}
    # Before the ends of the logs: read later, the offset of a group that goes on would lie beyond them.
    groups = {group: source.group_offsets(group.name) for group in source.groups()}
    for name in names:
        if wanted and not any(fnmatchcase(name, pattern) for pattern in wanted):
            if name.startswith(SINKS):
                detail = f"not chosen; its Spark job needs it on the target: --topic '{name}'"
                plan.items.append(PlannedItem("sink progress", name, "left", detail))
            continue
        if name.startswith(OWNERS):
            plan.items.append(PlannedItem("owners", name, "lost", "owners claim again; tokens start anew"))
            continue
        topic = _topic(source, name, exists=name in there)
        plan.topics.append(topic)
        plan.items += _topic_items(target, topic, there.get(name), without_guards)
        if not topic.exists and (refusal := _refusal(target, topic)):
            plan.items.append(PlannedItem("topic", topic.name, "refused", refusal))
    _add_groups(groups, target, plan, set_back=set_back)
    plan.acls, found = _acls(source, target, plan if wanted else None)
    plan.quotas, others = _quotas(source, target, is_partial=bool(wanted))
    plan.items += [*found, *others, *_users(source)]
    return plan


def _topic(source: Admin, name: str, *, exists: bool) -> TopicPlan:
    known = source.topic_configs(name)
    lifetime = {each.name: each.value for each in known if each.value and each.name in _LIFETIME}
    written = source.latest(
        name
    )  # before the last stable offsets: records that come in between are no open transaction
    return TopicPlan(
        name,
        len(source.describe_topic(name).partitions),
        copied_configs(known),
        lifetime,
        {each.name: each.value for each in known if each.value and each.source == "topic" and each.name in GUARDS},
        dict(source.earliest(name)),
        dict(source.latest(name, read_committed=True)),
        dict(written),
        exists,
    )


def _refusal(target: Admin, topic: TopicPlan) -> str | None:
    """Return why the target would not create the topic: asked before anything is changed there."""
    configs = {name: value for name, value in topic.configs.items() if name != _MIN_INSYNC}  # adapted to the brokers
    try:
        target.create_topics([NewTopic(topic.name, topic.partitions, -1, configs)], validate_only=True)
    except ServerError as error:
        return f"the target rejects it: {error.message}. Change the topic on the source (fencepost topic alter)"
    return None


def _topic_items(
    target: Admin, topic: TopicPlan, partitions_there: int | None, without_guards: bool
) -> Iterator[PlannedItem]:
    kind = "sink progress" if topic.name.startswith(SINKS) else "stage" if topic.name.startswith(STAGES) else "topic"
    offsets = sum(topic.end.values()) - sum(topic.first.values())
    if partitions_there is not None and partitions_there != topic.partitions:
        detail = f"the target has it with {partitions_there} partitions, the source with {topic.partitions}"
        yield PlannedItem(kind, topic.name, "refused", detail)
    else:
        exists = ""
        if partitions_there is not None:
            left = sum(topic.end.values()) - sum(target.latest(topic.name).values())
            exists = f"; exists on the target and is continued, {max(0, left):,} offsets are left"
        configs = f", {counted(len(topic.configs), 'config')}" if topic.configs else ""
        yield PlannedItem(
            kind, topic.name, "copy", f"{counted(topic.partitions, 'partition')}, {offsets:,} offsets{configs}{exists}"
        )
    if any(topic.written[partition] > end for partition, end in topic.end.items()):
        detail = "up to an open transaction: commit or abort it (fencepost transactions list --open), then run again"
        yield PlannedItem("transaction", topic.name, "copy", detail)
    for name, value in topic.guards.items():
        detail = f"{name}={value}: Apache Kafka does not guard topics, any permitted producer may write"
        yield PlannedItem("guard", topic.name, "lost" if without_guards else "refused", detail)


def _add_groups(
    groups: Mapping[GroupSummary, Iterable[GroupOffset]], target: Admin, plan: MigrationPlan, *, set_back: bool
) -> None:
    topics = {topic.name: topic for topic in plan.topics}
    states = {each.name: each.state for each in target.groups()}
    for group, found_offsets in groups.items():
        offsets: dict[TopicPartition, CommittedOffset] = {}
        outside = later = 0
        for each in found_offsets:
            topic = topics.get(each.topic)
            if topic is None or each.partition not in topic.end or each.committed is None:
                continue
            if topic.first[each.partition] <= each.committed <= topic.end[each.partition]:
                where = TopicPartition(each.topic, each.partition)
                offsets[where] = CommittedOffset(each.committed, each.metadata)
            elif topic.end[each.partition] < each.committed <= topic.written[each.partition]:
                later += 1
            else:
                outside += 1
        if outside:
            detail = f"outside the log: {_many(outside)}; its consumers start by their reset policy"
            plan.items.append(PlannedItem("group", group.name, "lost", detail))
        if later:
            detail = f"not set: {_many(later)}, beyond an open transaction, where the copy ends; run it again"
            plan.items.append(PlannedItem("group", group.name, "left", detail))
        if not offsets:
            continue
        plan.groups[group.name] = offsets
        busy = "" if group.state in _NO_MEMBERS else f"; it is {group.state}: stop its consumers first"
        plan.items.append(PlannedItem("group", group.name, "keep", f"{_many(len(offsets))}, unchanged{busy}"))
        if group.name in states:
            has_members = states[group.name] not in _NO_MEMBERS
            found = decide(target, group.name, offsets, has_members=has_members, set_back=set_back)
            plan.items += _differences(group.name, [each for each, _ in found.values()])


def decide(
    target: Admin,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    has_members: bool,
    set_back: bool,
) -> dict[TopicPartition, tuple[OffsetTransfer, CommittedOffset]]:
    """Return what happens to each offset of a group, with what the target has now."""
    there = {TopicPartition(each.topic, each.partition): each.committed for each in target.group_offsets(group)}
    return {
        where: (transfer(each.offset, there.get(where), has_members=has_members, set_back=set_back), each)
        for where, each in offsets.items()
    }


def _differences(group: str, fates: list[OffsetTransfer]) -> Iterator[PlannedItem]:
    if ahead := fates.count(OffsetTransfer.AHEAD):
        detail = f"not set back: {_many(ahead)}, further on the target: consumers went on there (--set-groups-back)"
        yield PlannedItem("group", group, "left", detail)
    if busy := fates.count(OffsetTransfer.BUSY):
        detail = f"not set: {_many(busy)}, because the group has members on the target: stop its consumers there"
        yield PlannedItem("group", group, "left", detail)


def _many(offsets: int) -> str:
    return counted(offsets, "committed offset")


def _acls(source: Admin, target: Admin, part: MigrationPlan | None) -> tuple[list[Acl], list[PlannedItem]]:
    """Return the ACLs to set. `part`: only those of its topics and groups, narrowed to these."""
    try:
        acls = source.acls()
    except ServerError as error:
        if error.code in _NO_AUTHORIZER:
            return [], []
        raise
    items: list[PlannedItem] = []
    name = "all"
    if part is not None:
        name = "chosen topics"
        topics = [(ResourceType.TOPIC, topic.name) for topic in part.topics]
        acls, left = narrowed(acls, topics + [(ResourceType.GROUP, group) for group in part.groups])
        if left:
            detail = f"{left} ACLs concern neither the chosen topics nor their groups: without --topic they are set"
            items.append(PlannedItem("acls", "others", "left", detail))
    if not acls:
        return [], items
    try:
        target.acls()
    except ServerError as error:
        if error.code not in _NO_AUTHORIZER:
            raise
        return [], [PlannedItem("acls", name, "lost", f"{len(acls)} ACLs: the target has no authorizer"), *items]
    detail = f"{len(acls)} ACLs" if part is None else f"{len(acls)} ACLs, for these topics and their groups only"
    return acls, [PlannedItem("acls", name, "keep", detail), *items]


def _quotas(source: Admin, target: Admin, *, is_partial: bool) -> tuple[list[ClientQuotas], list[PlannedItem]]:
    """Return the quotas to set. Quotas are of users and clients, not of topics: a choice of topics leaves them out."""
    try:
        ours = source.quotas()
        theirs = {entity_of(each.entity): each.quotas for each in target.quotas()} if ours else {}
    except ServerError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return [], []
    wanted: list[ClientQuotas] = []
    items: list[PlannedItem] = []
    for each in ours:
        name = describe_entity(entity_of(each.entity))
        if is_partial:
            items.append(PlannedItem("quota", name, "left", "quotas are not of topics: without --topic they are set"))
            continue
        there = theirs.get(entity_of(each.entity), {})
        other = {key: there[key] for key, value in each.quotas.items() if key in there and there[key] != value}
        chosen = {key: value for key, value in each.quotas.items() if key not in other}
        if chosen:
            wanted.append(ClientQuotas(each.entity, chosen))
            items.append(PlannedItem("quota", name, "keep", _values(chosen)))
        if other:
            items.append(PlannedItem("quota", name, "left", f"the target has {_values(other)}, which stays"))
    return wanted, items


def _values(quotas: Mapping[str, float]) -> str:
    return ", ".join(f"{key}={value:.15g}" for key, value in sorted(quotas.items()))


def _users(source: Admin) -> Iterator[PlannedItem]:
    try:
        users = source.users()
    except ServerError:
        return  # not permitted, or not offered: the command's user is told by what is missing in the table
    for name, mechanisms in users.items():
        detail = f"{', '.join(mechanisms)}: no server shows passwords; `fencepost user add {name}` on the target"
        yield PlannedItem("user", name, "lost", detail)
