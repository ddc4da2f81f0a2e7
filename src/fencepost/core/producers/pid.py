"""The client's side of a pid: how it is asked for, bumped and lost.

A `ProducerIdentity` is one producer's: which (pid, epoch) a partition that starts now begins with, and whether the
server must be asked. It holds no partition's state: every partition keeps the (pid, epoch) it was stamped with until it
has to change (`core/producers/inflight.py`), so that a bump for one partition never touches another's batch in flight.

    NONE ──ask──▶ ASKING ──given──▶ READY ──exhausted──▶ NONE
                    │ refused, retriable: back to NONE, not before a moment
                    │ refused for good: FINISHED, with the reason

A producer without a name bumps by itself: the server compares epochs per partition and a bare pid is nobody else's, so
the next epoch of a partition needs no question. A name's epoch belongs to the coordinator: there only the server bumps.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Pid

LAST_EPOCH: Final = Epoch(2**15 - 2)
"""The highest a client may use; Kafka keeps 2**15 − 1 for fencing what is exhausted."""

FENCING: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""What the server answers to an epoch that a newer one has replaced."""

NAME_TAKEN: Final = FENCING | {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
"""What a coordinator answers to a producer whose name another one, or another pid, has by now."""


class Identity(NamedTuple):
    pid: Pid
    epoch: Epoch


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
        """When to ask, if nobody has yet."""
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
        """Asking again is harmless: without a name it gives yet another pid, with one yet another epoch."""
        assert self.state is PidState.ASKING, self.state
        self.state = PidState.NONE
        self._not_before = now + backoff

    def renew(self) -> None:
        """The current one will not do any longer: ask for the next, naming the current one."""
        if self.state is PidState.READY:
            self.state = PidState.NONE

    def refused(self, code: ErrorCode, now: float, backoff: float) -> None:
        if code.retriable:
            self.answer_lost(now, backoff)
        else:
            self.finished(code)

    def finished(self, code: ErrorCode) -> None:
        """No more is to be had: fenced, or not allowed."""
        self.state = PidState.FINISHED
        self.current = None
        self.reason = code

    def successor(self, of: Identity) -> Identity | None:
        """What a partition that was stamped `of` continues with after a bump; None: ask the server first."""
        if self.state is PidState.FINISHED:
            return None
        if not self.named and of.epoch < LAST_EPOCH:
            return Identity(of.pid, Epoch(of.epoch + 1))
        current = self.current
        if current is not None and (current.pid != of.pid or current.epoch > of.epoch):
            return current  # another partition has already asked
        if self.state is PidState.READY:
            self.state = PidState.NONE
        return None
