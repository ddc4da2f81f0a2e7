"""A transaction as the caller's thread sees it: everything that was sent in the block appears, or nothing does.

    enter    what was sent before is settled, and the name is fenced: whoever had it before writes no more
    in it    partitions are added by the send thread, each before its first batch; offsets by the caller's
    commit   nothing more is accepted; everything settled; EndTxn
    abort    what is queued is dropped; EndTxn, and the name's next epoch, which refuses whatever of it is still on its
             way

A commit whose answer never came raises, and what became of it is for readers to see.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from fencepost.client.produce.sender import Sender
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata, Steps
from fencepost.core.producers.pid import NAME_TAKEN, Identity
from fencepost.errors import Closed, Fenced, FencepostError, SendFailed, TimedOut
from fencepost.types import Offset, TopicPartition

log = logging.getLogger("fencepost.producer")


class Transaction:
    """Made by `Producer.transaction()`; for one thread, while others may go on to send into it."""

    def __init__(self, sender: Sender, steps: Steps, patience: float) -> None:
        self._sender = sender
        self._steps = steps
        self._patience = patience
        self._who: Identity | None = None
        self._doubts = 0
        """Of the steps, when it was begun."""

    @property
    def is_open(self) -> bool:
        return self._who is not None

    def __enter__(self) -> Self:
        if self._who is not None:
            raise FencepostError("the transaction is open already")
        sender = self._sender
        begun: list[Identity | None] = []
        try:
            while not begun or begun[-1] is None:
                sender.queues.wait_until_settled(None)
                wait_for_identity(sender, self._patience)
                sender.errands.call(lambda: begun.append(sender.enlisting.begin()))
        except Exception:
            raise
        except BaseException:  # Ctrl-C, perhaps when it has begun already
            with suppress(FencepostError):
                sender.errands.call(lambda: sender.enlisting.drop() if begun and begun[-1] is not None else None)
            raise
        self._who, self._doubts = begun[-1], self._steps.doubts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        elif self._who is not None:
            self.abort()

    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Offset], member: ConsumerGroupMetadata = NO_MEMBER
    ) -> None:
        """The group's offsets become these if, and only if, the transaction commits."""
        who = self._the_open_one()
        self._sender.errands.call(self._note_begun)
        try:
            self._steps.add_offsets(who, group, offsets, member)
        except FencepostError as error:
            if error.code in NAME_TAKEN:
                raise self._fenced(error) from error
            raise

    def commit(self) -> None:
        who, sender = self._the_open_one(), self._sender
        sender.queues.pause(FencepostError("the transaction is being committed"))
        sender.queues.wait_until_settled(None)
        transaction = sender.standing.transaction
        assert transaction is not None
        failed = sender.queues.broken or transaction.error
        if failed is not None:
            self.abort()
            raise failed
        try:
            if transaction.is_begun:
                self._steps.end(who, commit=True)
        except FencepostError as error:
            if error.code in NAME_TAKEN:
                raise self._fenced(error) from error
            self.abort()
            kind = Fenced if isinstance(sender.queues.broken, Fenced) else SendFailed
            raise kind(
                f"it is not known whether the transaction was committed: {error}", persisted="unknown", code=error.code
            ) from error
        self._who = None
        sender.errands.call(lambda: sender.enlisting.end(repeated=self._steps.doubts != self._doubts))

    def abort(self) -> None:
        """Also where the server cannot be reached: then it aborts by itself, after `transaction_timeout`."""
        self._the_open_one()
        self._who = None
        sender = self._sender
        sender.errands.call(sender.enlisting.drop)
        if not sender.standing.is_settled.wait(self._patience):
            log.warning("the coordinator does not answer; an open transaction will end by its timeout")

    def _the_open_one(self) -> Identity:
        if self._who is None:
            raise FencepostError("there is no open transaction")
        return self._who

    def _note_begun(self) -> None:
        if self._sender.standing.transaction is not None:
            self._sender.standing.transaction.is_begun = True

    def _fenced(self, error: FencepostError) -> FencepostError:
        sender = self._sender
        self._who = None
        sender.errands.call(lambda: sender.settling.fence(error.code))
        sender.errands.call(sender.enlisting.drop)
        return sender.queues.broken or Fenced(str(error), persisted="unknown", code=error.code)


def wait_for_identity(sender: Sender, patience: float, *, while_closing: bool = False) -> Identity:
    """The name's pid and epoch: from here on whoever had the name before is fenced."""
    deadline = time.monotonic() + patience
    while True:
        if not sender.standing.is_settled.wait(max(0.0, deadline - time.monotonic())):
            last = sender.brokers.last_error
            raise TimedOut(f"no pid for the producer's name within {patience:g} s" + (f": {last}" if last else ""))
        if (broken := sender.queues.broken) is not None and not (while_closing and isinstance(broken, Closed)):
            raise broken
        # Asked of the send thread: from here one might see it half changed, or while the next one is being asked for.
        if (who := sender.errands.call(lambda: sender.standing.who)) is not None:
            return who
