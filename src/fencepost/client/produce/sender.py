"""The send thread: one loop whose turn, `run_once`, can be stepped in a test (PROD-10).

A turn, in the order of the source document's event loop, and the part of `client/produce/` that does it:

    place        move records whose topic's partitions became known to their queues        `placing.py`
    metadata     request it when due, without waiting for the answer (PROD-7)              `placing.py`
    pid          request it once                                                           `identity.py`
    dispatch     carry out what the schedule decides: expire, look back, bump, resend,     `dispatch.py`
                 send; one batch of each partition into one request per leader
                 (PROD-9), request after request while there is room in flight
    poll         open connections, read and write sockets; answers settle their batches    `settling.py`
    deadlines    close connections whose answers are overdue

`core/producers/schedule.py` decides what is sent, and when. Other threads share only `queues` with this one.
They have the send thread do everything else, by `Sender.call`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.forking import of_the_parent
from fencepost.client.cluster.metadata import Metadata
from fencepost.client.cluster.owner_connection import OwnerConnection, PendingClaim
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network
from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.client.produce.dispatch import Dispatch
from fencepost.client.produce.doubt import Aftermath
from fencepost.client.produce.identity import IdentityRequests
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.lanes import WriteId
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.produce.placing import Placing
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.reporting import Reporting
from fencepost.client.produce.requests import ProduceRequests
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.client.produce.transaction import OpenTransactions
from fencepost.client.transactions.coordinator import Steps, Transactional
from fencepost.clock import Clock
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.lease import Lease, lease_over
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.pid import Identity, PidState
from fencepost.core.producers.schedule import Until
from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import Closed, Fenced, FencepostError, SendFailed, TimedOut
from fencepost.types import Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.client.produce.resume import Resumption

log = logging.getLogger("fencepost.producer")

T = TypeVar("T")

NEVER: Final = float("inf")


class Sender:
    def __init__(
        self,
        settings: ClientSettings,
        options: ProducerOptions,
        network: Network,
        clock: Clock,
        steps: Steps | None = None,
        ids: ProducerIds | None = None,
        lease: Lease | None = None,
    ) -> None:
        """`lease`: of what the producer owns; callers' threads look at it, too."""
        self._settings = settings
        self._options = options
        self._network = network
        self._clock = clock
        self.queues = Queues(options, clock, network.wake, self.trouble, needs_partitions=ids is not None)
        """The callers' side: any thread may use it."""
        self._metadata = Metadata(max_age=options.metadata_max_age, backoff=options.retry_backoff)
        self.brokers = Brokers(settings, network, clock, self._metadata, on_kept_out=self._kept_out)
        self.lease = Lease() if lease is None else lease
        self.owner = OwnerConnection(
            self.brokers, self._metadata, clock, options.request_timeout, self._ownership_lost, self.lease
        )
        self.brokers.on_lost = self.owner.lost
        self._thread_calls = ThreadCalls(network.wake)
        self.state = state = SendState(
            options, clock, self.queues, self._metadata, self.brokers, self._thread_calls, steps
        )
        self.settling = settling = Settling(state)
        self._identity = IdentityRequests(state, settling)
        self._resumption: Resumption | None = None
        if steps is not None and options.name is not None:
            from fencepost.client.produce.resume import Resumption  # few producers have a name

            self._resumption = Resumption(
                settings, options.name, ids, steps, state, settling, self._identity, clock.now_ms
            )
        self._placing = Placing(state, settling)
        self.transactions = OpenTransactions(state, settling, self._resumption)
        self._requests = requests = ProduceRequests(state, settling)
        self.dispatch = Dispatch(state, settling, self.transactions, requests, self._resumption)
        self.queues.before_waiting = self._before_waiting
        self.reporting = Reporting(state)
        self._aftermath: Aftermath | None = None
        self._stopping = self.is_parents = False
        self._finish_by: float | None = None
        self._is_finishing = False
        self.left_over: Mapping[str, int] = {}
        """Records per topic that were not delivered when the time to finish was over."""

    # --- the thread ---

    def run(self) -> None:
        with (
            self.queues.settled_here(),
            ExitStack() as at_the_end,
        ):  # runs all of these, last one first, whatever the others raise
            at_the_end.callback(self.abandon)
            at_the_end.callback(self._thread_calls.close)
            at_the_end.callback(self.owner.close)
            at_the_end.callback(self.close)
            try:
                while not self._stopping and (self._finish_by is None or not self._has_finished(self._finish_by)):
                    self.run_once()
            except Exception as error:
                log.exception("the send thread ends")
                broken = SendFailed(f"the send thread ended: {error!r}", persisted="unknown")
                broken.__cause__ = error
                at_the_end.callback(self._break, broken)

    def run_once(self, timeout: float | None = None) -> None:
        """Take one turn. Wait for the network until something is due, at most `timeout` seconds."""
        state = self.state
        self._network.before_work()
        now = state.now()
        state.next_due = NEVER
        if self._thread_calls.calls:
            self._thread_calls.run_due()
            state.schedule.happened(Until.NEWS)
        if self.settling.is_to_sweep:
            self.settling.sweep()
        state.due(self.owner.turn(now), now)
        if self._aftermath is not None:
            self._settle_doubtful(self._aftermath, now)
        if self.queues.to_place:
            self._placing.place(now)
        if state.lanes is not None:
            self._end_lanes_with_lease(now)
            self.settling.expire_uncommitted(state.lanes, now)
        if state.steps is not None:
            self._identity.ask_if_due(now)  # before anything is written: the name may be about to be forgotten
        self.dispatch.dispatch(now)
        if state.lanes is not None:
            self.transactions.end_in_lanes(state.lanes, now)
        if self._metadata.ask_at() <= now:
            self._placing.refresh_metadata(now)
        if self._options.idempotent and state.identity.state is PidState.NONE:
            self._identity.ask_if_due(now)
        if self._options.on_stats is not None:
            self.reporting.report(now)
        if self._network.poll(self._patience(now, timeout)):
            state.schedule.happened(Until.NEWS)
        if (now := state.now()) >= self.brokers.due:
            self.brokers.check_deadlines(now)

    def _patience(self, now: float, timeout: float | None) -> float | None:
        """Return how long to wait for the network, in seconds; None: as long as nothing happens."""
        state, schedule = self.state, self.state.schedule
        moment = self.brokers.next_moment(now)  # also if it is overdue
        if self._stopping or self.settling.is_to_sweep or schedule.has_changes:
            return 0.0
        # What is due already waits for something else, a connection for example.
        for due in (
            state.next_due,
            schedule.next_moment(now),
            self._metadata.ask_at(),
            state.identity.ask_at,
            self._finish_by,
        ):
            if due is not None and now < due < moment:
                moment = due
        self.queues.looks_at = moment
        if moment == NEVER:
            return timeout
        patience = max(0.0, moment - state.now())
        return patience if timeout is None else min(timeout, patience)

    def _before_waiting(self) -> None:
        """On a caller's thread: raise if the wait for a ticket could never end, and let the send thread read."""
        self.queues.check_thread("result()")
        self.queues.check_interrupted()
        self.queues.announce()

    def _kept_out(self, address: Address | None, error: FencepostError) -> None:
        self.settling.kept_out(address, error)

    # --- its end ---

    def stop(self) -> None:
        """From any thread: end the loop after this turn."""
        self._stopping = True
        self._network.wake()

    def finish_within(self, seconds: float) -> None:
        """From any thread, without taking a lock: end the loop when all is settled, or after so many seconds. Nobody
        may send any more."""
        self._finish_by = self._clock.monotonic() + seconds
        self._network.wake()

    def finish_soon(self, why: Closed) -> None:
        """From any thread: accept no more records, and send batches at once, full or not."""
        self.queues.refuse_from_now(why)
        self.queues.hurry()
        self._network.wake()

    def _has_finished(self, finish_by: float) -> bool:
        if not self._is_finishing:
            self._is_finishing = True
            self.queues.hurry()
        if not self.queues.is_empty and self.state.now() < finish_by:
            return False
        self.left_over = self.undelivered()
        return True

    def _break(self, broken: SendFailed) -> None:
        """Fail everything after a bug, so that nobody waits for ever."""
        self.settling.fail_everything(broken)
        if self.state.lanes is not None:
            self.settling.fail_uncommitted(self.state.lanes.drop(for_good=True), broken, "unknown")
        if self._aftermath is not None:
            self._aftermath.give_up()
        self.settling.fail_the_rest(broken)
        self.state.identity_settled.set()

    def abandon(self) -> None:
        """Fail what is left when the producer is closed and its time is over."""
        if self._aftermath is not None:
            self._aftermath.give_up()
        why = self.trouble()
        if self.state.lanes is not None:
            closed = Closed(f"the producer was closed before the records were committed{why}")
            self.settling.fail_uncommitted(self.state.lanes.drop(for_good=True), closed, "unknown")
        self.settling.fail_everything(Closed(f"the producer was closed before the records were acknowledged{why}"))
        self.state.identity_settled.set()  # nobody requests it any more

    def close(self) -> None:
        """Close the sockets; called by the send thread if there is one."""
        self.brokers.close()
        self._network.close()

    def leave_to_parent(self) -> None:
        """In a forked child: close the copies of the sockets, and let everything that only the parent can finish raise
        instead of waiting for a send thread that does not exist here."""
        self.is_parents = True
        self._network.forget_sockets()
        self.queues.leave_to_parent()
        self._thread_calls.leave_to_parent(of_the_parent("the producer"))

    def check_process(self, what: str) -> None:
        """Raise Closed in a forked child: `what` is the parent's."""
        if self.is_parents:
            raise of_the_parent(what)

    # --- for any thread ---

    def call(self, what: Callable[[], T]) -> T:
        """From any other thread: have the send thread call `what`, and return its result."""
        self.queues.check_thread("this call")
        self.queues.check_interrupted()
        return self._thread_calls.call(what)

    def flush(self) -> None:
        """Wait for everything accepted before, and raise the error if the producer accepts nothing any more."""
        self.queues.wait_until_settled(None)
        if self.broken is not None:
            raise self.broken.fresh()

    @property
    def broken(self) -> FencepostError | None:
        """Why it accepts no records any more, ever."""
        return self.queues.broken

    def wait_for_epoch(self, patience: float) -> bool:
        """Wait until no request for the name's epoch is in flight. Return False if the time was over first."""
        return self.state.identity_settled.wait(patience)

    def wait_for_identity(self, patience: float, *, while_closing: bool = False) -> Identity:
        """Return the name's pid and epoch; any other producer of that name is fenced then."""
        deadline = time.monotonic() + patience
        while True:
            if not self.wait_for_epoch(max(0.0, deadline - time.monotonic())):
                raise TimedOut(f"no pid for the producer's name within {patience:g} s{self.trouble()}")
            if (broken := self.broken) is not None and not (while_closing and isinstance(broken, Closed)):
                raise broken.fresh()
            # By `call`: this thread could see it half changed, or while the next epoch is being requested.
            if (identity := self.call(lambda: self.identity)) is not None:
                return identity

    def post_claim(self, request: ClaimRequest) -> PendingClaim:
        """Have the send thread claim over the connection that carries the data, on fencepost's server. The caller waits
        for the outcome only: a thread that is woken in between competes for the GIL with the one that sends."""
        pending = PendingClaim.of(request)
        self._thread_calls.post(lambda: self.owner.ask(pending), pending.fail)
        return pending

    def doubt(self, address: Address, error: FencepostError) -> None:
        """From any thread: take note that this server left a request on another connection unanswered. A coordinator
        often leads partitions, too."""
        self._thread_calls.post(lambda: self.brokers.doubt(address, error))

    def trouble(self) -> str:
        """Return the last connection error as the end of a message; empty if a connection has worked since."""
        return self.state.trouble()

    def undelivered(self) -> Mapping[str, int]:
        """Return the records per topic that are unsettled, or failed without anybody asking for the outcome."""
        lost = Counter(self.settling.failures.take_by_topic())
        lost.update(self.queues.unsettled_records())
        return lost

    @property
    def fenced(self) -> Fenced | None:
        """Why this producer must not write any more, if another one has taken over."""
        return self.owner.fenced or (self.broken if isinstance(self.broken, Fenced) else None)

    @property
    def open_transaction(self) -> TransactionPartitions | None:
        return self.state.transaction

    @property
    def is_owner(self) -> bool:
        return bool(self.owner.held) or self.writes_in_lanes

    @property
    def writes_in_lanes(self) -> bool:
        """True for an owner on Apache Kafka, which sends everything in transactions."""
        return self.state.lanes is not None

    # --- on the send thread; other threads `call` these ---

    @property
    def identity(self) -> Identity | None:
        """The pid and epoch to write under; None while they are being requested or when the producer is finished."""
        return self.state.ready_identity

    def begin_to_save_ids(self, who: Identity) -> None:
        """On the caller's thread, before the first `ids`."""
        resumption = self._resumption
        if resumption is not None and not resumption.is_on:
            resumption.begin(who, self.call(lambda: resumption.written(self._settled_queues())))

    def ids(self, cluster_id: str | None) -> ProducerIds:
        assert self._resumption is not None
        return self._resumption.ids(cluster_id, self._settled_queues())

    def _settled_queues(self) -> list[PartitionQueue]:
        """Return all queues. Raise FencepostError unless they can be resumed from."""
        if not self.queues.is_empty:
            raise FencepostError("records are not settled yet: flush first, then read the ids")
        broken = self.settling.first_failure or self.broken  # a failure ends the producer only in the next turn
        if broken is not None and not isinstance(broken, Closed):
            raise broken.fresh()
        if not self.state.is_repeatable:
            raise FencepostError(
                "this producer's ids cannot be resumed from: records without a key must name their partition, and "
                "transactions must not be used, because they store their own offsets"
            )
        return list(self.queues.everything())

    # --- owning ---

    def write_under(
        self,
        steps: Transactional,
        who: Identity,
        lanes: Sequence[WriteId],
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> bool:
        """From now on send everything in transactions: the caller's under the id of `steps`, the rest in these lanes.
        Return False, and change nothing, while an earlier batch is in flight."""
        if self.state.schedule.elsewhere or any(queue.flight for queue in self.queues.everything()):
            return False
        self.transactions.write_in_lanes(steps, lanes, is_committed)
        self._identity.answered(who)
        return True

    def _end_lanes_with_lease(self, now: float) -> None:
        """On Apache Kafka no connection ends with the lease, so the producer ends itself."""
        if self.broken is None:
            if self.lease.is_over(now):
                self.settling.lose(lease_over((), self.lease.session))
            else:
                self.state.due(self.lease.end, now)

    @property
    def has_commit_in_doubt(self) -> bool:
        """True while a lane's last transaction may still be committed or aborted."""
        return self.state.lanes is not None and self.state.lanes.are_in_doubt

    def _ownership_lost(self, cause: Fenced, lost: Mapping[tuple[str, str], OwnedResource]) -> None:
        """End this producer: the connection that owned something has ended (OWN-9). Read the log for what is in
        doubt."""
        settling = self.settling
        doubtful = settling.lose_ownership(cause)
        self._aftermath = Aftermath(
            Brokers(self._settings, self._network, self._clock, self._metadata),
            lost,
            doubtful,
            self.state.now(),
            patience=self._options.request_timeout,
            backoff=self._options.retry_backoff,
            found=lambda sent, offset: settling.deliver(sent.batch, offset, -1),
            missing=lambda sent, known: settling.fail_with(sent.batch, cause, known),
        )
        self._settle_doubtful(self._aftermath, self.state.now())

    def _settle_doubtful(self, aftermath: Aftermath, now: float) -> None:
        self.state.due(aftermath.turn(now), now)
        if aftermath.is_over:
            self._aftermath = None
