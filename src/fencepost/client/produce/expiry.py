"""What has waited too long (PROD-8): for its topic's partitions, in its queue, for an answer, or for a commit."""

from __future__ import annotations

from typing import Final

from fencepost.client.produce.common import Common
from fencepost.client.produce.failures import where
from fencepost.client.produce.partition_queue import Batch, PartitionQueue, TopicQueues
from fencepost.client.produce.settling import Settling
from fencepost.core.producers.inflight import Flight
from fencepost.errors import Expired, Persisted

TO_ASK: Final = 0.25
LONGEST_TO_ASK: Final = 5.0
"""The last part of `delivery_timeout`, and the most of it in seconds, in which a record in doubt is looked for in the
log. The time itself is a promise: what is not known by then fails as unknown."""


class Expiry:
    def __init__(self, common: Common, settling: Settling) -> None:
        self._options = common.options
        self._queues = common.queues
        self._brokers = common.brokers
        self._metadata = common.metadata
        self._agenda = common.agenda
        self._standing = common.standing
        self._settling = settling

    def of_waiting(self, topic: TopicQueues, now: float) -> None:
        if topic.waiting:
            first = topic.waiting[0].deadline
            self._agenda.due(first, now)
            if first <= now:
                error = Expired(self._reason("no answer about the topic"), persisted="no", topic=topic.name)
                self._queues.waiting_room.fail_waiting(topic, error, expired_at=now)
                self._settling.note_early_failures()

    def of_queued(self, queue: PartitionQueue, now: float) -> bool:
        """Fails what has waited too long without being sent; False if the queue is empty then."""
        while (batch := queue.first_to_expire()) is not None:
            if now < batch.deadline:
                self._agenda.due(batch.deadline, now)
                return True
            if self._queues.withdraw(queue, batch):
                error = Expired(self._reason("not sent"), persisted="no", **where(batch))
                self._settling.fail(batch, error)
        return False

    def of_sent(self, queue: PartitionQueue, flight: Flight[Batch], now: float) -> None:
        """PROD-8: what was sent fails when its time is over, also while its answer is awaited. What is in doubt is
        looked for in the log before that, in the last part of its time."""
        for sent in list(flight):
            deadline = sent.batch.deadline
            if now >= deadline:
                if sent.in_flight:
                    self._metadata.distrust()  # its leader is silent: perhaps another one leads by now
                persisted: Persisted = flight.give_up(sent)
                error = Expired(self._reason("not acknowledged"), persisted=persisted, **where(sent.batch))
                self._settling.fail(sent.batch, error)
                continue
            self._agenda.due(deadline, now)
            if sent.in_doubt and self._standing.transaction is None:  # what is in a transaction fails with it
                ask_at = deadline - min(self._options.delivery_timeout * TO_ASK, LONGEST_TO_ASK)
                if now >= ask_at:
                    flight.wants_look_back(sent)
                self._agenda.due(ask_at, now)
            if not queue.topic.roaming:
                return  # in order: those behind it have more time

    def of_uncommitted(self, now: float) -> None:
        """An owner's records that are acknowledged: they too fail when their time is over, however long the coordinator
        takes for the commit."""
        for lane in self._standing.lanes.lanes if self._standing.lanes is not None else ():
            for batch, persisted in lane.take_overdue(now):
                error = Expired(self._reason("not committed"), persisted=persisted, **where(batch))
                self._settling.fail(batch, error, with_its_lane=persisted == "no")
            self._agenda.due(lane.expires_at, now)

    def _reason(self, what: str) -> str:
        last = self._brokers.last_error
        because = f": {last}" if last is not None else ""
        return f"{what} within {self._options.delivery_timeout:g} s{because}"
