"""The configs of a topic, with Kafka's names, types and defaults.

An unknown config is an error that suggests the most similar name, because users notice a silently ignored setting too
late.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fencepost.errors import ConfigError
from fencepost.log.config import LogConfig

Kind: TypeAlias = Literal["int", "long", "bool", "string", "list", "double"]

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_LONGEST_NAME: Final = 255
_LONGEST_VALUE: Final = 4096
"""Maximum length of a value in characters: the server keeps values in memory and searches lists on every write."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    kind: Kind
    default: str
    check: Callable[[str], str | None]
    """Returns what is wrong with a value, or None."""
    documentation: str


def _whole(low: int, high: int) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            value = int(text)
        except ValueError:
            return "must be a whole number"
        return None if low <= value <= high else f"must be from {low} to {high}"

    return check


def _one_of(*values: str) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        return None if text in values else f"must be one of {', '.join(values)}"

    return check


def _policies(text: str) -> str | None:
    given = [policy.strip() for policy in text.split(",")]
    return None if all(policy in ("delete", "compact") for policy in given) else "must be delete, compact, or both"


def _ratio(text: str) -> str | None:
    try:
        value = float(text)
    except ValueError:
        return "must be a number"
    return None if 0 <= value <= 1 else "must be from 0 to 1"


def _ids(text: str) -> str | None:
    given = [name.strip() for name in text.split(",")] if text else []
    return (
        None
        if all(name.strip("*") and "*" not in name[:-1] for name in given)
        else "must be transactional ids or NAME*"
    )


def _anything(_: str) -> str | None:
    return None


_bool = _one_of("true", "false")

_TABLE: Final = (
    TopicConfig("cleanup.policy", "list", "delete", _policies, "delete old segments, compact by key, or both"),
    TopicConfig(
        "compression.type",
        "string",
        "producer",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "accepted; batches stay as the producer made them",
    ),
    TopicConfig(
        "delete.retention.ms", "long", "86400000", _whole(0, _LONG_MAX), "how long compaction keeps tombstones"
    ),
    TopicConfig("file.delete.delay.ms", "long", "60000", _whole(0, _LONG_MAX), "accepted; files are deleted at once"),
    TopicConfig(
        "flush.messages", "long", str(_LONG_MAX), _whole(1, _LONG_MAX), "accepted; the server's --sync decides"
    ),
    TopicConfig("flush.ms", "long", str(_LONG_MAX), _whole(0, _LONG_MAX), "accepted; the server's --sync decides"),
    TopicConfig("follower.replication.throttled.replicas", "list", "", _anything, "accepted; there is one replica"),
    TopicConfig("index.interval.bytes", "int", "4096", _whole(0, _INT_MAX), "bytes between two index entries"),
    TopicConfig("leader.replication.throttled.replicas", "list", "", _anything, "accepted; there is one replica"),
    TopicConfig(
        "max.compaction.lag.ms", "long", str(_LONG_MAX), _whole(1, _LONG_MAX), "maximum age of uncompacted records"
    ),
    TopicConfig("max.message.bytes", "int", "1048588", _whole(0, _INT_MAX), "maximum size of a batch"),
    TopicConfig(
        "message.timestamp.type",
        "string",
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "whose clock sets the timestamps",
    ),
    TopicConfig(
        "message.timestamp.after.max.ms",
        "long",
        "3600000",
        _whole(0, _LONG_MAX),
        "how far timestamps may be in the future",
    ),
    TopicConfig(
        "message.timestamp.before.max.ms",
        "long",
        str(_LONG_MAX),
        _whole(0, _LONG_MAX),
        "how far timestamps may be in the past",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio", "double", "0.5", _ratio, "fraction of uncompacted bytes that starts compaction"
    ),
    TopicConfig("min.compaction.lag.ms", "long", "0", _whole(0, _LONG_MAX), "minimum age of records before compaction"),
    TopicConfig(
        "min.insync.replicas", "int", "1", _whole(1, _INT_MAX), "there is one replica, so only 1 can be satisfied"
    ),
    TopicConfig("preallocate", "bool", "false", _bool, "accepted; segments grow as they are written"),
    TopicConfig(
        "retention.bytes", "long", "-1", _whole(-1, _LONG_MAX), "maximum size of a partition's log; -1: no limit"
    ),
    TopicConfig("retention.ms", "long", "604800000", _whole(-1, _LONG_MAX), "maximum age of records; -1: no limit"),
    TopicConfig("segment.bytes", "int", "1073741824", _whole(14, _INT_MAX), "start a new segment at this size"),
    TopicConfig("segment.index.bytes", "int", "10485760", _whole(4, _INT_MAX), "accepted; indexes grow as needed"),
    TopicConfig("segment.jitter.ms", "long", "0", _whole(0, _LONG_MAX), "accepted; not used"),
    TopicConfig("segment.ms", "long", "604800000", _whole(1, _LONG_MAX), "start a new segment at this age"),
    TopicConfig("unclean.leader.election.enable", "bool", "false", _bool, "accepted; there is one replica"),
    TopicConfig("fencepost.check.records", "bool", "true", _bool, "reject batches whose records cannot be decoded"),
    TopicConfig("fencepost.writer.group", "string", "", _anything, "only the owner in this group may write"),
    TopicConfig(
        "fencepost.writer.transactional.ids",
        "list",
        "",
        _ids,
        "only the newest producer of one of these transactional ids may write; NAME* is a prefix",
    ),
    TopicConfig("fencepost.reader.group", "string", "", _anything, "only the owner in this group may read"),
)
KNOWN: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _TABLE}


def check_config(name: str, value: str | None) -> str:
    """Return the value as it is stored, or raise ConfigError for an unknown name or an invalid value."""
    known = KNOWN.get(name)
    if known is None:
        if len(name) > _LONGEST_NAME:
            raise ConfigError(f"unknown topic config {name[:_LONGEST_NAME]!r}…")
        near = difflib.get_close_matches(name, KNOWN, n=1)
        raise ConfigError(f"unknown topic config {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if value is None:
        raise ConfigError(f"{name} must have a value")
    if len(value) > _LONGEST_VALUE:
        raise ConfigError(f"the value of {name} has {len(value)} characters; use at most {_LONGEST_VALUE}")
    if known.kind == "bool":
        value = value.lower()
    if (wrong := known.check(value)) is not None:
        raise ConfigError(f"invalid value {value!r} for {name}: it {wrong}")
    return value


def check_guards(values: Mapping[str, str]) -> None:
    """Reject two guards for writers: an owner would rely on being the only writer, but a transactional id could
    write."""
    if values.get("fencepost.writer.group") and values.get("fencepost.writer.transactional.ids"):
        raise ConfigError(
            "a topic can have one guard for writers: set fencepost.writer.group or fencepost.writer.transactional.ids, "
            "not both"
        )


def writer_ids(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the configured transactional ids that may write; empty: the topic has no such guard."""
    text = values.get("fencepost.writer.transactional.ids", "")
    return tuple(name.strip() for name in text.split(",")) if text else ()


def log_config(values: Mapping[str, str], *, producer_expiry_ms: int) -> LogConfig:
    """Return the part of a topic's configs that the log needs."""

    def number(name: str) -> int:
        return int(values.get(name, KNOWN[name].default))

    policy = values.get("cleanup.policy", KNOWN["cleanup.policy"].default)
    return LogConfig(
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        index_interval_bytes=number("index.interval.bytes"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        cleanup_policy=policy,
        max_message_bytes=number("max.message.bytes"),
        append_time=values.get("message.timestamp.type") == "LogAppendTime",
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_dirty_ratio=float(values.get("min.cleanable.dirty.ratio", KNOWN["min.cleanable.dirty.ratio"].default)),
        producer_expiry_ms=producer_expiry_ms,
    )


def timestamp_slack(values: Mapping[str, str]) -> tuple[int, int]:
    """Return how many milliseconds a record's timestamp may be before and after the server's time."""
    names = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    before, after = (int(values.get(name, KNOWN[name].default)) for name in names)
    return before, after
