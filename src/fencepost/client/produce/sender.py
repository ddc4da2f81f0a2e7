"""The send thread: one loop whose turn, `run_once`, can be stepped in a test (PROD-10).

A turn, in the order of the source document's event loop, and who does it (in `client/produce/`):

    place        records whose topic's partitions became known go to their queues          `placing.py`
    metadata     asked for when due, without waiting for the answer (PROD-7)               `placing.py`
    pid          asked for once                                                            `naming.py`
    collate      per queue: expire, look back, bump, send again, send new; one batch of    `collation.py`
                 each partition into one request per leader (PROD-9), round after round
                 while there is room in flight
    poll         new connections, readable and writable sockets, unfinished writes;        `produce.py`
                 answers settle their batches                                              `settling.py`
    deadlines    answers and connections that are overdue

`core/producers/inflight.py` decides what a partition's batches go through. Apart from `Queues`, nothing here is shared
with other threads: what they want of it they have it do, by `errands`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.errands import Errands
from fencepost.client.cluster.metadata import Metadata
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network
from fencepost.client.cluster.tenure import Tenure
from fencepost.client.produce.aftermath import Aftermath
from fencepost.client.produce.agenda import Agenda
from fencepost.client.produce.collation import Collation
from fencepost.client.produce.common import Common
from fencepost.client.produce.enlisting import Enlisting
from fencepost.client.produce.expiry import Expiry
from fencepost.client.produce.failures import said_of, where
from fencepost.client.produce.ids import ProducerIds, SavedPartition
from fencepost.client.produce.lanes import WriteId, WriteLane, WriteLanes
from fencepost.client.produce.naming import Naming
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import Batch, PartitionQueue
from fencepost.client.produce.placing import Placing
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.reporting import Reporting
from fencepost.client.produce.request import Produce
from fencepost.client.produce.resume import Resumption
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.standing import Standing
from fencepost.client.produce.stats import ProducerStats
from fencepost.client.transactions.coordinator import Steps, Transactional
from fencepost.clock import Clock
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.inflight import Sent
from fencepost.core.producers.pid import Identity, ProducerIdentity
from fencepost.errors import Closed, Fenced, FencepostError, Persisted, SendFailed
from fencepost.types import Offset, TopicPartition

log = logging.getLogger("fencepost.producer")


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
        self.queues = Queues(options, clock, network.wake, self.trouble)
        if ids is not None:
            self.queues.name_partitions()
        self.metadata = Metadata(max_age=options.metadata_max_age, backoff=options.retry_backoff)
        self.brokers = Brokers(settings, network, clock, self.metadata, on_kept_out=self._kept_out)
        self.tenure = Tenure(self.brokers, self.metadata, clock, options.request_timeout, self._lost_what_it_owned)
        self.brokers.on_lost = self.tenure.lost
        self.errands = Errands(network.wake)
        self.standing = Standing(options.name, steps)
        self._agenda = Agenda(clock)
        common = Common(options, self.queues, self.metadata, self.brokers, self.errands, self._agenda, self.standing)
        self.settling = Settling(common)
        self._naming = Naming(common, self.settling)
        self._resumption: Resumption | None = None
        if ids is not None and steps is not None:
            self._resumption = Resumption(ids, steps, common, self.settling, self._naming)
        self._expiry = expiry = Expiry(common, self.settling)
        self._placing = Placing(common, self.settling, expiry)
        self.enlisting = Enlisting(common, self.settling, self._resumption)
        produce = Produce(common, self.settling)
        self._collation = Collation(common, self.settling, expiry, self.enlisting, produce, self._resumption)
        self._reporting = Reporting(common)
        self._aftermath: Aftermath | None = None
        self._stopping = False
        self._finish_by: float | None = None
        self._is_finishing = False
        self.left_over: Mapping[str, int] = {}
        """Records per topic that were not delivered when the time to finish was over."""

    # --- the thread ---

    def run(self) -> None:
        with ExitStack() as at_the_end:  # each of these, whatever the others raise; the last one first
            at_the_end.callback(self.abandon)
            at_the_end.callback(self.errands.close)
            at_the_end.callback(self.tenure.close)
            at_the_end.callback(self.close)
            try:
                while not self._stopping and not self._has_finished():
                    self.run_once()
            except Exception as error:
                log.exception("the send thread ends")
                broken = SendFailed(f"the send thread ended: {error!r}", persisted="unknown")
                broken.__cause__ = error
                at_the_end.callback(self._break, broken)

    def _break(self, broken: SendFailed) -> None:
        """A bug, then: nobody shall wait for ever for what the send thread no longer does."""
        self.settling.fail_everything(broken)
        if self.standing.lanes is not None:
            self.settling.fail_uncommitted(self.standing.lanes.drop(for_good=True), broken, "unknown")
        if self._aftermath is not None:
            self._aftermath.give_up()
        self.settling.fail_the_rest(broken)
        self.standing.is_settled.set()

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

    def finish_within(self, seconds: float) -> None:
        """From any thread, and without a lock: nobody sends any more, and the loop ends when all is settled, or after
        so many seconds."""
        self._finish_by = self._clock.monotonic() + seconds
        self._network.wake()

    def finish_soon(self) -> None:
        """From any thread: batches do not wait to become full from now on."""
        self.queues.hurry()
        self._network.wake()

    def _has_finished(self) -> bool:
        if self._finish_by is None:
            return False
        if not self._is_finishing:
            self._is_finishing = True
            self.queues.hurry()
        if not self.queues.is_empty and self._agenda.now() < self._finish_by:
            return False
        self.left_over = self.undelivered()
        return True

    def stats(self) -> ProducerStats:
        return self._reporting.look()

    def undelivered(self) -> Mapping[str, int]:
        """Records per topic that are not settled, or failed and nobody has looked."""
        lost = Counter(self.settling.failures.take_by_topic())
        lost.update(self.queues.unsettled_records())
        return lost

    def run_once(self, timeout: float | None = None) -> None:
        """One turn. Waits for the network until something is due, at most `timeout` seconds."""
        self._network.before_work()
        now = self._agenda.now()
        self._agenda.clear()
        self.errands.run_due()
        self.settling.sweep()
        self._agenda.due(self.tenure.turn(now), now)
        self._find_out(now)
        self._placing.place(now)
        self._placing.refresh_metadata(now)
        if self._options.idempotent:
            self._naming.ask_for_pid(now)
        self._expiry.of_uncommitted(now)
        self._collation.collate(now)
        self.enlisting.end_in_lanes(now)
        self._placing.refresh_metadata(now)  # collating may have met a partition without a leader
        self._reporting.report(now)
        self._network.poll(self._patience(now, timeout))
        self.brokers.check_deadlines(self._agenda.now())

    def _patience(self, now: float, timeout: float | None) -> float | None:
        if self._stopping or self.settling.is_to_sweep:
            return 0.0
        self._agenda.due(self._finish_by, now)
        self._agenda.due(self.metadata.ask_at(), now)
        self._agenda.due(self.standing.identity.ask_at, now)
        moment = min(self._agenda.next, self.brokers.next_moment(now))
        patience = None if moment == float("inf") else max(0.0, moment - self._agenda.now())
        if timeout is None:
            return patience
        return timeout if patience is None else min(timeout, patience)

    def trouble(self) -> str:
        """From any thread: which connection failed last, as the end of a message; empty if one works since."""
        last = self.brokers.last_error
        return f": {last}" if last is not None else ""

    def _kept_out(self, address: Address | None, error: FencepostError) -> None:
        self.settling.kept_out(address, error)

    # --- owning ---

    def _lost_what_it_owned(self, cause: Fenced, lost: Mapping[tuple[str, str], OwnedResource]) -> None:
        """The connection has ended, and with it this producer (OWN-9): what never left is not there, what was in a
        transaction will never be committed, and for the rest the log is asked."""
        self.standing.identity.finished(cause.code)
        self.settling.first_failure = cause  # the first, for a named producer, and no more to be swept
        doubtful: dict[PartitionQueue, list[Sent[Batch]]] = {}
        for queue in self.queues.everything():
            for sent in queue.flight.give_up_all() if queue.flight is not None else ():
                known: Persisted = "no" if self.standing.transaction is not None else sent.persisted
                if known == "unknown" and self._options.idempotent:
                    doubtful.setdefault(queue, []).append(sent)
                else:
                    self.settling.fail(sent.batch, said_of(cause, known, **where(sent.batch)))
        self.settling.fail_everything(cause)
        self.standing.is_settled.set()
        self._aftermath = Aftermath(
            Brokers(self._settings, self._network, self._clock, self.metadata),
            lost,
            doubtful,
            self._agenda.now(),
            patience=self._options.request_timeout,
            backoff=self._options.retry_backoff,
            found=lambda sent, offset: self.settling.deliver(sent.batch, offset, -1),
            missing=lambda sent, known: self.settling.fail(sent.batch, said_of(cause, known, **where(sent.batch))),
        )
        self._find_out(self._agenda.now())

    def _find_out(self, now: float) -> None:
        if self._aftermath is not None:
            self._agenda.due(self._aftermath.turn(now), now)
            if self._aftermath.is_over:
                self._aftermath = None

    def write_under(
        self,
        steps: Transactional,
        who: Identity,
        lanes: Sequence[WriteId],
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> bool:
        """From now on all is sent in transactions: the caller's under this id, the rest in these lanes. False, and
        nothing is changed, while anything that was sent before is under way."""
        if any(queue.flight for queue in self.queues.everything()):
            return False
        self.standing.steps, self.standing.name = steps, steps.name
        self.standing.is_repeatable = False
        self.standing.identity = ProducerIdentity(named=True)
        self.standing.identity.asked()
        timeout_ms = round(self._options.transaction_timeout * 1000)
        self.standing.lanes = WriteLanes(
            [WriteLane(each, timeout_ms, self.errands, self.settling, is_committed) for each in lanes]
        )
        self._naming.name_answered(who)
        return True

    # --- its end ---

    def ids(self, cluster_id: str | None) -> ProducerIds:
        who, name = self.standing.identity.current, self._options.name
        assert who is not None
        assert name is not None
        if not self.queues.is_empty:
            raise FencepostError("records are not settled yet: flush first, then read the ids")
        if (broken := self.queues.broken) is not None and not isinstance(broken, Closed):
            raise broken
        if not self.standing.is_repeatable:
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

    def abandon(self) -> None:
        """The producer is closed and its time is over: what is left fails."""
        if self._aftermath is not None:
            self._aftermath.give_up()
        if self.standing.lanes is not None:
            closed = Closed(f"the producer was closed before the records were committed{self.trouble()}")
            self.settling.fail_uncommitted(self.standing.lanes.drop(for_good=True), closed, "unknown")
        why = self.trouble()
        self.settling.fail_everything(Closed(f"the producer was closed before the records were acknowledged{why}"))
