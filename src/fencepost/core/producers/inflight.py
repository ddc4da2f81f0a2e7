"""Order, retry and doubt of the batches of one partition, as the client sees them (IDEM-5, IDEM-6).

A `Flight` holds the batches of one partition that were sent and are not settled, oldest first. It decides what may be
sent next and what an answer means; sending, time and settling are the caller's. The rules:

* A batch is stamped (pid, epoch, base sequence) when it is first sent, and sent again with the very same stamp.
* The first batch under a stamp's (pid, epoch) goes alone, since a server that knows nothing of the pid takes any
  sequence. Once one is acknowledged, up to `limit` are in flight. After a long idle time the server may have
  forgotten the pid, so the next one goes alone again.
* When one fails, nothing new is sent. The answers to the later ones are awaited (the server refuses them as out of
  order), then all of them are sent again in order, one at a time: M1 M2 M3 never becomes M1 M3 M2.
* A batch whose answer was lost is *in doubt*: perhaps persisted. It stays in doubt, whatever a later attempt is refused
  with, until an acknowledgement or a look into the log says what is there. When its time is nearly over the log is
  asked, once per attempt and without a change of numbers: what is not there is sent again as it is.
* A batch whose time is over is given up at that moment, also while it is in flight; then it is persisted or not, and
  nobody knows.
* When a batch is given up, or the server's H(P) is not what it should be, the numbering has a hole. The rest then gets
  new numbers from 0 under the next epoch, which shuts out whatever of the old epoch is still on its way. Nothing gets
  new numbers while a batch is in doubt: the log is read back first. And a batch that this side no longer waited for may
  reach the log after that reading, and before the next epoch does: it is given up, since it might be there twice.

`next_step` is these rules as one function:

    in flight, all well                    → SEND, while there is room
    in flight, something failed            → WAIT for the remaining answers
    hole, something in doubt               → LOOK_BACK   (the caller reads the log, then calls `looked_back`)
    hole, nothing in doubt                 → BUMP        (the caller takes out what may be late, fetches a successor,
                                                          then calls `renumber`)
    in doubt, and its time nearly over     → LOOK_BACK
    something to send again                → RESEND, one at a time, not before the backoff is over
    nothing to send again                  → SEND

Without idempotence there are no stamps, one batch is in flight, and doubt ends in sending again: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from fencepost.core import sequence
from fencepost.core.producers.pid import FENCING, Identity
from fencepost.errors import ErrorCode, Persisted
from fencepost.types import NO_EPOCH, NO_PID, NO_SEQUENCE, Epoch, Offset, Pid, Sequence

KAFKA_LIMIT: Final = 5
"""Batches in flight per partition on Kafka, which knows only a producer's last five again."""

PROOF_LASTS: Final = 900.0
"""Seconds for which a server surely remembers an idle pid. Kafka's default is a day, but it can be configured."""

FIRST: Final = Sequence(0)

MAY_BE_PERSISTED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Errors that are answered after the append."""

LOST_TRACK: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The server's H(P) is not what this batch follows."""

BatchT = TypeVar("BatchT")


class Stamp(NamedTuple):
    pid: Pid
    epoch: Epoch
    sequence: Sequence


NO_STAMP: Final = Stamp(NO_PID, NO_EPOCH, NO_SEQUENCE)


class Step(Enum):
    SEND = "send"
    """A new batch may go."""
    RESEND = "resend"
    """The oldest goes again."""
    WAIT = "wait"
    """For an answer, or for the backoff to pass."""
    LOOK_BACK = "look back"
    """The log must say which of those in doubt are there."""
    BUMP = "bump"
    """The rest needs new numbers under another epoch."""


class Verdict(Enum):
    """What a refusal means for the batch."""

    RETRY = "retry"
    """It stays, and will be sent again."""
    PERSISTED = "persisted"
    """It is in the log, at an offset the server does not remember."""
    FENCED = "fenced"
    """Another one took over: nothing of this producer will be accepted."""
    GIVE_UP = "give up"
    """No repetition cures it; the caller fails it (`give_up`) or splits it (`split`)."""


@dataclass(slots=True, eq=False)
class Sent(Generic[BatchT]):
    batch: BatchT
    count: int
    stamp: Stamp
    in_flight: bool = True
    in_doubt: bool = False
    attempts: int = 1
    may_still_arrive: bool = False
    """An attempt was given up by this side: the server may still have it before it, whatever its log says now."""
    looked_after: int = 0
    """The attempt after which the log was last asked for it."""
    follows: Offset | None = None
    """The last acknowledged offset when it was first sent: if it is in the log, it is behind that."""

    @property
    def persisted(self) -> Persisted:
        """As far as is known while it is not acknowledged."""
        return "unknown" if self.in_doubt or self.in_flight or self.may_still_arrive else "no"


class Flight(Generic[BatchT]):
    def __init__(self, *, idempotent: bool = True, limit: int = KAFKA_LIMIT) -> None:
        self._idempotent = idempotent
        self.limit = limit if idempotent else 1
        self.identity: Identity | None = None
        self.next_sequence = FIRST
        self.last_acknowledged: Offset | None = None
        """Offset of the last record known to be in the log."""
        self._sent: list[Sent[BatchT]] = []  # a deque takes 700 bytes when empty, and most flights are (PROD-11)
        self._in_flight = 0
        self._proven = False  # the server has acknowledged this identity here, so it knows its H(P)
        self._last_proof = float("-inf")
        self._hole = False
        self._wants_look_back = False
        self.retries = 0
        """Batches that were sent again."""
        self._not_before = float("-inf")

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent[BatchT]]:
        return iter(self._sent)

    @property
    def head(self) -> Sent[BatchT] | None:
        return self._sent[0] if self._sent else None

    @property
    def look_back_from(self) -> Offset | None:
        """Where to begin to read for what is in doubt; None: from the beginning of the log.

        Not the last acknowledged offset: a later batch may be acknowledged while an earlier one is in doubt.
        """
        return self._sent[0].follows if self._sent else self.last_acknowledged

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def not_before(self) -> float:
        """When the backoff is over."""
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
        """The pid that batches are stamped with from now on; resumed ids bring their next sequence with them."""
        assert not self._sent
        self.identity = identity
        self.next_sequence = next_sequence
        self._proven = not self._idempotent
        self._hole = False

    def send(self, batch: BatchT, count: int) -> Sent[BatchT]:
        """A new batch goes; only when `next_step` said SEND."""
        if self.identity is None:
            assert not self._idempotent
            stamp = NO_STAMP
        else:
            stamp = Stamp(*self.identity, self.next_sequence)
            self.next_sequence = sequence.advance(self.next_sequence, count)
        sent = Sent(batch, count, stamp, follows=self.last_acknowledged)
        self._sent.append(sent)
        self._in_flight += 1
        return sent

    def resend(self) -> Sent[BatchT]:
        """The oldest goes again, with its old stamp; only when `next_step` said RESEND."""
        sent = self._sent[0]
        assert not sent.in_flight
        sent.in_flight = True
        sent.attempts += 1
        self.retries += 1
        self._in_flight += 1
        return sent

    # --- what became of it ---

    def acknowledged(self, sent: Sent[BatchT], base_offset: Offset | None, now: float) -> None:
        """It is in the log (at an offset that is None if nobody remembers it)."""
        self._answered(sent)
        self._sent.remove(sent)
        self._note(sent, base_offset)
        self._proven = True
        self._last_proof = now

    def refused(self, sent: Sent[BatchT], code: ErrorCode, now: float, backoff: float) -> Verdict:
        """The server answered with an error. RETRY is arranged here; the other verdicts are the caller's to act on."""
        earlier_unsettled = self._sent[0] is not sent
        self._answered(sent)
        if code in MAY_BE_PERSISTED:
            sent.in_doubt = True
        if code in LOST_TRACK and self._idempotent:
            # With an earlier one unsettled, or a hole before it, this is the expected end of a pipelined run (IDEM-6).
            # Otherwise the server has lost, or truncated, or already passed what this batch follows.
            if not earlier_unsettled:
                self._hole = True
            return Verdict.RETRY
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._idempotent:
            return Verdict.PERSISTED
        if code in FENCING:
            return Verdict.FENCED
        if code.retriable:
            self._not_before = max(self._not_before, now + backoff)
            return Verdict.RETRY
        return Verdict.GIVE_UP

    def lost(self, sent: Sent[BatchT], now: float, backoff: float, *, overdue: bool = False) -> None:
        """The connection ended, or the answer did not come (`overdue`): in doubt."""
        self._answered(sent)
        sent.in_doubt = True
        sent.may_still_arrive |= overdue
        self._not_before = max(self._not_before, now + backoff)

    def never_left(self, sent: Sent[BatchT]) -> None:
        """Not a byte of the request was written: no doubt about this attempt."""
        self._answered(sent)

    def give_up(self, sent: Sent[BatchT]) -> Persisted:
        """This batch is failed; says what is known of it. The numbering has a hole from here on. An answer to it that
        still comes is not for this flight any more."""
        persisted = sent.persisted
        self._answered(sent)
        self._sent.remove(sent)
        self._wants_look_back = False
        if self._idempotent:
            self._hole = True
        return persisted

    def give_up_all(self) -> list[Sent[BatchT]]:
        """Fenced, or closed for good: everything that is left, in order."""
        left = list(self._sent)
        self._sent.clear()
        self._in_flight = 0
        return left

    def wants_look_back(self, sent: Sent[BatchT]) -> None:
        """Its time is nearly over: if it is in doubt, find out before it is failed. Once per attempt, because a log
        that cannot be read must not keep it from being sent again."""
        if self._idempotent and sent.in_doubt and not sent.in_flight and sent.looked_after < sent.attempts:
            self._wants_look_back = True

    def in_doubt(self) -> list[Sent[BatchT]]:
        """What a look into the log that begins now can answer for."""
        return [sent for sent in self._sent if sent.in_doubt and not sent.in_flight]

    def looked_back(
        self, found: Mapping[Stamp, Offset], asked: list[Sent[BatchT]]
    ) -> list[tuple[Sent[BatchT], Offset]]:
        """What the log holds: that is acknowledged by it. The others that were `asked` for are known not to be there;
        of what came into doubt after the reading had begun, it says nothing."""
        settled = []
        self._looked(asked)
        for sent in list(self._sent):
            if sent.in_flight:
                continue
            offset = found.get(sent.stamp)
            if offset is not None:
                self._sent.remove(sent)
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
        """What cannot get new numbers, and is failed by the caller: nobody knows whether it will be there."""
        late = [sent for sent in self._sent if sent.may_still_arrive]
        for sent in late:
            self._sent.remove(sent)
        return late

    def renumber(self, identity: Identity) -> None:
        """New numbers from 0 for what is left, under another (pid, epoch); only when `next_step` said BUMP."""
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
        """The transaction that everything unsettled is in is aborted, and with it what was acknowledged `before`: all
        of it is to be sent again, in order, under the next identity. Says whose bytes may still be on their way."""
        on_their_way = [sent.batch for sent in self._sent if sent.in_flight]
        everything = [*before, *((sent.batch, sent.count) for sent in self._sent)]
        # Without the old stamps: what the log or a late answer says about those is no longer of interest.
        self._sent = [
            Sent(batch, count, NO_STAMP, in_flight=False, attempts=0, follows=self.last_acknowledged)
            for batch, count in everything
        ]
        self._in_flight = 0
        self._hole, self._wants_look_back = True, False
        return on_their_way

    def split(self, sent: Sent[BatchT], parts: list[tuple[BatchT, int]]) -> None:
        """The batch was too large and is certainly not persisted: its parts take its place and its sequences."""
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

    def _answered(self, sent: Sent[BatchT]) -> None:
        if sent.in_flight:
            sent.in_flight = False
            self._in_flight -= 1

    def _note(self, sent: Sent[BatchT], base_offset: Offset | None) -> None:
        if base_offset is not None:
            last = Offset(base_offset + sent.count - 1)
            if self.last_acknowledged is None or last > self.last_acknowledged:
                self.last_acknowledged = last
