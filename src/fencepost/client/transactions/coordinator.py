"""The requests of a transaction, one method each: init, add partitions, add offsets, end, describe.

Client libraries bind a transaction to one process; the protocol does not. Every process with the identity (pid, epoch)
may write into it, and one process may commit what another began. The Spark sink uses this, as may any program that
spreads one transaction over many processes.

The methods retry errors that waiting cures (a coordinator that moves or loads, CONCURRENT_TRANSACTIONS while a
decision is carried out). `end` may be repeated any number of times: Kafka gives the same answer. Never infer the
outcome of a transaction from an error code: fence it with `init` and read what is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Channel, Routes
from fencepost.core.producers.pid import FENCING, Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.types import NO_EPOCH, NO_PID, Epoch, Milliseconds, Pid, TopicPartition
from fencepost.wire.apis import Key

T = TypeVar("T")

_CURED_BY_WAITING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_END_CURED_BY_WAITING: Final = _CURED_BY_WAITING | {ErrorCode.UNKNOWN_SERVER_ERROR}
"""Kafka answers EndTxn with UNKNOWN_SERVER_ERROR while somebody fences the name; a retry gets the true code."""
_FIRST_PAUSE: Final = 0.002
_END_VERSION: Final = 4
"""Later versions bump the epoch at every end (KIP-890). Here the producer bumps it only where needed: after a repeated
step whose first copy may still be in flight."""
_ADD_VERSION: Final = 3
"""Later versions are for brokers among themselves."""
_OFFSETS_VERSION: Final = 3
"""Later versions assume a new epoch for every transaction."""


class ConsumerGroupMetadata(NamedTuple):
    """The member that commits offsets; a group rejects members that it has replaced (KIP-447)."""

    generation: int = -1
    id: str = ""
    instance_id: str | None = None


NO_MEMBER: Final = ConsumerGroupMetadata()


class DescribedTransactionState(NamedTuple):
    state: str
    """Kafka's word: Empty, Ongoing, PrepareCommit, CompleteCommit …"""
    identity: Identity
    timeout_ms: Milliseconds


class CoordinatorRefusal(NamedTuple):
    """An answer of the coordinator after which a request is repeated."""

    at: float
    """By `time.monotonic`."""
    error: ServerError


class Steps(Protocol):
    """The coordinator's interface that the producer needs."""

    @property
    def doubts(self) -> int:
        """The number of requests that may have taken effect without an answer."""

    @property
    def last_refusal(self) -> CoordinatorRefusal | None:
        """The refusal because of which a request is repeated right now."""

    def init(self, timeout_ms: Milliseconds, who: Identity | None = None) -> Identity: ...
    def add_partitions(self, who: Identity, partitions: Iterable[TopicPartition]) -> None: ...
    def add_offsets(
        self,
        who: Identity,
        group: str,
        offsets: Mapping[TopicPartition, int],
        member: ConsumerGroupMetadata = NO_MEMBER,
    ) -> None: ...
    def end(self, who: Identity, *, commit: bool) -> None: ...


def abort_open(steps: Steps, who: Identity) -> None:
    """Abort what is open under `who`, and nothing else. Call it before asking for the next epoch.

    `init` aborts, too. But below Kafka's transaction.version 2 a coordinator does so under an epoch that it does not
    report, answers CONCURRENT_TRANSACTIONS, and treats the retry as one of a fenced producer. It also aborts a
    successor's open transaction (KIP-360 compares only the pid).
    """
    try:
        steps.end(who, commit=False)
    except FencepostError as error:
        # Nothing was open; or the name was idle for so long that the coordinator has forgotten it, or its pid: `init`
        # tells whether another producer has taken it since, and touches nothing of another pid.
        if error.code not in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            raise


@dataclass(slots=True)
class Transactional:
    """A transactional id at its coordinator."""

    routes: Routes
    name: str
    patience: float = 60.0
    """Seconds for which errors are retried."""
    absent_patience: float | None = None
    """The same for a topic or partition that the coordinator does not know; None: as `patience`."""
    doubts: int = 0
    """The number of requests that may have taken effect without an answer that says so. While it does not grow, the
    last answer is the whole truth."""
    last_refusal: CoordinatorRefusal | None = None
    """Told to the user if the wait for the coordinator is what a record expires of."""
    _channel: Channel | None = None
    _groups: dict[str, Channel] = field(default_factory=dict)
    """The coordinators of groups that have accepted offsets."""
    _aborts: int = 0
    """The number of aborts that were requested."""

    def go_by(self, routes: Routes) -> None:
        """Use these routes to the coordinator from now on."""
        self.routes, self._channel = routes, None
        self._groups.clear()

    def ask_first(self, coordinator: Channel) -> None:
        """Use this channel to the coordinator, which the caller has found already."""
        self._channel = coordinator

    def init(self, timeout_ms: Milliseconds, who: Identity | None = None) -> Identity:
        """Get a new epoch: abort what is open under the name, wait for decisions in progress, fence earlier producers.

        With `who`, only if nobody else has taken the name since (KIP-360); otherwise raise PRODUCER_FENCED.
        """
        expected = who or Identity(NO_PID, NO_EPOCH)

        def ask(channel: Channel) -> Identity:
            fields = {
                "transactional_id": self.name,
                "transaction_timeout": timeout_ms,
                "producer_id": expected.pid,
                "producer_epoch": expected.epoch,
            }
            answer = channel.request(Key.INIT_PRODUCER_ID, fields, at_most=5).message
            if answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise ServerError(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                    f"the server rejects a transaction timeout of {timeout_ms} ms: "
                    "use a shorter one, or raise transaction.max.timeout.ms on the server",
                )
            raise_for(answer.error_code, f"InitProducerId of {self.name!r}")
            return Identity(Pid(answer.producer_id), Epoch(answer.producer_epoch))

        return self._until_answered(ask)

    def add_partitions(self, who: Identity, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction; the first one begins it."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        aborts = self._aborts

        def ask(channel: Channel) -> None:
            if self._aborts != aborts:  # by another step meanwhile: a retry would begin a new transaction
                raise ServerError(ErrorCode.INVALID_TXN_STATE, f"a transaction of {self.name!r} was aborted meanwhile")
            fields = {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": who.pid,
                "v3_and_below_producer_epoch": who.epoch,
                "v3_and_below_topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            }
            answer = channel.request(Key.ADD_PARTITIONS_TO_TXN, fields, at_most=_ADD_VERSION).message
            errors = {
                ErrorCode.of(row.partition_error_code): f"{topic.name}-{row.partition_index}"
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            errors.pop(ErrorCode.NONE, None)
            if len(errors) > 1:
                errors.pop(ErrorCode.OPERATION_NOT_ATTEMPTED, None)
            for code, where in errors.items():
                raise ServerError(code, f"adding {where} to a transaction of {self.name!r}{self._missing(code, where)}")

        self._until_answered(ask)

    def _missing(self, code: ErrorCode, partition: str) -> str:
        """Return which permission is missing: the server's answer has no message."""
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return f" needs WRITE on the topic {partition.rpartition('-')[0]!r}"
        if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return f" needs WRITE on the transactional id {self.name!r}"
        return ""

    def add_offsets(
        self,
        who: Identity,
        group: str,
        offsets: Mapping[TopicPartition, int],
        member: ConsumerGroupMetadata = NO_MEMBER,
    ) -> None:
        """Add a group's offsets, which count if, and only if, the transaction commits."""

        def announce(channel: Channel) -> None:
            fields = self._written_by(who) | {"group_id": group}
            answer = channel.request(Key.ADD_OFFSETS_TO_TXN, fields, at_most=_OFFSETS_VERSION).message
            raise_for(answer.error_code, f"adding offsets of {group!r} to a transaction of {self.name!r}")

        topics: dict[str, list[dict[str, object]]] = {}
        for (topic, index), offset in offsets.items():
            row = {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1}
            topics.setdefault(topic, []).append(row | {"committed_metadata": ""})

        def commit(_: Channel) -> None:
            fields = self._written_by(who) | {
                "group_id": group,
                "generation_id": member.generation,
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            }
            channel = self._groups.pop(group, None)  # not the coordinator of the transaction
            if channel is None:
                channel = self.routes.to(self.routes.coordinator(group))
            answer = channel.request(Key.TXN_OFFSET_COMMIT, fields, at_most=_OFFSETS_VERSION).message
            for topic in answer.topics:
                for row in topic.partitions:
                    what = f"offset of {topic.name}-{row.partition_index} for group {group!r}"
                    if row.error_code in FENCING:
                        # As a partition's leader, the group's coordinator may have hung, and answer by what it knew
                        # before. The transaction's coordinator, which has just accepted this epoch, decides.
                        raise ServerError(ErrorCode.TRANSACTION_ABORTABLE, f"{what}: the epoch is stale; abort")
                    raise_for(row.error_code, what)
            self._groups[group] = channel  # only after success: any error asks for the coordinator again

        self._until_answered(announce)
        self._until_answered(commit)

    def end(self, who: Identity, *, commit: bool) -> None:
        """Commit or abort; retry until there is an answer. Raise the coordinator's error."""
        self._aborts += not commit

        def ask(channel: Channel) -> None:
            fields = self._written_by(who) | {"committed": commit}
            answer = channel.request(Key.END_TXN, fields, at_most=_END_VERSION).message
            raise_for(answer.error_code, f"{'commit' if commit else 'abort'} of a transaction of {self.name!r}")

        self._until_answered(ask, _END_CURED_BY_WAITING)

    def describe(self) -> DescribedTransactionState | None:
        """Return the coordinator's state of the name, without changing it; None if the name is unknown."""

        def ask(channel: Channel) -> DescribedTransactionState | None:
            answer = channel.request(Key.DESCRIBE_TRANSACTIONS, {"transactional_ids": [self.name]}).message
            found = answer.transaction_states[0]
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            raise_for(found.error_code, f"describing transactional id {self.name!r}")
            who = Identity(Pid(found.producer_id), Epoch(found.producer_epoch))
            return DescribedTransactionState(
                found.transaction_state, who, int(found.transaction_timeout.total_seconds() * 1000)
            )

        return self._until_answered(ask)

    def _written_by(self, who: Identity) -> dict[str, object]:
        return {"transactional_id": self.name, "producer_id": who.pid, "producer_epoch": who.epoch}

    def _until_answered(
        self, ask: Callable[[Channel], T], cured_by_waiting: frozenset[ErrorCode] = _CURED_BY_WAITING
    ) -> T:
        pauses = Backoff(_FIRST_PAUSE, self.routes.settings.retry_backoff)
        while True:
            try:
                channel = self._channel  # another step of the same producer may reset it meanwhile
                if channel is None:
                    channel = self._channel = self.routes.to(self.routes.transaction_coordinator(self.name))
                answer = ask(channel)
            except FencepostError as error:
                known = isinstance(error, Unreachable | TimedOut) or error.code in cured_by_waiting
                if known and isinstance(error, ServerError):
                    self.last_refusal = CoordinatorRefusal(time.monotonic(), error)
                self.doubts += known and error.code is not ErrorCode.CONCURRENT_TRANSACTIONS
                if known and error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._channel = None
                if not known or keeps_us_out(error) or not pauses.wait(self._patience_with(error)):
                    raise
            else:
                self.last_refusal = None
                return answer

    def _patience_with(self, error: FencepostError) -> float:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self.absent_patience is not None:
            return min(self.patience, self.absent_patience)
        return self.patience
