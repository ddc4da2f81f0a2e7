"""The client's side of a pid: requesting, bumping and losing it.

A `ProducerIdentity` knows the (pid, epoch) that a new partition of its producer starts with, and whether to ask the
server for one. It holds no partition's state: every partition keeps the (pid, epoch) of its batches until it has to
change (`core/producers/inflight.py`), so a bump for one partition never touches another's in-flight batches.

    NONE ──ask──▶ ASKING ──given──▶ READY ──exhausted──▶ NONE
                    │ refused, retriable: back to NONE, until the backoff is over
                    │ refused for good: FINISHED, with the reason

A producer without a name bumps its epoch itself: the server compares epochs per partition, and nobody else uses the
pid. The epoch of a named producer belongs to the coordinator, so only the server bumps it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Pid

LAST_EPOCH: Final = Epoch(2**15 - 2)
"""The highest epoch a client may use; Kafka keeps 2**15 − 1 for fencing the last one."""

FENCING: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""The server's errors for a stale epoch."""

NAME_TAKEN: Final = FENCING | {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
"""A coordinator's errors for a producer whose name another producer or pid has taken."""


class Identity(NamedTuple):
    pid: Pid
    epoch: Epoch


def is_outdated(known: Identity, mine: Identity) -> bool:
    """Return whether a coordinator that knows this identity of a name knows less than the holder of `mine`: it hung,
    and has not heard yet that it was replaced. Whoever takes the name gets a higher epoch or another pid."""
    return known.pid == mine.pid and known.epoch < mine.epoch


class PidState(Enum):
    NONE = "none"
    ASKING = "asking"
    READY = "ready"
    FINISHED = "finished"


class ProducerIdentity:
    def __init__(self, *, named: bool = False) -> None:
        self.named = named
        self.state = PidState.NONE
        self.current: Identity | None = None
        self.reason: ErrorCode | None = None
        """Why it is FINISHED."""
        self._not_before = float("-inf")

    def wants_to_ask(self, now: float) -> bool:
        return self.state is PidState.NONE and now >= self._not_before

    @property
    def ask_at(self) -> float | None:
        """Return the earliest time to ask the server; None if there is nothing to ask."""
        return self._not_before if self.state is PidState.NONE else None

    def asked(self) -> None:
        assert self.state is PidState.NONE, self.state
        self.state = PidState.ASKING

    def given(self, pid: Pid, epoch: Epoch) -> Identity:
        assert self.state is PidState.ASKING, self.state
        self.state = PidState.READY
        self.current = Identity(pid, epoch)
        return self.current

    def answer_lost(self, now: float, backoff: float) -> None:
        """Ask again after the backoff. That is harmless: it gives another pid, or the name's next epoch."""
        assert self.state is PidState.ASKING, self.state
        self.state = PidState.NONE
        self._not_before = now + backoff

    def renew(self) -> None:
        """Ask for the next identity, naming the current one."""
        if self.state is PidState.READY:
            self.state = PidState.NONE

    def refused(self, code: ErrorCode, now: float, backoff: float) -> None:
        if code.retriable:
            self.answer_lost(now, backoff)
        else:
            self.finished(code)

    def finished(self, code: ErrorCode) -> None:
        """Stop for good: the producer is fenced, or not authorised."""
        self.state = PidState.FINISHED
        self.current = None
        self.reason = code

    def successor(self, of: Identity) -> Identity | None:
        """Return the identity that follows `of` after a bump; None: ask the server first."""
        if self.state is PidState.FINISHED:
            return None
        if not self.named and of.epoch < LAST_EPOCH:
            return Identity(of.pid, Epoch(of.epoch + 1))
        current = self.current
        if current is not None and (current.pid != of.pid or current.epoch > of.epoch):
            return current  # another partition has already bumped
        if self.state is PidState.READY:
            self.state = PidState.NONE
        return None
