"""Transactions for administrators: list them, describe one, abort one that holds up readers.

A transaction that its coordinator knows as open ends by its timeout, or when somebody aborts it by name, which fences
its producer. A *hanging* transaction is open in a partition but unknown to the coordinator (a bug, a lost disk):
it ends only when an administrator writes its abort marker.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.admin.results import TransactionDescription
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.core.rows import ProducerState, TransactionSummary
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition
from fencepost.wire.apis import Key
from fencepost.wire.messages import ms

OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_ANY_COORDINATOR: Final = 0
_MARKER_VERSION: Final = 1
"""Later versions say how the transaction was written, which is unknown for a hanging one."""


class TransactionAdmin(PartitionAdmin):
    """Administration of transactions."""

    def transactions(self, *, states: Iterable[str] = ()) -> tuple[TransactionSummary, ...]:
        """Return the transactional ids of all coordinators, sorted by name; with `states`, only those in one."""
        wanted = list(states)
        found: dict[str, TransactionSummary] = {}
        for broker in self._routes.view().brokers.values():
            for summary in self._routes.retried(lambda broker=broker: self._transactions_at(broker, wanted)):  # type: ignore[misc]
                found[summary.name] = summary
        return tuple(found[name] for name in sorted(found))

    def _transactions_at(self, broker: BrokerNode, states: list[str]) -> list[TransactionSummary]:
        channel = self._routes.to(broker)
        answer = channel.request(
            Key.LIST_TRANSACTIONS, {"state_filters": states, "producer_id_filters": [], "duration_filter": -1}
        ).message
        raise_for(answer.error_code, "listing transactions")
        if answer.unknown_state_filters:
            raise ServerError(
                ErrorCode.INVALID_REQUEST, f"unknown transaction state {', '.join(answer.unknown_state_filters)}"
            )
        open_ones = [row.transactional_id for row in answer.transaction_states if row.transaction_state in OPEN]
        started = self._started(broker, open_ones) if open_ones else {}
        return [
            TransactionSummary(
                row.transactional_id,
                row.transaction_state,
                Pid(row.producer_id),
                started.get(row.transactional_id),
            )
            for row in answer.transaction_states
        ]

    def _started(self, broker: BrokerNode, names: list[str]) -> dict[str, Milliseconds]:
        """Return when each open transaction began; those that have ended meanwhile are left out."""
        answer = self._routes.to(broker).request(Key.DESCRIBE_TRANSACTIONS, {"transactional_ids": names}).message
        return {
            row.transactional_id: started
            for row in answer.transaction_states
            if row.error_code == ErrorCode.NONE and (started := _started_ms(row)) is not None
        }

    def describe_transaction(self, name: str) -> TransactionDescription:
        return self._routes.retried(lambda: self._describe_transaction(name))

    def _describe_transaction(self, name: str) -> TransactionDescription:
        coordinator = self._routes.transaction_coordinator(name)
        answer = self._routes.to(coordinator).request(Key.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]}).message
        row = answer.transaction_states[0]
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise ServerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {name!r}")
        raise_for(row.error_code, f"transactional id {name!r}")
        return TransactionDescription(
            name,
            row.transaction_state,
            Pid(row.producer_id),
            _started_ms(row),
            Epoch(row.producer_epoch),
            ms(row.transaction_timeout),
            tuple(sorted(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions)),
            coordinator,
        )

    def _describe_open(self, name: str) -> TransactionDescription:
        """Describe a transaction that must be open."""
        described = self.describe_transaction(name)
        if described.state not in OPEN:
            raise ServerError(
                ErrorCode.INVALID_TXN_STATE, f"{name!r} has no open transaction: its state is {described.state}"
            )
        return described

    def abort_hanging_transaction(self, topic: str, producer: ProducerState) -> None:
        """Abort a transaction that is open in a partition (see `producers`) but unknown to every coordinator."""
        where = TopicPartition(topic, producer.partition)
        fields = {
            "markers": [
                {
                    "producer_id": producer.pid,
                    "producer_epoch": producer.epoch,
                    "transaction_result": False,
                    "topics": [{"name": topic, "partition_indexes": [producer.partition]}],
                    "coordinator_epoch": _ANY_COORDINATOR,
                }
            ]
        }

        def ask() -> None:
            [leader] = self._routes.leaders(topic, [producer.partition])
            answer = self._routes.to(leader).request(Key.WRITE_TXN_MARKERS, fields, at_most=_MARKER_VERSION).message
            [row] = answer.markers[0].topics[0].partitions
            if row.error_code == ErrorCode.INVALID_TXN_STATE:
                raise ServerError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"the transaction of pid {producer.pid} in {where} is not hanging: abort it by its name",
                )
            raise_for(row.error_code, f"ending the transaction of pid {producer.pid} in {where}")

        self._routes.retried(ask)


def _started_ms(row: Any) -> Milliseconds | None:
    """Return when the open transaction began. Kafka also reports the start of the last one, which is ignored."""
    start: datetime | None = row.transaction_start_time
    if start is None or row.transaction_state not in OPEN:
        return None
    return round(start.timestamp() * 1000)
