"""Transactions as the send thread sees them: begun and ended by the caller, or in the lanes of an owner, with every
partition added before it is written to."""

from __future__ import annotations

from fencepost.client.produce.common import Common
from fencepost.client.produce.lanes import WriteLane
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.produce.resume import Resumption
from fencepost.client.produce.settling import Settling
from fencepost.core.producers.enlist import Enlisted
from fencepost.core.producers.pid import NAME_TAKEN, Identity, PidState
from fencepost.errors import ConfigError, FencepostError, SendFailed, TimedOut, Unreachable
from fencepost.types import TopicPartition


class Enlisting:
    def __init__(self, common: Common, settling: Settling, resumption: Resumption | None) -> None:
        self._queues = common.queues
        self._errands = common.errands
        self._agenda = common.agenda
        self._standing = common.standing
        self._settling = settling
        self._resumption = resumption

    def begin(self) -> Identity | None:
        """Everything before is settled; what is sent from now on is part of it, under this identity. None: others have
        sent meanwhile, or the next epoch is being asked for."""
        standing = self._standing
        if self._resumption is not None:
            raise ConfigError(
                "a producer that goes on from saved ids takes partitions over as they come, which would end a "
                "transaction: make one by the name alone, Producer(…, name='…')"
            )
        if standing.transaction is not None:
            raise FencepostError("there is an open transaction already: they do not nest")
        if standing.who is None or (standing.lanes is not None and not self._queues.is_empty):
            return None
        standing.transaction = Enlisted()
        standing.is_repeatable = False
        return standing.who

    def end(self, *, repeated: bool = False) -> None:
        """It is committed, or there is nothing to commit. `repeated`: what was asked for it may still be on its way."""
        self._settling.transaction_ended(repeated=repeated)
        self._queues.resume()

    def drop(self) -> None:
        """What is queued or under way fails; what the server has of it is aborted, and the next epoch asked for."""
        transaction = self._standing.transaction
        cause = SendFailed("the transaction was aborted", persisted="no")
        if transaction is not None:
            transaction.fail(cause)
        self._settling.fail_all(cause)
        self._settling.failures.take()
        self._standing.transaction = None
        if transaction is not None and transaction.is_begun and self._standing.identity.state is PidState.READY:
            self._standing.renew()
        self._queues.resume()

    def may_write(self, queue: PartitionQueue, is_new: bool, now: float) -> bool:
        """A named producer needs its epoch; in a transaction, a partition is added before it is written to."""
        if self._standing.steps is None:
            return True
        lane = self._standing.lane(queue)
        if lane is not None:
            return lane.admits(queue.name, is_new=is_new, now=now)
        if self._standing.identity.state is not PidState.READY or self._settling.is_to_sweep:
            return False
        if self._resumption is not None and not self._resumption.admits(queue.name):
            return False
        return self._standing.transaction is None or self._standing.transaction.admits(queue.name)

    def enlist(self, transaction: Enlisted) -> None:
        steps, who = self._standing.steps, self._standing.identity.current
        assert steps is not None
        if who is None or not (partitions := transaction.to_add()):
            return

        def add() -> list[TopicPartition]:
            steps.add_partitions(who, partitions)
            return partitions

        def answered(outcome: list[TopicPartition] | FencepostError) -> None:
            if self._standing.transaction is not transaction:
                return  # aborted meanwhile: by now our own next epoch refuses it, and that one says who has the name
            if isinstance(outcome, list):
                transaction.added(outcome)
            elif outcome.code in NAME_TAKEN:
                self._settling.fence(outcome.code)
            else:
                self._settling.doom(transaction, outcome)

        self._errands.send_out(add, answered)

    def end_in_lanes(self, now: float) -> None:
        """After a turn's batches were sent: a lane's open transaction ends, if nothing more is to come of it."""
        lanes = self._standing.lanes
        if lanes is None:
            return
        busy = {lanes.of(queue) for queue in self._queues.active() if queue.flight}
        for lane in lanes.lanes:
            if lane.open is not None:
                self._enlist_in_lane(lane, lane.open)
            self._agenda.due(lane.go_on(now, all_answered=lane not in busy), now)

    def _enlist_in_lane(self, lane: WriteLane, transaction: Enlisted) -> None:
        who = lane.identity
        if not (partitions := transaction.to_add()):
            return

        def add() -> list[TopicPartition]:
            lane.steps.add_partitions(who, partitions)
            return partitions

        def answered(outcome: list[TopicPartition] | FencepostError) -> None:
            if lane.open is not transaction:
                return  # aborted meanwhile: by now the next epoch refuses it
            if isinstance(outcome, list):
                transaction.added(outcome)
            elif outcome.code in NAME_TAKEN:
                self._settling.fence(outcome.code)
            elif outcome.retriable or isinstance(outcome, Unreachable | TimedOut):
                lane.fail(outcome)
            else:
                refused = set(transaction.refused(partitions))
                for queue in [queue for queue in lane.queues if queue.name in refused]:
                    self._settling.fail_queue(queue, outcome)

        self._errands.send_out(add, answered)
