"""What was found against what should be there. Knows nothing of servers: numbers in, a verdict out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers 0 … expected − 1, each of which should be there once, rising in every partition."""

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
    """Counts (partition, number) pairs. A number that was never sent is out of order wherever it stands."""
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
    """What the log says about two writers of one partition, the first of which was replaced while it was stopped."""

    acknowledged: int
    """Of the first writer, in its own words."""
    unknown: int
    """Those it could not tell the fate of."""
    refused: int
    """Those it was told are not in the log."""
    successor: int
    """Records of its successor, all acknowledged."""
    found_of_first: int
    found_of_successor: int
    late: int
    """Records of the first that lie behind one of its successor: there must be none."""
    lost: int
    doubled: int

    @property
    def expected(self) -> int:
        """Everything that was acknowledged; what was in doubt may be there too."""
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
    """`lines`: (writer, number) in the order of the log; writer "A" came first, "B" is its successor."""
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
