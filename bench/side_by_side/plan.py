"""Who takes part, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.brokers import KAFKA

OURS: Final = ("fencepost", "fencepost_arrow")
WRITERS: Final = (
    "confluent",
    "confluent_batch",
    "fencepost",
    "fencepost_arrow",
    "aiokafka",
    "aiokafka_batch",
    "kafka_python",
    "java",
)
READERS: Final = ("confluent", "fencepost", "fencepost_arrow", "aiokafka", "kafka_python", "java")
ONE_BY_ONE: Final = ("confluent", "fencepost", "aiokafka", "kafka_python")
"""Whose single records are timed, and whose memory is looked at."""

_NO_KEYS: Final = frozenset({"java", "aiokafka_batch"})
"""Java's tool sends none; aiokafka's batches are put together for a partition, not for a key."""
_NO_LZ4: Final = frozenset({"kafka_python"})
"""It needs a further package for that."""

SENT: Final = {"fencepost": 1.5, "fencepost_arrow": 3.0, "aiokafka": 0.1, "aiokafka_batch": 0.5, "kafka_python": 0.03}
READ: Final = {"fencepost": 1.0, "fencepost_arrow": 3.0, "aiokafka": 0.3, "kafka_python": 0.1}
"""Shares of the plan's records: it is the rate that counts, and each should take about as long."""
MOST_READ: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    reps: int
    records: dict[int, int]
    """Per run, by their size."""
    keyed: tuple[int, ...]
    """Sizes that are sent with keys too."""
    codecs: tuple[str, ...] = ("none", "lz4")
    warm_up_rounds: int = 1
    latency_records: int = 1000
    flood_seconds: float = 3.0
    idle_queues: int = 10_000


FULL: Final = Plan(reps=5, records={100: 2_000_000, 1024: 500_000}, keyed=(100, 1024), warm_up_rounds=2)
QUICK: Final = Plan(reps=2, records={100: 1_000_000, 1024: 250_000}, keyed=(100,), latency_records=500)


def name(client: str, broker: str) -> str:
    """Whose figure it is."""
    return f"{client} → {broker}"


CONFLUENT: Final = name("confluent", KAFKA)


def writers(codec: str, keyed: bool) -> list[str]:
    return [
        client
        for client in WRITERS
        if not (codec == "lz4" and client in _NO_LZ4) and not (keyed and client in _NO_KEYS)
    ]


def readers(codec: str) -> list[str]:
    return [client for client in READERS if not (codec == "lz4" and client in _NO_LZ4)]
