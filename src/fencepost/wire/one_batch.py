"""Produce requests with one batch for one partition, and their answers: what does not change is encoded once.

A record that is sent alone spends most of its time around the bytes, not in them. `hot.py` has the layouts.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from fencepost.wire.apis import Key, is_flexible
from fencepost.wire.frame import request_head, response_head
from fencepost.wire.hot import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    encode_produce_request,
    encode_produce_response,
)
from fencepost.wire.primitives import INT32, Buffer, length

OLDEST_VERSION: Final = 5
"""Older answers have no start offset."""

_HEAD: Final = Struct(">ii")
_OFFSETS: Final = Struct(">qqq")
_MARK: Final = _OFFSETS.pack(0x1122334455667788, 0x2233445566778811, 0x3344556677881122)


class OneBatch:
    """The form of a request and of the answer that says: the batch is in the log."""

    __slots__ = (
        "_after",
        "_before",
        "_head",
        "_is_flexible",
        "_middle",
        "_offsets_at",
        "_tail",
        "answer_size",
        "version",
    )

    def __init__(self, version: int, client_id: str, acks: int, timeout_ms: int, topic: str, partition: int) -> None:
        self.version = version
        self._is_flexible = is_flexible(Key.PRODUCE, version)
        head = request_head(Key.PRODUCE, version, 0, client_id)
        topics = [ProduceTopic(topic, None, [ProducePartition(partition, memoryview(b""))])]
        before, _, *after = encode_produce_request(version, ProduceRequest(None, acks, timeout_ms, topics))
        self._head = head[:4]
        self._middle = head[8:] + bytes(before)[: -len(length(0, self._is_flexible))]
        self._tail = b"".join(after)
        said = ProducedPartition(partition, 0, *_OFFSETS.unpack(_MARK))
        answer = encode_produce_response(version, ProduceResponse([ProducedTopic(topic, None, [said])]))
        answer = response_head(Key.PRODUCE, version, 0)[4:] + answer
        at = answer.index(_MARK)
        self._before, self._after = answer[:at], answer[at + len(_MARK) :]
        self._offsets_at = _HEAD.size + at
        self.answer_size = _HEAD.size + len(answer)
        """Bytes of the answer, with its length prefix."""

    def request(self, correlation_id: int, records: Buffer) -> bytes:
        """Return the whole frame."""
        size = length(len(records), self._is_flexible)
        body = b"".join((self._head, INT32.pack(correlation_id), self._middle, size, records, self._tail))
        return INT32.pack(len(body)) + body

    def delivered(self, answer: bytes, correlation_id: int) -> tuple[int, int] | None:
        """Return base offset and append time if this frame says that the batch is in the log, and nothing else."""
        head = _HEAD.pack(self.answer_size - 4, correlation_id)
        if len(answer) != self.answer_size or not answer.startswith(head + self._before):
            return None
        if not answer.endswith(self._after):
            return None
        base_offset, append_time, _ = _OFFSETS.unpack_from(answer, self._offsets_at)
        return base_offset, append_time
