"""Topics that survive a broker: those that fencepost creates for owners, sinks and copies.

Apache Kafka's default is one replica, and such a topic is lost with its broker. Ours get three, or as many as there are
brokers. Of three, two must have a record before it is acknowledged, so one broker can fail without losing records or
stopping writes. `ClientSettings.replication` (`fencepost.replication.factor`) overrides it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fencepost.client.admin.topics import TopicAdmin
from fencepost.core.rows import ConfigEntry
from fencepost.errors import ErrorCode, ServerError

logger = logging.getLogger(__name__)

_MIN_INSYNC: Final = "min.insync.replicas"
_SERVERS_DEFAULT: Final = -1
_FORBIDDEN: Final = frozenset({ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG})
_TRIES: Final = 3
_OF_ITS_CLUSTER: Final = re.compile(r"(leader|follower)\.replication\..*|fencepost\..*|.*\.remote\..*")
"""Configs that belong to a topic's cluster, not to its records."""
ENOUGH: Final = 3
"""Replicas: while one broker is down, a second copy of every record still exists."""


class Replication(NamedTuple):
    factor: int
    """Brokers that have the topic."""
    min_insync: int
    """Brokers that must have a record before it is acknowledged (Kafka's `min.insync.replicas`)."""


def copied_configs(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    """Return the configs of a topic, set for itself, that a copy of it in another cluster gets."""
    own = {entry.name: entry.value for entry in entries if entry.source == "topic" and entry.value is not None}
    return {name: value for name, value in own.items() if not _OF_ITS_CLUSTER.fullmatch(name)}


def fitting(brokers: int, wanted: int | None = None) -> Replication:
    """Return the replication of a new topic; `wanted` is the number of replicas that the user asked for."""
    factor = min(ENOUGH, max(1, brokers)) if wanted is None else wanted
    return Replication(factor, 2 if factor >= ENOUGH else 1)


def weakness(found: Replication, brokers: int) -> str | None:
    """Describe what one broker's failure would do to this topic, and the remedy; None if the topic survives it."""
    best = fitting(brokers)
    if found.factor < best.factor:
        times = "once" if found.factor == 1 else f"{found.factor} times"
        return (
            f"replicated {times} although there are {brokers} brokers: without its brokers it cannot be read or "
            f"written; give it {best.factor} replicas (kafka-reassign-partitions)"
        )
    if found.min_insync < min(best.min_insync, found.factor):
        return (
            f"min.insync.replicas is {found.min_insync}: an acknowledged record may be lost with one broker; "
            f"set it to {best.min_insync}"
        )
    if brokers > 1 and found.min_insync >= found.factor:
        return (
            f"min.insync.replicas is {found.min_insync} of {found.factor} replicas: nothing can be written while one "
            f"broker is away; set it to {max(1, found.factor - 1)}"
        )
    return None


class Weak(NamedTuple):
    topic: str
    why: str
    """The effect of a broker's failure, and what to change."""


def create_lasting_topic(
    admin: TopicAdmin, name: str, partitions: int, *, configs: Mapping[str, str] | None = None
) -> bool:
    """Create a topic with enough replicas to survive a broker. Return False if it exists."""
    given = dict(configs or {})
    for left in reversed(range(_TRIES)):
        chosen, replication = _chosen(admin, given)
        try:
            admin.create_topic(name, partitions, replication=replication, configs=chosen)
            return True
        except ServerError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            if error.code is ErrorCode.INVALID_REPLICATION_FACTOR and admin.settings.replication is None and left:
                continue  # a broker has gone since they were counted
            if error.code not in _FORBIDDEN or chosen == given:
                raise
            logger.warning("%s is created with the server's defaults: the server rejects ours: %s", name, error)
            admin.create_topic(name, partitions, configs=given)
            return True
    raise AssertionError("the last try returns or raises")


def _chosen(admin: TopicAdmin, given: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the configs and the replication factor of a new topic."""
    brokers, wanted = len(admin.cluster().brokers), admin.settings.replication
    best = fitting(brokers, wanted)
    configs = dict(given)
    if brokers == 1 and wanted is None:
        if int(configs.get(_MIN_INSYNC, "1")) > 1:  # copied from the source topic in a larger cluster
            configs[_MIN_INSYNC] = str(best.min_insync)
        return configs, _SERVERS_DEFAULT
    if not 1 <= int(configs.get(_MIN_INSYNC, "0")) < max(2, best.factor):
        configs[_MIN_INSYNC] = str(best.min_insync)
    return configs, best.factor


def weak_topics(admin: TopicAdmin, names: Iterable[str]) -> Iterator[Weak]:
    """Yield those of the named topics that would not survive a broker; none in a cluster of one broker."""
    brokers = len(admin.cluster().brokers)
    if brokers == 1:
        return
    for name in names:
        found = _replication(admin, name)
        why = None if found is None else weakness(found, brokers)
        if why is not None:
            yield Weak(name, why)


def _replication(admin: TopicAdmin, topic: str) -> Replication | None:
    """Return the topic's replication; None if it does not exist or may not be described."""
    try:
        factor = min((len(each.replicas) for each in admin.describe_topic(topic).partitions), default=0)
        configs = {entry.name: entry.value for entry in admin.topic_configs(topic)}
    except ServerError as error:
        if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            return None
        raise
    return Replication(factor, int(configs.get(_MIN_INSYNC) or 1))
