"""Faded producers: those of a partition that were idle for some minutes, in as little memory as possible.

A mirror of ten thousand partitions leaves as many producer entries behind each time it restarts, and the server must
remember them for a day. A faded entry has all that is needed to judge the producer's next batch as before: its epoch,
H(P) and how many sequences before it were accepted. Only its remembered batches are gone. So a batch that is repeated
so late is still recognised, and not stored again, but its offset is no longer known.

The rows lie in one immutable byte string, lowest pid first. A capture of the table may share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from fencepost.types import Epoch, Milliseconds, Offset, Pid, Sequence

_Piece: TypeAlias = bytes | memoryview

_ROW: Final = Struct(">qhiqqI")
_NEVER: Final[Milliseconds] = 2**63 - 1


class FadedProducer(NamedTuple):
    pid: Pid
    epoch: Epoch
    last_sequence: Sequence
    last_offset: Offset
    last_seen: Milliseconds
    run: int


class FadedProducers:
    """Rows that never change: a producer that joins or leaves makes new ones, by copying bytes and not row by row. On
    the server's loop, a step for each of 100,000 rows would take a tenth of a second."""

    __slots__ = ("_oldest", "_rows")

    def __init__(self, rows: bytes = b"", oldest: Milliseconds = 0) -> None:
        self._rows = rows
        self._oldest = oldest
        """None was seen before this time."""

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def __iter__(self) -> Iterator[FadedProducer]:
        return map(FadedProducer._make, _ROW.iter_unpack(self._rows))

    def get(self, pid: Pid) -> FadedProducer | None:
        if not self._rows:
            return None
        at = self._place(pid)
        found = self._at(at) if at < len(self) else None
        return found if found is not None and found.pid == pid else None

    def joined(self, others: Iterable[FadedProducer]) -> FadedProducers:
        """Return the rows with others, whose pids are not here yet."""
        rows, parts, copied, oldest = memoryview(self._rows), list[_Piece](), 0, self._oldest if self else _NEVER
        for other in sorted(others):
            if copied < len(rows):
                start = self._place(other.pid) * _ROW.size
                parts.append(rows[copied:start])
                copied = start
            parts.append(_ROW.pack(*other))
            oldest = min(oldest, other.last_seen)
        parts.append(rows[copied:])
        return FadedProducers(b"".join(parts), oldest)

    def without(self, pids: Iterable[Pid]) -> FadedProducers:
        """Return the rows without these pids, which are all here."""
        rows, parts, copied = memoryview(self._rows), list[_Piece](), 0
        for pid in sorted(pids):
            start = self._place(pid) * _ROW.size
            parts.append(rows[copied:start])
            copied = start + _ROW.size
        parts.append(rows[copied:])
        return FadedProducers(b"".join(parts), self._oldest)

    def seen_before(self, moment: Milliseconds) -> list[Pid]:
        if moment <= self._oldest:
            return []
        found = [(producer.last_seen, producer.pid) for producer in self]
        self._oldest = min(found, default=(_NEVER,))[0]
        return [pid for seen, pid in found if seen < moment]

    def _place(self, pid: Pid) -> int:
        """Return the number of rows with lower pids."""
        return bisect_left(range(len(self)), pid, key=self._pid_at)

    def _at(self, index: int) -> FadedProducer:
        return FadedProducer._make(_ROW.unpack_from(self._rows, index * _ROW.size))

    def _pid_at(self, index: int) -> Pid:
        return self._at(index).pid


NONE_FADED: Final = FadedProducers()
