"""Collection of a producer's stats: how much each queue holds, since when, and how fast each broker answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fencepost.client.cluster.metadata import NO_LEADER, Metadata
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.state import SendState
from fencepost.client.produce.stats import BrokerStats, PartitionStats, ProducerStats

log = logging.getLogger("fencepost.producer")


class Reporting:
    def __init__(self, state: SendState) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._next = state.now() + self._options.stats_interval

    def report(self, now: float) -> None:
        """Call `on_stats` when it is due."""
        hook = self._options.on_stats
        if hook is not None and now >= self._next:
            self._next = now + self._options.stats_interval
            try:
                hook(self.look())
            except Exception:
                log.exception("on_stats raised")
        self._state.due(self._next, now)

    def look(self) -> ProducerStats:
        """Return the stats of what holds something. Idle partitions are left out, and cost nothing (PROD-11)."""
        now = self._state.now()
        # Not what lies in the queues: on Kafka, an owner's records that wait for their commit are in none.
        unsettled: dict[PartitionQueue, list[ProducerBatch]] = {}
        for each in self._queues.list_unsettled():
            if isinstance(each, ProducerBatch):
                unsettled.setdefault(each.queue, []).append(each)
        metadata = self._state.metadata
        partitions = [_of_queue(queue, batches, metadata, now) for queue, batches in unsettled.items()]
        waiting = [topic for topic in self._queues.topics_to_place() if topic.waiting]
        partitions += [_of_waiting(topic, self._options, now) for topic in waiting]
        shown = sorted((each for each in partitions if each.records), key=lambda each: (each.topic, each.partition))
        return ProducerStats(
            partitions=tuple(shown),
            brokers=tuple(self._of_brokers()),
            records=sum(each.records for each in shown),
            bytes=self._queues.held,
            buffer_memory=self._options.buffer_memory,
        )

    def _of_brokers(self) -> Iterable[BrokerStats]:
        nodes = {address: node for node, address in self._state.metadata.brokers.items()}
        for connection in self._state.brokers:
            side = self._state.brokers.side(connection.address)
            yield BrokerStats(
                address=str(connection.address),
                node=nodes.get(connection.address),
                is_ready=connection.is_ready,
                requests=connection.in_flight + (side.in_flight if side is not None else 0),
                bytes=connection.window.under_way + (side.window.under_way if side is not None else 0),
                round_trip=connection.window.round_trip,
                last_answer=connection.window.last_answer,
            )


def _of_queue(queue: PartitionQueue, batches: list[ProducerBatch], metadata: Metadata, now: float) -> PartitionStats:
    flight = queue.flight
    leader = metadata.leader(*queue.name) if queue.index != UNDESIGNATED else NO_LEADER
    return PartitionStats(
        topic=queue.topic.name,
        partition=queue.index,
        records=sum(batch.records_left for batch in batches),
        bytes=queue.held,
        oldest=max((now - batch.opened for batch in batches), default=0.0),
        in_flight=flight.in_flight if flight is not None else 0,
        retries=flight.retries if flight is not None else 0,
        leader=None if leader == NO_LEADER else leader,
    )


def _of_waiting(topic: TopicQueues, options: ProducerOptions, now: float) -> PartitionStats:
    """Return the stats of records that wait to be serialized."""
    waiting = tuple(topic.waiting)
    accepted = min((each.deadline for each in waiting), default=now) - options.delivery_timeout
    return PartitionStats(
        topic=topic.name,
        partition=UNDESIGNATED,
        records=len(waiting),
        bytes=sum(each.charged for each in waiting),
        oldest=now - accepted,
        in_flight=0,
        retries=0,
        leader=None,
    )
