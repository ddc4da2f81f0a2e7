"""Checks of the permissions that a sink needs, by the sink's own requests, without disturbing a running sink.

    WRITE                   on the transactional id fencepost.sink.NAME
    DESCRIBE, READ, WRITE   on the progress topic __fencepost_sink.NAME, and CREATE if it does not exist yet
    the same                on the stage topic __fencepost_stage.NAME, if format("fencepost") writes large micro-batches
    DESCRIBE, READ, WRITE   on each target and the dead-letter topic: READ is for DescribeProducers, which verifies

The requests carry a producer identity that cannot exist: the server checks the permissions first, then rejects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fencepost.client.cluster.routing import Routes
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.progress_topic import TRANSACTIONAL_ID_PREFIX
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition
from fencepost.wire.apis import Key

_NOBODY: Final = Identity(Pid(2**62), Epoch(0))
NOT_ALLOWED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    }
)
_OF_NOBODY: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""A server's errors for that identity, or for a missing topic: it returns them after it has checked permissions."""


def try_name(routes: Routes, sink: str, timeout_ms: Milliseconds) -> None:
    """Raise unless the sink may use its transactional id, with this transaction timeout."""
    name = TRANSACTIONAL_ID_PREFIX + sink
    steps = Transactional(routes, name, patience=routes.settings.request_timeout)
    _tried(lambda: steps.init(timeout_ms, _NOBODY), f"WRITE on the transactional id {name!r}")


def try_write(routes: Routes, sink: str, topic: str) -> None:
    """Raise unless the sink may write to the topic in a transaction."""
    steps = Transactional(routes, TRANSACTIONAL_ID_PREFIX + sink, patience=0.0)
    _tried(lambda: steps.add_partitions(_NOBODY, [TopicPartition(topic, 0)]), f"WRITE on the topic {topic!r}")


def try_read(routes: Routes, topic: str) -> None:
    """Raise unless the sink may read the topic and describe its producers."""

    def ask() -> None:
        fields: Mapping[str, Any] = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        for found in routes.ask(Key.DESCRIBE_PRODUCERS, fields).message.topics:
            for partition in found.partitions:
                code = ErrorCode.of(partition.error_code)
                if code in NOT_ALLOWED:
                    raise ServerError(code)

    _tried(ask, f"READ on the topic {topic!r}")


def _tried(ask: Any, needed: str) -> None:
    try:
        ask()
    except FencepostError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT or error.code not in NOT_ALLOWED | _OF_NOBODY:
            raise
        if error.code in NOT_ALLOWED:
            raise ServerError(
                error.code, f"the sink needs {needed}; ask an administrator of the ACLs to grant it"
            ) from error
