"""`SendState`: the state that the parts of the send thread share. Each part keeps to itself what it alone changes."""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.interrupts import Flag
from fencepost.client.cluster.metadata import NO_LEADER, Metadata
from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.client.produce.lanes import WriteLane, WriteLanes
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.rare_lines import RareLines
from fencepost.client.transactions.coordinator import Steps
from fencepost.clock import Clock
from fencepost.core.producers.inflight import KAFKA_LIMIT, WrittenAs
from fencepost.core.producers.pid import Identity, PidState, ProducerIdentity
from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import ErrorCode
from fencepost.types import TopicPartition

KEEPS_NAME: Final = 24 * 60 * 60.0
"""Seconds after which a named producer asks for its name again. Coordinators forget a name seven days after it was last
asked for, even if it writes all the time, and its next holder gets another pid, whose epochs fence nobody (IDEM-5)."""


class Refusal(NamedTuple):
    """An answer of the server after which a batch is sent again."""

    at: float
    code: ErrorCode
    words: str | None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.words}" if self.words else self.code.name


class SendState:
    """Only the send thread reads and changes it. Two fields are made for other
    threads too: `queues`, which has a lock, and `identity_settled`."""

    def __init__(
        self,
        options: ProducerOptions,
        clock: Clock,
        queues: Queues,
        metadata: Metadata,
        brokers: Brokers,
        thread_calls: ThreadCalls,
        steps: Steps | None,
    ) -> None:
        self.options = options
        self.queues = queues
        self.schedule = queues.schedule
        self.metadata = metadata
        self.brokers = brokers
        self.thread_calls = thread_calls
        self.now = clock.monotonic
        self.now_ms = clock.now_ms
        self.next_due = float("inf")
        """The first moment at which a part has something to do; reset in every turn."""
        self.lines = RareLines()
        self.identity = ProducerIdentity(named=steps is not None)
        self.identity_settled = Flag()
        """Set unless a named producer's pid is being requested: it is known, or the request was refused for good."""
        self.name_asked_ms = 0
        """When the name was last asked for. By the clock of the day, which also goes while the machine sleeps."""
        self.may_be_open = False
        """The coordinator may have an open transaction under the epoch that is being replaced: abort it first."""
        self.max_in_flight = KAFKA_LIMIT
        """Batches per partition, as many as the server deduplicates."""
        self.steps = steps
        """The coordinator's requests, for a named producer or an owner on Apache Kafka."""
        self.name = options.name
        """The transactional id: the given name, or an owner's write id."""
        self.transaction: TransactionPartitions | None = None
        """The caller's open transaction. `OpenTransactions` begins and ends it."""
        self.lanes: WriteLanes | None = None
        """For an owner on Apache Kafka: carry all records that are not in a transaction of the caller's."""
        self.refusals: dict[TopicPartition, Refusal] = {}
        """The last error code that made a batch of the partition wait for a retry."""
        self.pid_refusal: Refusal | None = None
        """The last error code to a request for a producer id."""
        self.is_repeatable = True
        """All records went to a partition that a later run would choose again, and none was in a transaction."""

    # --- time ---

    def due(self, moment: float | None, now: float) -> None:
        """Take a turn at `moment`. A moment that has passed is ignored: what is overdue waits for a connection."""
        if moment is not None and now < moment < self.next_due:
            self.next_due = moment

    # --- identity ---

    @property
    def ready_identity(self) -> Identity | None:
        """The pid and epoch to write under; None while they are being requested or when the producer is finished."""
        return self.identity.current if self.identity.state is PidState.READY else None

    @property
    def name_lasts(self) -> float:
        """Seconds until the name is to be asked for again, before anything else is written."""
        if self.steps is None or self.is_transactional:
            return float("inf")
        return KEEPS_NAME - (self.now_ms() - self.name_asked_ms) / 1000

    def renew_identity(self) -> None:
        """Request the name's next epoch. Callers of `wait_for_identity` wait for it."""
        if self.identity.state is PidState.READY:
            self.identity_settled.clear()
            self.identity.renew()
            self.may_be_open = True

    def next_identity(self, after: Identity) -> Identity | None:
        """Return the identity that renumbers a partition stamped `after`; None: not known yet, or finished."""
        successor = self.identity.successor(after)
        if self.identity.state is PidState.NONE:
            self.identity_settled.clear()
            # The request alone would abort the open transaction of a producer that has taken the name.
            self.may_be_open = True
        return successor

    # --- transactions ---

    @property
    def is_in_lanes(self) -> bool:
        """True if a batch that is sent now goes in its partition's lane."""
        return self.lanes is not None and self.transaction is None

    @property
    def is_transactional(self) -> bool:
        """True if a batch that is encoded now is part of a transaction, the caller's or a lane's."""
        return self.transaction is not None or self.lanes is not None

    @property
    def written_as(self) -> WrittenAs:
        """Return who can tell whether another producer has taken over from the one that writes now."""
        if self.is_transactional:
            return WrittenAs.IN_TRANSACTION
        return WrittenAs.BARE if self.steps is None else WrittenAs.NAMED

    def lane(self, queue: PartitionQueue) -> WriteLane | None:
        return self.lanes.of(queue) if self.lanes is not None and self.transaction is None else None

    def transactional_id(self, queue: PartitionQueue) -> str | None:
        """Return the transactional id of what is sent to this partition now."""
        if self.transaction is not None:
            return self.name
        return self.lanes.of(queue).name if self.lanes is not None else None

    # --- connections ---

    def leader_of(self, queue: PartitionQueue) -> BrokerConnection | None:
        """Return the connection to the partition's leader if it is ready. Where no leader is known, refresh
        metadata."""
        leader = self.metadata.leader(queue.topic.name, queue.index)
        if leader == NO_LEADER:
            self.metadata.want(queue.topic.name, self.now())
            self.metadata.distrust()
            return None
        return self.brokers.of_node(leader)

    def last_refusal(self, batch: ProducerBatch) -> Refusal | None:
        """Return the last refusal since the batch was opened: of its partition, or of any if it has none yet; or of the
        coordinator, or of a producer id, without which nothing is sent."""
        topic, index = batch.queue.name
        if index == UNDESIGNATED:
            found = [each for where, each in self.refusals.items() if where.topic == topic]
        else:
            found = [self.refusals[batch.queue.name]] if batch.queue.name in self.refusals else []
        if self.pid_refusal is not None:
            found.append(self.pid_refusal)
        lane = self.lane(batch.queue)
        steps = self.steps if lane is None else lane.steps
        if steps is not None and (refusal := steps.last_refusal) is not None:
            found.append(Refusal(refusal.at, refusal.error.code, refusal.error.message))
        return max((each for each in found if each.at >= batch.opened), key=lambda each: each.at, default=None)

    def trouble(self) -> str:
        """From any thread: return the last connection error as the end of a message; empty once one works again."""
        last = self.brokers.last_error
        return f": {last}" if last is not None else ""
