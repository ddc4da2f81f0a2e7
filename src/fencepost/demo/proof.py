"""The comparison of the records that were found with those that are expected. Pure: no servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Count:
    """The count of a topic: each number 0 … expected − 1 must occur once, ascending within a partition."""

    what: str
    expected: int
    found: int
    lost: int
    doubled: int
    disordered: int

    @property
    def holds(self) -> bool:
        return self.found == self.expected and not (self.lost or self.doubled or self.disordered)


def count(what: str, expected: int, found: Iterable[tuple[int, int]]) -> Count:
    """Count (partition, number) pairs. A number that was never sent counts as out of order."""
    times = bytearray(expected)
    newest: dict[int, int] = {}
    total = disordered = extra = 0
    for partition, number in found:
        total += 1
        if not 0 <= number < expected:
            disordered += 1
            continue
        if times[number]:
            extra += 1
        else:
            times[number] = 1
        if number < newest.get(partition, -1):
            disordered += 1
        else:
            newest[partition] = number
    return Count(what, expected, total, times.count(0), extra, disordered)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The records of two writers of one partition; the first was replaced while it was stopped."""

    acknowledged: int
    """Records of the first writer that were acknowledged to it."""
    unknown: int
    """Records of the first writer with an unknown outcome."""
    refused: int
    """Records of the first writer that the server rejected."""
    successor: int
    """Records of the successor, all acknowledged."""
    found_of_first: int
    found_of_successor: int
    late: int
    """Records of the first writer after one of its successor: there must be none."""
    lost: int
    doubled: int

    @property
    def expected(self) -> int:
        """All acknowledged records, and those in doubt that are in the log."""
        return self.successor + min(max(self.found_of_first, self.acknowledged), self.acknowledged + self.unknown)

    @property
    def found(self) -> int:
        return self.found_of_first + self.found_of_successor

    @property
    def holds(self) -> bool:
        return (
            not (self.late or self.lost or self.doubled)
            and self.acknowledged <= self.found_of_first <= self.acknowledged + self.unknown
            and self.found_of_successor == self.successor
            and self.refused > 0
        )


def judge_takeover(
    lines: Iterable[tuple[str, int]], *, acknowledged: int, unknown: int, refused: int, successor: int
) -> Takeover:
    """Judge `lines`, the (writer, number) pairs in log order; "A" is the first writer, "B" its successor."""
    numbers: dict[str, list[int]] = {"A": [], "B": []}
    late = 0
    for writer, number in lines:
        numbers[writer].append(number)
        late += writer == "A" and bool(numbers["B"])
    seen = {writer: set(found) for writer, found in numbers.items()}
    lost = acknowledged - len(seen["A"] & set(range(acknowledged))) + successor - len(seen["B"])
    return Takeover(
        acknowledged,
        unknown,
        refused,
        successor,
        len(numbers["A"]),
        len(numbers["B"]),
        late,
        max(0, lost),
        sum(len(numbers[writer]) - len(seen[writer]) for writer in numbers),
    )
