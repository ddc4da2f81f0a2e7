"""The rules of a restored server: nothing that was handed out after the backup is handed out again.

A backup does not know what its server handed out later: pids, epochs, tokens, generations of groups. Clients still have
them, and a restored server that counted on from the backup would give the same number to another client. So every
counter jumps, far enough for anything that can have happened, and by the clock: a second restore of the same backup
jumps over what the first restored server handed out.

Epochs have only 16 bits, too few for jumps. A transactional id goes to the epoch that is never given to a producer
instead. All its producers are fenced, and the next one gets a new pid. A transaction that was open is aborted, because
its producer can no longer end it. One that was decided keeps its decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fencepost.core.transactions import MAX_EPOCH, NOBODY, TransactionMetadata, TransactionState
from fencepost.types import Epoch, Milliseconds

JUMP: Final = 1_000_000_000
_PER_MS: Final = 1024
"""Numbers per millisecond of the clock: more than a server can hand out."""
GENERATION_JUMP: Final = 1_000_000
_MS_PER_GENERATION: Final = 10_000
HIGHEST_GENERATION: Final = 2**31 - 2
FENCED_EPOCH: Final = Epoch(MAX_EPOCH + 1)
"""No producer has it, and it is the end of the pid: the next producer gets another."""


def number_after(highest: int, taken: Milliseconds, now: Milliseconds) -> int:
    """Return a number above every pid or token that was handed out, if the highest was `highest` when the backup was
    taken. The highest of a server that was itself restored a short time before is ahead of the clock; from there on
    the time since the backup counts."""
    return max(highest + JUMP + max(0, now - taken) * _PER_MS, now * _PER_MS)


def generation_after(generation: int, now: Milliseconds) -> int:
    """Return the generation of a group, or the epoch of a KIP-848 group, to continue from (31 bits)."""
    return min(max(generation + GENERATION_JUMP, now // _MS_PER_GENERATION), HIGHEST_GENERATION)


def fenced(transaction: TransactionMetadata, now: Milliseconds) -> TransactionMetadata:
    """Return the transactional id without any producer, and with its open transaction aborted."""
    changed = replace(
        transaction, partitions=set(transaction.partitions), groups=set(transaction.groups), updated_ms=now
    )
    if transaction.state is TransactionState.ONGOING:
        changed.prepare(commit=False, now=now)
        changed.marker_epoch = FENCED_EPOCH
    changed.epoch = FENCED_EPOCH
    changed.last = NOBODY
    return changed
