"""The settings of a producer. Times are seconds, sizes are bytes; every value is checked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from fencepost.client.cluster.checks import (
    MOST_SECONDS,
    check_bytes,
    check_callable,
    check_name,
    check_seconds,
    whole_number,
)
from fencepost.client.produce.stats import ProducerStats
from fencepost.errors import ConfigError, SendFailed
from fencepost.kernel import CODECS
from fencepost.setting import setting

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Partitioner: TypeAlias = Callable[[bytes | None, int], int]
"""Takes the key and the number of partitions, returns the partition. Runs on the send thread or the caller's: it must
not block."""
Serializer: TypeAlias = Callable[[Any], bytes | str | None]
Acks: TypeAlias = Literal["all", "leader", "none"]
OnError: TypeAlias = Callable[[SendFailed], object]
OnStats: TypeAlias = Callable[[ProducerStats], object]

ACKS: Final[Mapping[str, int]] = {"all": -1, "leader": 1, "none": 0}
"""The values on the wire."""

LEVELS: Final[Mapping[str, tuple[int, int]]] = {"gzip": (-1, 9), "lz4": (-1, 12), "zstd": (-(1 << 17), 22)}
"""The lowest and the highest level of each codec that has levels."""
DEFAULT_LEVEL: Final = -1
"""librdkafka's default of `compression.level`, whatever the codec."""

_SHARES_BATCH: Final = 0.05
"""Of `delivery_timeout`."""
_SHARES_BATCH_MAX: Final = 0.25


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    compression: Compression = setting("none", "Codec of the batches.")
    compression_level: int | None = setting(None, "Level of the codec; None: its default.")
    batch_size: int = setting(
        512 << 10,
        "Maximum bytes of a batch, before compression; a record that does not fit opens the next batch.",
    )
    linger: float = setting(
        0.0,
        "Seconds that a batch waits for more records until it is full. Even with 0, records that arrive while an "
        "earlier batch of the partition is in flight share one batch (for a few milliseconds at most).",
    )
    buffer_memory: int = setting(
        64 << 20,
        "Maximum bytes of unsettled records. One topic holds at most as much as is still free, and one partition "
        "at most as much as is still free of its topic's share.",
    )
    block_timeout: float | None = setting(
        None,
        "Seconds that send blocks before it raises BufferFull when buffer_memory is full; None: without limit; 0: it "
        "does not block.",
    )
    max_request_size: int = setting(1 << 20, "Maximum bytes of a request, and so of a record.")
    delivery_timeout: float = setting(
        120.0,
        "Maximum seconds from send to the answer, with all retries; then the record fails with Expired. Must be more "
        "than linger.",
    )
    request_timeout: float = setting(30.0, "Seconds that the producer waits for one answer before it retries.")
    retry_backoff: float = setting(0.1, "Seconds between two attempts.")
    metadata_max_age: float = setting(300.0, "Seconds after which the producer refreshes its metadata.")
    unknown_topic_timeout: float = setting(
        10.0,
        "Seconds that a topic may stay unknown to the cluster before its records fail.",
    )
    allow_topic_creation: bool = setting(True, "Let a cluster that creates topics on first use create them.")
    idempotent: bool = setting(True, "Number the records, so that the server stores each record once and in order.")
    name: str | None = setting(
        None,
        "Kafka's transactional id: the producer's identity across restarts. A later producer with the same name "
        "fences this one.",
    )
    transaction_timeout: float = setting(
        60.0,
        "Seconds after which the server aborts an open transaction and fences its producer.",
    )
    acks: Acks = setting(
        "all",
        "Which brokers must have a record before its ticket is settled: all in-sync replicas, the leader, or none. "
        "With 'none' the ticket is settled once the record is written to the socket; its offset is unknown.",
    )
    partitioner: Partitioner | None = setting(
        None,
        "Chooses the partition from key and number of partitions; None: Kafka's murmur2 for records with a key, "
        "the least busy partition for others.",
    )
    key_serializer: Serializer | None = setting(None, "Turns a key into bytes or str, on the send thread.")
    value_serializer: Serializer | None = setting(None, "Turns a value into bytes or str, on the send thread.")
    on_error: OnError | None = setting(
        None,
        "Called on the send thread with each failed batch; flush then no longer raises for these failures.",
    )

    exit_timeout: float = setting(
        5.0,
        "Seconds that the exiting program waits for the records of an unclosed producer, at most delivery_timeout; "
        "then a line on stderr reports undelivered records. 0: does not wait.",
    )

    on_stats: OnStats | None = setting(
        None, "Called on the send thread with the producer's stats, every stats_interval: keep it short."
    )
    stats_interval: float = setting(10.0, "Seconds between two calls of on_stats.")

    def __post_init__(self) -> None:
        if self.compression not in CODECS:
            raise ConfigError(f"compression={self.compression!r}: must be one of {', '.join(CODECS)}")
        self._check_level()
        for name in ("batch_size", "buffer_memory", "max_request_size"):
            check_bytes(getattr(self, name), name)
        for name in (
            "delivery_timeout",
            "stats_interval",
            "unknown_topic_timeout",
            "metadata_max_age",
        ):
            check_seconds(getattr(self, name), name)
        for name in ("request_timeout", "transaction_timeout"):
            check_seconds(getattr(self, name), name, most=MOST_SECONDS)
        for name in ("linger", "retry_backoff", "exit_timeout"):
            check_seconds(getattr(self, name), name, or_zero=True)
        if self.block_timeout is not None:
            check_seconds(self.block_timeout, "block_timeout", or_zero=True)
        for name in ("partitioner", "key_serializer", "value_serializer", "on_error", "on_stats"):
            check_callable(getattr(self, name), name)
        check_name(self.name, "name")
        if self.acks not in ACKS:
            raise ConfigError(f"acks={self.acks!r}: expected 'all', 'leader' or 'none'{_kafka_acks(self.acks)}")
        if self.name is not None and not self.idempotent:
            raise ConfigError(f"name={self.name!r}: a producer with a name must be idempotent")
        if self.linger >= self.delivery_timeout:
            raise ConfigError(
                f"linger={self.linger:g} must be less than delivery_timeout={self.delivery_timeout:g}: records would "
                "expire while their batch waits for more"
            )
        if self.idempotent and self.acks != "all":
            raise ConfigError("an idempotent producer needs acks='all'; idempotent=False gives up the guarantee")

    def _check_level(self) -> None:
        level, codec = self.compression_level, self.compression
        if level is None or (level == DEFAULT_LEVEL and codec not in LEVELS):
            return
        if codec not in LEVELS:
            raise ConfigError(
                f"compression_level={level!r}: compression={codec!r} has no levels; {', '.join(LEVELS)} have"
            )
        least, most = LEVELS[codec]
        if isinstance(level, bool) or not isinstance(level, int) or not least <= level <= most:
            raise ConfigError(f"compression_level={level!r}: {codec} has the levels {least} to {most}")

    def choose_partition(self, key: bytes | None, partitions: int) -> int:
        """Call the partitioner. Raise TypeError if it returns no whole number."""
        assert self.partitioner is not None
        return whole_number(self.partitioner(key, partitions), "the partitioner's choice")

    @property
    def shares_batch(self) -> float:
        """The seconds for which records of a topic whose partitions are unknown share a batch. They expire together."""
        return min(self.delivery_timeout * _SHARES_BATCH, _SHARES_BATCH_MAX)

    @property
    def codec(self) -> int:
        return CODECS[self.compression]

    @property
    def serializes(self) -> bool:
        return self.key_serializer is not None or self.value_serializer is not None


def _kafka_acks(given: Any) -> str:
    """Return a hint for a caller that passes Kafka's numbers."""
    names = {str(number): name for name, number in ACKS.items()}
    return f"; Kafka's {given} is {names[str(given)]!r} here" if str(given) in names else ""
