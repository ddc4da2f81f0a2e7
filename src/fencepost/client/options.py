"""What a producer can be told. Times are seconds, sizes are bytes; every value is checked when it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from fencepost.client.checks import check_bytes, check_callable, check_name, check_seconds
from fencepost.errors import ConfigError, SendFailed
from fencepost.kernel import CODECS
from fencepost.kernel.codecs import compress

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Partitioner: TypeAlias = Callable[[bytes | None, int], int]
"""Key and number of partitions in, partition out. Called on the send thread or the caller's; must not block."""
Serializer: TypeAlias = Callable[[Any], bytes | str | None]

ACKS: Final[Mapping[str, int]] = {"all": -1, "leader": 1, "none": 0}
"""As the wire has them."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    compression: Compression = "none"
    compression_level: int | None = None
    batch_size: int = 128 << 10
    """A partition's batch is closed when the next record would make it larger (before compression)."""
    linger: float = 0.0
    """How long a batch that is not full waits for more. Even with 0, records that come while an earlier batch of the
    partition is under way are gathered into one (for a few milliseconds at most)."""
    buffer_memory: int = 64 << 20
    """Bytes of records accepted and not settled. One topic holds at most as much as is still free (PROD-6)."""
    when_full: Literal["block", "raise"] = "block"
    block_timeout: float | None = None
    """Seconds that `send` blocks before it raises BufferFull; None: as long as it takes."""
    max_request_size: int = 1 << 20
    """The largest request, and with it the largest record."""
    delivery_timeout: float = 120.0
    """From `send` to the answer, retries included; then the record fails with Expired."""
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    metadata_max_age: float = 300.0
    unknown_topic_timeout: float = 10.0
    """How long a topic may stay unknown to the cluster before its records fail."""
    allow_topic_creation: bool = True
    """Lets a cluster that creates topics on first use do so."""
    idempotent: bool = True
    name: str | None = None
    """Kafka's transactional id: who this producer is across restarts. A later one of the same name fences it."""
    transaction_timeout: float = 60.0
    """A transaction that is open for longer is aborted by the server, and its producer fenced."""
    acks: Literal["all", "leader", "none"] = "all"
    """Who has a record when its ticket is settled: all replicas in sync, the leader, or nobody for certain. With "none"
    it is settled when it has left for the network; its offset is not known, and neither is whether it arrived."""
    partitioner: Partitioner | None = None
    """None: Kafka's murmur2 for records with a key; the others go to whichever partition is least busy."""
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    on_error: Callable[[SendFailed], object] | None = None
    """Told of every batch that failed, on the send thread; its failures then no longer make `flush` raise."""

    def __post_init__(self) -> None:
        if self.compression not in CODECS:
            raise ConfigError(f"compression={self.compression!r}: known are {', '.join(CODECS)}")
        self._check_level()
        for name in ("batch_size", "buffer_memory", "max_request_size"):
            check_bytes(getattr(self, name), name)
        for name in (
            "delivery_timeout",
            "request_timeout",
            "unknown_topic_timeout",
            "metadata_max_age",
            "transaction_timeout",
        ):
            check_seconds(getattr(self, name), name)
        for name in ("linger", "retry_backoff"):
            check_seconds(getattr(self, name), name, or_zero=True)
        if self.block_timeout is not None:
            check_seconds(self.block_timeout, "block_timeout", or_zero=True)
        for name in ("partitioner", "key_serializer", "value_serializer", "on_error"):
            check_callable(getattr(self, name), name)
        check_name(self.name, "name")
        if self.when_full not in ("block", "raise"):
            raise ConfigError(f"when_full={self.when_full!r}: 'block' or 'raise'")
        if self.acks not in ACKS:
            raise ConfigError(f"acks={self.acks!r}: 'all', 'leader' or 'none'")
        if self.name is not None and not self.idempotent:
            raise ConfigError(f"name={self.name!r}: a producer with a name is idempotent")
        if self.idempotent and self.acks != "all":
            raise ConfigError("an idempotent producer needs acks='all'; idempotent=False gives up the guarantee")

    def _check_level(self) -> None:
        """By trying it: what a level may be, the codecs know."""
        if self.compression_level is None:
            return
        try:
            compress(self.codec, b"", self.compression_level)
        except Exception as error:
            level, codec = self.compression_level, self.compression
            raise ConfigError(f"compression_level={level!r}: {codec} has no such level ({error})") from error

    @property
    def codec(self) -> int:
        return CODECS[self.compression]

    @property
    def serializes(self) -> bool:
        return self.key_serializer is not None or self.value_serializer is not None
