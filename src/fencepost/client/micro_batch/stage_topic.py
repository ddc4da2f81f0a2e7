"""A sink's stage topic, `__fencepost_stage.NAME`: record batches wait there between a task and the commit.

Each record's value is one record batch. Only retention, and the sink after a commit, delete records. A job deletes the
whole topic, because it does not need it again. A topic of this name that a user created is used as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from fencepost.client.admin.lasting import create_lasting_topic
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.patience import Backoff
from fencepost.client.micro_batch.targets import Target, describe
from fencepost.core.micro_batch.staging import partitions_for
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError

logger = logging.getLogger(__name__)

TOPIC_PREFIX: Final = "__fencepost_stage."
AROUND: Final = 1024
"""More than the bytes of a batch and a request around the value of a single record."""
_SEGMENT_BYTES: Final = 64 << 20
"""Deleted records free their disk segment by segment."""
_FIRST_PAUSE: Final = 0.05
_ABSENT_PATIENCE: Final = 10.0
"""Seconds to wait for a topic that another task has just created: a broker may learn of it late."""
_MOST_BYTES: Final = 2**31 - 1
"""The highest value that Kafka accepts."""
_FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


def open_stage(admin: TopicAdmin, sink: str, targets: Iterable[Target], retention: float) -> Target:
    """Describe the stage topic of a sink with these targets. Create it if it does not exist; several tasks may."""
    topic, known = TOPIC_PREFIX + sink, list(targets)
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
                pauses = Backoff(_FIRST_PAUSE, 1.0, _ABSENT_PATIENCE)
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
    topic = TOPIC_PREFIX + sink
    try:
        admin.delete_records(topic, before)
    except FencepostError as error:
        logger.info("%s: staged records are left to retention: %s", topic, error)


def delete_stage(admin: TopicAdmin, sink: str) -> None:
    """Delete the stage topic of a job that is written. If that fails, retention deletes its records later."""
    topic = TOPIC_PREFIX + sink
    try:
        admin.delete_topic(topic)
    except FencepostError as error:
        logger.info("%s: the stage of a job that is written is left there: %s", topic, error)
