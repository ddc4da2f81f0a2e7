"""Random histories of readers that share a topic: who was handed out what, and when.

Each worker notes every hand-out: the partition, its token, the offsets, and when `poll` was called and had returned.
From that follow what was handled, and whether a reader called `poll` and got records of a partition after a later
holder of it had got some.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import ClassVar, NamedTuple

from tests.support.processing_history import Counted, History


class HandOut(NamedTuple):
    worker: str
    asked_at: float
    got_at: float
    token: int
    offsets: range


class SharedReading(History):
    script: ClassVar = "share_worker.py"

    def _count(self) -> Counted:
        handed_out: defaultdict[int, list[HandOut]] = defaultdict(list)
        for log in self._logs.glob(f"{self._group}-*.txt"):
            for line in log.read_text(errors="replace").splitlines():
                match line.split():
                    case ["got", partition, token, first, last, asked_at, got_at, "."]:
                        offsets = range(int(first), int(last) + 1)
                        each = HandOut(log.name, float(asked_at), float(got_at), int(token), offsets)
                        handed_out[int(partition)].append(each)
        seen = Counter(
            (partition, offset)
            for partition, several in handed_out.items()
            for each in several
            for offset in each.offsets
        )
        every = {(number % self._world.partitions, number // self._world.partitions) for number in range(self._written)}
        assert not set(seen) - every
        self.overlaps = [
            f"partition {partition}: {late} after {first}"
            for partition, several in handed_out.items()
            for first, late in overlaps(several)
        ]
        repeated = sum(count > 1 for count in seen.values())
        return Counted(len(every) - len(seen), repeated, self._rebalances, self._events)


def overlaps(several: list[HandOut]) -> list[tuple[HandOut, HandOut]]:
    """Each hand-out that was asked for when a later holder had got its first records already, and that holder's."""
    found: list[tuple[HandOut, HandOut]] = []
    earliest_later: HandOut | None = None
    by_token: defaultdict[int, list[HandOut]] = defaultdict(list)
    for each in several:
        by_token[each.token].append(each)
    for token in sorted(by_token, reverse=True):
        holders = by_token[token]
        found += [
            (earliest_later, each) for each in holders if earliest_later and each.asked_at > earliest_later.got_at
        ]
        first = min(holders, key=lambda each: each.got_at)
        if earliest_later is None or first.got_at < earliest_later.got_at:
            earliest_later = first
    return found
