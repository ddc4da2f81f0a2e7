"""What the parts of the send thread have in common."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.errands import Errands
from fencepost.client.cluster.metadata import NO_LEADER, Metadata
from fencepost.client.produce.agenda import Agenda
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.standing import Standing


@dataclass(frozen=True, slots=True)
class Common:
    options: ProducerOptions
    queues: Queues
    """The only one of these that other threads touch too, and the one with a lock."""
    metadata: Metadata
    brokers: Brokers
    errands: Errands
    agenda: Agenda
    standing: Standing

    def leader_of(self, queue: PartitionQueue) -> BrokerConnection | None:
        """The connection to the partition's leader, when it is ready; where nobody leads, metadata is asked."""
        leader = self.metadata.leader(queue.topic.name, queue.index)
        if leader == NO_LEADER:
            self.metadata.want(queue.topic.name, self.agenda.now())
            self.metadata.distrust()
            return None
        return self.brokers.of_node(leader)
