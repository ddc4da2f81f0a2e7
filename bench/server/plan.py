"""How much is measured: a quick look, or the run whose figures count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    reps: int
    records: dict[int, int]
    """Records per run, by their size."""
    codecs: tuple[str, ...] = ("none", "lz4")
    clients: tuple[str, ...] = ("confluent", "java")
    warm_up_rounds: int = 1
    latency_records: int = 2000
    footprint_reps: int = 5
    idle_seconds: float = 3.0
    partitions: int = 10_000
    open_files: int = 1024
    log_bytes: int = 10 << 30
    scraped_partitions: int = 1000
    scraped_groups: int = 100
    scrape_reps: int = 3
    scrape_seconds: int = 8
    """Of each phase."""
    folder: Path
    """Where the brokers keep their data during the run."""


def full(folder: Path) -> Plan:
    return Plan(reps=5, records={100: 3_000_000, 1024: 800_000}, warm_up_rounds=2, folder=folder)


def quick(folder: Path) -> Plan:
    return Plan(
        reps=1,
        records={100: 1_000_000, 1024: 300_000},
        latency_records=1000,
        footprint_reps=1,
        idle_seconds=1.0,
        scrape_reps=1,
        log_bytes=2 << 30,
        folder=folder,
    )
