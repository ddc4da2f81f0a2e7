"""The options of `writeStream.format("fencepost")` and `write.format("fencepost")`: those of the sink, parsed once.

Spark passes options as text, with names in lower case. An unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.checks import nearest
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.progress_topic import check_name
from fencepost.client.micro_batch.targets import reached
from fencepost.core.micro_batch.protocol import NOBODY
from fencepost.errors import ConfigError
from fencepost.spark.option_values import count, seconds, size, truth, whole
from fencepost.spark.sink import BatchReport, SinkOptions

if TYPE_CHECKING:
    from fencepost.spark.freeze import ChoosePartitions

INLINE_BYTES: Final = 64 << 20
"""The largest micro-batch that travels to the driver in Spark's commit messages, if its tasks are of equal size."""
STAGE_RETENTION: Final = 24 * 60 * 60.0
"""Seconds: longer than a micro-batch takes from its first task to its commit."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The parsed options of a writer."""

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

    @property
    def choose(self) -> ChoosePartitions | None:
        """Import and return the partitioner."""
        return None if self.partitioner is None else imported("partitioner", self.partitioner)

    def told(self) -> Callable[[BatchReport], object]:
        """Import and return the function that is told of each micro-batch."""
        return imported("onReport", self.on_report) if self.on_report is not None else lambda _report: None


def parse(options: Mapping[str, str], *, streaming: bool) -> WriterOptions:
    """Check the options of a stream or of a batch DataFrame."""
    kafka: dict[str, str] = {}
    given: dict[str, Any] = {}
    for key, value in options.items():
        name = key.lower()
        if name.startswith("kafka."):
            kafka[name.removeprefix("kafka.")] = value
        elif (known := _NAMES.get(name.replace("_", ""))) is None:
            raise ConfigError(f"unknown option {key!r}{nearest(key, dict.fromkeys((*_PARSERS, _SERVERS)))}")
        else:
            given[known] = _PARSERS[known](value, known)
    if "bootstrap.servers" not in kafka:
        raise ConfigError(f"the option {_SERVERS} is missing: give it HOST:PORT of the cluster")
    servers = kafka.pop("bootstrap.servers")
    told = {_FIELDS[name]: value for name, value in given.items() if name in _FIELDS}
    return WriterOptions(
        settings=reached(servers, kafka),
        name=_identity(given, streaming=streaming),
        sink=SinkOptions(**told),
        inline_bytes=given.get("inlineBytes", INLINE_BYTES),
        stage_retention=given.get("stageRetention", STAGE_RETENTION),
        checkpoint=given.get("checkpointLocation"),
        partitioner=given.get("partitioner"),
        if_written=given.get("ifWritten", "skip"),
        on_report=given.get("onReport"),
        on_step=given.get("onStep"),
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


def _text(value: str, _name: str) -> str:
    return value


def _named(value: str, name: str) -> str:
    if not all(value.partition(":")):
        raise ConfigError(f"{name}={value!r}: expected module:function")
    return value


def _if_written(value: str, name: str) -> str:
    if value not in ("skip", "fail"):
        raise ConfigError(f"{name}={value!r}: expected skip or fail")
    return value


def _list(value: str, _name: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in value.split(","))))


def _retention(value: str, name: str) -> float:
    if (found := seconds(value, name)) <= 0:
        raise ConfigError(f"{name}={value}: expected more than 0 seconds")
    return found


def _adopted(value: str, name: str) -> bool | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value != NOBODY and not _TOKEN.fullmatch(value):
        raise ConfigError(f"{name}={value!r}: expected true, false, or the text that the error SinkNameInUse names")
    return value


_TOKEN: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A sink of foreachBatch, or a run of a query."""
_SERVERS: Final = "kafka.bootstrap.servers"
_PARSERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "topic": _text,
    "topics": _list,
    "name": _text,
    "job": _text,
    "adopt": _adopted,
    "create": count,
    "compression": _text,
    "compressionLevel": whole,
    "batchBytes": size,
    "deadLetter": _text,
    "partitioner": _named,
    "keepTimestamps": truth,
    "transactionTimeout": seconds,
    "attempts": count,
    "inlineBytes": size,
    "stageRetention": _retention,
    "patience": seconds,
    "ifWritten": _if_written,
    "onReport": _named,
    "onStep": _named,
    "acceptRecomputed": truth,
    "checkpointLocation": _text,  # Spark's own, as the two below
    "queryName": _text,
    "path": _text,
}
_NAMES: Final = {name.lower(): name for name in _PARSERS}
_FIELDS: Final = {
    name: field
    for name in _PARSERS
    if (field := re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)) in SinkOptions.__slots__
    and field != "partitioner"  # a name here, and a function there
}
"""Option → the field of SinkOptions that it sets."""
