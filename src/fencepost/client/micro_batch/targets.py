"""The target cluster and the limits of its topics. The driver asks once per micro-batch and tells every task."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.client.admin.lasting import create_lasting_topic
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.config_names import CLIENT_NAMES, PRODUCER_NAMES
from fencepost.client.cluster.patience import PATIENCE, patiently
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.types import TopicPartition

logger = logging.getLogger(__name__)

_DEFAULT_MAX_BYTES: Final = 1_048_588
"""Kafka's default of max.message.bytes, for clients that may not read a topic's configs."""

_ANY: Final = 2**63 - 1
"""No limit to a record's time."""

_TUNES_JAVA: Final = re.compile(
    r"(client\.dns|compression|connections|enable|interceptor|metadata|metric|metrics|partitioner|receive|reconnect|send|"
    r"transaction|transactional)\..*|(retry\.backoff|socket\.connection\.setup\.timeout)\.max\.ms"
)
_OURS: Final = {"compression": "compression=", "transaction": "transaction_timeout=", "batch": "batch_bytes="}

_GUARD: Final = "fencepost.writer.group"


def reached(servers: str | ClientSettings, settings: Mapping[str, str] | None = None) -> ClientSettings:
    """Return the settings of the cluster. `settings` may have the prefix `kafka.`, as in Spark's connector."""
    if isinstance(servers, ClientSettings):
        return servers
    given = {name.removeprefix("kafka."): value for name, value in (settings or {}).items()}
    return ClientSettings.from_config({**heeded(given), "bootstrap.servers": servers})


def heeded(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without those that only tune Kafka's producer; warn about each of them."""
    kept = {}
    for name, value in settings.items():
        if name in CLIENT_NAMES or not (name in PRODUCER_NAMES or _TUNES_JAVA.fullmatch(name)):
            kept[name] = value
            continue
        ours = _OURS.get(name.partition(".")[0])
        hint = f"; the sink's own option is {ours}" if ours else ""
        logger.warning("setting %s is for Kafka's producer and is ignored%s", name, hint)
    return kept


class TimeLimits(NamedTuple):
    """The milliseconds that a record's time may be behind and ahead of the server's clock."""

    before: int = _ANY
    after: int = _ANY

    @classmethod
    def of(cls, configs: Mapping[str, str | None]) -> TimeLimits | None:
        if configs.get("message.timestamp.type") == "LogAppendTime":
            return None
        both = configs.get("message.timestamp.difference.max.ms")  # Kafka 3, which does not set the other two
        before, after = (int(configs.get(f"message.timestamp.{side}.max.ms") or _ANY) for side in ("before", "after"))
        return cls(*(int(both) if limit == _ANY and both is not None else limit for limit in (before, after)))


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partitions: int
    max_bytes: int
    """The largest record batch that it accepts."""
    compacted: bool
    """It rejects records without a key."""
    times: TimeLimits | None = None
    """None: the server writes its own time into records (LogAppendTime)."""
    topic_id: UUID | None = None
    """Tells whether it was recreated since; None if the server has no ids."""


def describe(admin: TopicAdmin, topic: str, *, create: int | None = None) -> Target:
    """Describe a target topic. With `create`, create it with so many partitions if it does not exist."""
    try:
        found = admin.describe_topic(topic)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if create is None:
            raise ConfigError(
                f"the target topic {topic!r} does not exist: `fencepost topic create {topic}` makes it, or "
                "create=PARTITIONS lets the sink do it"
            ) from error
        create_lasting_topic(admin, topic, create)
        found = admin.describe_topic(topic)
    configs = _configs(admin, topic)
    if guard := configs.get(_GUARD):
        raise ServerError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"the target topic {topic!r} is guarded: {_GUARD}={guard}, so that only the connection which owns a "
            "partition in that group may write it. A sink writes over many connections: let the guard name its "
            f"transactional id instead (`fencepost topic alter {topic} --unset {_GUARD} "
            "--set fencepost.writer.transactional.ids=fencepost.sink.NAME`), or give it a topic of its own",
        )
    max_bytes = int(configs.get("max.message.bytes") or _DEFAULT_MAX_BYTES)
    compacted = "compact" in (configs.get("cleanup.policy") or "")
    return Target(topic, len(found.partitions), max_bytes, compacted, TimeLimits.of(configs), found.topic_id)


@dataclass(frozen=True, slots=True)
class TargetFinder:
    """Describes the topics of a sink: those that its options name, and those that rows name. Pickled to tasks."""

    settings: ClientSettings
    sink: str
    topic: str | None = None
    """The topic of all rows."""
    topics: tuple[str, ...] = ()
    """Topics that rows may name, if they have none in common."""
    dead_letter: str | None = None
    create: int | None = None
    """Create a missing topic with this many partitions."""
    patience: float = PATIENCE

    def of_options(self, admin: TopicAdmin | None = None) -> dict[str, Target]:
        """Describe the topics of the options. Without dead letters each must exist. `admin`: an open one."""
        names = {self.topic} if self.topic else set(self.topics)
        return self._found(names | ({self.dead_letter} if self.dead_letter else set()), admin, of_rows=False)

    def of_rows(self, topics: Iterable[str], admin: TopicAdmin | None = None) -> dict[str, Target]:
        """Describe topics that rows name. Those that do not exist are left out: their rows cannot be written."""
        return self._found(topics, admin, of_rows=True)

    def _found(self, names: Iterable[str], admin: TopicAdmin | None, *, of_rows: bool) -> dict[str, Target]:
        wanted = sorted(names)
        if not wanted:
            return {}
        with TopicAdmin(self.settings) if admin is None else nullcontext(admin) as asked:
            return patiently(
                lambda: self._described(asked, wanted, of_rows=of_rows),
                f"sink {self.sink}: looking at the target topics",
                patience=self.patience,
            )

    def _described(self, admin: TopicAdmin, names: list[str], *, of_rows: bool) -> dict[str, Target]:
        found = {}
        for name in names:
            may_be_absent = of_rows or (self.dead_letter is not None and name not in (self.topic, self.dead_letter))
            try:
                found[name] = describe(admin, name, create=self.create)
            except (ConfigError, ServerError) as error:
                is_absent = isinstance(error, ConfigError) or error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
                if not may_be_absent or not is_absent:
                    raise
        if self.dead_letter in found:
            as_dead_letters(found[self.dead_letter])
        return found


def as_dead_letters(target: Target) -> Target:
    """Return the topic, unless it would lose dead letters."""
    if target.compacted:
        raise ConfigError(
            f"the dead-letter topic {target.topic!r} is compacted: it rejects rows without a key, and keeps only the "
            "last one of each key. Use a topic with cleanup.policy=delete"
        )
    return target


def lost_topics(admin: TopicAdmin, written: Mapping[str, str]) -> str:
    """Say which of these topics (name → id) are no longer the same; empty if all are."""
    said = []
    for topic, known in written.items():
        try:
            now = admin.describe_topic(topic).topic_id
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            said.append(f"{topic!r} was deleted")
        else:
            if now is not None and str(now) != known:
                said.append(f"{topic!r} was deleted and recreated")
    return ", ".join(said)


def refuse_absent(admin: TopicAdmin, targets: Iterable[TopicPartition], remedy: str) -> None:
    """Raise if one of these partitions no longer exists: the topic was deleted, or recreated with fewer."""
    highest: dict[str, int] = {}
    for topic, partition in targets:
        highest[topic] = max(partition, highest.get(topic, 0))
    for topic, partition in highest.items():
        try:
            there = len(admin.describe_topic(topic).partitions)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            there = 0
        if partition >= there:
            now = f"has {there} partitions now" if there else "is not there any more"
            raise ServerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"a row goes to partition {partition} of the target topic {topic!r}, which {now}. Was it deleted or "
                f"recreated while the micro-batch was written? Nothing of the batch is committed; {remedy}",
            )


def _configs(admin: TopicAdmin, topic: str) -> dict[str, str | None]:
    try:
        return {entry.name: entry.value for entry in admin.topic_configs(topic)}
    except ServerError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:  # writing does not require DescribeConfigs
            return {}
        raise
