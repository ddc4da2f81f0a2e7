"""Record batches into one partition of a transaction, each exactly once, by however many attempts of a task.

The content is frozen: the n-th batch of a partition is the same bytes whoever sends it, so its sequence is the number
of records before it. A second attempt, a speculative or a zombie task therefore asks the partition what it has of this
(pid, epoch), DescribeProducers, and goes on behind it: it can repeat, but never add. A newer epoch refuses them all.

The first batch goes alone. While a broker verifies a partition's place in the transaction it answers
NOT_ENOUGH_REPLICAS to others of the same transactional id (KIP-890), and with no state for a pid it would take any
sequence. Behind it five may be under way: a broker knows a producer's last five batches again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.batch_channel import BatchChannel
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.manage.offsets import PartitionAdmin
from fencepost.core.producers.pid import Identity
from fencepost.errors import LEADER_MOVED, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import read_header, stamp_producer
from fencepost.types import LATEST, TopicPartition

IN_FLIGHT: Final = 5
ABSENT_PATIENCE: Final = 5.0
"""Seconds for a topic or partition that a broker does not know. It may learn of a new one a moment later than others;
one that was deleted does not come back."""
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.2

_CURED_BY_REPEATING: Final = LEADER_MOVED | frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # another attempt has come further, or an answer was lost: ask
    }
)


class SharedTransaction(NamedTuple):
    """What a task needs to write into it."""

    name: str
    """The transactional id."""
    identity: Identity


class SentBatch(NamedTuple):
    first: int
    last: int
    batch: bytearray | memoryview


class LeaderChannels(Closing):
    """The connections of one task, one per broker."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.admin = PartitionAdmin(routes)
        self._open: dict[Address, BatchChannel] = {}

    def to_leader(self, where: TopicPartition) -> BatchChannel:
        (leader,) = self.routes.leaders(where.topic, [where.partition])
        address = Address(leader.host, leader.port)
        if address not in self._open:
            self._open[address] = BatchChannel.open(address, self.routes.settings)
        return self._open[address]

    def drop(self, channel: BatchChannel) -> None:
        channel.close()
        self._open.pop(channel.address, None)

    def close(self) -> None:
        for channel in self._open.values():
            channel.close()
        self._open.clear()


def last_sequences(
    admin: PartitionAdmin, topic: str, partitions: Iterable[int] | None, identity: Identity
) -> dict[int, int]:
    """Partition → the last sequence that it has of this identity; those that have none are left out."""
    try:
        states = admin.producers(topic, partitions=partitions)
    except ServerError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ServerError(
                error.code,
                f"the sink needs READ on the topic {topic!r}: DescribeProducers verifies what it wrote",
            ) from error
        raise
    return {
        state.partition: state.last_sequence
        for state in states
        if state.pid == identity.pid and state.epoch == identity.epoch and state.last_sequence >= 0
    }


def replicated_sequences(
    admin: PartitionAdmin, topic: str, partitions: Iterable[int], identity: Identity, *, patience: float = 60.0
) -> dict[int, int]:
    """As `last_sequences`, and a leader that dies takes nothing of it along: waits until what the leaders have lies
    before the high watermark."""
    wanted = list(partitions)
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, patience)
    found: dict[int, int] | None = None
    ends: dict[int, int] = {}
    while True:
        before, found = found, last_sequences(admin, topic, wanted, identity)
        if found != before:
            # Nothing asked so far, or another leader has come: its log may hold less.
            ends = _ends(admin, topic, wanted, unreplicated=True)
            continue
        readable = _ends(admin, topic, wanted)
        behind = [index for index in wanted if readable[index] < ends[index]]
        if not behind:
            return found
        if not pauses.wait():
            where = f"{topic}, partition {', '.join(map(str, behind))}"
            raise TimedOut(f"{where}: what the leader has was not replicated within {patience:g} s")
        # Others may write on and on, which is no reason to wait; but the end may come nearer with another leader.
        now = _ends(admin, topic, behind, unreplicated=True)
        ends = {index: min(end, now.get(index, end)) for index, end in ends.items()}


def _ends(admin: PartitionAdmin, topic: str, partitions: list[int], *, unreplicated: bool = False) -> dict[int, int]:
    found = admin.offsets(topic, LATEST, partitions=partitions, unreplicated=unreplicated)
    return {index: at.offset for index, at in found.items()}


class PartitionWriter:
    """`write` batch after batch, then `finish`."""

    def __init__(
        self,
        channels: LeaderChannels,
        transaction: SharedTransaction,
        where: TopicPartition,
        *,
        fresh: bool = False,
        patience: float = 60.0,
    ) -> None:
        """`fresh`: nobody else can have written under this identity yet, so the partition need not be asked."""
        self._channels = channels
        self._transaction = transaction
        self._where = where
        self._patience = patience
        self._next = 0
        self._confirmed = -1 if fresh else self._ask()
        self._alone = self._confirmed < 0
        self._channel: BatchChannel | None = None
        self._unanswered: deque[SentBatch] = deque()
        self.repeated = 0
        """Batches that were there already."""

    def write(self, batch: bytearray | memoryview) -> int:
        """Stamps and sends it, unless it is there already; how many records it has."""
        header = read_header(batch)
        first, last = self._next, self._next + header.last_offset_delta
        self._next = last + 1
        if last <= self._confirmed:
            self.repeated += 1
            return header.count
        identity = self._transaction.identity
        stamp_producer(batch, header, identity.pid, identity.epoch, first, transactional=True)
        self._unanswered.append(SentBatch(first, last, batch))
        try:
            self._send(self._unanswered[-1])
        except FencepostError as error:
            self._recover(error)
        self._settle(0 if self._alone else IN_FLIGHT - 1)
        self._alone = False
        return header.count

    def finish(self) -> int:
        """Waits for all answers; the last sequence that is there."""
        self._settle(0)
        return self._confirmed

    def _send(self, sent: SentBatch) -> None:
        if self._channel is None:
            self._channel = self._channels.to_leader(self._where)
        self._channel.send_batch(self._where.topic, self._where.partition, sent.batch, self._transaction.name)

    def _settle(self, upto: int) -> None:
        while len(self._unanswered) > upto:
            try:
                self._receive()
            except FencepostError as error:
                self._recover(error)

    def _receive(self) -> None:
        assert self._channel is not None
        code = ErrorCode.of(self._channel.receive_produced().error_code)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise ServerError(code, f"writing to {self._where} in a transaction of {self._transaction.name!r}")
        self._confirmed = self._unanswered.popleft().last

    def _recover(self, error: FencepostError) -> None:
        """Finds out what is there and brings the rest there in order, one by one; raises what that cannot cure."""
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        failure: FencepostError | None = error
        while failure is not None:
            if self._channel is not None:
                self._channels.drop(
                    self._channel
                )  # with whatever answers are still under way on it: others use it, too
                self._channel = None
            known = isinstance(failure, Unreachable | TimedOut) or failure.code in _CURED_BY_REPEATING
            absent = failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            patience = min(self._patience, ABSENT_PATIENCE) if absent else None
            if not known or keeps_us_out(failure) or not pauses.wait(patience):
                raise failure
            failure = self._bring_the_rest()

    def _bring_the_rest(self) -> FencepostError | None:
        try:
            self._confirmed = max(self._confirmed, self._ask())
            while self._unanswered and self._unanswered[0].last <= self._confirmed:
                self._unanswered.popleft()
            while self._unanswered:
                self._send(self._unanswered[0])
                self._receive()
        except FencepostError as error:
            return error
        return None

    def _ask(self) -> int:
        topic, partition = self._where
        return last_sequences(self._channels.admin, topic, [partition], self._transaction.identity).get(partition, -1)
