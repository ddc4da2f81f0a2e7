"""The send thread: one loop whose turn, `run_once`, can be stepped in a test (PROD-10).

A turn, in the order of the source document's event loop:

    place        records whose topic's partitions became known go to their queues
    metadata     asked for when due, without waiting for the answer (PROD-7)
    pid          asked for once
    collate      per queue: expire, look back, bump, send again, send new; one batch of each partition into one request
                 per leader (PROD-9), round after round while there is room in flight
    poll         new connections, readable and writable sockets, unfinished writes; answers settle their batches
    deadlines    answers and connections that are overdue

Everything a partition's batches go through is decided in `core/inflight.py`. This file carries it out, and is the only
one that settles tickets. Apart from `Queues`, nothing here is shared with other threads.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

from fencepost.client.aftermath import Aftermath
from fencepost.client.brokers import Brokers
from fencepost.client.clock import Clock
from fencepost.client.connection import Connection, Overdue
from fencepost.client.errands import Errands
from fencepost.client.failures import Failures, said_of, where
from fencepost.client.ids import ProducerIds, SavedPartition
from fencepost.client.implicit import Acknowledged, ImplicitTransactions
from fencepost.client.lookback import LookBack
from fencepost.client.metadata import NO_LEADER, Metadata
from fencepost.client.network import Network
from fencepost.client.opening import keeps_us_out
from fencepost.client.options import ACKS, ProducerOptions
from fencepost.client.partition_queue import UNDESIGNATED, Batch, PartitionQueue, TopicQueues
from fencepost.client.queue import Queues
from fencepost.client.resume import Resumption
from fencepost.client.settings import Address, ClientSettings
from fencepost.client.tenure import Tenure
from fencepost.client.ticket import UNKNOWN_OFFSET, Settlement
from fencepost.client.transactional import Steps, Transactional
from fencepost.core.claim import Held
from fencepost.core.dedup import REMEMBERED
from fencepost.core.enlist import Enlisted
from fencepost.core.inflight import KAFKA_LIMIT, Flight, Sent, Step, Verdict
from fencepost.core.pid import FENCING, REPLACED, Identity, ProducerIdentity
from fencepost.core.pid import State as PidState
from fencepost.errors import (
    LEADER_MOVED,
    Closed,
    ErrorCode,
    Expired,
    Fenced,
    FencepostError,
    Persisted,
    SendFailed,
    ServerError,
    TimedOut,
    Unreachable,
)
from fencepost.kernel import read_header, stamp_producer
from fencepost.types import NO_PID, Epoch, Offset, Pid, TopicPartition
from fencepost.wire import hot
from fencepost.wire.apis import PRODUCE

log = logging.getLogger("fencepost.producer")

METADATA: Final = 3
INIT_PRODUCER_ID: Final = 22

NEWEST_PRODUCE_BY_NAME: Final = 12
"""Later versions name topics by id."""

NEWEST_PRODUCE_IN_TRANSACTION: Final = 10
"""Later versions add partitions to the transaction by themselves, and count on a new epoch for every one (KIP-890)."""

GATHER: Final = 0.005
"""Seconds that records are gathered, at most, while an earlier batch of their partition is under way."""

REQUESTS_IN_FLIGHT: Final = 16
"""Per broker. What a broker has not read yet lies in its socket, in front of every other topic's next request."""

_LEADERSHIP: Final = LEADER_MOVED | frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

_TRANSACTION_OVER: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})

_TOPIC_REFUSED: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Answers about a topic that asking again does not change."""


class Aboard(NamedTuple):
    """A batch in a request."""

    queue: PartitionQueue
    sent: Sent[Batch]


class Collated:
    """A request to one leader that is being put together."""

    __slots__ = ("aboard", "size")

    def __init__(self) -> None:
        self.aboard: list[Aboard] = []
        self.size = 0


class Sender:
    def __init__(
        self,
        settings: ClientSettings,
        options: ProducerOptions,
        network: Network,
        clock: Clock,
        steps: Steps | None = None,
        ids: ProducerIds | None = None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._network = network
        self._clock = clock
        self.queues = Queues(options, clock, network.wake)
        self.metadata = Metadata(max_age=options.metadata_max_age, backoff=options.retry_backoff)
        self.brokers = Brokers(settings, network, clock, self.metadata, on_kept_out=self._kept_out)
        self.identity = ProducerIdentity(named=steps is not None)
        self.tenure = Tenure(self.brokers, self.metadata, clock, options.request_timeout, self._lost_what_it_owned)
        self.brokers.on_lost = self.tenure.lost
        self._aftermath: Aftermath | None = None
        self.errands = Errands(network.wake)
        self.transaction: Enlisted | None = None
        """The open transaction; touched by the send thread alone."""
        self.implicit: ImplicitTransactions | None = None
        """Of an owner on Apache Kafka; the open transaction is then mostly one of these."""
        self._to_sweep = False
        self._first_failure: FencepostError | None = None
        self.identity_is_settled = threading.Event()
        """For callers that wait for a named producer's pid, or for its refusal."""
        self._steps = steps  # the coordinator of a named producer, or of an owner on Apache Kafka
        self._name = options.name  # the transactional id: the given one, or an owner's write id
        self._resumption = Resumption(ids, self, steps, options) if ids is not None and steps is not None else None
        self.queues.needs_partitions = ids is not None
        self._is_repeatable = True  # no record whose partition was left to chance, none in a transaction
        self.failures = Failures()
        self._limit = KAFKA_LIMIT
        self._looking_back: set[PartitionQueue] = set()
        self._roaming: defaultdict[TopicQueues, int] = defaultdict(int)  # undesignated batches of a topic under way
        self._turn = 0
        self._next_moment = float("inf")
        self._stopping = False

    # --- the thread ---

    def run(self) -> None:
        try:
            while not self._stopping:
                self.run_once()
        except Exception as error:
            # A bug, then: nobody shall wait for ever for what this thread no longer does.
            log.exception("the send thread ends")
            broken = SendFailed(f"the send thread ended: {error!r}", persisted="unknown")
            broken.__cause__ = error
            self.fail_everything(broken)
            if self._aftermath is not None:
                self._aftermath.give_up()
        finally:
            self.close()
            self.tenure.close()
            self.errands.close()

    def close(self) -> None:
        """Gives back sockets; done by the thread itself where there was one."""
        self.brokers.close()
        self._network.close()

    def forget_sockets(self) -> None:
        """In a forked child: what is open is the parent's, and ends when the parent says so."""
        self._network.forget_sockets()

    def stop(self) -> None:
        """From any thread: the loop ends after this turn."""
        self._stopping = True
        self._network.wake()

    def run_once(self, timeout: float | None = None) -> None:
        """One turn. Waits for the network until something is due, at most `timeout` seconds."""
        self._network.before_work()
        now = self._clock.monotonic()
        self._next_moment = float("inf")
        self._turn += 1
        self.errands.run_due()
        self._sweep()
        self.due(self.tenure.turn(now), now)
        self._find_out(now)
        self._place(now)
        self._refresh_metadata(now)
        if self._options.idempotent:
            self._ask_for_pid(now)
        self._collate(now)
        self._end_implicitly()
        self._refresh_metadata(now)  # collating may have met a partition without a leader
        self._network.poll(self._patience(now, timeout))
        self.brokers.check_deadlines(self._clock.monotonic())
        self._note_early_failures()

    def _patience(self, now: float, timeout: float | None) -> float | None:
        if self._stopping or self._to_sweep:
            return 0.0
        self.due(self.metadata.ask_at(), now)
        self.due(self.identity.ask_at, now)
        moment = min(self._next_moment, self.brokers.next_moment(now))
        patience = None if moment == float("inf") else max(0.0, moment - self._clock.monotonic())
        if timeout is None:
            return patience
        return timeout if patience is None else min(timeout, patience)

    def now(self) -> float:
        return self._clock.monotonic()

    def due(self, moment: float | None, now: float) -> None:
        """Something is to be done then. What is due already but cannot be done waits for a connection instead."""
        if moment is not None and now < moment < self._next_moment:
            self._next_moment = moment

    # --- metadata and pid ---

    def _place(self, now: float) -> None:
        for topic in self.queues.topics_to_place():
            self.metadata.want(topic.name, now)
            count = self.metadata.partition_count(topic.name)
            if count:
                self.queues.place(topic, count)
            else:
                self._expire_unplaced(topic, now)

    def _expire_unplaced(self, topic: TopicQueues, now: float) -> None:
        known = self.metadata.topics.get(topic.name)
        code = known.error if known is not None else ErrorCode.NONE
        since = self.metadata.unknown_since(topic.name)
        assert since is not None
        if code in _TOPIC_REFUSED:
            error = SendFailed(f"the server answers {code.name}", persisted="no", code=code, topic=topic.name)
        elif code is not ErrorCode.NONE and now >= since + self._options.unknown_topic_timeout:
            message = (
                f"the server answers {code.name} for {self._options.unknown_topic_timeout:g} s: "
                "create the topic, or let the server create topics on first use"
            )
            error = SendFailed(message, persisted="no", code=code, topic=topic.name)
        else:
            if code is not ErrorCode.NONE:
                self.due(since + self._options.unknown_topic_timeout, now)
            self._expire_waiting(topic, now)
            return
        self.metadata.forget(topic.name)  # the next send asks anew
        for settlement in self.queues.fail_waiting(topic, error):
            self._failed(settlement)

    def _expire_waiting(self, topic: TopicQueues, now: float) -> None:
        if topic.waiting:
            first = topic.waiting[0].deadline
            self.due(first, now)
            if first <= now:
                error = Expired(self._reason("no answer about the topic"), persisted="no", topic=topic.name)
                for settlement in self.queues.fail_waiting(topic, error, expired_at=now):
                    self._failed(settlement)

    def _refresh_metadata(self, now: float) -> None:
        if not self.metadata.due(now):
            return
        connection = self.brokers.any()
        if connection is None:
            return
        wanted = self.metadata.wanted()
        fields: dict[str, Any] = {
            "topics": None if wanted is None else [{"name": name, "topic_id": None} for name in wanted],
            "allow_auto_topic_creation": self._options.allow_topic_creation,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        self.metadata.asked()
        try:
            connection.ask(METADATA, fields, self._metadata_answered, self._metadata_lost)
        except FencepostError as error:
            self._metadata_lost(error, False)
            self.brokers.last_error = error

    def _metadata_answered(self, answer: Any) -> None:
        self.metadata.answered(answer, self._clock.monotonic())
        for topic in answer.topics:
            count = self.metadata.partition_count(topic.name)
            if count:
                self.queues.grow(topic.name, count)

    def _metadata_lost(self, error: FencepostError, left: bool) -> None:
        self.metadata.failed(self._clock.monotonic())

    def _ask_for_pid(self, now: float) -> None:
        if not self.identity.wants_to_ask(now):
            return
        connection = self.brokers.any()
        if connection is None:
            return
        self._limit = REMEMBERED if connection.is_fencepost else KAFKA_LIMIT
        if self._steps is not None:
            self._fence_by_name(self._steps)
            return
        fields = {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": NO_PID,
            "producer_epoch": -1,
        }
        self.identity.asked()
        try:
            connection.ask(INIT_PRODUCER_ID, fields, self._pid_answered, self._pid_lost)
        except FencepostError as error:
            self._pid_refused(ErrorCode.UNSUPPORTED_VERSION, str(error))

    def _pid_answered(self, answer: Any) -> None:
        if self._steps is not None:
            return  # it has become an owner meanwhile, and writes under another id
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            self.identity.given(Pid(answer.producer_id), Epoch(answer.producer_epoch))
        elif code.retriable:
            self.identity.refused(code, self._clock.monotonic(), self._options.retry_backoff)
        else:
            self._pid_refused(code, f"the server gives no producer id ({code.name})")

    def _pid_refused(self, code: ErrorCode, message: str) -> None:
        self.identity.finished(code)
        self.fail_everything(SendFailed(f"{message}; idempotent=False works without one", persisted="no", code=code))

    def _fence_by_name(self, steps: Steps) -> None:
        """The name's next epoch. The first time it is taken from whoever has it; later only if it is still ours."""
        before = self.identity.current
        timeout_ms = int(self._options.transaction_timeout * 1000)
        self.identity.asked()
        self.errands.send_out(lambda: steps.init(timeout_ms, before), self.name_answered)

    def name_answered(self, outcome: Identity | FencepostError) -> None:
        if self.identity.state is PidState.FINISHED:
            return  # fenced meanwhile
        if isinstance(outcome, Identity):
            self.identity.given(*outcome)
            for queue in self.queues.everything():
                if queue.flight is not None and not len(queue.flight):
                    queue.flight.begin(outcome)
        elif is_fencing(outcome):
            self.fence(outcome.code)
        elif (isinstance(outcome, Unreachable | TimedOut) or outcome.retriable) and not keeps_us_out(outcome):
            self.brokers.last_error = outcome
            self.identity.answer_lost(self._clock.monotonic(), self._options.retry_backoff)
            return
        else:
            self.identity.finished(outcome.code)
            self.fail_everything(SendFailed(str(outcome), persisted="no", code=outcome.code))
        self.identity_is_settled.set()

    def _kept_out(self, address: Address | None, error: FencepostError) -> None:
        """Wrong credentials, or TLS without trust: what would wait for that broker fails now. The next record is
        tried anew; but whoever could not even take its name has nothing to go on with."""
        cause = SendFailed(str(error), persisted="no", code=error.code)
        cause.__cause__ = error
        if address is None:
            if self._steps is not None and self.identity.state is not PidState.READY:
                self.identity.finished(error.code)
                self.fail_everything(cause)
                self.identity_is_settled.set()
                return
            for topic in self.queues.topics_to_place():
                for settlement in self.queues.fail_waiting(topic, said_of(cause, "no", topic=topic.name)):
                    self._failed(settlement)
        for queue in self.queues.everything():
            if address is None or self._address_of_leader(queue) == address:
                self._fail_queue(queue, cause)

    def _address_of_leader(self, queue: PartitionQueue) -> Address | None:
        return self.metadata.brokers.get(self.metadata.leader(queue.topic.name, queue.index))

    def _fail_queue(self, queue: PartitionQueue, cause: FencepostError) -> None:
        if queue.flight is not None:
            for sent in list(queue.flight):
                self.fail(sent.batch, said_of(cause, queue.flight.give_up(sent), **where(sent.batch)))
        while (batch := self.queues.drain(queue, also_open=True)) is not None:
            self.fail(batch, said_of(cause, "no", **where(batch)))

    def _pid_lost(self, error: FencepostError, left: bool) -> None:
        if self._steps is None:
            self.identity.answer_lost(self._clock.monotonic(), self._options.retry_backoff)

    # --- collation ---

    def _collate(self, now: float) -> None:
        active = self.queues.active()
        if not active:
            return
        for queue in active:
            if queue.index == UNDESIGNATED:
                self._designate(queue, now)
        candidates = self._in_turn(self.queues.active())
        while candidates:
            requests: dict[Connection, Collated] = {}
            candidates = [queue for queue in candidates if self._board(queue, now, requests)]
            for connection, collated in requests.items():
                self._produce(connection, collated.aboard)
        if self.transaction is not None:
            self._enlist(self.transaction)
        if self._resumption is not None:
            self._resumption.go_on(now)

    def _in_turn(self, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """The topics take turns, whatever their number of partitions, and each turn another one is first (PROD-6)."""
        by_topic: dict[TopicQueues, list[PartitionQueue]] = {}
        for queue in queues:
            if queue.index != UNDESIGNATED:
                by_topic.setdefault(queue.topic, []).append(queue)
        groups = list(by_topic.values())
        if len(groups) <= 1:
            return groups[0] if groups else []
        first = self._turn % len(groups)
        rows = zip_longest(*groups[first:], *groups[:first])
        return [queue for queue in chain.from_iterable(rows) if queue is not None]

    def _designate(self, queue: PartitionQueue, now: float) -> None:
        """Gives whole batches of the undesignated queue to partitions that could send them now."""
        topic = queue.topic
        if not self._expire_queued(queue, now):
            self.queues.rest(queue)
            return
        led = list(self.metadata.led(topic.name))
        start = self._turn % len(led) if led else 0
        for partition in led[start:] + led[:start]:
            also_open = self._open_is_ready(queue, self._roaming[topic] > 0, now)
            if not queue.sealed and not also_open:
                return
            if not self._could_send(topic, partition, now):
                continue
            batch = self.queues.drain(queue, also_open=also_open)
            if batch is None:
                return
            batch.roams = True
            self._is_repeatable = False
            self._roaming[topic] += 1
            self.queues.designate(batch, partition)

    def _could_send(self, topic: TopicQueues, partition: int, now: float) -> bool:
        if self.brokers.of_node(self.metadata.leader(topic.name, partition)) is None:
            return False
        queue = topic.partitions.get(partition)
        if queue is None or queue.flight is None:
            return queue is None or not queue.sealed
        return not queue.sealed and queue.flight.next_step(now) is Step.SEND

    def _open_is_ready(self, queue: PartitionQueue, others_under_way: bool, now: float) -> bool:
        batch = queue.open
        if batch is None:
            return False
        if self.queues.in_a_hurry:
            return True
        ready_at = batch.opened + self._options.linger
        if others_under_way:
            ready_at += GATHER
        if now >= ready_at:
            return True
        self.due(ready_at, now)
        return False

    def _board(self, queue: PartitionQueue, now: float, requests: dict[Connection, Collated]) -> bool:
        """Takes the queue's next batch into this round's request to its leader, if it has one that may go."""
        flight = queue.flight
        if flight is None:
            if not self._expire_queued(queue, now):
                self.queues.rest(queue)
                return False
            flight = queue.flight = Flight(idempotent=self._options.idempotent, limit=self._limit)
            if self._resumption is not None:
                flight.last_acknowledged = self._resumption.last_offset(queue.name)
        step = self._next_step(queue, flight, now)
        if step is Step.WAIT:
            self.due(flight.not_before, now)
            return False
        if step is Step.SEND and not queue.sealed:
            if queue.open is None:
                self.queues.rest(queue)
                return False
            if not self._open_is_ready(queue, len(flight) > 0, now):
                return False
        connection = self._leader_of(queue)
        if connection is None:
            return False
        if now < connection.throttled_until:
            self.due(connection.throttled_until, now)
            return False
        if not self._may_write(queue, step is Step.SEND, now):
            return False
        collated = requests.get(connection)
        if collated is None and connection.in_flight >= REQUESTS_IN_FLIGHT:
            return False
        if step is Step.RESEND:
            sent = flight.resend()
        elif (new := self._take_new(queue, flight)) is not None:
            sent = new
        else:
            return False
        size = len(self._encoded(sent))
        if collated is not None and collated.size + size > self._options.max_request_size:
            self._produce(connection, collated.aboard)
            collated = None
        if collated is None:
            collated = requests[connection] = Collated()
        collated.aboard.append(Aboard(queue, sent))
        collated.size += size
        return True

    def _next_step(self, queue: PartitionQueue, flight: Flight[Batch], now: float) -> Step:
        """Carries out what needs no request of its own; what is left is SEND, RESEND or WAIT."""
        while True:
            self._expire_sent(queue, flight, now)
            if not len(flight):  # in order: what is queued expires behind what was sent
                self._expire_queued(queue, now)
            step = flight.next_step(now)
            if step is Step.LOOK_BACK:
                self._look_back(queue, flight, now)
                return Step.WAIT
            if step is not Step.BUMP:
                return step
            if self.transaction is not None:
                self._fail_partition(queue, flight)
                return Step.WAIT
            assert flight.identity is not None
            successor = self.identity.successor(flight.identity)
            if successor is None:
                return Step.WAIT
            log.info("%s goes on with pid %d under epoch %d", queue.name, successor.pid, successor.epoch)
            flight.renumber(successor)
            for sent in flight:
                if sent.batch.encoded is not None:
                    stamp_producer(sent.batch.encoded, read_header(sent.batch.encoded), *sent.stamp)

    def _take_new(self, queue: PartitionQueue, flight: Flight[Batch]) -> Sent[Batch] | None:
        if self._options.idempotent and flight.identity is None:
            if self.identity.state is not PidState.READY or self.identity.current is None:
                return None
            flight.limit = self._limit
            flight.begin(self.identity.current)
        while (batch := self.queues.drain(queue, also_open=True)) is not None:
            rest = batch if self._resumption is None else self._resumption.without_known(flight, batch)
            if rest is not None:
                return flight.send(rest, rest.count)
        return None

    def _encoded(self, sent: Sent[Batch]) -> memoryview:
        """The batch as it goes over the wire: compressed and stamped when it is first asked for."""
        batch, options = sent.batch, self._options
        if batch.encoded is None:
            assert batch.builder is not None
            pid, epoch, base_sequence = sent.stamp
            batch.encoded = batch.builder.finish(
                options.codec,
                options.compression_level,
                pid=pid,
                epoch=epoch,
                base_sequence=base_sequence,
                transactional=self.transaction is not None,
            )
            batch.builder = None
        return batch.encoded

    def _leader_of(self, queue: PartitionQueue) -> Connection | None:
        leader = self.metadata.leader(queue.topic.name, queue.index)
        if leader == NO_LEADER:
            self.metadata.want(queue.topic.name, self._clock.monotonic())
            self.metadata.distrust()
            return None
        return self.brokers.of_node(leader)

    # --- transactions ---

    def begin_transaction(self) -> bool:
        """Everything before is settled; what is sent from now on is part of it. False: others have sent meanwhile, in
        an implicit one that has to end first."""
        if self.transaction is not None:
            return False
        self.transaction = Enlisted()
        self._is_repeatable = False
        return True

    def end_transaction(self) -> None:
        """It is committed, or there is nothing to commit."""
        self.transaction = None
        self.queues.resume()

    def drop_transaction(self) -> None:
        """What is queued or under way fails; the next epoch, asked for at once, aborts what the server has of it."""
        transaction = self.transaction
        cause = SendFailed("the transaction was aborted", persisted="no")
        if transaction is not None:
            transaction.fail(cause)
        self._fail_all(cause)
        self.failures.take()
        self.transaction = None
        if transaction is not None and transaction.is_begun and self.identity.state is PidState.READY:
            self.identity_is_settled.clear()
            self.identity.renew()
        self.queues.resume()

    def _may_write(self, queue: PartitionQueue, is_new: bool, now: float) -> bool:
        """A named producer needs its epoch; in a transaction, a partition is added before it is written to."""
        if self._steps is None:
            return True
        if self.identity.state is not PidState.READY or self._to_sweep:
            return False
        if self._resumption is not None and not self._resumption.admits(queue.name):
            return False
        if self.implicit is not None and self.transaction is self.implicit.open:
            admitted = self.implicit.admits(queue.name, is_new=is_new, now=now)
            self.transaction = self.implicit.open
            return admitted
        return self.transaction is None or self.transaction.admits(queue.name)

    def _enlist(self, transaction: Enlisted) -> None:
        steps, who = self._steps, self.identity.current
        assert steps is not None
        if who is None or not (partitions := transaction.to_add()):
            return

        def add() -> list[TopicPartition]:
            steps.add_partitions(who, partitions)
            return partitions

        def answered(outcome: list[TopicPartition] | FencepostError) -> None:
            if isinstance(outcome, list):
                transaction.added(outcome)
            elif is_fencing(outcome):
                self.fence(outcome.code)
            elif self.transaction is transaction:
                self._doom(transaction, outcome)

        self.errands.send_out(add, answered)

    def _doom(self, transaction: Enlisted, error: FencepostError) -> None:
        """A part of it failed: nothing more is accepted into it, and it cannot be committed."""
        if transaction.error is None:
            transaction.fail(error)
            self.queues.pause(SendFailed(f"the transaction has failed: {error}", persisted="no", code=error.code))
            self._to_sweep = True  # in the next turn: batches may be aboard a request right now

    def _sweep(self) -> None:
        if not self._to_sweep:
            return
        self._to_sweep = False
        if self.transaction is not None:
            if self.transaction.error is not None:
                self._fail_all(self.transaction.error)
        elif self._first_failure is not None:
            self.fail_everything(self._first_failure)

    def _fail_partition(self, queue: PartitionQueue, flight: Flight[Batch]) -> None:
        """In a transaction nothing gets new numbers, for the next epoch would abort it: it fails instead."""
        cause = SendFailed("the server lost track of the sequence", persisted="no")
        for sent in flight.give_up_all():
            self.fail(sent.batch, said_of(cause, sent.persisted, **where(sent.batch)))
        while (batch := self.queues.drain(queue, also_open=True)) is not None:
            self.fail(batch, said_of(cause, "no", **where(batch)))

    def ids(self, cluster_id: str | None) -> ProducerIds:
        who, name = self.identity.current, self._options.name
        assert who is not None
        assert name is not None
        if not self.queues.is_empty:
            raise FencepostError("records are not settled yet: flush first, then read the ids")
        if (broken := self.queues.broken) is not None and not isinstance(broken, Closed):
            raise broken
        if not self._is_repeatable:
            raise FencepostError(
                "the ids are of no use here: records without a key need their partition named, "
                "and transactions take their offsets with them"
            )
        partitions = dict(self._resumption.ids.partitions) if self._resumption is not None else {}
        for queue in self.queues.everything():
            flight = queue.flight
            if flight is not None and flight.identity is not None:
                saved = SavedPartition(*flight.identity, flight.next_sequence, flight.last_acknowledged)
                partitions[queue.name] = saved
        return ProducerIds(cluster_id, name, *who, partitions)

    # --- produce and its answers ---

    def _produce(self, connection: Connection, aboard: list[Aboard]) -> None:
        by_topic: dict[str, list[hot.ProducePartition]] = {}
        for queue, sent in aboard:
            partition = hot.ProducePartition(queue.index, self._encoded(sent))
            by_topic.setdefault(queue.topic.name, []).append(partition)
        topics = [hot.ProduceTopic(name, None, partitions) for name, partitions in by_topic.items()]
        acks = ACKS[self._options.acks]
        name = self._name if self.transaction is not None else None
        request = hot.ProduceRequest(name, acks, int(self._options.request_timeout * 1000), topics)

        def answered(version: int, body: memoryview) -> None:
            self._produced(connection, aboard, hot.decode_produce_response(version, body))

        def lost(error: FencepostError, left: bool) -> None:
            self._produce_lost(aboard, left, overdue=isinstance(error, Overdue))

        try:
            newest = NEWEST_PRODUCE_BY_NAME if name is None else NEWEST_PRODUCE_IN_TRANSACTION
            version = connection.version(PRODUCE, newest)
        except FencepostError as error:
            for queue, sent in aboard:
                assert queue.flight is not None
                queue.flight.never_left(sent)
                self._give_up(queue, sent, str(error), ErrorCode.UNSUPPORTED_VERSION)
            return
        body = hot.encode_produce_request(version, request)
        if acks:
            connection.request(PRODUCE, version, body, answered, lost)
        else:
            connection.tell(PRODUCE, version, body, lambda: self._gone(aboard), lost)

    def _gone(self, aboard: list[Aboard]) -> None:
        """Sent, and nobody will say what became of it: that is what acks="none" asks for."""
        now = self._clock.monotonic()
        for queue, sent in aboard:
            if sent in _unsettled(queue):
                assert queue.flight is not None
                queue.flight.acknowledged(sent, None, now)
                self.deliver(sent.batch, UNKNOWN_OFFSET, -1)

    def _produced(self, connection: Connection, aboard: list[Aboard], response: hot.ProduceResponse) -> None:
        now = self._clock.monotonic()
        if response.throttle_ms:
            connection.throttled_until = now + response.throttle_ms / 1000
        waiting = {(queue.topic.name, queue.index): (queue, sent) for queue, sent in aboard}
        for topic in response.topics:
            for part in topic.partitions:
                entry = waiting.pop((topic.name or "", part.index), None)
                if entry is None:
                    continue
                queue, sent = entry
                if sent not in _unsettled(queue):
                    continue  # given up meanwhile
                code = ErrorCode.of(part.error_code)
                if code is ErrorCode.NONE:
                    self._acknowledged(queue, sent, part)
                else:
                    self._refused(queue, sent, code, part.error_message, now)
        if waiting:  # an answer that leaves partitions out
            self._produce_lost([Aboard(queue, sent) for queue, sent in waiting.values()], left=True)

    def _acknowledged(self, queue: PartitionQueue, sent: Sent[Batch], part: hot.ProducedPartition) -> None:
        assert queue.flight is not None
        offset = Offset(part.base_offset) if part.base_offset >= 0 else None
        queue.flight.acknowledged(sent, offset, self._clock.monotonic())
        self.deliver(sent.batch, part.base_offset, part.log_append_time_ms)

    def _refused(
        self, queue: PartitionQueue, sent: Sent[Batch], code: ErrorCode, message: str | None, now: float
    ) -> None:
        flight = queue.flight
        assert flight is not None
        if code in _LEADERSHIP:
            self.metadata.distrust()
        if code is ErrorCode.INVALID_TXN_STATE and self._steps is not None and self.transaction is None:
            # The marker of the transaction before is still on its way to this partition.
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        verdict = flight.refused(sent, code, now, self._backoff(sent))
        if code in _TRANSACTION_OVER and self._is_implicit and self.transaction is not None:
            # Fenced, or open for too long: the coordinator says which when it is asked to end it.
            self.transaction.fail(ServerError(code, "the transaction has ended on the server"))
            return
        if verdict is Verdict.RETRY:
            log.debug("%s: %s, to be sent again", queue.name, code.name)
        elif verdict is Verdict.PERSISTED:
            flight.acknowledged(sent, None, now)
            self.deliver(sent.batch, UNKNOWN_OFFSET, -1)
        elif verdict is Verdict.FENCED:
            self.fence(code)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and sent.count > 1 and not sent.in_doubt:
            parts = self.queues.split(sent.batch)
            flight.split(sent, [(part, part.count) for part in parts])
        else:
            said = f": {message}" if message else ""
            self._give_up(queue, sent, f"the server answers {code.name}{said}", code)

    def _produce_lost(self, aboard: list[Aboard], left: bool, *, overdue: bool = False) -> None:
        now = self._clock.monotonic()
        self.metadata.distrust()
        for queue, sent in aboard:
            if sent not in _unsettled(queue):
                continue
            assert queue.flight is not None
            if left:
                queue.flight.lost(sent, now, self._backoff(sent), overdue=overdue)
            else:
                queue.flight.never_left(sent)

    def _backoff(self, sent: Sent[Batch]) -> float:
        return float(min(1.0, self._options.retry_backoff * 2 ** min(sent.attempts - 1, 10)))

    # --- doubt ---

    def _look_back(self, queue: PartitionQueue, flight: Flight[Batch], now: float) -> None:
        if queue in self._looking_back:
            return
        connection = self._leader_of(queue)
        if connection is None:
            return
        assert flight.identity is not None
        self._looking_back.add(queue)
        start = flight.look_back_from

        def finished(found: dict[Any, Offset]) -> None:
            self._looking_back.discard(queue)
            for sent, offset in flight.looked_back(found):
                self.deliver(sent.batch, offset, -1)

        def failed(error: FencepostError) -> None:
            self._looking_back.discard(queue)
            if isinstance(error, ServerError) and error.code in _LEADERSHIP:
                self.metadata.distrust()
            flight.look_back_failed(self._clock.monotonic(), self._options.retry_backoff)

        log.info("%s: reading the log back from %s to learn what is there", queue.name, start)
        try:
            epoch = self.metadata.leader_epoch(*queue.name)
            LookBack(connection, *queue.name, flight.identity.pid, start, finished, failed, leader_epoch=epoch)
        except FencepostError as error:
            failed(error)

    # --- owning ---

    def _lost_what_it_owned(self, cause: Fenced, lost: Mapping[tuple[str, str], Held]) -> None:
        """The connection has ended, and with it this producer (OWN-9): what never left is not there, what was in a
        transaction will never be committed, and for the rest the log is asked."""
        self.identity.finished(cause.code)
        self._first_failure = cause  # the first, for a named producer, and no more to be swept
        doubtful: dict[PartitionQueue, list[Sent[Batch]]] = {}
        for queue in self.queues.everything():
            for sent in queue.flight.give_up_all() if queue.flight is not None else ():
                known: Persisted = "no" if self.transaction is not None else sent.persisted
                if known == "unknown" and self._options.idempotent:
                    doubtful.setdefault(queue, []).append(sent)
                else:
                    self.fail(sent.batch, said_of(cause, known, **where(sent.batch)))
        self.fail_everything(cause)
        self.identity_is_settled.set()
        self._aftermath = Aftermath(
            Brokers(self._settings, self._network, self._clock, self.metadata),
            lost,
            doubtful,
            self._clock.monotonic(),
            patience=self._options.request_timeout,
            backoff=self._options.retry_backoff,
            found=lambda sent, offset: self.deliver(sent.batch, offset, -1),
            missing=lambda sent, known: self.fail(sent.batch, said_of(cause, known, **where(sent.batch))),
        )
        self._find_out(self._clock.monotonic())

    def renew_identity(self) -> None:
        """The name's next epoch, over the connection that owns: from here on the name speaks there."""
        self.identity_is_settled.clear()
        self.identity.renew()

    def _find_out(self, now: float) -> None:
        if self._aftermath is not None:
            self.due(self._aftermath.turn(now), now)
            if self._aftermath.is_over:
                self._aftermath = None

    # --- owning, on Apache Kafka ---

    def write_under(
        self, steps: Transactional, who: Identity, is_committed: Callable[[TopicPartition, Offset], bool]
    ) -> bool:
        """From now on all is sent in transactions of this id. False, and nothing is changed, while anything that was
        sent before is under way."""
        if any(queue.flight for queue in self.queues.everything()):
            return False
        self._steps, self._name = steps, steps.name
        self._is_repeatable = False
        self.identity = ProducerIdentity(named=True)
        self.identity.asked()
        self.name_answered(who)
        self.implicit = ImplicitTransactions(steps, self.errands, self, is_committed)
        return True

    def _end_implicitly(self) -> None:
        if self.implicit is not None and self.implicit.open is not None:
            self._enlist(self.implicit.open)
            all_answered = not any(queue.flight for queue in self.queues.active())
            self.implicit.go_on(self.identity.current, all_answered=all_answered)

    @property
    def _is_implicit(self) -> bool:
        return self.implicit is not None and self.transaction is not None and self.transaction is self.implicit.open

    def settle(self, acknowledged: Acknowledged) -> None:
        batch, base_offset, append_time = acknowledged
        batch.deliver(base_offset, append_time)
        self._settled(batch)

    def fail_uncommitted(self, batches: list[Batch], cause: FencepostError, persisted: Persisted) -> None:
        if is_fencing(cause):
            cause = self._fenced(cause.code)
        for batch in batches:
            self.fail(batch, said_of(cause, persisted, **where(batch)))

    def transaction_ended(self, *, repeated: bool) -> None:
        self.transaction = None
        if repeated and self.identity.state is PidState.READY:
            self.renew_identity()  # under the next epoch a late EndTxn ends nothing that it was not meant for

    def stop_owning(self, cause: FencepostError) -> None:
        self._first_failure = cause
        if is_fencing(cause):
            self.fence(cause.code)
        else:
            self.identity.finished(cause.code)
            self.fail_everything(
                SendFailed(f"what follows would be out of order after this: {cause}", persisted="no", code=cause.code)
            )
        if self.implicit is not None:
            self.implicit.forget()
        self.transaction = None

    # --- settling ---

    def deliver(self, batch: Batch, base_offset: int, append_time: int) -> None:
        acknowledged = Acknowledged(batch, base_offset, append_time)
        if self.implicit is not None and self._is_implicit:
            self.implicit.hold(acknowledged)  # it counts when the transaction does
        else:
            self.settle(acknowledged)

    def _give_up(self, queue: PartitionQueue, sent: Sent[Batch], message: str, code: ErrorCode) -> None:
        assert queue.flight is not None
        persisted = queue.flight.give_up(sent)
        self.fail(sent.batch, SendFailed(message, persisted=persisted, code=code, **where(sent.batch)))

    def fail(self, batch: Batch, error: FencepostError) -> None:
        batch.fail(error)
        self._failed(batch)
        self._settled(batch)

    def _settled(self, batch: Batch) -> None:
        if batch.roams:
            self._roaming[batch.queue.topic] -= 1
            batch.roams = False
        if batch.whole is not None and batch.whole.roams and all(part.settled for part in batch.whole.parts or ()):
            self._roaming[batch.queue.topic] -= 1
            batch.whole.roams = False
        self.queues.settled(batch)

    def _failed(self, settlement: Settlement) -> None:
        error = settlement.error
        assert error is not None
        if self.transaction is not None:
            self._doom(self.transaction, error)
        elif self._steps is not None and self._first_failure is None:
            # What is in the log is always the beginning of what was sent: only so can it be gone on from (IDEM-4).
            self._first_failure = error
            self._to_sweep = True
        hook = self._options.on_error
        if hook is None:
            self.failures.note(settlement)
        elif isinstance(error, SendFailed):
            try:
                hook(error)
            except Exception:
                log.exception("on_error raised")

    def _note_early_failures(self) -> None:
        while self.queues.failures:
            self._failed(self.queues.failures.popleft())

    def _expire_sent(self, queue: PartitionQueue, flight: Flight[Batch], now: float) -> None:
        """PROD-8: what was sent expires in order, and not while it is in doubt and the log can be asked."""
        while (head := flight.head) is not None:
            deadline = head.batch.deadline
            if now < deadline:
                self.due(deadline, now)
                return
            if head.in_flight:
                return  # its answer, or its loss, comes first
            if head.in_doubt and self._options.idempotent and now < deadline + self._options.request_timeout:
                flight.wants_look_back()
                self.due(deadline + self._options.request_timeout, now)
                return
            persisted: Persisted = flight.give_up(head)
            error = Expired(self._reason("not acknowledged"), persisted=persisted, **where(head.batch))
            self.fail(head.batch, error)

    def _expire_queued(self, queue: PartitionQueue, now: float) -> bool:
        """Fails what has waited too long without being sent; False if the queue is empty then."""
        while queue:
            batch = queue.sealed[0] if queue.sealed else queue.open
            if batch is None:
                break
            if now < batch.deadline:
                self.due(batch.deadline, now)
                return True
            expired = self.queues.drain(queue, also_open=True)
            if expired is not None:
                error = Expired(self._reason("not sent"), persisted="no", **where(expired))
                self.fail(expired, error)
        return False

    def _reason(self, what: str) -> str:
        last = self.brokers.last_error
        because = f": {last}" if last is not None else ""
        return f"{what} within {self._options.delivery_timeout:g} s{because}"

    def fence(self, code: ErrorCode) -> None:
        """Another one took over, and this one is at its end."""
        self.identity.finished(code)
        self.fail_everything(self._fenced(code))
        if self.implicit is not None:
            if self._is_implicit:
                self.transaction = None
            self.implicit.forget()
        self.identity_is_settled.set()

    def _fenced(self, code: ErrorCode) -> Fenced:
        message = f"the server answers {code.name}: another producer has taken over this one's id"
        if self.implicit is not None:
            message = (
                f"the server answers {code.name}: somebody else owns what this producer owned, or a write took longer "
                f"than transaction_timeout={self._options.transaction_timeout:g} s"
            )
        elif self._options.name is not None:
            message = f"the server answers {code.name}: another producer has the name {self._options.name!r} by now"
            if self.transaction is not None:
                timeout = f"{self._options.transaction_timeout:g} s"
                message += f", or the transaction was open for longer than transaction_timeout={timeout}"
        return Fenced(message, persisted="unknown", code=code)

    def fail_everything(self, cause: FencepostError) -> None:
        """Refuses what comes, and fails what is there, each with what is known of it."""
        self.queues.refuse_from_now(cause)
        self._fail_all(cause)

    def _fail_all(self, cause: FencepostError) -> None:
        for topic in self.queues.topics_to_place():
            for settlement in self.queues.fail_waiting(topic, said_of(cause, "no", topic=topic.name)):
                self._failed(settlement)
        is_implicit = self._is_implicit  # then nothing of it is committed, and nobody will
        if self.implicit is not None:
            self.fail_uncommitted(self.implicit.drop(), cause, "no")
        for queue in self.queues.everything():
            if queue.flight is not None:
                for sent in queue.flight.give_up_all():
                    persisted: Persisted = "no" if is_implicit else sent.persisted
                    self.fail(sent.batch, said_of(cause, persisted, **where(sent.batch)))
            while (batch := self.queues.drain(queue, also_open=True)) is not None:
                self.fail(batch, said_of(cause, "no", **where(batch)))
        self._note_early_failures()

    def abandon(self) -> None:
        """The producer is closed and its time is over: what is left fails."""
        if self._aftermath is not None:
            self._aftermath.give_up()
        if self.implicit is not None:
            closed = Closed("the producer was closed before the records were committed")
            self.fail_uncommitted(self.implicit.drop(for_good=True), closed, "unknown")
        self.fail_everything(Closed("the producer was closed before the records were acknowledged"))


def is_fencing(error: FencepostError) -> bool:
    """What a coordinator answers to a producer whose name another one has by now."""
    return error.code in FENCING or error.code in REPLACED


def _unsettled(queue: PartitionQueue) -> Iterator[Sent[Batch]]:
    assert queue.flight is not None
    return iter(queue.flight)


def unreachable(brokers: Brokers, servers: str) -> Unreachable:
    """For callers that have waited long enough for any server at all."""
    last = brokers.last_error
    return Unreachable(str(last) if last is not None else f"no server answers at {servers}")
