"""The options of the source and of the sink, each known in one table, and checked in one place.

Spark passes options as text, with names in lower case. An unknown option is an error that suggests the nearest known
one. The source's names are those of Spark's own Kafka source; options that only tune Kafka's Java consumer
(`kafka.fetch.min.bytes` …) are ignored with a warning, so that users can switch by changing the format's name.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.checks import nearest
from fencepost.client.cluster.patience import PATIENCE
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Runner
from fencepost.client.micro_batch.targets import TargetFinder, reached
from fencepost.client.micro_batch.topics import check_name
from fencepost.client.produce.options import Compression
from fencepost.core.micro_batch.protocol import NOBODY
from fencepost.errors import ConfigError
from fencepost.kernel import CODECS
from fencepost.spark import java_pattern, offsets
from fencepost.types import EARLIEST, LATEST

if TYPE_CHECKING:
    from fencepost.spark.freeze import ChoosePartitions

logger = logging.getLogger(__name__)

_SERVERS: Final = "kafka.bootstrap.servers"
_LONGEST_SECONDS: Final = 7 * 24 * 3600.0
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
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
INLINE_BYTES: Final = 64 << 20
"""The largest micro-batch that travels to the driver in Spark's commit messages, if its tasks are of equal size."""
STAGE_RETENTION: Final = 24 * 60 * 60.0
"""Seconds: longer than a micro-batch takes from its first task to its commit."""
_TOKEN: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A sink of foreachBatch, or a run of a query."""


# --- what is parsed ---


@dataclass(frozen=True, slots=True)
class Offsets:
    """The start or end of a read: one of the two ends, a time, or an offset or time per partition."""

    end: int | None = None
    """EARLIEST or LATEST; None if another field is set."""
    by_partition: offsets.Position | None = None
    timestamp: int | None = None
    timestamps: offsets.Position | None = None
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


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink. Times are seconds, sizes bytes."""

    topic: str | None = None
    """The target of all rows; without it the column `topic` names each row's target."""
    topics: tuple[str, ...] = ()
    """Topics that the column `topic` may name."""
    adopt: bool | str = False
    """Take the name over from another query, a rolled-back checkpoint or another sink; applies to the first batch. With
    the text that the error SinkNameInUse names, only from the progress record that it was about."""
    create: int | None = None
    """Create a missing target with this many partitions; None: the target must exist."""
    compression: Compression = "none"
    compression_level: int | None = None
    batch_bytes: int = 512 << 10
    """Bytes of a record batch before compression."""
    dead_letter: str | None = None
    """Topic for rows that can never be written; without it they fail the batch."""
    partitioner: ChoosePartitions | None = None
    keep_timestamps: bool = False
    """Take the records' times from the column `timestamp`; otherwise the time of writing, as in Spark's own sink."""
    transaction_timeout: float = 300.0
    """The time limit for publishing; then the server aborts the transaction, so that readers can go on."""
    attempts: int = 3
    driver_bytes: int = 1 << 20
    """The driver itself writes micro-batches of a few short rows up to this size; 0: never."""
    patience: float = PATIENCE
    """How long a step waits for an unreachable server, for example while it restarts."""
    accept_recomputed: bool = False
    """Skip a batch of a query that keeps state although it was recomputed with other rows than those in the log."""

    def __post_init__(self) -> None:
        if self.compression not in CODECS:
            raise ConfigError(f"compression={self.compression!r}: expected one of {', '.join(CODECS)}")
        if self.batch_bytes <= 0 or self.driver_bytes < 0:
            raise ConfigError(
                f"batch_bytes={self.batch_bytes}, driver_bytes={self.driver_bytes}: expected more than 0, and 0 or more"
            )
        if self.attempts < 1:
            raise ConfigError(f"attempts={self.attempts}: expected 1 or more")
        if not self.patience >= 0:
            raise ConfigError(f"patience={self.patience}: expected a number of seconds, 0 or more")
        if not 0 < self.transaction_timeout < math.inf:
            raise ConfigError(f"transaction_timeout={self.transaction_timeout}: expected a positive number of seconds")

    @property
    def targets(self) -> str:
        """The target, as the progress record names it."""
        return self.topic or "the column topic"

    def finder(self, settings: ClientSettings, name: str) -> TargetFinder:
        """Return the finder of the target topics of the sink of this name."""
        return TargetFinder(settings, name, self.topic, self.topics, self.dead_letter, self.create, self.patience)

    def runner(
        self, settings: ClientSettings, name: str, on_step: Callable[[str], object] | None, *, run: str = ""
    ) -> Runner:
        """Return the runner of the sink of this name."""
        return Runner(
            settings,
            name,
            adopt=self.adopt,
            attempts=self.attempts,
            transaction_timeout=self.transaction_timeout,
            patience=self.patience,
            run=run,
            on_step=on_step,
        )


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The options of `writeStream.format("fencepost")` and `write.format("fencepost")`."""

    settings: ClientSettings
    name: str
    """The sink's name; for a batch DataFrame `job.` and the job's name."""
    sink: SinkOptions
    inline_bytes: int = INLINE_BYTES
    stage_retention: float = STAGE_RETENTION
    """Seconds that a new stage topic keeps records."""
    checkpoint: str | None = None
    """Where Spark keeps the query's offsets, if the user named the place in an option."""
    partitioner: str | None = None
    """`module:function`; imported by the tasks, because a function cannot be an option."""
    if_written: str = "skip"
    """For a job that was written before: `skip` its rows with a warning, or `fail`."""
    on_report: str | None = None
    on_step: str | None = None


# --- one value ---


def _text(value: str, _name: str) -> str:
    return value


def _whole(value: str, name: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: expected a whole number") from None


def _count(value: str, name: str) -> int:
    """Parse a number of things, of which there is at least one."""
    if (number := _whole(value, name)) < 1:
        raise ConfigError(f"{name}={number}: expected 1 or more")
    return number


def _size(value: str, name: str) -> int:
    if (number := _whole(value, name)) < 0:
        raise ConfigError(f"{name}={number}: expected 0 or more bytes")
    return number


def _seconds(value: str, name: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _LONGEST_SECONDS:
        raise ConfigError(f"{name}={value!r}: expected a number of seconds, from 0 to a week")
    return found


def _retention(value: str, name: str) -> float:
    if (found := _seconds(value, name)) <= 0:
        raise ConfigError(f"{name}={value}: expected more than 0 seconds")
    return found


def _span(text: str, name: str) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?", text.strip())
    if found is None:
        raise ConfigError(f"{name}={text!r}: expected a duration like 15m, 30s or 1h")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2] or "ms"]


def _one_of(*known: str) -> Callable[[str, str], str]:
    def parse(value: str, name: str) -> str:
        chosen = value.strip().lower()
        if chosen not in known:
            raise ConfigError(f"{name}={value!r}: expected {' or '.join(known)}")
        return chosen

    return parse


def _truth(value: str, name: str) -> bool:
    return _one_of("true", "false")(value, name) == "true"


def _list(value: str, _name: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in value.split(","))))


def _topics(value: str, name: str) -> tuple[str, ...]:
    if not (topics := _list(value, name)):
        raise ConfigError(f"{name}={value!r} names no topic")
    return topics


def _java_pattern(value: str, _name: str) -> re.Pattern[str]:
    return java_pattern.translate(value)


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a JSON object")
    return found


def _assigned(value: str, name: str) -> dict[str, tuple[int, ...]]:
    assigned = _json(value, name)
    if not all(isinstance(partitions, list) for partitions in assigned.values()):
        raise ConfigError(f'{name} must be JSON like {{"topic": [0, 1]}}')
    return {topic: tuple(int(p) for p in partitions) for topic, partitions in assigned.items()}


def _by_partition(text: str, name: str) -> offsets.Position:
    found = _json(text, name)
    try:
        return offsets.from_json(found)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f'{name} must be earliest, latest or JSON like {{"topic": {{"0": 23, "1": -2}}}}') from None


def _place(text: str, name: str) -> Offsets:
    """Parse a word, or offsets per partition."""
    if text.strip().lower() in _WORDS:
        return Offsets(_WORDS[text.strip().lower()])
    found = _by_partition(text, name)
    for where, at in found.items():
        if at < min(_WORDS.values()):
            raise ConfigError(f"{name}: {at} for {where}: expected an offset, -1 or -2")
    return Offsets(by_partition=found)


def _adopted(value: str, name: str) -> bool | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value != NOBODY and not _TOKEN.fullmatch(value):
        raise ConfigError(f"{name}={value!r}: expected true, false, or the text that the error SinkNameInUse names")
    return value


def _function(value: str, name: str) -> str:
    if not all(value.partition(":")):
        raise ConfigError(f"{name}={value!r}: expected module:function")
    return value


def imported(option: str, named: str) -> Any:
    """Import what an option names as `module:function`."""
    module, _, function = named.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{option}={named!r} cannot be imported: {error}. Expected module:function, installed where Spark's "
            "workers and driver run"
        ) from error


# --- the tables ---

_Known = Mapping[str, tuple[Callable[[str, str], Any], str]]
"""Option → its parser, and the field that it sets. An empty field: another option decides, too, or Spark uses it."""

_SOURCE: Final[_Known] = {
    "subscribe": (_topics, "topics"),
    "subscribePattern": (_java_pattern, "pattern"),
    "assign": (_assigned, "assigned"),
    "startingOffsets": (_place, ""),
    "endingOffsets": (_place, ""),
    "startingTimestamp": (_whole, ""),
    "endingTimestamp": (_whole, ""),
    "startingOffsetsByTimestamp": (_by_partition, ""),
    "endingOffsetsByTimestamp": (_by_partition, ""),
    "startingOffsetsByTimestampStrategy": (_one_of("error", "latest"), ""),
    "maxOffsetsPerTrigger": (_count, "max_offsets"),
    "minOffsetsPerTrigger": (_count, "min_offsets"),
    "maxTriggerDelay": (_span, "max_delay"),
    "minPartitions": (_count, "min_partitions"),
    "maxRecordsPerPartition": (_count, "max_records"),
    "timestampOutOfRange": (_one_of("error", "null"), ""),
    "failOnDataLoss": (_truth, "fail_on_data_loss"),
    "includeHeaders": (_truth, "headers"),
    "isolation": (_one_of("read_committed", "read_uncommitted"), ""),
    "commitGroup": (_text, "commit_group"),
    "patience": (_seconds, "patience"),
    "path": (_text, ""),
}
_SINK: Final[_Known] = {
    "topic": (_text, "topic"),
    "topics": (_list, "topics"),
    "adopt": (_adopted, "adopt"),
    "create": (_count, "create"),
    "compression": (_text, "compression"),
    "compressionLevel": (_whole, "compression_level"),
    "batchBytes": (_size, "batch_bytes"),
    "deadLetter": (_text, "dead_letter"),
    "keepTimestamps": (_truth, "keep_timestamps"),
    "transactionTimeout": (_seconds, "transaction_timeout"),
    "attempts": (_count, "attempts"),
    "patience": (_seconds, "patience"),
    "acceptRecomputed": (_truth, "accept_recomputed"),
}
_WRITER: Final[_Known] = {
    "name": (_text, ""),
    "job": (_text, ""),
    "partitioner": (_function, "partitioner"),
    "inlineBytes": (_size, "inline_bytes"),
    "stageRetention": (_retention, "stage_retention"),
    "ifWritten": (_one_of("skip", "fail"), "if_written"),
    "onReport": (_function, "on_report"),
    "onStep": (_function, "on_step"),
    "checkpointLocation": (_text, "checkpoint"),  # Spark's own, as the two below
    "queryName": (_text, ""),
    "path": (_text, ""),
}


def _parsed(options: Mapping[str, str], known: _Known) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of our options by their names, and Kafka's settings."""
    names = {name.lower(): name for name in known}
    given: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for key, value in options.items():
        lower = key.lower()
        name = names.get(lower.replace("_", ""))
        if lower.startswith("kafka."):
            kafka[lower.removeprefix("kafka.")] = value
        elif name is not None:
            given[name] = known[name][0](value, name)
        elif known is _SOURCE and lower in _IGNORED:
            logger.warning("option %s has no effect here and is ignored", key)
        else:
            raise ConfigError(f"unknown option {key!r}{nearest(key, dict.fromkeys((*known, _SERVERS)))}")
    if "bootstrap.servers" not in kafka:
        raise ConfigError(f"the option {_SERVERS} is missing: set it to HOST:PORT of the cluster")
    return given, kafka


def _fields(given: Mapping[str, Any], known: _Known) -> dict[str, Any]:
    return {known[name][1]: value for name, value in given.items() if name in known and known[name][1]}


# --- the source ---


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options of `readStream` or `read`. The defaults are Spark's: a stream starts at the latest
    offset, a batch at the earliest."""
    given, kafka = _parsed({key: value for key, value in options.items() if _is_given(key, value)}, _SOURCE)
    named = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(named) != 1:
        what = f"{' and '.join(named)} are given" if named else "none is given"
        raise ConfigError(f"expected one of subscribe, subscribePattern and assign, but {what}")
    starting = _offsets(given, "starting", Offsets(LATEST if streaming else EARLIEST))
    ending = _offsets(given, "ending", Offsets(LATEST))
    if streaming:
        for name in given:
            if name.startswith("ending"):
                raise ConfigError(f"{name} is for batch reads only: a stream has no end")
    else:
        _refuse_word(starting, "startingOffsets", LATEST)
        _refuse_word(ending, "endingOffsets", EARLIEST)
    isolation = kafka.pop("isolation.level", "read_committed")
    isolation = given.get("isolation") or _SOURCE["isolation"][0](isolation, "isolation")
    found = SourceOptions(
        settings=_consumer_settings(kafka),
        starting=starting,
        ending=ending,
        committed=isolation == "read_committed",
        null_times=given.get("timestampOutOfRange") == "null",
        **_fields(given, _SOURCE),
    )
    least, most = found.min_offsets, found.max_offsets
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}: lower it")
    return found


def _is_given(key: str, value: str) -> bool:
    return key.lower() not in ("subscribe", "subscribepattern", "assign", "isolation") or bool(value.strip())


def _consumer_settings(kafka: Mapping[str, str]) -> ClientSettings:
    heeded = {}
    for name, value in kafka.items():
        if name in _REFUSED:
            raise ConfigError(f"kafka.{name} cannot be set: {_REFUSED[name]}. Remove the option")
        if _TUNES_JAVA.fullmatch(name) and name != "default.api.timeout.ms":
            logger.warning("option kafka.%s tunes Kafka's Java consumer and is ignored", name)
        else:
            heeded[name] = value
    return ClientSettings.from_config(heeded)


def _offsets(given: Mapping[str, Any], side: str, default: Offsets) -> Offsets:
    """Return where to start or end. Precedence as in Spark: one timestamp, timestamps by partition, offsets."""
    strict = side == "starting" and given.get("startingOffsetsByTimestampStrategy") != "latest"
    if (timestamp := given.get(f"{side}Timestamp")) is not None:
        return Offsets(timestamp=timestamp, strict=strict)
    if (timestamps := given.get(f"{side}OffsetsByTimestamp")) is not None:
        return Offsets(timestamps=timestamps, strict=strict)
    found: Offsets = given.get(f"{side}Offsets", default)
    return found


def _refuse_word(given: Offsets, name: str, at: int) -> None:
    """Raise ConfigError if a batch starts at the latest offset, or ends at the earliest: it would read nothing."""
    (word,) = (word for word, meaning in _WORDS.items() if meaning == at)
    if given.end == at:
        raise ConfigError(f"{name}={word} reads nothing in a batch: remove it, or give offsets in JSON")
    for where, offset in (given.by_partition or {}).items():
        if offset == at:
            raise ConfigError(
                f"{name}: {at} ({word}) for {where} reads nothing in a batch: give an offset, or leave the partition "
                "out with assign"
            )


# --- the sink as a format ---


def parse_writer(options: Mapping[str, str], *, streaming: bool) -> WriterOptions:
    """Parse and check the options of a stream or of a batch DataFrame."""
    given, kafka = _parsed(options, {**_SINK, **_WRITER})
    return WriterOptions(
        settings=reached(kafka.pop("bootstrap.servers"), kafka),
        name=_identity(given, streaming=streaming),
        sink=SinkOptions(**_fields(given, _SINK)),
        **_fields(given, _WRITER),
    )


def _identity(given: Mapping[str, Any], *, streaming: bool) -> str:
    wanted, other = ("name", "job") if streaming else ("job", "name")
    if wanted not in given:
        what = "a stream's identity across restarts" if streaming else "a job's identity: its rows are written once"
        raise ConfigError(f"the option {wanted} is missing: it is {what}")
    if other in given:
        kind = "a batch DataFrame" if streaming else "a stream"
        raise ConfigError(f"the option {other} is for {kind}; use {wanted}")
    return check_name(given["name"] if streaming else f"job.{given['job']}")
