"""The records that a name has in a partition behind a saved place (IDEM-4, IDEM-5).

Ids say where in the *log* the last acknowledged record is, not which run of the producer wrote it. That is enough:
every run of a name fences a partition first and only then reads it to its end, so the name's records in a partition are
always a prefix of what the input has for it, whoever wrote them. The number of its records behind the saved place is
therefore the number that the program sends again and the producer leaves out.

    the log goes on without a gap    count the name's records behind the place
    records are missing              Retention, DeleteRecords or compaction removed them. Within one (pid, epoch)
                                     sequences have no gap, so the next batch of the same one tells how many there
                                     were. At the end of the log the server's H(P) tells it, as it was before the fence.
                                     Otherwise nobody knows: the producer must not write.
    a higher epoch of this pid       A later run has taken over: this one is fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from fencepost.core.producers import sequence
from fencepost.core.producers.pid import Identity
from fencepost.types import Offset, Pid, Sequence

NOWHERE: Final = Offset(-1)


class SavedPlace(NamedTuple):
    """A place in a partition's log: behind the last acknowledged record of a name."""

    topic_id: str | None
    """None: the server has no topic ids (Kafka before 2.8)."""
    offset: Offset
    """All the name's records before it are acknowledged."""
    identity: Identity
    """The pid and epoch of the last acknowledged record."""
    next_sequence: Sequence
    """The sequence after it. A record of the same identity from here on is not acknowledged."""

    def is_of(self, topic_id: str | None) -> bool:
        """Return whether the place is in this topic, not in a deleted one of the same name."""
        return self.topic_id is None or topic_id is None or self.topic_id == topic_id

    def written_on(self, last_offset: Offset | None, identity: Identity, next_sequence: Sequence) -> SavedPlace:
        """Return the place behind the last record of this run, which has left out or written all before it."""
        offset = self.offset if last_offset is None else max(self.offset, Offset(last_offset + 1))
        return SavedPlace(self.topic_id, offset, identity, next_sequence)


class Known(NamedTuple):
    """A record of the name behind the saved place."""

    identity: Identity
    sequence: Sequence
    offset: Offset = NOWHERE
    """NOWHERE if its batch is gone."""
    content: int | None = None
    """A hash of the content; None if the record is gone."""

    def behind(self, place: SavedPlace) -> SavedPlace:
        """Return the place behind this record, which is the next one after `place`."""
        offset = place.offset if self.offset == NOWHERE else Offset(self.offset + 1)
        return SavedPlace(place.topic_id, offset, self.identity, sequence.following(self.sequence))


class PartitionFence(NamedTuple):
    """How this run has fenced a partition before it reads it."""

    marker: Identity
    """The marker in the log has this pid, and this epoch or a higher one."""
    now: Identity
    """The newest identity of this run."""
    remembered_to: Offset
    """The end of the log when the server was asked for H(P), before the fence."""


class Taken(Exception):
    """A later run of the name has written here."""


class Recollection:
    """Collects the name's records of one partition, batch by batch, from a saved place to the end of the log."""

    def __init__(self, place: SavedPlace, pids: Collection[Pid], fence: PartitionFence) -> None:
        """`pids`: all that the name ever had."""
        self._place = place
        self._pids = pids
        self._fence = fence
        self.start = min(place.offset, fence.remembered_to)
        """Where to begin to read. Behind the end of a truncated log there would be nothing."""
        self._run = place.identity
        self._next = place.next_sequence
        self._position = place.offset
        self._found: list[Known] = []
        self._is_lost = False
        """Offsets are missing behind the last record of the name."""
        self._is_unknown = False
        """And nobody can tell how many records of the name were there."""
        self.is_fenced = False
        """The marker of this run's fence was met. Without it, the log that was read may be that of a stale leader."""
        self.is_truncated = False
        """That marker is before the saved place: the server has lost records that it had acknowledged."""

    def pass_over(self, first: Offset, following: Offset) -> None:
        """Note that the offsets from `first` up to but not including `following` are in the log."""
        if first > self._position:
            self._is_lost = True
            self._is_unknown |= first > self._fence.remembered_to  # H(P) does not cover all of what is missing
        self._position = max(self._position, following)

    def mark(self, identity: Identity, offset: Offset) -> None:
        """Note a marker, or another batch that is no record of the name. Raise Taken if it is of a later run."""
        self.pass_over(offset, Offset(offset + 1))
        self._check(identity)
        marker = self._fence.marker
        if identity.pid == marker.pid and identity.epoch >= marker.epoch:
            self.is_fenced = True
            self.is_truncated = offset < self._place.offset

    def meet(
        self, identity: Identity, first: Sequence, contents: Mapping[int, int], offset: Offset, following: Offset
    ) -> None:
        """Note a batch. `contents`: a hash per record, by its position; compaction may have removed some."""
        self.pass_over(offset, following)
        if identity.pid not in self._pids or following <= self._place.offset:
            return
        self._check(identity)
        if identity != self._run:
            if identity.pid == self._run.pid and identity.epoch < self._run.epoch:
                return  # acknowledged before the save
            self._is_unknown |= self._is_lost  # the end of the run before may be missing
            self._run, self._next = identity, first
        self._is_lost = False
        self._add_missing(first)
        for position in range(sequence.distance(first, self._next), following - offset):
            at, content = sequence.advance(first, position), contents.get(position)
            self._found.append(Known(identity, at, Offset(offset + position), content))
            self._next = sequence.following(at)

    def finish(self, end: Offset, remembered: Mapping[Pid, tuple[int, int]]) -> list[Known] | None:
        """Return the name's records behind the place, in order; None if that is unknown. `end` is the end of the log,
        `remembered` the server's epoch and H(P) by pid, −1 if it has none in that epoch."""
        self.pass_over(end, end)
        if self._is_lost and not self._is_unknown:
            self._is_unknown = not self._complete(remembered)
        return None if self._is_unknown else self._found

    def _check(self, identity: Identity) -> None:
        if identity.pid == self._fence.now.pid and identity.epoch > self._fence.now.epoch:
            raise Taken

    def _complete(self, remembered: Mapping[Pid, tuple[int, int]]) -> bool:
        """Add the missing end of the last run by the server's H(P). Return False if that does not tell it."""
        state = remembered.get(self._run.pid)
        if self._run.pid != self._fence.now.pid or state is None:
            return False  # the name has got another pid since, or the server has forgotten this one
        epoch, last_sequence = state
        if epoch == self._run.epoch and last_sequence >= 0:
            self._add_missing(sequence.following(Sequence(last_sequence)))
        return epoch <= self._run.epoch

    def _add_missing(self, upto: Sequence) -> None:
        """Add the records of the run before sequence `upto` that are not in the log."""
        while sequence.distance(self._next, upto) > 0:
            self._found.append(Known(self._run, self._next))
            self._next = sequence.following(self._next)
