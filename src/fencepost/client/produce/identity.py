"""The producer's pid and epoch: requested once, or by the producer's name, and again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import Refusal, SendState
from fencepost.client.transactions.coordinator import Steps, abort_open
from fencepost.core.producers.dedup import REMEMBERED
from fencepost.core.producers.inflight import KAFKA_LIMIT
from fencepost.core.producers.pid import NAME_TAKEN, Identity, PidState
from fencepost.errors import ErrorCode, FencepostError, SendFailed, TimedOut, Unreachable
from fencepost.types import NO_PID, Epoch, Pid
from fencepost.wire.apis import Key


class IdentityRequests:
    def __init__(self, state: SendState, settling: Settling) -> None:
        self._state = state
        self._options = state.options
        self._brokers = state.brokers
        self._settling = settling
        self.on_pid: Callable[[Pid], None] = _ignore
        """Called with every pid that the name gets, on a temporary thread, before anything is written under it."""

    def ask_if_due(self, now: float) -> None:
        state = self._state
        if state.identity.state is PidState.READY:
            if (lasts := state.name_lasts) <= 0:
                state.renew_identity()
            state.due(now + lasts, now)
        if not state.identity.wants_to_ask(now):
            return
        if state.steps is not None:
            connection = self._brokers.any()
            if connection is not None:
                self._learn_limit(connection)
                self._ask_by_name(state.steps)
            return
        fields = {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": NO_PID,
            "producer_epoch": -1,
        }
        try:
            # Two brokers may be asked: every pid is new, and the one that comes second stays unused.
            connection = self._brokers.ask_any(Key.INIT_PRODUCER_ID, fields, self._pid_answered, self._pid_lost)
        except FencepostError as error:
            self._pid_refused(ErrorCode.UNSUPPORTED_VERSION, str(error))
            return
        if connection is not None:
            self._learn_limit(connection)
            state.identity.asked()

    def _learn_limit(self, connection: BrokerConnection) -> None:
        self._state.max_in_flight = REMEMBERED if connection.is_fencepost else KAFKA_LIMIT

    def _pid_answered(self, answer: Any) -> None:
        state = self._state
        if state.steps is not None:
            return  # it has become an owner meanwhile, and writes under another id
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            state.identity.given(Pid(answer.producer_id), Epoch(answer.producer_epoch))
        elif code.retriable:
            state.pid_refusal = Refusal(state.now(), code, "it gives no producer id")
            state.identity.refused(code, state.now(), self._options.retry_backoff)
        else:
            self._pid_refused(code, f"the server gives no producer id ({code.name})")

    def _pid_lost(self, error: FencepostError, left: bool) -> None:
        if self._state.steps is None:
            self._state.identity.answer_lost(self._state.now(), self._options.retry_backoff)

    def _pid_refused(self, code: ErrorCode, message: str) -> None:
        cause = SendFailed(f"{message}; with idempotent=False the producer needs none", persisted="no", code=code)
        self._settling.finish(cause)

    def _ask_by_name(self, steps: Steps) -> None:
        """Request the name's next epoch. The first request fences any other holder; later ones fail if another producer
        has taken the name."""
        before = self._state.identity.current
        self._state.identity.asked()
        self._state.thread_calls.run_in_thread(lambda: self.next_epoch(steps, before), self.answered)

    def next_epoch(self, steps: Steps, before: Identity | None) -> Identity:
        """Request the name's next epoch; on a temporary thread, because it waits for the coordinator."""
        if before is not None and self._state.may_be_open:
            abort_open(steps, before)
            self._state.may_be_open = False  # once only: under the next epoch the old one's abort would be rejected
        self._state.name_asked_ms = self._state.now_ms()
        who = steps.init(int(self._options.transaction_timeout * 1000), before)
        self.on_pid(who.pid)
        return who

    def answered(self, outcome: Identity | FencepostError) -> None:
        state = self._state
        if state.identity.state is PidState.FINISHED:
            return  # fenced meanwhile
        if isinstance(outcome, Identity):
            state.identity.given(*outcome)
            for queue in state.queues.everything():
                if queue.flight is not None and not len(queue.flight) and state.lanes is None:
                    queue.flight.begin(outcome)
            state.identity_settled.set()
        elif outcome.code in NAME_TAKEN:
            self._settling.fence(outcome.code)
        elif (isinstance(outcome, Unreachable | TimedOut) or outcome.retriable) and not keeps_us_out(outcome):
            self._brokers.last_error = outcome
            state.identity.answer_lost(state.now(), self._options.retry_backoff)
        else:
            self._settling.finish(SendFailed(str(outcome), persisted="no", code=outcome.code))


def _ignore(pid: Pid) -> None:
    """Do nothing: this producer saves no ids."""
