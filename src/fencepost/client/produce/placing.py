"""Placing of records whose topic's partitions were unknown, and the metadata requests that make them known (PROD-7).

The send thread requests metadata when it is due, without waiting for the answer. Records then move to their partitions'
queues in the order they were sent. Those that are to be serialized are serialized here, too."""

from __future__ import annotations

from typing import Any, Final

from fencepost.client.cluster.metadata import question
from fencepost.client.produce.partition_queue import PartitionQueue, TopicQueues
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.core.producers.schedule import Until
from fencepost.errors import ErrorCode, FencepostError, SendFailed
from fencepost.wire.apis import Key

_TOPIC_REFUSED: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Errors about a topic that a retry does not change."""


class Placing:
    def __init__(self, state: SendState, settling: Settling) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._metadata = state.metadata
        self._brokers = state.brokers
        self._settling = settling

    def place(self, now: float) -> None:
        for topic in self._queues.topics_to_place():
            if self._queues.drop_if_done(topic):
                continue
            self._metadata.want(topic.name, now)
            self._queues.waiting_room.serialize(topic)
            count = self._metadata.partition_count(topic.name)
            if count:
                self._queues.place(topic, count)
                self._state.schedule.happened(Until.NEWS)
            else:
                self._wait_for(topic, now)
        self._settling.note_early_failures()

    def _wait_for(self, topic: TopicQueues, now: float) -> None:
        known = self._metadata.topics.get(topic.name)
        code = known.error if known is not None else ErrorCode.NONE
        since = self._metadata.unknown_since(topic.name)
        assert since is not None
        if code in _TOPIC_REFUSED:
            error = SendFailed(f"the server answers {code.name}", persisted="no", code=code, topic=topic.name)
        elif code is not ErrorCode.NONE and now >= since + self._options.unknown_topic_timeout:
            message = (
                f"the server has answered {code.name} for {self._options.unknown_topic_timeout:g} s: "
                "create the topic, or let the server create topics on first use"
            )
            error = SendFailed(message, persisted="no", code=code, topic=topic.name)
        else:
            if code is not ErrorCode.NONE:
                self._state.due(since + self._options.unknown_topic_timeout, now)
            self._seal_in_time(topic.undesignated_queue, now)
            return
        self._metadata.forget(topic.name)  # the next send asks again
        self._settling.fail_queue(topic.undesignated_queue, error)
        self._queues.drop_if_done(topic)

    def _seal_in_time(self, queue: PartitionQueue, now: float) -> None:
        """Keep a record from joining a batch that will expire long before itself."""
        if (batch := queue.open) is not None:
            seal_at = batch.opened + self._options.shares_batch
            if now < seal_at:
                self._state.due(seal_at, now)
            else:
                self._queues.seal_open(queue)

    def refresh_metadata(self, now: float) -> None:
        fields = question(self._metadata.wanted(), create=self._options.allow_topic_creation)
        try:
            if self._brokers.ask_any(Key.METADATA, fields, self._metadata_answered, self._metadata_lost) is not None:
                self._metadata.asked()
        except FencepostError as error:
            self._metadata.asked()
            self._metadata_lost(error, False)
            self._brokers.last_error = error

    def _metadata_answered(self, answer: Any) -> None:
        self._metadata.answered(answer, self._state.now())
        for topic in answer.topics:
            count = self._metadata.partition_count(topic.name)
            if count:
                self._queues.grow(topic.name, count)

    def _metadata_lost(self, error: FencepostError, left: bool) -> None:
        self._metadata.failed(self._state.now())
