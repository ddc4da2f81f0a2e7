"""The records that a producer wrote to a partition since its ids were saved (IDEM-4).

Each *life* (run) of the producer since the save has its own (pid, epoch), which only rises. Within a life sequences
have no gap, so a remaining batch proves that everything before it in its life was written, even if retention or
compaction removed it. The end of a life, or a whole life, may be missing: then the server's H(P), which is that of the
newest epoch, fills in. If neither the records nor the state is left, the answer is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.core import sequence
from fencepost.types import Epoch, Offset, Pid, Sequence

NOWHERE: Final = Offset(-1)


class Life(NamedTuple):
    """One run of a producer; a later one compares greater."""

    pid: Pid
    epoch: Epoch


class Known(NamedTuple):
    """A record that was written since the ids were saved."""

    offset: Offset = NOWHERE
    """NOWHERE if unknown."""
    content: int | None = None
    """A hash of the content; None if the record is gone."""


class Written(NamedTuple):
    """A batch of this producer in the log."""

    life: Life
    first_sequence: Sequence
    contents: Mapping[int, int]
    """Content hashes by position in the batch; compaction may have removed some."""


class _Run:
    def __init__(self, life: Life, first: Sequence) -> None:
        self.life = life
        self.first = first
        """The first sequence written since the save."""
        self.records: dict[int, Known] = {}
        """By distance from the first sequence."""
        self.count = 0


class Recollection:
    """Collects the producer's records of one partition, batch by batch, from `start` on."""

    def __init__(self, since: Life, next_sequence: Sequence | None, start: Offset | None) -> None:
        """`since` is the life that saved the ids; `next_sequence` its next sequence in this partition, None if the ids
        do not contain the partition. `start` is the first offset to read; None: the start of the log."""
        self._since = since
        self._is_saved = next_sequence is not None
        self._runs: list[_Run] = []
        if next_sequence is not None:
            self._runs.append(_Run(since, next_sequence))
        self._position = start
        self._is_lost = False
        """Offsets are missing after the last batch of this producer."""
        self._is_broken = False
        """Offsets are missing between two lives."""

    def pass_over(self, first: Offset, following: Offset) -> None:
        """Note that the offsets from `first` up to but not including `following` are in the log."""
        if self._position is not None and first > self._position:
            self._is_lost = True
        self._position = following if self._position is None else max(self._position, following)

    def meet(self, batch: Written, offset: Offset, following: Offset) -> None:
        self.pass_over(offset, following)
        if self._is_saved and batch.life < self._since:
            return  # an earlier life cannot write after the save
        run = self._run_of(batch)
        self._is_lost = False
        for place, content in batch.contents.items():
            at = sequence.distance(run.first, sequence.advance(batch.first_sequence, place))
            if at >= 0:  # else it was acknowledged before the save
                run.records[at] = Known(Offset(offset + place), content)
        end = sequence.advance(batch.first_sequence, following - offset)
        run.count = max(run.count, sequence.distance(run.first, end))

    def _run_of(self, batch: Written) -> _Run:
        if not self._runs or batch.life != self._runs[-1].life:
            self._is_broken |= self._is_lost and bool(self._runs)
            # A life older than the save may have begun before it, so add no records that were not found.
            first = Sequence(0) if batch.life >= self._since else batch.first_sequence
            self._runs.append(_Run(batch.life, first))
        return self._runs[-1]

    def finish(self, end: Offset, remembered: Mapping[Life, Sequence]) -> list[Known] | None:
        """Return the records written since the save, in order; None if that is unknown. `end` is the end of the log,
        `remembered` the server's H(P) by life, −1 if it has none in that epoch."""
        self.pass_over(end, end)
        if not self._is_saved:
            self._add_newest(remembered)
        elif self._is_broken or (self._is_lost and not self._restore_end(remembered)):
            return None
        return [run.records.get(at, Known()) for run in self._runs for at in range(run.count)]

    def _restore_end(self, remembered: Mapping[Life, Sequence]) -> bool:
        """Complete the last life from the server's H(P); return False if that does not tell how the life ended."""
        run = self._runs[-1]
        newest = max(remembered, default=None)
        if newest is None or newest > run.life:
            return False
        last_sequence = remembered[newest]
        if newest == run.life and last_sequence >= 0:
            run.count = max(run.count, sequence.distance(run.first, sequence.following(last_sequence)))
        return True

    def _add_newest(self, remembered: Mapping[Life, Sequence]) -> None:
        """Add the newest life. Before the save nothing was written here, so all its sequences came after."""
        newest = max(remembered, default=None)
        if newest is None or newest < self._since or remembered[newest] < 0:
            return
        if not self._runs or self._runs[-1].life < newest:
            self._runs.append(_Run(newest, Sequence(0)))
        run = self._runs[-1]
        if run.life == newest:
            run.count = max(run.count, remembered[newest] + 1)
