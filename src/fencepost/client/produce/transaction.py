"""Transactions of a producer.

`OpenTransactions`, on the send thread, adds every partition to its transaction before it is written to: the caller's
transaction, and those in an owner's lanes.

`ProducerTransaction` is the transaction as the caller's thread sees it: all records sent in its block become visible,
or none.

    enter    wait until earlier records are settled and the name is fenced: no other producer of that name writes
    in it    the send thread adds each partition before its first batch; the caller's thread adds offsets
    commit   accept no more records, wait until all are settled, EndTxn
    abort    drop what is queued, EndTxn, and bump the epoch, which rejects delayed writes; both tell whether another
             producer has taken the name

A commit whose answer never came raises: only readers can see whether it took effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fencepost.client.produce.lanes import WriteId, WriteLane, WriteLanes
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata, Steps, Transactional
from fencepost.core.producers.pid import NAME_TAKEN, Identity, PidState, ProducerIdentity
from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import ConfigError, Fenced, FencepostError, Persisted, SendFailed, TimedOut, Unreachable
from fencepost.types import Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.client.produce.resume import Resumption  # few producers save ids
    from fencepost.client.produce.sender import Sender


class OpenTransactions:
    def __init__(self, state: SendState, settling: Settling, resumption: Resumption | None) -> None:
        self._state = state
        self._queues = state.queues
        self._settling = settling
        self._resumption = resumption

    # --- the caller's transaction ---

    def begin(self) -> Identity | None:
        """Begin a transaction and return the identity it is written under. All earlier records must be settled. Return
        None if other threads have sent meanwhile or the next epoch is being requested: try again."""
        state = self._state
        if self._resumption is not None and self._resumption.is_on:
            raise ConfigError(
                "a producer with saved ids has no transactions, because opening a partition bumps the epoch, which "
                "would abort them: use the name alone, Producer(…, name='…'), and do not read its ids"
            )
        if state.transaction is not None:
            raise FencepostError("a transaction is open already: transactions do not nest")
        identity = state.ready_identity
        if identity is None or (state.lanes is not None and not self._queues.is_empty):
            return None
        state.transaction = TransactionPartitions()
        state.is_repeatable = False
        return identity

    def end(self, *, repeated: bool = False) -> None:
        """Leave a transaction that is committed, or empty. `repeated`: a request for it may still be delayed."""
        self._state.transaction = None
        if repeated:  # bump the epoch, so that a delayed request cannot affect the next transaction
            self._state.renew_identity()
        self._queues.resume()

    def drop(self) -> None:
        """Fail the transaction's records. If the coordinator knows the transaction, abort it and bump the epoch."""
        transaction = self._state.transaction
        cause = SendFailed("the transaction was aborted", persisted="no")
        if transaction is not None:
            transaction.fail(cause)
        self._settling.fail_all(cause)
        self._settling.failures.take()
        self._state.transaction = None
        if transaction is not None and transaction.is_begun:
            self._state.renew_identity()
        self._queues.resume()

    def may_write(self, queue: PartitionQueue, is_new: bool, now: float) -> bool:
        """Return whether a batch may be sent to this partition now. A named producer needs its epoch first, and a
        transaction needs the partition to be added, which this requests."""
        state = self._state
        if state.steps is None:
            return True
        lane = state.lane(queue)
        if lane is not None:
            return lane.admits(queue.name, is_new=is_new, now=now)
        if state.identity.state is not PidState.READY or self._settling.is_to_sweep:
            return False
        resumption = self._resumption
        if resumption is not None and resumption.is_on and not resumption.admits(queue.name):
            return False
        return state.transaction is None or state.transaction.admits(queue.name)

    def add_partitions(self, transaction: TransactionPartitions) -> None:
        """Tell the coordinator which partitions to add to the caller's transaction."""
        steps, who = self._state.steps, self._state.identity.current
        assert steps is not None
        if who is None or not (partitions := transaction.to_add()):
            return

        def failed(error: FencepostError) -> None:
            self._settling.doom(transaction, error)

        self._add(steps, who, transaction, partitions, lambda: self._state.transaction is transaction, failed)

    def _add(
        self,
        steps: Steps,
        who: Identity,
        transaction: TransactionPartitions,
        partitions: list[TopicPartition],
        is_open: Callable[[], bool],
        failed: Callable[[FencepostError], None],
    ) -> None:
        def add() -> list[TopicPartition]:
            steps.add_partitions(who, partitions)
            return partitions

        def answered(outcome: list[TopicPartition] | FencepostError) -> None:
            if not is_open():
                return  # aborted meanwhile: our own next epoch has fenced it, which says nothing about other producers
            if isinstance(outcome, list):
                transaction.added(outcome)
            elif outcome.code in NAME_TAKEN:
                self._settling.fence(outcome.code)
            else:
                failed(outcome)

        self._state.thread_calls.run_in_thread(add, answered)

    # --- an owner's lanes ---

    def write_in_lanes(
        self,
        steps: Transactional,
        lanes: Iterable[WriteId],
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> None:
        """From now on send everything in transactions: the caller's under the id of `steps`, the rest in these lanes.
        The identity is to be given next."""
        state = self._state
        state.steps, state.name = steps, steps.name
        state.is_repeatable = False
        state.identity = ProducerIdentity(named=True)
        state.identity.asked()
        timeout_ms = round(state.options.transaction_timeout * 1000)
        state.lanes = WriteLanes(
            [WriteLane(each, timeout_ms, state.thread_calls, self._settling, is_committed) for each in lanes]
        )

    def end_in_lanes(self, lanes: WriteLanes, now: float) -> None:
        """After a turn's batches were sent: end each lane's open transaction that expects no more batches."""
        busy = {lanes.of(queue) for queue in self._queues.active() if queue.flight}
        for lane in lanes.lanes:
            if lane.open is not None:
                self._add_in_lane(lane, lane.open)
            self._state.due(lane.go_on(now, all_answered=lane not in busy), now)

    def _add_in_lane(self, lane: WriteLane, transaction: TransactionPartitions) -> None:
        if not (partitions := transaction.to_add()):
            return

        def failed(error: FencepostError) -> None:
            if error.retriable or isinstance(error, Unreachable | TimedOut):
                lane.fail(error)
                return
            refused = set(transaction.refused(partitions))
            for queue in [queue for queue in lane.queues if queue.name in refused]:
                self._settling.fail_queue(queue, error)

        self._add(lane.steps, lane.identity, transaction, partitions, lambda: lane.open is transaction, failed)


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
