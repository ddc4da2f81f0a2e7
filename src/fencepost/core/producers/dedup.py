"""Deduplication: a batch with first sequence S is new if S = H(P) + 1, per partition (IDEM-2).

A `ProducerTable` holds a partition's producers: per pid the epoch, H(P) (`last_sequence`) and the last few batches.
`judge` classifies a batch and changes nothing; `apply` is called after the batch is in the log. Recovery replays the
log's tail through `apply`, and so rebuilds the state from before the crash.

A batch is a duplicate only if the same bytes are in the log, inside the same transaction. A client may reuse sequences
for other records: librdkafka does so after an abort with a batch in flight. Acknowledging such a batch would lose it.

The memory is bounded: an entry per live producer, at most REMEMBERED batches each. `fade` makes the entries of idle
producers small (`faded.py`), and `expire` drops them.
A producer that is not in the table either never wrote here, and must begin at sequence 0, or was forgotten, and may
continue at any sequence. Pids only rise, so one number, `remembers_from`, tells the two apart.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.producers import sequence
from fencepost.core.producers.aborted import AbortedTransaction, AbortedTransactions
from fencepost.core.producers.faded import NONE_FADED, FadedProducer, FadedProducers
from fencepost.types import NO_PID, Epoch, Milliseconds, Offset, Pid, Sequence

REMEMBERED: Final = 16
"""Batches remembered per producer: as many as a client may have in flight (Kafka's clients 5, ours up to 16)."""

FADES_AFTER: Final[Milliseconds] = 10 * 60 * 1000
"""Idle time after which a producer's batches are no longer remembered. By default Java's clients repeat a batch for two
minutes and librdkafka for five. To them a repeat without a remembered batch is an error, although it is in the log."""

FADED_PER_ENTRY: Final = 16
"""Faded producers that take as much memory as one that is not."""

NO_SEQUENCE_YET: Final = Sequence(-1)
NO_OFFSET: Final = Offset(-1)


class RememberedBatch(NamedTuple):
    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    crc: int | None
    """The sender's checksum; None if the server rewrote the batch (LogAppendTime, compaction) and later read it back
    from the log."""
    timestamp: Milliseconds


class SequencedBatch(NamedTuple):
    """The fields of a batch with a pid that `judge` and `apply` need."""

    pid: Pid
    epoch: Epoch
    first_sequence: Sequence
    last_sequence: Sequence
    length: int
    """Number of sequences."""
    crc: int | None
    timestamp: Milliseconds
    transactional: bool = False


class Accept(NamedTuple):
    """The batch is new and next in sequence."""


class Duplicate(NamedTuple):
    """The batch is in the log: acknowledge it with its offset there."""

    base_offset: Offset
    timestamp: Milliseconds


class Conflict(NamedTuple):
    """Other records in the log have some of its sequences: a remembered batch with another checksum, or an earlier
    transaction. The batch is not in the log, and cannot be appended with these sequences."""

    expected: Sequence


class Forgotten(NamedTuple):
    """A duplicate: all its sequences were accepted, but no remembered batch matches them."""

    last_sequence: Sequence


class Gap(NamedTuple):
    """The batch is not next: sequences are missing before it, or it only partly overlaps accepted ones."""

    expected: Sequence


class Unknown(NamedTuple):
    """The producer never wrote here, but this is not its first batch: earlier batches are missing."""


class StaleEpoch(NamedTuple):
    """The batch is from an epoch that a newer one has replaced."""

    current_epoch: Epoch


BatchVerdict: TypeAlias = Accept | Duplicate | Conflict | Forgotten | Gap | Unknown | StaleEpoch
ACCEPT: Final = Accept()
UNKNOWN: Final = Unknown()


@dataclass(slots=True)
class ProducerEntry:
    epoch: Epoch
    last_sequence: Sequence = NO_SEQUENCE_YET
    """H(P); NO_SEQUENCE_YET after a marker of a new epoch that has no records yet."""
    last_offset: Offset = NO_OFFSET
    """Offset of the last record, or of the marker that began the epoch."""
    last_seen: Milliseconds = -1
    batches: list[RememberedBatch] = field(default_factory=list)
    """Oldest first, at most REMEMBERED."""
    transaction_start: Offset | None = None
    """First offset of the open transaction, if any."""
    run: int = 0
    """Consecutive sequences up to H(P) that were certainly accepted here; earlier ones may not have been."""
    transaction_sequence: Sequence | None = None
    """First sequence of the open transaction; None if there is none, or it is unknown."""
    duplicates: int = field(default=0, compare=False)
    """Batches of this epoch that were repeated and recognised since the log was opened. It is only for display, and is
    not stored."""
    made_after: int = field(default=0, compare=False, repr=False)
    """Number of captures of the table before this entry was made. A later capture shares the entry, so that it must not
    change any more."""


class IssuedPids(NamedTuple):
    """The range of pids that a server has issued. Pids only rise."""

    below: Pid = Pid(0)
    """The server has issued every pid below this one; others come from another server."""
    deleted_below: Pid = Pid(0)
    """Pids below this one may have written to a deleted topic whose name was reused."""


class ProducerTable:
    """The producers of one partition. Not thread-safe: it belongs to the owner of the partition's log."""

    __slots__ = ("_captures", "_entries", "_faded", "_is_shared", "_open_transactions", "aborted", "remembers_from")

    def __init__(self) -> None:
        self._entries: dict[Pid, ProducerEntry] = {}
        self._faded = NONE_FADED
        """Idle producers, none of which is in `_entries`."""
        self._captures = 0
        self._is_shared = False
        """A capture has the same dictionary."""
        self._open_transactions: dict[Pid, Offset] = {}
        """First offset of each open transaction, lowest first: offsets only rise, so that is the insertion order."""
        self.aborted = AbortedTransactions()
        self.remembers_from = Pid(0)
        """Every producer with this pid or a higher one that ever wrote here is in the table."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._faded)

    def __iter__(self) -> Iterator[tuple[Pid, ProducerEntry]]:
        return iter(self._everyone().items())

    @property
    def weight(self) -> int:
        """The number of entries that would take as much memory."""
        return len(self._entries) + -(-len(self._faded) // FADED_PER_ENTRY)

    def get(self, pid: Pid) -> ProducerEntry | None:
        entry = self._entries.get(pid)
        return entry if entry is not None else _found_in(self._faded, pid)

    def judge(self, batch: SequencedBatch, issued_below: Pid = NO_PID) -> BatchVerdict:
        """Classify the batch; change nothing. The server has issued the pids below `issued_below`; by default none is
        known to be its own, and no producer is `Unknown`."""
        entry = self.get(batch.pid)
        if entry is None:
            # It never wrote here, was forgotten, or has another server's pid. If the table cannot tell, accept any
            # sequence, as Kafka does: a client that must know reads the log back.
            is_new = self.remembers_from <= batch.pid < issued_below
            return UNKNOWN if is_new and batch.first_sequence != 0 else ACCEPT
        if batch.epoch < entry.epoch:
            return StaleEpoch(entry.epoch)
        if batch.epoch > entry.epoch or entry.last_sequence == NO_SEQUENCE_YET:
            return ACCEPT if batch.first_sequence == 0 else Gap(Sequence(0))
        expected = sequence.following(entry.last_sequence)
        if batch.first_sequence == expected:
            return ACCEPT
        return _judge_repeat(entry, batch, expected)

    def apply(self, batch: SequencedBatch, base_offset: Offset, now: Milliseconds) -> None:
        """Record a batch that is in the log at `base_offset`: H(P) moves to its last sequence."""
        entry = self._unfade(batch.pid)
        if entry is None or batch.epoch > entry.epoch:
            start = entry.transaction_start if entry else None
            entry = self._put(batch.pid, ProducerEntry(batch.epoch, transaction_start=start))
        elif entry.made_after != self._captures:
            entry = self._put(batch.pid, _copied(entry))
        in_line = entry.run > 0 and batch.first_sequence == sequence.following(entry.last_sequence)
        entry.run = min(entry.run + batch.length, sequence.FURTHEST) if in_line else batch.length
        entry.last_sequence = batch.last_sequence
        entry.last_offset = Offset(base_offset + batch.length - 1)
        entry.last_seen = max(entry.last_seen, now)
        if batch.transactional and entry.transaction_start is None:
            entry.transaction_start = self._open_transactions[batch.pid] = base_offset
            entry.transaction_sequence = batch.first_sequence
        batches = entry.batches
        if len(batches) >= REMEMBERED:
            del batches[0]
        batches.append(
            RememberedBatch(batch.first_sequence, batch.last_sequence, base_offset, batch.crc, batch.timestamp)
        )

    def note_duplicate(self, pid: Pid) -> None:
        """Count a batch that was judged a duplicate."""
        entry = self._entries.get(pid)
        if entry is not None:
            entry.duplicates += 1

    def end_transaction(
        self, pid: Pid, epoch: Epoch, marker_offset: Offset, now: Milliseconds, *, aborted: bool = False
    ) -> None:
        """Record a marker of this pid: its transaction has ended. If it was aborted, read_committed readers skip its
        records. A marker of a newer epoch fences the older one and drops its state: the new epoch starts at 0."""
        start = self._open_transactions.pop(pid, None)
        if aborted and start is not None:
            self.aborted.add(AbortedTransaction(pid, start, marker_offset))
        entry = self._unfade(pid)
        if entry is None or epoch > entry.epoch:
            last_seen = entry.last_seen if entry else now
            entry = self._put(pid, ProducerEntry(epoch, last_offset=marker_offset, last_seen=last_seen))
        elif entry.made_after != self._captures:
            entry = self._put(pid, _copied(entry))
        entry.last_seen = max(entry.last_seen, now)
        entry.transaction_start = entry.transaction_sequence = None

    def first_open_transaction(self) -> Offset | None:
        """Return the first offset of the oldest open transaction: read_committed readers stop there."""
        return next(iter(self._open_transactions.values())) if self._open_transactions else None

    def open_transactions(self) -> list[tuple[Pid, Offset]]:
        """Return each producer with an open transaction and its first offset, the lowest first."""
        return list(self._open_transactions.items())

    def pids(self) -> list[Pid]:
        """Return the producers, lowest pid first. Pids rise, so they are nearly in this order already."""
        return sorted([*self._entries, *(faded.pid for faded in self._faded)])

    def restore(self, pid: Pid, entry: ProducerEntry) -> None:
        """Restore an entry from a snapshot."""
        self._put(pid, entry)
        if entry.transaction_start is not None:
            starts = {**self._open_transactions, pid: entry.transaction_start}
            self._open_transactions = dict(sorted(starts.items(), key=lambda start: start[1]))

    def expire(self, before: Milliseconds) -> list[Pid]:
        """Drop and return the producers not seen since `before`, except those with an open transaction."""
        idle = [
            pid for pid, entry in self._entries.items() if entry.last_seen < before and entry.transaction_start is None
        ]
        if idle:
            self._unshare()
        for pid in idle:
            del self._entries[pid]
        if faded := self._faded.seen_before(before):
            self._faded = self._faded.without(faded)
            idle += faded
        if idle:
            self.remembers_from = max(self.remembers_from, Pid(max(idle) + 1))
        return idle

    def fade(self, before: Milliseconds, *, forget_batches: bool = True) -> int:
        """Keep only the least of the producers not seen since `before`, except those with an open transaction. Return
        their number. Without `forget_batches`, those with remembered batches stay as they are."""
        idle = [
            FadedProducer(pid, entry.epoch, entry.last_sequence, entry.last_offset, entry.last_seen, entry.run)
            for pid, entry in self._entries.items()
            if entry.last_seen < before and entry.transaction_start is None and (forget_batches or not entry.batches)
        ]
        if idle:
            gone = {faded.pid for faded in idle}
            self._entries = {pid: entry for pid, entry in self._entries.items() if pid not in gone}  # and its memory
            self._is_shared = False
            self._faded = self._faded.joined(idle)
        return len(idle)

    def capture(self) -> Mapping[Pid, ProducerEntry]:
        """Return the producers as they are now, for another thread to read. It takes the same short time for any number
        of them: what changes later is copied then."""
        self._captures += 1
        self._is_shared = True
        return self._everyone()

    def _everyone(self) -> Mapping[Pid, ProducerEntry]:
        return _Captured(self._entries, self._faded) if self._faded else self._entries

    def _unfade(self, pid: Pid) -> ProducerEntry | None:
        """Return the entry, which may be changed if no capture shares it."""
        entry = self._entries.get(pid)
        if entry is None and self._faded and (entry := _found_in(self._faded, pid)) is not None:
            self._faded = self._faded.without([pid])
            self._put(pid, entry)
        return entry

    def _put(self, pid: Pid, entry: ProducerEntry) -> ProducerEntry:
        self._unshare()
        entry.made_after = self._captures
        self._entries[pid] = entry
        return entry

    def _unshare(self) -> None:
        if self._is_shared:
            self._entries = self._entries.copy()
            self._is_shared = False

    def clear(self) -> None:
        self._entries = {}
        self._faded = NONE_FADED
        self._is_shared = False
        self._open_transactions.clear()
        self.aborted = AbortedTransactions()


class _Captured(Mapping[Pid, ProducerEntry]):
    """All producers of a table, faded or not."""

    def __init__(self, entries: Mapping[Pid, ProducerEntry], faded: FadedProducers) -> None:
        self._entries = entries
        self._faded = faded

    def __len__(self) -> int:
        return len(self._entries) + len(self._faded)

    def __iter__(self) -> Iterator[Pid]:
        yield from self._entries
        for faded in self._faded:
            yield faded.pid

    def __getitem__(self, pid: Pid) -> ProducerEntry:
        entry = self._entries.get(pid) or _found_in(self._faded, pid)
        if entry is None:
            raise KeyError(pid)
        return entry

    def items(self) -> ItemsView[Pid, ProducerEntry]:
        return _CapturedItems(self)

    def pairs(self) -> Iterator[tuple[Pid, ProducerEntry]]:
        yield from self._entries.items()
        for faded in self._faded:
            yield faded.pid, _unfaded(faded)


class _CapturedItems(ItemsView[Pid, ProducerEntry]):
    """The items, without a search for each of them: a compaction looks at all producers on the server's loop."""

    def __init__(self, captured: _Captured) -> None:
        super().__init__(captured)
        self._captured = captured

    def __iter__(self) -> Iterator[tuple[Pid, ProducerEntry]]:
        return self._captured.pairs()


def _found_in(producers: FadedProducers, pid: Pid) -> ProducerEntry | None:
    faded = producers.get(pid)
    return None if faded is None else _unfaded(faded)


def _unfaded(faded: FadedProducer) -> ProducerEntry:
    return ProducerEntry(faded.epoch, faded.last_sequence, faded.last_offset, faded.last_seen, run=faded.run)


def _copied(entry: ProducerEntry) -> ProducerEntry:
    return replace(entry, batches=list(entry.batches))


def _judge_repeat(entry: ProducerEntry, batch: SequencedBatch, expected: Sequence) -> BatchVerdict:
    """Judge a batch of the current epoch that is not next in sequence."""
    behind = sequence.distance(batch.first_sequence, expected)
    if behind <= 0:
        return Gap(expected)
    for known in reversed(entry.batches):
        if known.first_sequence == batch.first_sequence and known.last_sequence == batch.last_sequence:
            same_bytes = known.crc is None or batch.crc is None or known.crc == batch.crc
            start = entry.transaction_start
            if same_bytes and (not batch.transactional or (start is not None and known.base_offset >= start)):
                return Duplicate(known.base_offset, known.timestamp)
            return Conflict(expected)
    if batch.transactional:
        # Sequences before this transaction belong to records of an earlier one.
        start_sequence = entry.transaction_sequence
        if start_sequence is None or sequence.distance(start_sequence, batch.first_sequence) < 0:
            return Conflict(expected)
    if batch.length <= behind <= entry.run:
        return Forgotten(entry.last_sequence)
    return Gap(expected)
