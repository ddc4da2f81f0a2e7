"""Retries: the pause before the next attempt; which records of a failed batch come again, and when one is given up.

A batch that failed is rolled back, so all of its records come again. Handing them out in the same way would let one bad
record stop its whole partition. So the extent in which the bad record must be, a *suspect*, is handed out alone:

    the record is known      the caller was working on it: the records before it come first, then this one alone
    several partitions       the extent of each partition becomes a suspect of its own
    one partition            both halves become suspects, until a suspect is one offset

Failures are counted per suspect, and halves inherit them. After more than `retries` failures the caller is told to
raise; or, if records are set aside (`isolates`), as soon as the suspect is a single offset, to set it aside: it is
*dead*. Offsets without a record (compacted, transaction markers) only cost a few more halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from fencepost.types import TopicPartition

_MOST_DOUBLINGS: Final = 16


def backoff(first: float, longest: float, failures: int) -> float:
    """Return the pause after `failures` failures in a row: `first`, then doubled each time, at most `longest`."""
    return float(min(longest, first * 2 ** min(failures - 1, _MOST_DOUBLINGS)))


class Extent(NamedTuple):
    """Offsets of one partition: `start` up to, and without, `stop`."""

    start: int
    stop: int


class Suspect(NamedTuple):
    start: int
    stop: int
    failures: int
    is_dead: bool = False
    """It failed alone, and too often. A half inherits only the failures: it may be the good one."""


class Verdict(Enum):
    RETRY = "retry"
    NARROW = "narrow"
    """Retry at once: a smaller extent than before."""
    RAISE = "raise"
    DEAD = "dead"


class RetryDecision(NamedTuple):
    verdict: Verdict
    failures: int
    """How often in a row, for the pause before the next attempt."""


class Piece(NamedTuple):
    stop: int
    alone: bool
    """Hand out nothing else in the same batch."""
    dead: bool = False


class Retries:
    def __init__(self, retries: int, *, isolates: bool) -> None:
        self._retries = retries
        self._isolates = isolates
        self._suspects: dict[TopicPartition, list[Suspect]] = {}

    def cut(self, partition: TopicPartition, start: int, stop: int) -> Piece:
        """Return how far a batch may go that takes this partition up at `start`, and has records up to `stop`."""
        for suspect in self._suspects.get(partition, ()):
            if suspect.stop <= start:
                continue
            if suspect.start > start:
                return Piece(min(stop, suspect.start), alone=False)
            return Piece(min(stop, suspect.stop), alone=True, dead=suspect.is_dead)
        return Piece(stop, alone=False)

    def failed(self, batch: Mapping[TopicPartition, Extent], at: tuple[TopicPartition, int] | None) -> RetryDecision:
        """Note that a batch failed. `at`: the record that the caller was working on, if that is known."""
        extents = dict(batch) if at is None else {at[0]: Extent(at[1], at[1] + 1)}
        failures = 1 + max((self._failures_at(name, extent.start) for name, extent in extents.items()), default=0)
        is_one = len(extents) == 1
        is_single = is_one and all(extent.stop - extent.start <= 1 for extent in extents.values())
        if failures > self._retries and not self._isolates:
            verdict = Verdict.RAISE
        elif failures > self._retries and is_single:
            verdict = Verdict.DEAD
        else:
            verdict = Verdict.RETRY if is_single else Verdict.NARROW
        for name, extent in extents.items():
            if at is not None:
                self._forget(name, batch.get(name, extent))
            self._note(name, extent, failures, halved=is_one and not is_single, dead=verdict is Verdict.DEAD)
        return RetryDecision(verdict, failures)

    def done(self, partition: TopicPartition, position: int) -> None:
        """Note that everything before this offset is committed, or belongs to another member by now."""
        self._forget(partition, Extent(0, position))

    def forget(self, partition: TopicPartition) -> None:
        self._suspects.pop(partition, None)

    def _failures_at(self, partition: TopicPartition, offset: int) -> int:
        return max(
            (each.failures for each in self._suspects.get(partition, ()) if each.start <= offset < each.stop), default=0
        )

    def _note(self, partition: TopicPartition, extent: Extent, failures: int, *, halved: bool, dead: bool) -> None:
        self._forget(partition, extent)
        middle = (extent.start + extent.stop) // 2
        parts = [Extent(extent.start, middle), Extent(middle, extent.stop)] if halved else [extent]
        suspects = self._suspects.setdefault(partition, [])
        suspects.extend(Suspect(*part, failures, dead) for part in parts)
        suspects.sort()

    def _forget(self, partition: TopicPartition, extent: Extent) -> None:
        """Cut the extent out of the suspects."""
        kept: list[Suspect] = []
        for each in self._suspects.pop(partition, ()):
            kept += (
                Suspect(start, stop, each.failures)
                for start, stop in (
                    (each.start, min(each.stop, extent.start)),
                    (max(each.start, extent.stop), each.stop),
                )
                if start < stop
            )
        if kept:
            self._suspects[partition] = kept
