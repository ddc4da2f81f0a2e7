"""Who the producer is: its pid and epoch, asked for once, or by its name, and after a failure again."""

from __future__ import annotations

from typing import Any

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.produce.common import Common
from fencepost.client.produce.settling import Settling
from fencepost.client.transactions.coordinator import Steps, abort_open
from fencepost.core.producers.dedup import REMEMBERED
from fencepost.core.producers.inflight import KAFKA_LIMIT
from fencepost.core.producers.pid import NAME_TAKEN, Identity, PidState
from fencepost.errors import ErrorCode, FencepostError, SendFailed, TimedOut, Unreachable
from fencepost.types import NO_PID, Epoch, Pid
from fencepost.wire.apis import Key


class Naming:
    def __init__(self, common: Common, settling: Settling) -> None:
        self._options = common.options
        self._queues = common.queues
        self._brokers = common.brokers
        self._errands = common.errands
        self._agenda = common.agenda
        self._standing = common.standing
        self._settling = settling

    def ask_for_pid(self, now: float) -> None:
        if not self._standing.identity.wants_to_ask(now):
            return
        if self._standing.steps is not None:
            connection = self._brokers.any()
            if connection is not None:
                self._learn_limit(connection)
                self._fence_by_name(self._standing.steps)
            return
        fields = {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": NO_PID,
            "producer_epoch": -1,
        }
        try:
            # Two brokers may be asked: each pid is a fresh one, and the one that comes second is used by nobody.
            connection = self._brokers.ask_any(Key.INIT_PRODUCER_ID, fields, self._pid_answered, self._pid_lost)
        except FencepostError as error:
            self._pid_refused(ErrorCode.UNSUPPORTED_VERSION, str(error))
            return
        if connection is not None:
            self._learn_limit(connection)
            self._standing.identity.asked()

    def _learn_limit(self, connection: BrokerConnection) -> None:
        self._standing.limit = REMEMBERED if connection.is_fencepost else KAFKA_LIMIT

    def _pid_answered(self, answer: Any) -> None:
        if self._standing.steps is not None:
            return  # it has become an owner meanwhile, and writes under another id
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            self._standing.identity.given(Pid(answer.producer_id), Epoch(answer.producer_epoch))
        elif code.retriable:
            self._standing.identity.refused(code, self._agenda.now(), self._options.retry_backoff)
        else:
            self._pid_refused(code, f"the server gives no producer id ({code.name})")

    def _pid_lost(self, error: FencepostError, left: bool) -> None:
        if self._standing.steps is None:
            self._standing.identity.answer_lost(self._agenda.now(), self._options.retry_backoff)

    def _pid_refused(self, code: ErrorCode, message: str) -> None:
        self._standing.identity.finished(code)
        self._settling.fail_everything(
            SendFailed(f"{message}; idempotent=False works without one", persisted="no", code=code)
        )

    def _fence_by_name(self, steps: Steps) -> None:
        """The name's next epoch. The first time it is taken from whoever has it; later only if it is still ours."""
        before = self._standing.identity.current
        self._standing.identity.asked()
        self._errands.send_out(lambda: self.next_epoch(steps, before), self.name_answered)

    def next_epoch(self, steps: Steps, before: Identity | None) -> Identity:
        """On an errand's thread."""
        if before is not None and self._standing.may_be_open:
            abort_open(steps, before)
            self._standing.may_be_open = False  # not again: once the next epoch is given, that would be refused
        return steps.init(int(self._options.transaction_timeout * 1000), before)

    def name_answered(self, outcome: Identity | FencepostError) -> None:
        if self._standing.identity.state is PidState.FINISHED:
            return  # fenced meanwhile
        if isinstance(outcome, Identity):
            self._standing.identity.given(*outcome)
            for queue in self._queues.everything():
                if queue.flight is not None and not len(queue.flight) and self._standing.lanes is None:
                    queue.flight.begin(outcome)
        elif outcome.code in NAME_TAKEN:
            self._settling.fence(outcome.code)
        elif (isinstance(outcome, Unreachable | TimedOut) or outcome.retriable) and not keeps_us_out(outcome):
            self._brokers.last_error = outcome
            self._standing.identity.answer_lost(self._agenda.now(), self._options.retry_backoff)
            return
        else:
            self._standing.identity.finished(outcome.code)
            self._settling.fail_everything(SendFailed(str(outcome), persisted="no", code=outcome.code))
        self._standing.is_settled.set()
