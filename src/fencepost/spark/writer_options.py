"""The options of `writeStream.format("fencepost")` and `write.format("fencepost")`: those of the sink, parsed once.

Spark passes options as text, with names in lower case. An unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.checks import nearest
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.progress_topic import check_name
from fencepost.client.transactions.targets import reached
from fencepost.errors import ConfigError
from fencepost.spark.sink import BatchReport, SinkOptions

if TYPE_CHECKING:
    from fencepost.spark.freeze import ChoosePartitions

INLINE_BYTES: Final = 64 << 20
"""The largest micro-batch that travels to the driver in Spark's commit messages, if its tasks are of equal size."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The parsed options of a writer."""

    settings: ClientSettings
    name: str
    """The sink's name; for a batch DataFrame `job.` and the job's name."""
    sink: SinkOptions
    inline_bytes: int = INLINE_BYTES
    checkpoint: str | None = None
    """Where Spark keeps the query's offsets, if the user named the place in an option."""
    partitioner: str | None = None
    """`module:function`; imported by the tasks, because a function cannot be an option."""
    on_report: str | None = None
    on_step: str | None = None

    @property
    def targets(self) -> str:
        """Return the targets, as a progress record names them."""
        return self.sink.topic or "the column topic"

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
        checkpoint=given.get("checkpointLocation"),
        partitioner=given.get("partitioner"),
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


def _list(value: str, _name: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in value.split(","))))


def _whole(value: str, name: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: expected a whole number") from None


def _size(value: str, name: str) -> int:
    number = _whole(value, name)
    if number < 0:
        raise ConfigError(f"{name}={number}: expected 0 or more bytes")
    return number


def _count(value: str, name: str) -> int:
    number = _whole(value, name)
    if number < 1:
        raise ConfigError(f"{name}={number}: expected 1 or more")
    return number


def _seconds(value: str, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: expected a number of seconds") from None


def _truth(value: str, name: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={value!r}: expected true or false")
    return value.lower() == "true"


_SERVERS: Final = "kafka.bootstrap.servers"
_PARSERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "topic": _text,
    "topics": _list,
    "name": _text,
    "job": _text,
    "adopt": _truth,
    "create": _count,
    "compression": _text,
    "compressionLevel": _whole,
    "batchBytes": _size,
    "deadLetter": _text,
    "partitioner": _named,
    "keepTimestamps": _truth,
    "transactionTimeout": _seconds,
    "attempts": _count,
    "inlineBytes": _size,
    "patience": _seconds,
    "onReport": _named,
    "onStep": _named,
    "checkpointLocation": _text,  # Spark's own, as the two below
    "queryName": _text,
    "path": _text,
}
_NAMES: Final = {name.lower(): name for name in _PARSERS}
_FIELDS: Final = {
    "topic": "topic",
    "topics": "topics",
    "adopt": "adopt",
    "create": "create",
    "compression": "compression",
    "compressionLevel": "compression_level",
    "batchBytes": "batch_bytes",
    "deadLetter": "dead_letter",
    "keepTimestamps": "keep_timestamps",
    "transactionTimeout": "transaction_timeout",
    "attempts": "attempts",
    "patience": "patience",
}
"""Option → the field of SinkOptions that it sets."""
