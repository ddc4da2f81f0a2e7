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
from typing import Final, NamedTuple

from fencepost.types import Epoch, Milliseconds, Offset, Pid, Sequence

_ROW: Final = Struct(">qhiqqI")


class FadedProducer(NamedTuple):
    pid: Pid
    epoch: Epoch
    last_sequence: Sequence
    last_offset: Offset
    last_seen: Milliseconds
    run: int


class FadedProducers:
    __slots__ = ("_rows",)

    def __init__(self, producers: Iterable[FadedProducer] = ()) -> None:
        self._rows = b"".join(_ROW.pack(*producer) for producer in sorted(producers))

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def __iter__(self) -> Iterator[FadedProducer]:
        return map(FadedProducer._make, _ROW.iter_unpack(self._rows))

    def get(self, pid: Pid) -> FadedProducer | None:
        if not self._rows:
            return None
        at = bisect_left(range(len(self)), pid, key=self._pid_at)
        found = self._at(at) if at < len(self) else None
        return found if found is not None and found.pid == pid else None

    def joined(self, others: Iterable[FadedProducer]) -> FadedProducers:
        return FadedProducers([*self, *others])

    def without(self, pid: Pid) -> FadedProducers:
        return FadedProducers(producer for producer in self if producer.pid != pid)

    def seen_before(self, moment: Milliseconds) -> list[Pid]:
        return [producer.pid for producer in self if producer.last_seen < moment]

    def seen_since(self, moment: Milliseconds) -> FadedProducers:
        return FadedProducers(producer for producer in self if producer.last_seen >= moment)

    def _at(self, index: int) -> FadedProducer:
        return FadedProducer._make(_ROW.unpack_from(self._rows, index * _ROW.size))

    def _pid_at(self, index: int) -> Pid:
        return self._at(index).pid


NONE_FADED: Final = FadedProducers()
