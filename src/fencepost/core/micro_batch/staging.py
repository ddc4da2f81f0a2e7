"""The rules of staging: where the content of a micro-batch waits that is too large for Spark's commit messages.

A task that exceeds its share writes its frozen record batches to the sink's stage topic, each as the value of one
record. Its commit message then has their places instead of their bytes. The commit reads them back and compares each
with the message. So a record of the stage counts only if a message names it: retries and speculation leave records
there that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from fencepost.types import TopicPartition

_LEAST_SHARE: Final = 32 << 10
"""Bytes that any task may send to the driver: writing less than this elsewhere is not worth the requests."""
_MOST_PARTITIONS: Final = 32


class Staged(NamedTuple):
    """The place of one frozen record batch in the stage topic."""

    partition: int
    offset: int


def share_of(inline_bytes: int, task: int) -> int:
    """Return the bytes that a task may send to the driver in its commit message.

    A task does not know how many tasks there are, but there are at least as many as its own number says. So an evenly
    spread micro-batch of up to `inline_bytes` is never staged. The shares are 1, 1/2, 1/3 … of it, so with the default
    even 5,000 tasks together send less than ten times that.
    """
    return max(inline_bytes // (task + 1), min(inline_bytes, _LEAST_SHARE))


def partitions_for(targets: int) -> int:
    """Return the number of partitions of a new stage topic, for so many target partitions."""
    return max(1, min(targets, _MOST_PARTITIONS))


def partition_for(target: TopicPartition, partitions: int) -> int:
    """Return the stage partition for a target partition: neighbours go to different ones."""
    return (crc32(target.topic.encode()) + target.partition) % partitions


def ends_of(places: Iterable[Staged]) -> dict[int, int]:
    """Return for each stage partition the offset after the last of the places.

    Once the micro-batch of these places is in the log, all records before these offsets can be deleted. Those of the
    next micro-batch are behind them, because Spark starts its tasks only after this commit. Records of another driver
    may be before them. Its micro-batch is then the same one, which it skips; or it was replaced; or its commit fails
    because they are gone, and nothing is skipped."""
    ends: dict[int, int] = {}
    for partition, offset in places:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends
