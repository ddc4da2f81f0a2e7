"""The topics of a sink.

*Progress*, `__fencepost_sink.NAME`: one partition, compacted, written by that sink alone. It gets a record per
micro-batch, written in the batch's own transaction. The last committed record says which micro-batch is in the log.

*Stage*, `__fencepost_stage.NAME`: the content of a micro-batch that is too large for Spark's commit messages. A task
that exceeds its share writes its frozen record batches there, each as the value of one record, and its commit message
has their places instead of their bytes. The commit reads them back and compares each with the message. So a record of
the stage counts only if a message names it: retries and speculation leave records there that nobody reads. Only
retention, and the sink after a commit, delete records. A job deletes the whole topic, because it does not need it
again. A topic of this name that a user created is used as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from zlib import crc32

from fencepost.client.admin.lasting import create_lasting_topic
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.micro_batch.targets import Target, describe
from fencepost.client.transactions.compacted_topic import CompactedTopic
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError, TimedOut
from fencepost.kernel import encode_batch
from fencepost.types import Milliseconds, TopicPartition

logger = logging.getLogger(__name__)

# --- progress ---

_LONGEST_NAME: Final = 200
_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""
_FIRST_PROGRESS_PAUSE: Final = 0.002


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or len(name) > _LONGEST_NAME:
        raise ConfigError(f"a sink's name must be 1 to {_LONGEST_NAME} letters, digits, '.', '_' and '-', not {name!r}")
    return name


class ProgressTopic(CompactedTopic):
    def __init__(self, routes: Routes, name: str, *, patience: float = 60.0) -> None:
        super().__init__(routes, PROGRESS_TOPIC_PREFIX + check_name(name), patience=patience)

    def last(self, *, settled: bool = True) -> Progress | None:
        """Return the last committed record.

        `settled`: the sink's name was fenced, so no transaction can stay open, and the whole log is waited for.
        Otherwise only what is readable at the moment counts."""
        stop = self.end(committed=False) if settled else 0
        stable = self.end(committed=True)
        waiting = Backoff(_FIRST_PROGRESS_PAUSE, 0.1, self._patience)
        while stable < stop:
            if not waiting.wait():
                raise TimedOut(
                    f"{self.where}: a transaction stays open for {self._patience:g} s, though its writer is fenced; "
                    "`fencepost transactions` shows and ends it"
                )
            stable = self.end(committed=True)
        first = self.first()
        back = _FIRST_LOOK
        while True:
            start = max(first, stable - back)
            found = self._last_between(start, stable)
            if found is not None or start == first:
                return found
            back *= 16

    def _last_between(self, start: int, stop: int) -> Progress | None:
        found = [
            record.value
            for record in self.records(start, stop)
            if record.key == PROGRESS_KEY and record.value is not None
        ]
        return Progress.decode(found[-1]) if found else None


def record_batch(progress: Progress, now_ms: Milliseconds) -> bytearray:
    return encode_batch([(PROGRESS_KEY, progress.encode(), now_ms, None)])


# --- the stage ---

STAGE_TOPIC_PREFIX: Final = "__fencepost_stage."
AROUND: Final = 1024
"""More than the bytes of a batch and a request around the value of a single record."""
_SEGMENT_BYTES: Final = 64 << 20
"""Deleted records free their disk segment by segment."""
_FIRST_STAGE_PAUSE: Final = 0.05
_ABSENT_PATIENCE: Final = 10.0
"""Seconds to wait for a topic that another task has just created: a broker may learn of it late."""
_MOST_BYTES: Final = 2**31 - 1
"""The highest value that Kafka accepts."""
_FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


def open_stage(admin: TopicAdmin, sink: str, targets: Iterable[Target], retention: float) -> Target:
    """Describe the stage topic of a sink with these targets. Create it if it does not exist; several tasks may."""
    topic, known = STAGE_TOPIC_PREFIX + sink, list(targets)
    try:
        found = _described_or_created(admin, topic, known, retention)
    except ServerError as error:
        if error.code not in _FORBIDDEN:
            raise
        raise ServerError(
            error.code,
            f"the micro-batch is too large for Spark's commit messages, and the sink may not use its stage topic "
            f"{topic!r} ({error.reason}): grant CREATE, DESCRIBE, READ and WRITE on it, make micro-batches smaller "
            "(maxOffsetsPerTrigger), or raise inlineBytes together with spark.driver.maxResultSize",
        ) from error
    refuse_compacted(found)
    return found


def refuse_compacted(stage: Target) -> None:
    """Raise if the stage does not accept records without a key."""
    if stage.compacted:
        raise ConfigError(
            f"the stage topic {stage.topic!r} is compacted, so it does not accept what tasks stage: set its "
            "cleanup.policy to delete, or delete the topic and let the sink create it"
        )


def _described_or_created(admin: TopicAdmin, topic: str, targets: list[Target], retention: float) -> Target:
    pauses: Backoff | None = None
    while True:
        try:
            return describe(admin, topic)
        except (ConfigError, ServerError) as error:
            if isinstance(error, ServerError) and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if pauses is None:
                _create(admin, topic, targets, retention)
                pauses = Backoff(_FIRST_STAGE_PAUSE, 1.0, _ABSENT_PATIENCE)
            elif not pauses.wait():
                raise


def _create(admin: TopicAdmin, topic: str, targets: list[Target], retention: float) -> None:
    partitions = partitions_for(sum(target.partitions for target in targets))
    largest = max(target.max_bytes for target in targets)
    least = {"cleanup.policy": "delete", "retention.ms": str(int(retention * 1000))}
    wanted = {
        **least,
        # Whatever the cluster's defaults are: a large micro-batch must stay whole, and executors' clocks may be wrong.
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "segment.bytes": str(min(max(_SEGMENT_BYTES, largest + AROUND), _MOST_BYTES)),  # a batch must fit into one
        "max.message.bytes": str(min(largest + AROUND, _MOST_BYTES)),
    }
    # The targets may accept as much as this cluster allows, and it may allow few configs. The largest batches then
    # travel in commit messages.
    choices = [wanted, {**wanted, "max.message.bytes": str(largest)}, least]
    for left, configs in zip(reversed(range(len(choices))), choices, strict=True):
        try:
            create_lasting_topic(admin, topic, partitions, configs=configs)
        except ServerError as error:
            if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION) or not left:
                raise
        else:
            return


def clear_stage(admin: TopicAdmin, sink: str, before: Mapping[int, int]) -> None:
    """Delete staged records before an offset per partition. If that fails, retention deletes them later."""
    topic = STAGE_TOPIC_PREFIX + sink
    try:
        admin.delete_records(topic, before)
    except FencepostError as error:
        logger.info("%s: staged records are left to retention: %s", topic, error)


def delete_stage(admin: TopicAdmin, sink: str) -> None:
    """Delete the stage topic of a job that is written. If that fails, retention deletes its records later."""
    topic = STAGE_TOPIC_PREFIX + sink
    try:
        admin.delete_topic(topic)
    except FencepostError as error:
        logger.info("%s: the stage of a job that is written is left there: %s", topic, error)


# --- the rules of staging ---

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
