"""The topic of the audit log: the server appends to it, and only super users may read it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from fencepost.core.producers.dedup import Accept
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.kernel import encode_batch
from fencepost.kernel.header import read_header

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_CONFIGS: Final = {"retention.ms": str(90 * 24 * 60 * 60 * 1000), "retention.bytes": str(1024**3)}
"""Configs of a new audit topic; super users may change them."""
_SECONDS: Final = 5.0
"""Time for the loop to append and sync; then the thread does its other work, and comes back."""
_MORE_SECONDS: Final = 1.0
"""The same, when it comes back."""
_MOST_LINES: Final = 500
_MOST_BYTES: Final = 1024 * 1024
"""Limits of a batch; but it has at least one line."""


async def make_topic(broker: Broker, name: str) -> None:
    """Create the topic unless it exists."""
    try:
        await broker.topics.create(name, 1, _CONFIGS)
    except ServerError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


class AuditTopic:
    """Only the audit thread writes it; the loop appends."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._appending: Future[None] | None = None
        """An append that has taken too long. It goes on: another one could write its lines a second time."""
        self._count = 0
        """Its lines."""

    def write(self, lines: list[bytes]) -> None:
        while lines:
            seconds = _SECONDS if self._appending is None else _MORE_SECONDS
            if self._appending is None:
                self._count = _fitting(lines)
                now = self._broker.clock.now_ms()
                batch = encode_batch((None, each.rstrip(b"\n"), now, None) for each in lines[: self._count])
                self._appending = asyncio.run_coroutine_threadsafe(self._append(batch), self._loop)
            if not wait([self._appending], seconds).done:
                raise StorageError(f"the audit topic {self._name} could not be written within {seconds:g} s")
            appended, self._appending = self._appending, None
            appended.result()
            del lines[: self._count]

    def close(self) -> None:
        """Do nothing. A reload that fails closes the places that it would have used, and this one is still in use."""

    async def _append(self, batch: bytearray) -> None:
        broker = self._broker
        partition = broker.partition(self._name, 0)
        partition.usable()  # drops a log that has failed, so that `open` reopens it
        await partition.open()
        verdict, _ = partition.append(memoryview(batch), read_header(batch), broker.clock.now_ms())
        assert isinstance(verdict, Accept)  # without a pid there are no duplicates
        if broker.config.sync == "always":
            # A failed sync is not repeated here: the record may be in the log, and a copy of it would say that the
            # event happened twice.
            await asyncio.shield(broker.syncer.join([partition]))
        elif partition.log is not None:
            partition.advance(partition.log.end_offset)


def _fitting(lines: list[bytes]) -> int:
    """Return how many of the lines the next batch has."""
    size = len(lines[0])
    for number in range(1, min(len(lines), _MOST_LINES)):
        size += len(lines[number])
        if size > _MOST_BYTES:
            return number
    return min(len(lines), _MOST_LINES)
