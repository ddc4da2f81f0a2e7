"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PARTITIONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rows: int
    """Of 100 bytes. So many that starting a query, which takes the same time however long it runs, does not decide."""
    reps: int
    small_batches: int


FULL: Final = Plan(rows=4_000_000, reps=5, small_batches=20)
QUICK: Final = Plan(rows=2_000_000, reps=2, small_batches=10)
