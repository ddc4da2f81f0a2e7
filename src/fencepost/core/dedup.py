"""Is this batch new? H(P) + 1 = S, per partition (IDEM-2).

A `ProducerTable` is what one partition knows of its producers: per pid the epoch, H(P) (`last_sequence`) and the last
few batches. `judge` says what a batch is and changes nothing; `apply` is called after the batch is in the log. Recovery
replays the log's tail through `apply`, and so arrives at the very state that was built up before the crash.

The memory is bounded: an entry per live producer, at most REMEMBERED batches each, and `expire` drops idle producers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fencepost.core import sequence
from fencepost.core.aborted import AbortedTransaction, AbortedTransactions
from fencepost.types import Epoch, Milliseconds, Offset, Pid, Sequence

REMEMBERED: Final = 16
"""Batches remembered per producer: as many as a client may have in flight (Kafka's clients five, ours up to this)."""

NO_SEQUENCE_YET: Final = Sequence(-1)
NO_OFFSET: Final = Offset(-1)


class RememberedBatch(NamedTuple):
    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    crc: int | None
    """The sender's checksum; None where it is not known, because the batch was rewritten by the server (LogAppendTime)
    and then read back from the log."""
    timestamp: Milliseconds


class Batch(NamedTuple):
    """What the rule needs to know of a batch that carries a pid."""

    pid: Pid
    epoch: Epoch
    first_sequence: Sequence
    last_sequence: Sequence
    length: int
    """Sequences from the first to the last, both included."""
    crc: int | None
    timestamp: Milliseconds


class Accept(NamedTuple):
    """New, and next in line."""


class Duplicate(NamedTuple):
    """Already in the log: acknowledge it with the offset it has there."""

    base_offset: Offset
    timestamp: Milliseconds
    same_bytes: bool
    """False if the remembered batch of these sequences had another checksum."""


class Forgotten(NamedTuple):
    """A duplicate, for its last sequence is not above H(P), but no remembered batch has just these sequences."""

    last_sequence: Sequence


class Gap(NamedTuple):
    """Not next in line: something between is missing, or the batch overlaps what is there and reaches beyond it."""

    expected: Sequence


class Fenced(NamedTuple):
    """From an epoch that a newer one has replaced."""

    current_epoch: Epoch


Verdict: TypeAlias = Accept | Duplicate | Forgotten | Gap | Fenced
ACCEPT: Final = Accept()


@dataclass(slots=True)
class ProducerEntry:
    epoch: Epoch
    last_sequence: Sequence = NO_SEQUENCE_YET
    """H(P); NO_SEQUENCE_YET after a marker of a new epoch, when no record of that epoch is in the log."""
    last_offset: Offset = NO_OFFSET
    """Where the log says this epoch and sequence: the end of its last batch, or the marker that the epoch came with."""
    last_seen: Milliseconds = -1
    batches: list[RememberedBatch] = field(default_factory=list)
    """Oldest first, at most REMEMBERED."""
    transaction_start: Offset | None = None
    """First offset of the open transaction, if there is one."""


class ProducerTable:
    """All producers that one partition knows. Not thread-safe: it belongs to whoever owns the partition's log."""

    __slots__ = ("_entries", "_open_transactions", "aborted")

    def __init__(self) -> None:
        self._entries: dict[Pid, ProducerEntry] = {}
        self._open_transactions: dict[Pid, Offset] = {}
        """Where each open transaction starts, lowest offset first: offsets only rise, so that is the order of entry."""
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Pid, ProducerEntry]]:
        return iter(self._entries.items())

    def get(self, pid: Pid) -> ProducerEntry | None:
        return self._entries.get(pid)

    def judge(self, batch: Batch) -> Verdict:
        """What this batch is to the log, as it stands. Changes nothing."""
        entry = self._entries.get(batch.pid)
        if entry is None:
            # Nothing is known (never was, or expired): Kafka takes any sequence here, and so do we. A client that
            # must know reads the log back.
            return ACCEPT
        if batch.epoch < entry.epoch:
            return Fenced(entry.epoch)
        if batch.epoch > entry.epoch or entry.last_sequence == NO_SEQUENCE_YET:
            return ACCEPT if batch.first_sequence == 0 else Gap(Sequence(0))
        expected = sequence.following(entry.last_sequence)
        if batch.first_sequence == expected:
            return ACCEPT
        for known in reversed(entry.batches):
            if known.first_sequence == batch.first_sequence and known.last_sequence == batch.last_sequence:
                same = known.crc is None or batch.crc is None or known.crc == batch.crc
                return Duplicate(known.base_offset, known.timestamp, same)
        if batch.length <= sequence.distance(batch.first_sequence, expected):
            return Forgotten(entry.last_sequence)
        return Gap(expected)

    def apply(self, batch: Batch, base_offset: Offset, now: Milliseconds, *, transactional: bool = False) -> None:
        """The batch is in the log at `base_offset`: H(P) moves to its last sequence."""
        entry = self._entries.get(batch.pid)
        if entry is None or batch.epoch > entry.epoch:
            start = entry.transaction_start if entry else None
            entry = self._entries[batch.pid] = ProducerEntry(batch.epoch, transaction_start=start)
        entry.last_sequence = batch.last_sequence
        entry.last_offset = Offset(base_offset + batch.length - 1)
        entry.last_seen = max(entry.last_seen, now)
        if transactional and entry.transaction_start is None:
            entry.transaction_start = self._open_transactions[batch.pid] = base_offset
        batches = entry.batches
        if len(batches) >= REMEMBERED:
            del batches[0]
        batches.append(
            RememberedBatch(batch.first_sequence, batch.last_sequence, base_offset, batch.crc, batch.timestamp)
        )

    def end_transaction(
        self, pid: Pid, epoch: Epoch, marker_offset: Offset, now: Milliseconds, *, aborted: bool = False
    ) -> None:
        """A marker of this pid is in the log: its transaction is over, and if it was aborted, its records are not for
        readers of committed ones. A marker of a newer epoch fences the older one, and what was remembered of that one
        goes: the new epoch starts at sequence 0."""
        start = self._open_transactions.pop(pid, None)
        if aborted and start is not None:
            self.aborted.add(AbortedTransaction(pid, start, marker_offset))
        entry = self._entries.get(pid)
        if entry is None or epoch > entry.epoch:
            last_seen = entry.last_seen if entry else now
            entry = self._entries[pid] = ProducerEntry(epoch, last_offset=marker_offset, last_seen=last_seen)
        entry.last_seen = max(entry.last_seen, now)
        entry.transaction_start = None

    def first_open_transaction(self) -> Offset | None:
        """Where the oldest open transaction starts: readers of committed records stop there."""
        return next(iter(self._open_transactions.values()), None)

    def restore(self, pid: Pid, entry: ProducerEntry) -> None:
        """Puts back an entry read from a snapshot."""
        self._entries[pid] = entry
        if entry.transaction_start is not None:
            starts = {**self._open_transactions, pid: entry.transaction_start}
            self._open_transactions = dict(sorted(starts.items(), key=lambda start: start[1]))

    def expire(self, before: Milliseconds) -> list[Pid]:
        """Forgets the producers not seen since `before`, except those with an open transaction; says which."""
        idle = [
            pid for pid, entry in self._entries.items() if entry.last_seen < before and entry.transaction_start is None
        ]
        for pid in idle:
            del self._entries[pid]
        return idle

    def clear(self) -> None:
        self._entries.clear()
        self._open_transactions.clear()
        self.aborted = AbortedTransactions()
