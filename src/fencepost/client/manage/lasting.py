"""Topics that survive a broker: those that fencepost creates for owners, sinks and copies.

Apache Kafka's default is one replica, and such a topic is lost with its broker. `core/replication.py` decides how many
replicas are enough; `ClientSettings.replication` (`fencepost.replication.factor`) overrides it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fencepost.client.manage.topics import TopicAdmin
from fencepost.core.replication import Replication, fitting, weakness
from fencepost.errors import ErrorCode, ServerError

logger = logging.getLogger(__name__)

_MIN_INSYNC: Final = "min.insync.replicas"
_SERVERS_DEFAULT: Final = -1
_FORBIDDEN: Final = frozenset({ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG})
_TRIES: Final = 3


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
