"""The client's rules for order, retries and in-doubt batches of one partition (IDEM-5, IDEM-6).

A `Flight` holds the sent but unsettled batches of one partition, oldest first. It decides what may be sent next and
what an answer means; the caller sends, keeps time and settles. The rules:

* A batch gets its stamp (pid, epoch, base sequence) when it is first sent, and keeps it in every retry.
* The first batch of a (pid, epoch) goes alone, because a server that does not know the pid accepts any sequence. Once
  one is acknowledged, up to `limit` are in flight. After a long idle time the server may have forgotten the pid, so the
  next one goes alone again.
* After a failure nothing new is sent. The flight awaits the answers to the later batches (the server rejects them as
  out of order), then resends all in order, one at a time: M1 M2 M3 never becomes M1 M3 M2.
* A batch whose answer was lost is *in doubt*: it may be persisted. It stays in doubt, whatever error a retry gets,
  until an acknowledgement or the log decides. Shortly before its timeout the log is read, once per attempt: a batch
  that is not there is resent with the same stamp.
* A batch that times out is given up at once, even while in flight. Whether it is persisted is then unknown.
* When a batch is given up, or the server's H(P) does not match, the numbering has a hole. The remaining batches are
  renumbered from 0 under the next epoch, which fences delayed requests of the old one. Nothing is renumbered while a
  batch is in doubt: the log is read first. A batch whose attempt this side abandoned may still reach the log after that
  read and before the next epoch does. It is given up, because renumbering could duplicate it.
* A leader that hung and wakes answers by what it knew before. So it does not decide whether a name was taken: it says
  only that the epoch is stale, and a coordinator is asked, by an abort or by the next epoch (KIP-588).

`next_step` is these rules as one function:

    in flight, no failure                  → SEND, while there is room
    in flight, with a failure              → WAIT for the remaining answers
    hole, something in doubt               → LOOK_BACK   (the caller reads the log, then calls `looked_back`)
    hole, nothing in doubt                 → BUMP        (the caller fails the batches of `take_late`, gets the next
                                                          identity, then calls `renumber`)
    in doubt, shortly before the timeout   → LOOK_BACK
    something to resend                    → RESEND, one at a time, after the backoff
    nothing to resend                      → SEND

Without idempotence there are no stamps, one batch is in flight, and in-doubt batches are resent: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fencepost.core.producers import sequence
from fencepost.core.producers.pid import FENCING, Identity
from fencepost.errors import ErrorCode, Persisted
from fencepost.types import NO_EPOCH, NO_PID, NO_SEQUENCE, Epoch, Offset, Pid, Sequence

KAFKA_LIMIT: Final = 5
"""Batches in flight per partition on Kafka, which recognises only a producer's last five."""

PROOF_LASTS: Final = 900.0
"""Seconds for which a server certainly remembers an idle pid. Kafka's default is a day, but configurable."""

FIRST: Final = Sequence(0)

MAY_BE_PERSISTED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Errors that a server may return after the append."""

LOST_TRACK: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The batch does not follow the server's H(P)."""

TRANSACTION_OVER: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""The leader, or the coordinator that it asked, knows of no open transaction that includes the batch."""

BatchT = TypeVar("BatchT")


class WrittenAs(Enum):
    """The party that can tell whether another producer has taken over."""

    BARE = "bare"
    """Under a pid without a name: only the partition's leader."""
    NAMED = "named"
    """Under a name, outside of transactions: the name's coordinator, when the next epoch is requested."""
    IN_TRANSACTION = "in a transaction"
    """The coordinator, when the transaction is aborted."""


class Stamp(NamedTuple):
    pid: Pid
    epoch: Epoch
    sequence: Sequence


NO_STAMP: Final = Stamp(NO_PID, NO_EPOCH, NO_SEQUENCE)


class Step(Enum):
    SEND = "send"
    """Send a new batch."""
    RESEND = "resend"
    """Resend the oldest batch."""
    WAIT = "wait"
    """Wait for an answer or the end of the backoff."""
    LOOK_BACK = "look back"
    """Read the log to find out which in-doubt batches are there."""
    BUMP = "bump"
    """Renumber the remaining batches under another epoch."""


class SendVerdict(Enum):
    """The consequence of a server error for the batch."""

    RETRY = "retry"
    """It stays, and will be resent."""
    PERSISTED = "persisted"
    """It is in the log, at an unknown offset."""
    FENCED = "fenced"
    """Another producer took over: the server accepts nothing from this one."""
    ABORT = "abort"
    """Its transaction cannot be committed. The abort tells whether another producer took over."""
    GIVE_UP = "give up"
    """A retry would not help; the caller fails the batch (`give_up`) or splits it (`split`)."""


@dataclass(slots=True, eq=False)
class Sent(Generic[BatchT]):
    batch: BatchT
    count: int
    stamp: Stamp
    in_flight: bool = True
    in_doubt: bool = False
    attempts: int = 1
    may_still_arrive: bool = False
    """This side abandoned an attempt: it may still reach the log, whatever the log contains now."""
    looked_after: int = 0
    """The attempt after which the log was last read for it."""
    follows: Offset | None = None
    """The last acknowledged offset when it was first sent; in the log it can only come after that."""

    @property
    def persisted(self) -> Persisted:
        """Return what is known about an unacknowledged batch."""
        return "unknown" if self.in_doubt or self.in_flight or self.may_still_arrive else "no"


_NOTHING: Final[Any] = ()
"""Stands in for a list that is empty, and cannot be changed by mistake. Most flights are idle (PROD-11)."""

_LONG_AGO: Final = float("-inf")


class Flight(Generic[BatchT]):
    __slots__ = (
        "_hole",
        "_idempotent",
        "_in_flight",
        "_last_proof",
        "_not_before",
        "_proven",
        "_sent",
        "_wants_look_back",
        "identity",
        "last_acknowledged",
        "limit",
        "next_sequence",
        "retries",
    )

    def __init__(self, *, idempotent: bool = True, limit: int = KAFKA_LIMIT) -> None:
        self._idempotent = idempotent
        self.limit = limit if idempotent else 1
        self.identity: Identity | None = None
        self.next_sequence = FIRST
        self.last_acknowledged: Offset | None = None
        """Offset of the last record known to be in the log."""
        self._sent: list[Sent[BatchT]] = _NOTHING
        self._in_flight = 0
        self._proven = False  # the server has acknowledged this identity here, so it knows H(P)
        self._last_proof = _LONG_AGO
        self._hole = False
        self._wants_look_back = False
        self.retries = 0
        """Batches resent so far."""
        self._not_before = _LONG_AGO

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent[BatchT]]:
        return iter(self._sent)

    @property
    def head(self) -> Sent[BatchT] | None:
        return self._sent[0] if self._sent else None

    @property
    def look_back_from(self) -> Offset | None:
        """Return the offset from which to read for in-doubt batches; None: from the start of the log.

        That is not the last acknowledged offset: a later batch may be acknowledged while an earlier one is in doubt.
        """
        return self._sent[0].follows if self._sent else self.last_acknowledged

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_at_rest(self) -> bool:
        """Return whether nothing is unsettled, and nothing has to be done before the next batch."""
        return not self._sent and not self._hole

    @property
    def not_before(self) -> float:
        """Return the end of the backoff."""
        return self._not_before

    # --- what to do ---

    def next_step(self, now: float) -> Step:
        if self._in_flight:
            if self._hole or self._in_flight < len(self._sent):
                return Step.WAIT
            return Step.SEND if len(self._sent) < (self.limit if self._proven else 1) else Step.WAIT
        if self._hole:
            if any(sent.in_doubt for sent in self._sent):
                return Step.WAIT if now < self._not_before else Step.LOOK_BACK
            return Step.BUMP
        if self._wants_look_back and any(sent.in_doubt for sent in self._sent):
            return Step.LOOK_BACK
        if now < self._not_before:
            return Step.WAIT
        if self._proven and now - self._last_proof > PROOF_LASTS:
            self._proven = False
        return Step.RESEND if self._sent else Step.SEND

    def begin(self, identity: Identity, next_sequence: Sequence = FIRST) -> None:
        """Set the identity for new batches; resumed ids also bring their next sequence."""
        assert not self._sent
        self.identity = identity
        self.next_sequence = next_sequence
        self._proven = not self._idempotent
        self._hole = False

    def send(self, batch: BatchT, count: int) -> Sent[BatchT]:
        """Stamp a new batch for sending; only after `next_step` returned SEND."""
        if self.identity is None:
            assert not self._idempotent
            stamp = NO_STAMP
        else:
            stamp = Stamp(*self.identity, self.next_sequence)
            self.next_sequence = sequence.advance(self.next_sequence, count)
        sent = Sent(batch, count, stamp, follows=self.last_acknowledged)
        if self._sent:
            self._sent.append(sent)
        else:
            self._sent = [sent]
        self._in_flight += 1
        return sent

    def resend(self) -> Sent[BatchT]:
        """Return the oldest batch for a retry with its old stamp; only after `next_step` returned RESEND."""
        sent = self._sent[0]
        assert not sent.in_flight
        sent.in_flight = True
        sent.attempts += 1
        self.retries += 1
        self._in_flight += 1
        return sent

    # --- what became of it ---

    def acknowledged(self, sent: Sent[BatchT], base_offset: Offset | None, now: float) -> None:
        """Settle a batch that is in the log; its offset is None if the server does not remember it."""
        self._answered(sent)
        self._remove(sent)
        self._note(sent, base_offset)
        self._proven = True
        self._last_proof = now

    def refused(
        self,
        sent: Sent[BatchT],
        code: ErrorCode,
        now: float,
        backoff: float,
        written: WrittenAs = WrittenAs.BARE,
        *,
        appended: bool = False,
    ) -> SendVerdict:
        """Handle an error of the server. RETRY is arranged here; the caller acts on the other verdicts.

        `appended`: the error names an offset, so it came after the append. A leader of Apache Kafka that loses its
        leadership while it waits for its followers answers NOT_LEADER_OR_FOLLOWER so, and its successor may have the
        batch."""
        earlier_unsettled = self._sent[0] is not sent
        self._answered(sent)
        if appended or code in MAY_BE_PERSISTED:
            sent.in_doubt = True
        if code in LOST_TRACK and self._idempotent:
            # With an earlier batch unsettled, or a hole before it, this is the expected end of a pipeline (IDEM-6).
            # Otherwise the server has lost, truncated or already passed the sequence before this batch.
            if not earlier_unsettled:
                self._hole = True
            return SendVerdict.RETRY
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._idempotent:
            return SendVerdict.PERSISTED
        if written is WrittenAs.IN_TRANSACTION and code in FENCING | TRANSACTION_OVER:
            return SendVerdict.ABORT
        if code in FENCING:
            if written is WrittenAs.BARE:
                return SendVerdict.FENCED
            self._hole = True  # the next epoch is requested: the coordinator gives it, or knows of a successor
            return SendVerdict.RETRY
        if code.retriable or (written is WrittenAs.NAMED and code in TRANSACTION_OVER):
            # Outside of transactions: the marker that ends the previous one has not reached this partition yet.
            self._not_before = max(self._not_before, now + backoff)
            return SendVerdict.RETRY
        return SendVerdict.GIVE_UP

    def lost(self, sent: Sent[BatchT], now: float, backoff: float, *, overdue: bool = False) -> None:
        """Mark a batch as in doubt: its connection ended, or its answer did not come in time (`overdue`)."""
        self._answered(sent)
        sent.in_doubt = True
        sent.may_still_arrive |= overdue
        self._not_before = max(self._not_before, now + backoff)

    def never_left(self, sent: Sent[BatchT]) -> None:
        """Note that no byte of the request was written, so this attempt leaves no doubt."""
        self._answered(sent)

    def give_up(self, sent: Sent[BatchT]) -> Persisted:
        """Remove a failed batch and return what is known of it. From here on the numbering has a hole, and the flight
        no longer expects an answer to this batch."""
        persisted = sent.persisted
        self._answered(sent)
        self._remove(sent)
        self._wants_look_back = False
        if self._idempotent:
            self._hole = True
        return persisted

    def give_up_all(self) -> list[Sent[BatchT]]:
        """Remove and return all batches, in order: the producer is fenced or closed."""
        left = list(self._sent)
        self._sent = _NOTHING
        self._in_flight = 0
        return left

    def wants_look_back(self, sent: Sent[BatchT]) -> None:
        """Ask for a look into the log for an in-doubt batch that will soon time out. Once per attempt, because an
        unreadable log must not prevent retries."""
        if self._idempotent and sent.in_doubt and not sent.in_flight and sent.looked_after < sent.attempts:
            self._wants_look_back = True

    def in_doubt(self) -> list[Sent[BatchT]]:
        """Return the batches that a read of the log starting now can decide."""
        return [sent for sent in self._sent if sent.in_doubt and not sent.in_flight]

    def looked_back(
        self, found: Mapping[Stamp, Offset], asked: list[Sent[BatchT]]
    ) -> list[tuple[Sent[BatchT], Offset]]:
        """Settle and return the batches that were found in the log. The other `asked` ones are known not to be there;
        the read says nothing about batches that came into doubt after it began."""
        settled = []
        self._looked(asked)
        for sent in list(self._sent):
            if sent.in_flight:
                continue
            offset = found.get(sent.stamp)
            if offset is not None:
                self._remove(sent)
                self._note(sent, offset)
                settled.append((sent, offset))
            if sent in asked:
                sent.in_doubt = False
        return settled

    def look_back_failed(self, asked: list[Sent[BatchT]], now: float, backoff: float) -> None:
        self._looked(asked)
        self._not_before = max(self._not_before, now + backoff)

    def _looked(self, asked: list[Sent[BatchT]]) -> None:
        self._wants_look_back = False
        for sent in asked:
            sent.looked_after = sent.attempts

    def take_late(self) -> list[Sent[BatchT]]:
        """Remove and return the batches that an abandoned request may still append. The caller fails them, because
        renumbering could duplicate them."""
        late = [sent for sent in self._sent if sent.may_still_arrive]
        for sent in late:
            self._remove(sent)
        return late

    def renumber(self, identity: Identity) -> None:
        """Renumber the remaining batches from 0 under another identity; only after `next_step` returned BUMP."""
        assert not self._in_flight
        assert not any(sent.in_doubt or sent.may_still_arrive for sent in self._sent)
        assert identity != self.identity
        self.identity = identity
        self.next_sequence = FIRST
        self._proven = False
        self._hole = self._wants_look_back = False
        for sent in self._sent:
            sent.stamp = Stamp(*identity, self.next_sequence)
            self.next_sequence = sequence.advance(self.next_sequence, sent.count)

    def start_over(self, before: list[tuple[BatchT, int]]) -> list[BatchT]:
        """Queue everything for resending under the next identity, because its transaction was aborted: the batches
        acknowledged `before`, then the unsettled ones. Return the batches whose bytes may still be in flight."""
        on_their_way = [sent.batch for sent in self._sent if sent.in_flight]
        everything = [*before, *((sent.batch, sent.count) for sent in self._sent)]
        # Drop the old stamps: the log or a late answer about them no longer matters.
        self._sent = [
            Sent(batch, count, NO_STAMP, in_flight=False, attempts=0, follows=self.last_acknowledged)
            for batch, count in everything
        ]
        self._in_flight = 0
        self._hole, self._wants_look_back = True, False
        return on_their_way

    def split(self, sent: Sent[BatchT], parts: list[tuple[BatchT, int]]) -> None:
        """Replace a batch that was too large, and is not persisted, by its parts, which take over its sequences."""
        assert not sent.in_doubt
        assert sum(count for _, count in parts) == sent.count
        at = self._sent.index(sent)
        del self._sent[at]
        stamp = sent.stamp
        for batch, count in parts:
            self._sent.insert(at, Sent(batch, count, stamp, in_flight=False, attempts=0, follows=sent.follows))
            at += 1
            if stamp is not NO_STAMP:
                stamp = stamp._replace(sequence=sequence.advance(stamp.sequence, count))

    def _remove(self, sent: Sent[BatchT]) -> None:
        self._sent.remove(sent)
        if not self._sent:
            self._sent = _NOTHING

    def _answered(self, sent: Sent[BatchT]) -> None:
        if sent.in_flight:
            sent.in_flight = False
            self._in_flight -= 1

    def _note(self, sent: Sent[BatchT], base_offset: Offset | None) -> None:
        if base_offset is not None:
            last = Offset(base_offset + sent.count - 1)
            if self.last_acknowledged is None or last > self.last_acknowledged:
                self.last_acknowledged = last
