"""As whom a producer writes, and in which transaction: what all parts of the send thread look at, and none else."""

from __future__ import annotations

import threading

from fencepost.client.produce.lanes import WriteLane, WriteLanes
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.transactions.coordinator import Steps
from fencepost.core.producers.enlist import Enlisted
from fencepost.core.producers.inflight import KAFKA_LIMIT
from fencepost.core.producers.pid import Identity, PidState, ProducerIdentity


class Standing:
    def __init__(self, name: str | None, steps: Steps | None) -> None:
        self.identity = ProducerIdentity(named=steps is not None)
        self.is_settled = threading.Event()
        """For callers that wait for a named producer's pid, or for its refusal."""
        self.steps = steps
        """The coordinator of a named producer, or of an owner on Apache Kafka."""
        self.name = name
        """The transactional id: the given one, or an owner's write id."""
        self.transaction: Enlisted | None = None
        """The open transaction."""
        self.may_be_open = False
        """The coordinator may have one under the epoch that is to be replaced: it is aborted first."""
        self.lanes: WriteLanes | None = None
        """Of an owner on Apache Kafka: outside of the caller's transactions it writes in these."""
        self.is_repeatable = True
        """No record was sent whose partition was left to chance, and none in a transaction."""
        self.limit = KAFKA_LIMIT
        """Batches of a partition in flight: as many as the server remembers."""

    @property
    def who(self) -> Identity | None:
        """None: it is being asked for, or there is none to be had."""
        return self.identity.current if self.identity.state is PidState.READY else None

    @property
    def is_in_lanes(self) -> bool:
        """Whether a batch that is sent now goes in the lane of its partition."""
        return self.lanes is not None and self.transaction is None

    def lane(self, queue: PartitionQueue) -> WriteLane | None:
        return self.lanes.of(queue) if self.lanes is not None and self.transaction is None else None

    def name_for(self, queue: PartitionQueue) -> str | None:
        """The transactional id of what is sent to this partition now."""
        if self.transaction is not None:
            return self.name
        return self.lanes.of(queue).name if self.lanes is not None else None

    def renew(self) -> None:
        """The name's next epoch is asked for, and whoever needs it waits for it."""
        if self.identity.state is PidState.READY:
            self.is_settled.clear()
            self.identity.renew()
            self.may_be_open = True

    def successor(self, of: Identity) -> Identity | None:
        """As whom a partition that was stamped `of` goes on after a bump; None: not known yet, or it is over."""
        successor = self.identity.successor(of)
        if self.identity.state is PidState.NONE:
            self.is_settled.clear()
        return successor
