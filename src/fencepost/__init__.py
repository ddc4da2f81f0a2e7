"""fencepost: partitioned logs written exactly once, with one writer per partition, on Kafka's wire protocol.

The public names load on first use, so that `import fencepost` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost._version import __version__

if TYPE_CHECKING:
    from fencepost.client.admin import Admin
    from fencepost.client.aio import AsyncProducer, AsyncReader
    from fencepost.client.ids import ProducerIds
    from fencepost.client.producer import Producer
    from fencepost.client.reader import Reader
    from fencepost.client.ticket import Delivered, Ticket
    from fencepost.errors import BufferFull, Expired, Fenced, FencepostError, SendFailed, Undelivered
    from fencepost.server.server import Server

_HOME = {
    "Admin": "fencepost.client.admin",
    "AsyncProducer": "fencepost.client.aio",
    "AsyncReader": "fencepost.client.aio",
    "BufferFull": "fencepost.errors",
    "Delivered": "fencepost.client.ticket",
    "Expired": "fencepost.errors",
    "Fenced": "fencepost.errors",
    "FencepostError": "fencepost.errors",
    "Producer": "fencepost.client.producer",
    "ProducerIds": "fencepost.client.ids",
    "Reader": "fencepost.client.reader",
    "SendFailed": "fencepost.errors",
    "Server": "fencepost.server.server",
    "Ticket": "fencepost.client.ticket",
    "Undelivered": "fencepost.errors",
}

__all__ = [
    "Admin",
    "AsyncProducer",
    "AsyncReader",
    "BufferFull",
    "Delivered",
    "Expired",
    "Fenced",
    "FencepostError",
    "Producer",
    "ProducerIds",
    "Reader",
    "SendFailed",
    "Server",
    "Ticket",
    "Undelivered",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
