"""The plan of a migration: what the source has, what becomes of it on the target, and what cannot be kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias

from fencepost.client.admin import Admin
from fencepost.client.own.kafka_topic import TOPIC_PREFIX as OWNERS
from fencepost.client.transactions.progress_topic import TOPIC_PREFIX as SINKS
from fencepost.client.transactions.stage_topic import TOPIC_PREFIX as STAGES
from fencepost.core.security.acls import Acl
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.types import TopicPartition

Fate: TypeAlias = Literal["copy", "keep", "lost", "refused"]

GUARDS: Final = frozenset({"fencepost.writer.group", "fencepost.reader.group", "fencepost.writer.transactional.ids"})
_OF_ITS_CLUSTER: Final = re.compile(r"(leader|follower)\.replication\..*|fencepost\..*|.*\.remote\..*")
_LIFETIME: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
"""Configs that decide which records are removed. The target gets them also if the source has them by default: its own
defaults may be others, and remove what was just copied."""
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_NO_AUTHORIZER: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION})


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """One thing of the source."""

    kind: str
    name: str
    fate: Fate
    """`copy`; `keep`: set on the target; `lost`: the target cannot have it; `refused`: it stops the migration."""
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
    exists: bool
    """On the target, too."""


@dataclass
class MigrationPlan:
    topics: list[TopicPlan] = field(default_factory=list)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    acls: list[Acl] = field(default_factory=list)
    items: list[PlannedItem] = field(default_factory=list)

    @property
    def refused(self) -> list[PlannedItem]:
        return [item for item in self.items if item.fate == "refused"]


def make_plan(source: Admin, target: Admin, patterns: Iterable[str], *, without_guards: bool) -> MigrationPlan:
    """Look at both clusters, and change nothing."""
    plan = MigrationPlan()
    wanted = list(patterns)
    names = [each.name for each in source.topics(internal=True) if each.name not in _INTERNAL]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise FencepostError(f"--topic {pattern}: the source has no such topic; `fencepost topic list` shows all")
    there = {each.name: each.partitions for each in target.topics(internal=True)}
    for name in names:
        if wanted and not any(fnmatchcase(name, pattern) for pattern in wanted):
            continue
        if name.startswith(OWNERS):
            plan.items.append(PlannedItem("owners", name, "lost", "owners claim again; tokens start anew"))
            continue
        topic = _topic(source, name, exists=name in there)
        plan.topics.append(topic)
        plan.items += _topic_items(source, topic, there.get(name), without_guards)
    _add_groups(source, plan)
    plan.acls, found = _acls(source, target)
    plan.items += [*found, *_users(source)]
    return plan


def _topic(source: Admin, name: str, *, exists: bool) -> TopicPlan:
    known = source.topic_configs(name)
    own = {each.name: each.value for each in known if each.value and each.source == "topic"}
    lifetime = {each.name: each.value for each in known if each.value and each.name in _LIFETIME}
    return TopicPlan(
        name,
        len(source.describe_topic(name).partitions),
        {config: value for config, value in own.items() if not _OF_ITS_CLUSTER.fullmatch(config)},
        lifetime,
        {config: value for config, value in own.items() if config in GUARDS},
        dict(source.earliest(name)),
        dict(source.latest(name, read_committed=True)),
        exists,
    )


def _topic_items(
    source: Admin, topic: TopicPlan, partitions_there: int | None, without_guards: bool
) -> Iterator[PlannedItem]:
    kind = "sink progress" if topic.name.startswith(SINKS) else "stage" if topic.name.startswith(STAGES) else "topic"
    offsets = sum(topic.end.values()) - sum(topic.first.values())
    many = "1 partition" if topic.partitions == 1 else f"{topic.partitions} partitions"
    if partitions_there is not None and partitions_there != topic.partitions:
        detail = f"the target has it with {partitions_there} partitions, the source with {topic.partitions}"
        yield PlannedItem(kind, topic.name, "refused", detail)
    else:
        exists = "" if partitions_there is None else "; exists on the target, is continued"
        configs = f", {len(topic.configs)} configs" if topic.configs else ""
        yield PlannedItem(kind, topic.name, "copy", f"{many}, {offsets} offsets{configs}{exists}")
    ends = source.latest(topic.name)
    if any(ends[partition] != end for partition, end in topic.end.items()):
        detail = "up to an open transaction: commit or abort it (fencepost transactions list --open), then run again"
        yield PlannedItem("transaction", topic.name, "copy", detail)
    for name, value in topic.guards.items():
        detail = f"{name}={value}: Apache Kafka does not guard topics, any permitted producer may write"
        yield PlannedItem("guard", topic.name, "lost" if without_guards else "refused", detail)


def _add_groups(source: Admin, plan: MigrationPlan) -> None:
    ends = {TopicPartition(topic.name, index): end for topic in plan.topics for index, end in topic.end.items()}
    firsts = {TopicPartition(topic.name, index): at for topic in plan.topics for index, at in topic.first.items()}
    for group in source.groups():
        offsets: dict[TopicPartition, int] = {}
        outside = 0
        for each in source.group_offsets(group.name):
            where = TopicPartition(each.topic, each.partition)
            if where not in ends:
                continue
            if each.committed is not None and firsts[where] <= each.committed <= ends[where]:
                offsets[where] = each.committed
            else:
                outside += 1
        if outside:
            detail = f"{outside} offsets are outside the log: its consumers start by their reset policy"
            plan.items.append(PlannedItem("group", group.name, "lost", detail))
        if offsets:
            busy = "" if group.state in ("Empty", "Dead") else f"; it is {group.state}: stop its consumers first"
            plan.groups[group.name] = offsets
            plan.items.append(
                PlannedItem("group", group.name, "keep", f"{len(offsets)} committed offsets, unchanged{busy}")
            )


def _acls(source: Admin, target: Admin) -> tuple[list[Acl], list[PlannedItem]]:
    try:
        acls = source.acls()
    except ServerError as error:
        if error.code in _NO_AUTHORIZER:
            return [], []
        raise
    if not acls:
        return [], []
    try:
        target.acls()
    except ServerError as error:
        if error.code not in _NO_AUTHORIZER:
            raise
        return [], [PlannedItem("acls", "all", "lost", f"{len(acls)} ACLs: the target has no authorizer")]
    return acls, [PlannedItem("acls", "all", "keep", f"{len(acls)} ACLs")]


def _users(source: Admin) -> Iterator[PlannedItem]:
    try:
        users = source.users()
    except ServerError:
        return  # not permitted, or not offered: the command's user is told by what is missing in the table
    for name, mechanisms in users.items():
        detail = f"{', '.join(mechanisms)}: no server shows passwords; `fencepost user add {name}` on the target"
        yield PlannedItem("user", name, "lost", detail)
