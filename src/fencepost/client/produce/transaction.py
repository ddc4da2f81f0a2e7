"""A transaction as the caller's thread sees it: all records sent in its block become visible, or none.

    enter    wait until earlier records are settled and the name is fenced: no other producer of that name writes
    in it    the send thread adds each partition before its first batch; the caller's thread adds offsets
    commit   accept no more records, wait until all are settled, EndTxn
    abort    drop what is queued, EndTxn, and bump the epoch, which rejects delayed writes; both tell whether another
             producer has taken the name

A commit whose answer never came raises: only readers can see whether it took effect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from fencepost.client.produce.sender import Sender
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata, Steps
from fencepost.core.producers.pid import NAME_TAKEN, Identity
from fencepost.errors import Fenced, FencepostError, Persisted, SendFailed
from fencepost.types import TopicPartition

log = logging.getLogger("fencepost.producer")


class ProducerTransaction:
    """The result of `Producer.transaction()`. One thread begins and ends it; others may send into it."""

    def __init__(self, sender: Sender, steps: Steps, patience: float) -> None:
        self._sender = sender
        self._steps = steps
        self._patience = patience
        self._who: Identity | None = None
        self._doubts = 0
        """`steps.doubts` when it was begun."""

    @property
    def is_open(self) -> bool:
        return self._who is not None

    def __enter__(self) -> Self:
        if self._who is not None:
            raise FencepostError("the transaction is open already")
        sender = self._sender
        sender.check_process("the transaction")
        begun: list[Identity | None] = []
        try:
            while not begun or begun[-1] is None:
                sender.queues.wait_until_settled(None)
                sender.wait_for_identity(self._patience)
                sender.call(lambda: begun.append(sender.transactions.begin()))
        except Exception:
            raise
        except BaseException:  # Ctrl-C, perhaps after it has begun
            with suppress(FencepostError):
                sender.call(lambda: sender.transactions.drop() if begun and begun[-1] is not None else None)
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
            if isinstance(error, FencepostError) and (fenced := self._sender.fenced) is not None:
                raise fenced.fresh() from error  # the abort told that another producer has taken over

    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], member: ConsumerGroupMetadata = NO_MEMBER
    ) -> None:
        """Commit the group's offsets if, and only if, the transaction commits."""
        who = self._the_open_one()
        self._sender.call(self._note_begun)
        try:
            self._steps.add_offsets(who, group, offsets, member)
        except FencepostError as error:
            if error.code in NAME_TAKEN:
                raise self._fenced(error, "no") from error
            raise

    def commit(self) -> None:
        who, sender = self._the_open_one(), self._sender
        sender.queues.pause(FencepostError("the transaction is being committed"))
        sender.queues.wait_until_settled(None)
        transaction = sender.open_transaction
        assert transaction is not None
        failed = sender.broken or transaction.error
        if failed is not None:
            self.abort()
            raise (sender.fenced or failed).fresh()
        doubts = self._steps.doubts
        try:
            if transaction.is_begun:
                self._steps.end(who, commit=True)
        except FencepostError as error:
            if error.code in NAME_TAKEN:
                # Only a commit whose answer was lost may have taken effect.
                raise self._fenced(error, "no" if self._steps.doubts == doubts else "unknown") from error
            self.abort()
            kind = Fenced if isinstance(sender.broken, Fenced) else SendFailed
            raise kind(
                f"it is not known whether the transaction was committed: {error}", persisted="unknown", code=error.code
            ) from error
        self._who = None
        sender.call(lambda: sender.transactions.end(repeated=self._steps.doubts != self._doubts))

    def abort(self) -> None:
        """Abort the transaction. If the coordinator cannot be reached, it aborts by itself after
        `transaction_timeout`."""
        self._the_open_one()
        self._who = None
        self._sender.call(self._sender.transactions.drop)
        if not self._sender.wait_for_epoch(self._patience):
            log.warning("the coordinator does not answer; an open transaction will end by its timeout")

    def _the_open_one(self) -> Identity:
        self._sender.check_process("the transaction")
        if self._who is None:
            raise FencepostError("there is no open transaction")
        return self._who

    def _note_begun(self) -> None:
        if (transaction := self._sender.open_transaction) is not None:
            transaction.is_begun = True

    def _fenced(self, error: FencepostError, persisted: Persisted) -> FencepostError:
        """`persisted`: of the whole transaction."""
        sender = self._sender
        self._who = None
        sender.call(lambda: sender.settling.fence(error.code))
        sender.call(sender.transactions.drop)
        why = sender.broken.message if isinstance(sender.broken, Fenced) else str(error)
        return Fenced(why, persisted=persisted, code=error.code)
