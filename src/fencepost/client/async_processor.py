"""`AsyncProcessor`: a `Processor` for asyncio. A thin wrapper: one thread fetches, decodes, commits and rewinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from fencepost.client.aio import _or_undo
from fencepost.client.batch import Batch, Output
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.checks import all_given, check_known
from fencepost.client.cluster.forking import OnePerProcess
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.processor import LOOK, Processor, ProcessorKeywords, from_config
from fencepost.client.produce.ticket import Ticket
from fencepost.client.reader import Readable, ReadRecord
from fencepost.client.share.places import Place
from fencepost.errors import Closed, TimedOut
from fencepost.kernel import Headers
from fencepost.types import Milliseconds, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.produce.table import BulkTicket, Rows

T = TypeVar("T")


class AsyncOutput:
    """Sends records in a batch's transaction, while the batch's block runs."""

    def __init__(self, out: Output, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._out = out
        self._run = run

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Milliseconds | None = None,
    ) -> Ticket:
        """Send as `Output.send`. Raise BufferFull when the memory is full: then await `flush()` or a ticket."""
        return self._out.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    async def send_arrow(self, topic: str, table: Rows) -> BulkTicket:
        """Send as `Output.send_arrow`."""
        ticket: BulkTicket = await self._run(partial(self._out.send_arrow, topic, table))
        return ticket

    async def flush(self, timeout: float | None = None) -> None:
        await self._run(partial(self._out.flush, timeout))


class AsyncBatch:
    """A `Batch` for asyncio: `async with batch as out: async for record in batch: …`."""

    def __init__(self, batch: Batch, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._batch = batch
        self._run = run
        self.lost = asyncio.Event()
        self.partitions: frozenset[TopicPartition] = batch.partitions

    def __repr__(self) -> str:
        return repr(self._batch)

    async def __aiter__(self) -> AsyncIterator[ReadRecord]:
        """Yield the records as `Batch` does. The thread decodes them first."""
        await self._run(self._batch._decode)
        for record in self._batch:
            yield record

    async def arrow(self) -> pa.Table:
        """Return the records as `Batch.arrow` does."""
        return await self._run(self._batch.arrow)

    async def __aenter__(self) -> AsyncOutput:
        batch = self._batch
        undo = partial(batch.__exit__, asyncio.CancelledError, asyncio.CancelledError(), None)
        return AsyncOutput(await _or_undo(self._run(batch.__enter__), lambda _: undo()), self._run)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        ending = asyncio.ensure_future(self._run(partial(self._batch.__exit__, kind, error, traceback)))
        try:
            # Shielded, and waited for: a cancelled task leaves no open transaction, and none that goes on without it.
            goes_on: bool = await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            ending.exception()  # retrieved, so that asyncio does not log it
            raise
        return goes_on


class AsyncProcessor(OnePerProcess):
    """A `Processor` for asyncio, with the same settings.

    >>> async with AsyncProcessor("127.0.0.1:9092", "orders", group="enrich") as batches:
    ...     async for batch in batches:
    ...         async with batch as out:
    ...             async for record in batch:
    ...                 out.send("enriched", await enrich(record.value), key=record.key)
    """

    @all_given("AsyncProcessor")
    def __init__(
        self,
        servers: Servers | ClientSettings,
        topics: Readable | Iterable[Readable],
        *,
        group: str,
        start: Place = "earliest",
        stop: Place | None = None,
        **options: Unpack[ProcessorKeywords],
    ) -> None:
        check_known("AsyncProcessor", options, ["group", "start", "stop", *ProcessorKeywords.__annotations__])
        options["producer"] = {"block_timeout": 0, **(options.get("producer") or {})}  # blocking would stop the loop
        self._make: Callable[[], Processor] = lambda: Processor(
            servers, topics, group=group, start=start, stop=stop, **options
        )
        self._processor: Processor | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fencepost-process")
        self._taking: asyncio.Future[Batch | None] | None = None
        """A batch that is being gathered, or was for a task that was cancelled."""
        self._batch: AsyncBatch | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        topics: Readable | Iterable[Readable],
        *,
        group: str | None = None,
        start: Place | None = None,
        stop: Place | None = None,
        **options: Unpack[ProcessorKeywords],
    ) -> Self:
        """Create a processor as `Processor.from_config`."""
        check_known("AsyncProcessor", options, ["group", "start", "stop", *ProcessorKeywords.__annotations__])
        settings, given = from_config(config, group, start, options)
        return cls(settings, topics, stop=stop, **given)

    async def __aenter__(self) -> Self:
        self._event_loop = asyncio.get_running_loop()
        try:
            self._processor = await _or_undo(self._run(self._make), Processor.close)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._processor._on_lost = self._lost
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort an open transaction, leave the group, and close."""
        if self._closed:
            return
        self._closed = True
        if self._processor is not None:
            self._processor.end()
            if self._taking is not None:
                await asyncio.wait([self._taking])
                self._taking.exception()  # retrieved, so that asyncio does not log it
            await self._run(self._processor.close)
        self._thread.shutdown(wait=False)

    @property
    def _its(self) -> Processor:
        if self._processor is None or self._closed:
            state = "closed" if self._closed else "not open: use `async with AsyncProcessor(…) as batches:`"
            raise Closed(f"the processor is {state}")
        return self._processor

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._its.assignment

    def end(self) -> None:
        """Let the loop end after the present batch."""
        self._its.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBatch:
        while True:
            if self._taking is None:
                self._taking = asyncio.ensure_future(self._run(partial(self._its._next, LOOK)))
            try:
                batch = await asyncio.shield(self._taking)
            except TimedOut:
                self._taking = None
                continue
            except Exception:
                self._taking = None
                raise
            self._taking = None
            if batch is None:
                raise StopAsyncIteration
            self._batch = AsyncBatch(batch, self._run)
            if batch.lost.is_set():  # since before anyone could tell this one
                self._batch.lost.set()
            return self._batch

    def _lost(self) -> None:
        """Tell the batch, from the member's thread."""

        def tell() -> None:
            if self._batch is not None and self._batch._batch.lost.is_set():
                self._batch.lost.set()

        assert self._event_loop is not None
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._event_loop.call_soon_threadsafe(tell)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
