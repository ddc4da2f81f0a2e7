"""Records find their partitions: metadata is asked for when due, without waiting for the answer (PROD-7), and what was
sent to a topic whose partitions were not known yet goes to its queues, in order."""

from __future__ import annotations

from typing import Any, Final

from fencepost.client.cluster.metadata import question
from fencepost.client.produce.common import Common
from fencepost.client.produce.expiry import Expiry
from fencepost.client.produce.partition_queue import TopicQueues
from fencepost.client.produce.settling import Settling
from fencepost.errors import ErrorCode, FencepostError, SendFailed
from fencepost.wire.apis import Key

_TOPIC_REFUSED: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Answers about a topic that asking again does not change."""


class Placing:
    def __init__(self, common: Common, settling: Settling, expiry: Expiry) -> None:
        self._options = common.options
        self._queues = common.queues
        self._metadata = common.metadata
        self._brokers = common.brokers
        self._agenda = common.agenda
        self._settling = settling
        self._expiry = expiry

    def place(self, now: float) -> None:
        for topic in self._queues.topics_to_place():
            self._metadata.want(topic.name, now)
            count = self._metadata.partition_count(topic.name)
            if count:
                self._queues.waiting_room.place(topic, count)
                self._settling.note_early_failures()
            else:
                self._wait_for(topic, now)

    def _wait_for(self, topic: TopicQueues, now: float) -> None:
        known = self._metadata.topics.get(topic.name)
        code = known.error if known is not None else ErrorCode.NONE
        since = self._metadata.unknown_since(topic.name)
        assert since is not None
        if code in _TOPIC_REFUSED:
            error = SendFailed(f"the server answers {code.name}", persisted="no", code=code, topic=topic.name)
        elif code is not ErrorCode.NONE and now >= since + self._options.unknown_topic_timeout:
            message = (
                f"the server answers {code.name} for {self._options.unknown_topic_timeout:g} s: "
                "create the topic, or let the server create topics on first use"
            )
            error = SendFailed(message, persisted="no", code=code, topic=topic.name)
        else:
            if code is not ErrorCode.NONE:
                self._agenda.due(since + self._options.unknown_topic_timeout, now)
            self._expiry.of_waiting(topic, now)
            return
        self._metadata.forget(topic.name)  # the next send asks anew
        self._queues.waiting_room.fail_waiting(topic, error)
        self._settling.note_early_failures()

    def refresh_metadata(self, now: float) -> None:
        if not self._metadata.due(now):
            return
        fields = question(self._metadata.wanted(), create=self._options.allow_topic_creation)
        try:
            if self._brokers.ask_any(Key.METADATA, fields, self._metadata_answered, self._metadata_lost) is not None:
                self._metadata.asked()
        except FencepostError as error:
            self._metadata.asked()
            self._metadata_lost(error, False)
            self._brokers.last_error = error

    def _metadata_answered(self, answer: Any) -> None:
        self._metadata.answered(answer, self._agenda.now())
        for topic in answer.topics:
            count = self._metadata.partition_count(topic.name)
            if count:
                self._queues.grow(topic.name, count)

    def _metadata_lost(self, error: FencepostError, left: bool) -> None:
        self._metadata.failed(self._agenda.now())
