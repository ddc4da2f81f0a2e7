"""Answers of servers, decoded and checked: an answer that contradicts itself is Malformed, as unreadable bytes are."""

from __future__ import annotations

from typing import Any

from fencepost.errors import Malformed
from fencepost.kernel import Buffer
from fencepost.wire import messages
from fencepost.wire.apis import Key


def decode_answer(key: int, version: int, body: Buffer) -> Any:
    """Return the decoded answer. Raise Malformed if it cannot be read or cannot be true."""
    answer = messages.decode_response(key, version, body)
    if key == Key.METADATA:
        for topic in answer.topics:
            _check_indexes(topic)
    return answer


def _check_indexes(topic: Any) -> None:
    """Raise Malformed unless the partitions are 0, 1, 2 …: callers make lists of that length."""
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    if indexes != list(range(len(indexes))):
        raise Malformed(
            f"Metadata numbers the {len(indexes)} partitions of topic {topic.name!r} {indexes[0]} to {indexes[-1]}"
        )
