"""Batches and markers to one partition of a migration's target, each at its own offset, several of them in flight.

A log of transactions has a marker behind every few records, so its copy alternates between batches and markers. They go
down one connection, where a broker handles one request after the other: so they keep their order without waiting for
each other's answers.

A batch has a sequence: it can be sent again, and it fails if the one before it is missing. A marker has none, so an
answer that does not come cannot be cured, and the run ends: the next one goes on from the target's end. A refusal can
be cured, because the markers behind a refused batch are refused for the same reason. If one was not, it took the offset
of a record, and the copy cannot go on.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from fencepost.client.cluster.patience import Backoff
from fencepost.client.transactions.shared_writer import (
    LeaderChannels,
    PartitionWriter,
    SentBatch,
    SharedTransaction,
)
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.types import TopicPartition
from fencepost.wire import messages
from fencepost.wire.apis import Key

MARKER_VERSION: Final = 1
"""The next one says how strictly the epoch is checked, which matters to coordinators."""
_REFUSED: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""Nothing was written, and it can be later."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0


def markers(where: TopicPartition, who: Identity, count: int) -> dict[str, Any]:
    """Return the request that writes this number of markers to the leader, as coordinators do."""
    marker = {
        "producer_id": who.pid,
        "producer_epoch": who.epoch,
        "transaction_result": True,
        "topics": [{"name": where.topic, "partition_indexes": [where.partition]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker] * count}


class _SentMarkers(SentBatch):
    """Markers in flight. They have no records, so no sequence of their own."""

    who: Identity
    number: int


class OffsetWriter(PartitionWriter):
    """Writes batches outside of transactions, and checks the offset of each."""

    def __init__(self, channels: LeaderChannels, identity: Identity, where: TopicPartition) -> None:
        super().__init__(channels, SharedTransaction(None, identity), where, fresh=True)
        self._at = where
        self._expected: dict[int, int] = {}
        """First sequence → offset of the batches without an answer."""

    @property
    def sequences(self) -> int:
        return self._next

    def write_at(self, offset: int, batch: bytearray | memoryview) -> None:
        self._expected[self._next] = offset
        self.write(batch)

    def write_markers(self, who: Identity, count: int) -> None:
        """Send markers behind the batches in flight. The leader must have accepted one of `who` before."""
        sent = _SentMarkers(self._next, self._next - 1, bytearray())
        sent.who, sent.number = who, count
        self._unanswered.append(sent)
        try:
            self._send(sent)
        except FencepostError as error:
            self._recover(error)

    def _send(self, sent: SentBatch) -> None:
        if not isinstance(sent, _SentMarkers):
            super()._send(sent)
            return
        if self._channel is None:
            self._channel = self._channels.to_leader(self._where)
        key, fields = Key.WRITE_TXN_MARKERS, markers(self._where, sent.who, sent.number)
        self._channel.send(key, lambda version: [messages.encode_request(key, version, fields)], at_most=MARKER_VERSION)

    def _receive(self) -> None:
        if not isinstance(self._unanswered[0], _SentMarkers):
            super()._receive()
            return
        assert self._channel is not None
        answer = messages.decode_response(Key.WRITE_TXN_MARKERS, *self._channel.receive())
        for marker in answer.markers:
            code = ErrorCode.of(marker.topics[0].partitions[0].error_code)
            if code is not ErrorCode.NONE:
                raise ServerError(code, f"writing a marker to {self._at.topic}-{self._at.partition}")
        self._unanswered.popleft()

    def _stored(self, sent: SentBatch, offset: int) -> None:
        expected = self._expected.pop(sent.first)
        if offset not in (-1, expected):
            raise FencepostError(
                f"{self._at.topic}-{self._at.partition}: the target gave offset {offset} instead of {expected}, so "
                "another program writes to it. Stop that program, delete the topic on the target, and start again"
            )

    def _recover(self, error: FencepostError) -> None:
        if not any(isinstance(sent, _SentMarkers) for sent in self._unanswered):
            super()._recover(error)
            return
        refusal = self._refusal_of_all(error)
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        while self._unanswered:
            if self._channel is not None:
                self._channels.drop(self._channel)  # and with it the old leader
                self._channel = None
            if not pauses.wait():
                raise refusal
            try:
                while self._unanswered:
                    self._send(self._unanswered[0])
                    self._receive()
            except ServerError as again:
                if again.code not in _REFUSED:
                    raise
                refusal = again

    def _refusal_of_all(self, error: FencepostError) -> ServerError:
        """Return the refusal of all that was in flight. Raise an error if some of it was written, or may have been."""
        if not isinstance(error, ServerError) or error.code not in _REFUSED:
            raise error
        refused = deque([self._unanswered.popleft()])
        while self._unanswered:
            try:
                self._receive()
            except ServerError as also:
                if also.code not in _REFUSED | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}:
                    raise
                refused.append(self._unanswered.popleft())
            else:
                raise FencepostError(
                    f"{self._at.topic}-{self._at.partition}: the target refused a part of the copy ({error}), and "
                    "wrote what comes behind it. Delete the topic on the target, and start again"
                ) from error
        self._unanswered = refused
        return error
