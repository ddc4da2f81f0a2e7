"""What the target topics allow: asked once per micro-batch on the driver, told to every task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fencepost.client.admin import Admin
from fencepost.errors import ConfigError, ErrorCode, ServerError

_DEFAULT_MAX_BYTES: Final = 1_048_588
"""Kafka's default of max.message.bytes, for those who may not read a topic's configs."""


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partitions: int
    max_bytes: int
    """The largest record batch that it takes."""
    compacted: bool
    """It takes no record without a key."""


def describe(admin: Admin, topic: str, *, create: int | None = None) -> Target:
    """The topic as it is; with `create`, made with so many partitions if it is not there."""
    try:
        partitions = len(admin.describe_topic(topic).partitions)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if create is None:
            raise ConfigError(
                f"the target topic {topic!r} does not exist: `fencepost topic create {topic}` makes it, or "
                "create=PARTITIONS lets the sink do it"
            ) from error
        try:
            admin.create_topic(topic, create)
        except ServerError as race:
            if race.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        partitions = len(admin.describe_topic(topic).partitions)
    configs = _configs(admin, topic)
    max_bytes = int(configs.get("max.message.bytes") or _DEFAULT_MAX_BYTES)
    return Target(topic, partitions, max_bytes, "compact" in (configs.get("cleanup.policy") or ""))


def describe_all(admin: Admin, topics: Iterable[str], *, create: int | None = None) -> dict[str, Target]:
    return {topic: describe(admin, topic, create=create) for topic in topics}


def _configs(admin: Admin, topic: str) -> dict[str, str | None]:
    try:
        return {entry.name: entry.value for entry in admin.topic_configs(topic)}
    except ServerError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:  # to write one need not be allowed to describe
            return {}
        raise
