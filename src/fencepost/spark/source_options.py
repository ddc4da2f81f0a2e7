"""The options of the source: those of Spark's own Kafka source, parsed in one place.

Spark passes option names in lower case. An unknown option is an error that suggests the nearest known one. Options that
only tune Kafka's Java consumer (`kafka.fetch.min.bytes` …) are ignored with a warning, so that users can switch by
changing the format's name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fencepost.client.cluster.checks import nearest
from fencepost.client.cluster.patience import PATIENCE
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError
from fencepost.spark.option_values import count, seconds, truth, whole
from fencepost.types import EARLIEST, LATEST

logger = logging.getLogger(__name__)

_NAMES: Final = {
    name.lower(): name
    for name in (
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "failOnDataLoss",
        "includeHeaders",
        "isolation",
        "commitGroup",
        "patience",
        "path",
    )
}
T = TypeVar("T")
D = TypeVar("D")
_IGNORED: Final = frozenset(
    {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
)
_TUNES_JAVA: Final = re.compile(
    r"(auto|check|exclude|fetch|group|heartbeat|interceptor|key|max|metadata|metrics|partition|receive|reconnect|send|"
    r"session|value|enable|allow|client\.(dns|rack)|connections|default|isolation)\..*"
)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The start or end of a read: one of the two ends, a time, or an offset or time per partition."""

    end: int | None = None
    """EARLIEST or LATEST; None if another field is set."""
    by_partition: Mapping[str, Mapping[int, int]] | None = None
    timestamp: int | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None
    strict: bool = True
    """Fail if there is no record at or after the time; otherwise use the latest offset."""

    def is_end(self, topic: str, partition: int) -> bool:
        """Return whether this is the latest offset of the partition, which is another one with every record."""
        given = self.by_partition or {}
        return self.end == LATEST or given.get(topic, {}).get(partition) == LATEST


@dataclass(frozen=True, slots=True)
class SourceOptions:
    settings: ClientSettings
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    starting: Offsets = Offsets(LATEST)
    ending: Offsets = Offsets(LATEST)
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay: float = 15 * 60.0
    """The longest time in seconds to wait for `min_offsets`."""
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = False
    committed: bool = True
    commit_group: str | None = None
    """A consumer group to which finished micro-batches commit their offsets, for tools that show lag."""
    patience: float = PATIENCE
    """How many seconds planning waits for an unreachable server."""
    columns: tuple[str, ...] = ()
    """The columns to read; from the schema, not from the options."""


def parse(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options of `readStream` or `read`. The defaults are Spark's: a stream starts at the latest
    offset, a batch at the earliest."""
    given: dict[str, str] = {}
    kafka: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        if name.startswith("kafka."):
            kafka[name.removeprefix("kafka.")] = value
        elif name in _NAMES:
            given[_NAMES[name]] = value
        elif name in _IGNORED:
            logger.warning("option %s has no effect here and is ignored", key)
        else:
            known = dict.fromkeys((*_NAMES.values(), "kafka.bootstrap.servers"))
            raise ConfigError(f"unknown option {key!r}{nearest(key, known)}")
    topics, pattern, assigned = _what(given)
    starting = _offsets(given, "starting", Offsets(LATEST if streaming else EARLIEST))
    ending = _offsets(given, "ending", Offsets(LATEST))
    if streaming:
        for name in given:
            if name.startswith("ending"):
                raise ConfigError(f"{name} is for batch reads only: a stream has no end")
    elif starting.end == LATEST:
        raise ConfigError("startingOffsets=latest reads nothing in a batch: use earliest, or offsets in JSON")
    if ending.end == EARLIEST:
        raise ConfigError("endingOffsets=earliest reads nothing: use latest, or offsets in JSON")
    isolation = given.get("isolation") or kafka.pop("isolation.level", None) or "read_committed"
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolation={isolation!r}: expected read_committed or read_uncommitted")
    return SourceOptions(
        settings=_settings(kafka),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        max_offsets=_given(given, "maxOffsetsPerTrigger", count, None),
        min_offsets=_given(given, "minOffsetsPerTrigger", count, None),
        max_delay=_span(given.get("maxTriggerDelay", "15m")),
        min_partitions=_given(given, "minPartitions", count, None),
        fail_on_data_loss=_given(given, "failOnDataLoss", truth, True),
        headers=_given(given, "includeHeaders", truth, False),
        committed=isolation == "read_committed",
        commit_group=given.get("commitGroup"),
        patience=_given(given, "patience", seconds, PATIENCE),
    )


def _settings(kafka: dict[str, str]) -> ClientSettings:
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing: set it to HOST:PORT of the cluster")
    heeded = {}
    for name, value in kafka.items():
        if _TUNES_JAVA.fullmatch(name) and name != "default.api.timeout.ms":
            logger.warning("option kafka.%s tunes Kafka's Java consumer and is ignored", name)
        else:
            heeded[name] = value
    return ClientSettings.from_config(heeded)


def _what(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name, "").strip()]
    if len(named) != 1:
        what = f"{' and '.join(named)} are given" if named else "none is given"
        raise ConfigError(f"expected one of subscribe, subscribePattern and assign, but {what}")
    if named == ["subscribe"]:
        topics = tuple(topic.strip() for topic in given["subscribe"].split(",") if topic.strip())
        return topics, None, None
    if named == ["subscribePattern"]:
        try:
            re.compile(given["subscribePattern"])
        except re.error as error:
            raise ConfigError(f"subscribePattern: {error}") from error
        return (), given["subscribePattern"], None
    assigned = _json(given["assign"], "assign")
    if not all(isinstance(partitions, list) for partitions in assigned.values()):
        raise ConfigError('assign must be JSON like {"topic": [0, 1]}')
    return (), None, {topic: tuple(int(p) for p in partitions) for topic, partitions in assigned.items()}


def _offsets(given: Mapping[str, str], side: str, default: Offsets) -> Offsets:
    """Parse where to start or end. Precedence as in Spark: timestamps by partition, one timestamp, offsets."""
    strict = given.get("startingOffsetsByTimestampStrategy", "error").lower() != "latest" and side == "starting"
    by_timestamp = given.get(f"{side}OffsetsByTimestamp")
    if by_timestamp is not None:
        return Offsets(timestamps=_by_partition(by_timestamp, f"{side}OffsetsByTimestamp"), strict=strict)
    timestamp = given.get(f"{side}Timestamp")
    if timestamp is not None:
        return Offsets(timestamp=whole(timestamp, f"{side}Timestamp"), strict=strict)
    text = given.get(f"{side}Offsets")
    if text is None:
        return default
    if text.strip().lower() in ("earliest", "latest"):
        return Offsets(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    return Offsets(by_partition=_by_partition(text, f"{side}Offsets"))


def _by_partition(text: str, name: str) -> dict[str, dict[int, int]]:
    found = _json(text, name)
    try:
        return {topic: {int(p): int(at) for p, at in partitions.items()} for topic, partitions in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f'{name} must be earliest, latest or JSON like {{"topic": {{"0": 23, "1": -2}}}}') from None


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a JSON object")
    return found


def _given(given: Mapping[str, str], name: str, parsed: Callable[[str, str], T], default: D) -> T | D:
    return parsed(given[name], name) if name in given else default


def _span(text: str) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?", text.strip())
    if found is None:
        raise ConfigError(f"maxTriggerDelay={text!r}: expected a duration like 15m, 30s or 1h")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2] or "ms"]
