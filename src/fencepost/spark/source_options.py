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
from fencepost.spark import java_pattern, offsets
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
        "maxRecordsPerPartition",
        "timestampOutOfRange",
        "failOnDataLoss",
        "includeHeaders",
        "isolation",
        "commitGroup",
        "patience",
        "path",
    )
}
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
T = TypeVar("T")
D = TypeVar("D")
_IGNORED: Final = frozenset(
    {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
)
_TUNES_JAVA: Final = re.compile(
    r"(auto|check|exclude|fetch|group|heartbeat|interceptor|key|max|metadata|metrics|partition|receive|reconnect|send|"
    r"session|value|enable|allow|client\.(dns|rack)|connections|default|isolation)\..*"
)
_REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the position is in the query's checkpoint; commitGroup commits it for tools that show lag",
    "interceptor.classes": "no Java runs here",
    "key.deserializer": "keys are bytes: use functions of the DataFrame",
    "value.deserializer": "values are bytes: use functions of the DataFrame",
}
"""Settings that Spark's documentation says cannot be set: ignoring them would change what a query reads."""


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


@dataclass(frozen=True, slots=True)
class SourceOptions:
    settings: ClientSettings
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    """Topics whose name contains it, as Spark's source reads them."""
    assigned: Mapping[str, tuple[int, ...]] | None = None
    starting: Offsets = Offsets(LATEST)
    ending: Offsets = Offsets(LATEST)
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay: float = 15 * 60.0
    """The longest time in seconds to wait for `min_offsets`."""
    min_partitions: int | None = None
    max_records: int | None = None
    """The most offsets of one task."""
    fail_on_data_loss: bool = True
    headers: bool = False
    committed: bool = True
    commit_group: str | None = None
    """A consumer group to which finished micro-batches commit their offsets, for tools that show lag."""
    patience: float = PATIENCE
    """How many seconds planning waits for an unreachable server."""
    null_times: bool = False
    """Read a time that Spark's timestamps cannot hold as null; otherwise fail."""
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
    else:
        _refuse_word(starting, "startingOffsets", LATEST)
        _refuse_word(ending, "endingOffsets", EARLIEST)
    isolation = given.get("isolation") or kafka.pop("isolation.level", None) or "read_committed"
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolation={isolation!r}: expected read_committed or read_uncommitted")
    least, most = (_given(given, f"{side}OffsetsPerTrigger", count, None) for side in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}: lower it")
    return SourceOptions(
        settings=_settings(kafka),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        max_offsets=most,
        min_offsets=least,
        max_delay=_span(given.get("maxTriggerDelay", "15m")),
        min_partitions=_given(given, "minPartitions", count, None),
        max_records=_given(given, "maxRecordsPerPartition", count, None),
        fail_on_data_loss=_given(given, "failOnDataLoss", truth, True),
        headers=_given(given, "includeHeaders", truth, False),
        committed=isolation == "read_committed",
        commit_group=given.get("commitGroup"),
        patience=_given(given, "patience", seconds, PATIENCE),
        null_times=_choice(given, "timestampOutOfRange", "error", "null") == "null",
    )


def _settings(kafka: dict[str, str]) -> ClientSettings:
    if "bootstrap.servers" not in kafka:
        raise ConfigError("the option kafka.bootstrap.servers is missing: set it to HOST:PORT of the cluster")
    heeded = {}
    for name, value in kafka.items():
        if name in _REFUSED:
            raise ConfigError(f"kafka.{name} cannot be set: {_REFUSED[name]}. Remove the option")
        if _TUNES_JAVA.fullmatch(name) and name != "default.api.timeout.ms":
            logger.warning("option kafka.%s tunes Kafka's Java consumer and is ignored", name)
        else:
            heeded[name] = value
    return ClientSettings.from_config(heeded)


def _what(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], re.Pattern[str] | None, dict[str, tuple[int, ...]] | None]:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name, "").strip()]
    if len(named) != 1:
        what = f"{' and '.join(named)} are given" if named else "none is given"
        raise ConfigError(f"expected one of subscribe, subscribePattern and assign, but {what}")
    if named == ["subscribe"]:
        topics = tuple(topic.strip() for topic in given["subscribe"].split(",") if topic.strip())
        if not topics:
            raise ConfigError(f"subscribe={given['subscribe']!r} names no topic")
        return topics, None, None
    if named == ["subscribePattern"]:
        return (), java_pattern.translate(given["subscribePattern"]), None
    assigned = _json(given["assign"], "assign")
    if not all(isinstance(partitions, list) for partitions in assigned.values()):
        raise ConfigError('assign must be JSON like {"topic": [0, 1]}')
    return (), None, {topic: tuple(int(p) for p in partitions) for topic, partitions in assigned.items()}


def _offsets(given: Mapping[str, str], side: str, default: Offsets) -> Offsets:
    """Parse where to start or end. Precedence as in Spark: one timestamp, timestamps by partition, offsets."""
    strategy = _choice(given, "startingOffsetsByTimestampStrategy", "error", "latest")
    strict = side == "starting" and strategy == "error"
    timestamp = given.get(f"{side}Timestamp")
    if timestamp is not None:
        return Offsets(timestamp=whole(timestamp, f"{side}Timestamp"), strict=strict)
    by_timestamp = given.get(f"{side}OffsetsByTimestamp")
    if by_timestamp is not None:
        return Offsets(timestamps=_by_partition(by_timestamp, f"{side}OffsetsByTimestamp"), strict=strict)
    text = given.get(f"{side}Offsets")
    if text is None:
        return default
    if text.strip().lower() in _WORDS:
        return Offsets(_WORDS[text.strip().lower()])
    found = _by_partition(text, f"{side}Offsets")
    for topic, partitions in found.items():
        for partition, at in partitions.items():
            if at < min(_WORDS.values()):
                raise ConfigError(f"{side}Offsets: {at} for {topic}-{partition}: expected an offset, -1 or -2")
    return Offsets(by_partition=found)


def _refuse_word(given: Offsets, name: str, at: int) -> None:
    """Raise ConfigError if a batch starts at the latest offset, or ends at the earliest: it would read nothing."""
    (word,) = (word for word, meaning in _WORDS.items() if meaning == at)
    if given.end == at:
        raise ConfigError(f"{name}={word} reads nothing in a batch: remove it, or give offsets in JSON")
    for topic, partitions in (given.by_partition or {}).items():
        for partition in (partition for partition, offset in partitions.items() if offset == at):
            raise ConfigError(
                f"{name}: {at} ({word}) for {topic}-{partition} reads nothing in a batch: give an offset, or leave the "
                "partition out with assign"
            )


def _by_partition(text: str, name: str) -> dict[str, dict[int, int]]:
    found = _json(text, name)
    try:
        return offsets.from_json(found)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f'{name} must be earliest, latest or JSON like {{"topic": {{"0": 23, "1": -2}}}}') from None


def _choice(given: Mapping[str, str], name: str, *known: str) -> str:
    """Return the chosen word, the first one if none is given."""
    chosen = given.get(name, known[0]).strip().lower()
    if chosen not in known:
        raise ConfigError(f"{name}={given[name]!r}: expected {' or '.join(known)}")
    return chosen


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
