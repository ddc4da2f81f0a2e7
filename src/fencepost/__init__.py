"""fencepost: partitioned logs written exactly once, with one writer per partition, on Kafka's wire protocol.

The public names load on first use, so that `import fencepost` is fast.
"""

from __future__ import annotations

from importlib import import_module

from fencepost import at_exit as _at_exit  # noqa: F401 - registers its hook before any of the program's
from fencepost._version import __version__

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would double the cost of this module
if TYPE_CHECKING:
    from fencepost.client.admin_client import Admin
    from fencepost.client.aio import AsyncClaim, AsyncProducer, AsyncReader
    from fencepost.client.async_processor import AsyncBatch, AsyncOutput, AsyncProcessor
    from fencepost.client.batch import Batch, Output
    from fencepost.client.own.claim import Claim
    from fencepost.client.own.hold import Hold, hold
    from fencepost.client.processor import Processor
    from fencepost.client.produce.ids import ProducerIds
    from fencepost.client.produce.stats import BrokerStats, PartitionStats, ProducerStats
    from fencepost.client.produce.ticket import Delivered, Ticket
    from fencepost.client.producer import Producer
    from fencepost.client.reader import Reader, ReadRecord
    from fencepost.client.standby import Standby, Term, standby
    from fencepost.core.own.claim_request import Refused
    from fencepost.core.own.ownership import OwnedResource
    from fencepost.errors import (
        BufferFull,
        Closed,
        ConfigError,
        Expired,
        Fenced,
        FencepostError,
        NotOwned,
        PartitionsLost,
        RecordTooLarge,
        SendFailed,
        ServerError,
        TimedOut,
        TooSlow,
        TopicRecreated,
        Undelivered,
        Unreachable,
    )
    from fencepost.server.server import Server
    from fencepost.types import TopicPartition

_HOME = {
    "Admin": "fencepost.client.admin_client",
    "AsyncBatch": "fencepost.client.async_processor",
    "AsyncClaim": "fencepost.client.aio",
    "AsyncOutput": "fencepost.client.async_processor",
    "AsyncProcessor": "fencepost.client.async_processor",
    "AsyncProducer": "fencepost.client.aio",
    "AsyncReader": "fencepost.client.aio",
    "Batch": "fencepost.client.batch",
    "BrokerStats": "fencepost.client.produce.stats",
    "BufferFull": "fencepost.errors",
    "Claim": "fencepost.client.own.claim",
    "Closed": "fencepost.errors",
    "ConfigError": "fencepost.errors",
    "Delivered": "fencepost.client.produce.ticket",
    "Expired": "fencepost.errors",
    "Fenced": "fencepost.errors",
    "FencepostError": "fencepost.errors",
    "Hold": "fencepost.client.own.hold",
    "NotOwned": "fencepost.errors",
    "Output": "fencepost.client.batch",
    "OwnedResource": "fencepost.core.own.ownership",
    "PartitionStats": "fencepost.client.produce.stats",
    "PartitionsLost": "fencepost.errors",
    "Processor": "fencepost.client.processor",
    "Producer": "fencepost.client.producer",
    "ProducerIds": "fencepost.client.produce.ids",
    "ProducerStats": "fencepost.client.produce.stats",
    "ReadRecord": "fencepost.client.reader",
    "Reader": "fencepost.client.reader",
    "RecordTooLarge": "fencepost.errors",
    "Refused": "fencepost.core.own.claim_request",
    "SendFailed": "fencepost.errors",
    "Server": "fencepost.server.server",
    "ServerError": "fencepost.errors",
    "Standby": "fencepost.client.standby",
    "Term": "fencepost.client.standby",
    "Ticket": "fencepost.client.produce.ticket",
    "TimedOut": "fencepost.errors",
    "TooSlow": "fencepost.errors",
    "TopicPartition": "fencepost.types",
    "TopicRecreated": "fencepost.errors",
    "Undelivered": "fencepost.errors",
    "Unreachable": "fencepost.errors",
    "hold": "fencepost.client.own.hold",
    "standby": "fencepost.client.standby",
}

__all__ = [
    "Admin",
    "AsyncBatch",
    "AsyncClaim",
    "AsyncOutput",
    "AsyncProcessor",
    "AsyncProducer",
    "AsyncReader",
    "Batch",
    "BrokerStats",
    "BufferFull",
    "Claim",
    "Closed",
    "ConfigError",
    "Delivered",
    "Expired",
    "Fenced",
    "FencepostError",
    "Hold",
    "NotOwned",
    "Output",
    "OwnedResource",
    "PartitionStats",
    "PartitionsLost",
    "Processor",
    "Producer",
    "ProducerIds",
    "ProducerStats",
    "ReadRecord",
    "Reader",
    "RecordTooLarge",
    "Refused",
    "SendFailed",
    "Server",
    "ServerError",
    "Standby",
    "Term",
    "Ticket",
    "TimedOut",
    "TooSlow",
    "TopicPartition",
    "TopicRecreated",
    "Undelivered",
    "Unreachable",
    "__version__",
    "hold",
    "standby",
]


if not TYPE_CHECKING:  # hidden from type checkers: to them every misspelt name would be a name of type Any

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
