"""What has waited too long (PROD-8): for its topic's partitions, in its queue, or for an answer."""

from __future__ import annotations

from fencepost.client.failures import where
from fencepost.client.partition_queue import Batch, PartitionQueue, TopicQueues
from fencepost.client.sending.common import Common
from fencepost.client.sending.settling import Settling
from fencepost.core.inflight import Flight
from fencepost.errors import Expired, Persisted


class Expiry:
    def __init__(self, common: Common, settling: Settling) -> None:
        self._options = common.options
        self._queues = common.queues
        self._brokers = common.brokers
        self._agenda = common.agenda
        self._settling = settling

    def of_waiting(self, topic: TopicQueues, now: float) -> None:
        if topic.waiting:
            first = topic.waiting[0].deadline
            self._agenda.due(first, now)
            if first <= now:
                error = Expired(self._reason("no answer about the topic"), persisted="no", topic=topic.name)
                self._queues.fail_waiting(topic, error, expired_at=now)
                self._settling.note_early_failures()

    def of_queued(self, queue: PartitionQueue, now: float) -> bool:
        """Fails what has waited too long without being sent; False if the queue is empty then."""
        while queue:
            batch = queue.sealed[0] if queue.sealed else queue.open
            if batch is None:
                break
            if now < batch.deadline:
                self._agenda.due(batch.deadline, now)
                return True
            expired = self._queues.drain(queue, also_open=True)
            if expired is not None:
                error = Expired(self._reason("not sent"), persisted="no", **where(expired))
                self._settling.fail(expired, error)
        return False

    def of_sent(self, queue: PartitionQueue, flight: Flight[Batch], now: float) -> None:
        """PROD-8: what was sent expires in order, and not while it is in doubt and the log can be asked."""
        while (head := flight.head) is not None:
            deadline = head.batch.deadline
            if now < deadline:
                self._agenda.due(deadline, now)
                return
            if head.in_flight:
                return  # its answer, or its loss, comes first
            if head.in_doubt and self._options.idempotent and now < deadline + self._options.request_timeout:
                flight.wants_look_back()
                self._agenda.due(deadline + self._options.request_timeout, now)
                return
            persisted: Persisted = flight.give_up(head)
            error = Expired(self._reason("not acknowledged"), persisted=persisted, **where(head.batch))
            self._settling.fail(head.batch, error)

    def _reason(self, what: str) -> str:
        last = self._brokers.last_error
        because = f": {last}" if last is not None else ""
        return f"{what} within {self._options.delivery_timeout:g} s{because}"
