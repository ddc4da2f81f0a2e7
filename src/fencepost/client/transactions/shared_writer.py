"""Record batches into one partition of a transaction, each exactly once, however many attempts a task needs.

The content is frozen: the n-th batch of a partition has the same bytes in every attempt, so its sequence is the number
of records before it. A second attempt, a speculative or a zombie task asks the partition for its last sequence of this
(pid, epoch) with DescribeProducers and goes on behind it: it can repeat batches, but not add any. A newer epoch fences
them all.

The first batch goes alone. While a broker verifies that a partition belongs to the transaction, it answers other
batches with NOT_ENOUGH_REPLICAS (KIP-890); and without state for a pid it would accept any sequence. Behind it five may
be in flight: a broker recognises a producer's last five batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.core.producers.pid import Identity
from fencepost.errors import LEADER_MOVED, ErrorCode, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.kernel import read_header, stamp_producer
from fencepost.types import LATEST, TopicPartition
from fencepost.wire.hot import ProducedPartition

IN_FLIGHT: Final = 5
ABSENT_PATIENCE: Final = 5.0
"""Seconds to wait for a topic or partition that a broker does not know: it may learn of a new one late, but a deleted
one does not come back."""
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
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # another attempt is ahead, or an answer was lost: ask
    }
)


class SharedTransaction(NamedTuple):
    """The name and identity that a task needs to write into a transaction."""

    name: str | None
    """The transactional id; None: the batches are written outside of transactions."""
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
        self._open: dict[Address, BlockingConnection] = {}

    def to_leader(self, where: TopicPartition) -> BlockingConnection:
        (channel,) = self.to_leaders([where])
        return channel

    def to_leaders(self, targets: Iterable[TopicPartition]) -> dict[BlockingConnection, list[TopicPartition]]:
        """Return a channel to each leader of these partitions, with those that it leads."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in targets:
            by_topic.setdefault(topic, []).append(partition)
        found: dict[BlockingConnection, list[TopicPartition]] = {}
        for topic, partitions in by_topic.items():
            for leader, led in self.routes.leaders(topic, partitions).items():
                channel = self._to(Address(leader.host, leader.port))
                found.setdefault(channel, []).extend(TopicPartition(topic, partition) for partition in led)
        return found

    def _to(self, address: Address) -> BlockingConnection:
        if address not in self._open:
            self._open[address] = BlockingConnection(address, self.routes.settings)
        return self._open[address]

    def drop(self, channel: BlockingConnection) -> None:
        channel.close()
        self._open.pop(channel.address, None)

    def close(self) -> None:
        for channel in self._open.values():
            channel.close()
        self._open.clear()


def _reasons(answer: ProducedPartition) -> list[str]:
    """Return why the server rejected a batch, and one of its records, if it says so."""
    of_records = [why for _, why in answer.record_errors if why]
    said = [answer.error_message or "", *(of_records[:1])]
    return list(dict.fromkeys(filter(None, said)))


def last_sequences(
    admin: PartitionAdmin, topic: str, partitions: Iterable[int] | None, identity: Identity
) -> dict[int, int]:
    """Return the last sequence of this identity per partition; partitions without one are left out."""
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
    """Return `last_sequences` once they are replicated: wait until the leaders' logs end at the high watermark."""
    wanted = list(partitions)
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, patience)
    found: dict[int, int] | None = None
    ends: dict[int, int] = {}
    while True:
        before, found = found, last_sequences(admin, topic, wanted, identity)
        if found != before:
            # The first look, or a new leader, whose log may hold less.
            ends = _ends(admin, topic, wanted, unreplicated=True)
            continue
        readable = _ends(admin, topic, wanted)
        behind = [index for index in wanted if readable[index] < ends[index]]
        if not behind:
            return found
        if not pauses.wait():
            where = f"{topic}, partition {', '.join(map(str, behind))}"
            raise TimedOut(f"{where}: the leader's records were not replicated within {patience:g} s")
        # Later writes of others are not waited for; but with a new leader the end may move back.
        now = _ends(admin, topic, behind, unreplicated=True)
        ends = {index: min(end, now.get(index, end)) for index, end in ends.items()}


def _ends(admin: PartitionAdmin, topic: str, partitions: list[int], *, unreplicated: bool = False) -> dict[int, int]:
    found = admin.offsets(topic, LATEST, partitions=partitions, unreplicated=unreplicated)
    return {index: at.offset for index, at in found.items()}


class PartitionWriter:
    """Writes one partition: `write` batch after batch, then `finish`."""

    def __init__(
        self,
        channels: LeaderChannels,
        transaction: SharedTransaction,
        where: TopicPartition,
        *,
        fresh: bool = False,
        patience: float = 60.0,
    ) -> None:
        """`fresh`: nothing was written under this identity yet, so the partition is not asked for its last sequence."""
        self._channels = channels
        self._transaction = transaction
        self._where = where
        self._patience = patience
        self._next = 0
        self._confirmed = -1 if fresh else self._ask()
        self._alone = self._confirmed < 0
        self._channel: BlockingConnection | None = None
        self._unanswered: deque[SentBatch] = deque()
        self.repeated = 0
        """The number of batches that the partition had already."""

    def write(self, batch: bytearray | memoryview) -> int:
        """Stamp and send a batch, unless the partition has it already. Return the number of its records."""
        header = read_header(batch)
        first, last = self._next, self._next + header.last_offset_delta
        self._next = last + 1
        if last <= self._confirmed:
            self.repeated += 1
            return header.count
        identity = self._transaction.identity
        transactional = self._transaction.name is not None
        stamp_producer(batch, header, identity.pid, identity.epoch, first, transactional=transactional)
        self._unanswered.append(SentBatch(first, last, batch))
        try:
            self._send(self._unanswered[-1])
        except FencepostError as error:
            self._recover(error)
        self._settle(0 if self._alone else IN_FLIGHT - 1)
        self._alone = False
        return header.count

    def finish(self) -> int:
        """Wait for all answers. Return the last sequence in the partition."""
        self._settle(0)
        return self._confirmed

    def _send(self, sent: SentBatch) -> None:
        if self._channel is None:
            self._channel = self._channels.to_leader(self._where)
        self._channel.send_batches({self._where: sent.batch}, self._transaction.name)

    def _settle(self, upto: int) -> None:
        while len(self._unanswered) > upto:
            try:
                self._receive()
            except FencepostError as error:
                self._recover(error)

    def _receive(self) -> None:
        assert self._channel is not None
        ((_, answer),) = self._channel.receive_produced()
        code = ErrorCode.of(answer.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            name = self._transaction.name
            doing = f"writing to {self._where}" + (f" in a transaction of {name!r}" if name else "")
            raise ServerError(code, ": ".join([doing, *_reasons(answer)]))
        sent = self._unanswered.popleft()
        self._confirmed = sent.last
        self._stored(sent, answer.base_offset)

    def _stored(self, sent: SentBatch, offset: int) -> None:
        """Note the offset of a batch, −1 if the server does not know it any more. For subclasses."""

    def _recover(self, error: FencepostError) -> None:
        """Ask for the last sequence and send the missing batches in order. Raise what that does not cure."""
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        failure: FencepostError | None = error
        while failure is not None:
            if self._channel is not None:
                self._channels.drop(self._channel)  # answers may still be in flight on it, and other writers share it
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


def write_first_batches(
    channels: LeaderChannels, transaction: SharedTransaction, batches: Mapping[TopicPartition, bytearray]
) -> dict[TopicPartition, int]:
    """Stamp and send the first batch of each partition, in one request per broker. Return the last sequence of each
    that has it for sure.

    A broker verifies each partition at its first batch, and handles one request of a connection at a time: a few small
    batches that go one after the other wait for the broker most of the time.
    The caller brings the others by `PartitionWriter`, which asks what is there, and raises what cannot be cured."""
    identity = transaction.identity
    last: dict[TopicPartition, int] = {}
    for where, batch in batches.items():
        header = read_header(batch)
        stamp_producer(batch, header, identity.pid, identity.epoch, 0, transactional=transaction.name is not None)
        last[where] = header.last_offset_delta
    confirmed: dict[TopicPartition, int] = {}
    sent: list[BlockingConnection] = []
    try:
        for channel, led in channels.to_leaders(batches).items():
            sent.append(channel)
            channel.send_batches({where: batches[where] for where in led}, transaction.name)
        for channel in list(sent):
            for topic, answer in channel.receive_produced():
                where = TopicPartition(topic or "", answer.index)
                if ErrorCode.of(answer.error_code) in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    confirmed[where] = last[where]
            sent.remove(channel)
    except FencepostError:  # the writers meet it again, and know what to do
        for channel in sent:  # answers may still be in flight on it
            channels.drop(channel)
    return confirmed
