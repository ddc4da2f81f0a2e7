"""`AsyncProducer` and `AsyncReader`: a producer and a reader for asyncio.

They are thin wrappers. `send` does not wait, and tickets can be awaited; the few calls that do wait run in a thread. A
reader has one thread, which fetches and decodes while the loop runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar, Unpack

from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.checks import all_given, check_known
from fencepost.client.cluster.forking import OnePerProcess
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.claim import Claim, OnLost, OwnedRows, OwnKeywords
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.stats import ProducerStats
from fencepost.client.produce.ticket import Ticket
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.client.producer import Producer, ProducerKeywords
from fencepost.client.read.fetcher import Chunk
from fencepost.client.reader import Readable, Reader, ReaderKeywords, ReadRecord
from fencepost.client.share.group import OnPartitions
from fencepost.client.share.places import Place
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata
from fencepost.core.own.claim_request import Resources
from fencepost.errors import Closed, Fenced, FencepostError, TimedOut
from fencepost.kernel import Headers
from fencepost.types import Milliseconds, Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.produce.table import BulkTicket, Rows

T = TypeVar("T")
Runner: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]

_LOOK_UP: Final = 0.2
"""Seconds between two checks whether a thread's work is still wanted."""


class AsyncLostEvent(asyncio.Event):
    """An event that looks at the lease before it says that it is not set."""

    claim: Claim | None = None
    """None: not granted yet."""

    def is_set(self) -> bool:
        return super().is_set() or (self.claim is not None and self.claim.lost.is_set())

    async def wait(self) -> Literal[True]:
        return True if self.is_set() else await super().wait()


class AsyncClaim(OwnedRows):
    """A `Claim` whose release is awaited."""

    def __init__(self, claim: Claim, run: Runner, lost: AsyncLostEvent) -> None:
        self._claim = lost.claim = claim
        self._run = run
        self.lost: asyncio.Event = lost
        """Set when another owner has taken over or may do so, even if nothing is sent."""
        self.group, self.rows = claim.group, claim.rows

    def check(self) -> None:
        """Raise Fenced if the claim is lost."""
        self._claim.check()

    async def release(self) -> None:
        await self._run(self._claim.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A cancelled task releases too: unlike Ctrl-C, it does not end the program.
        await asyncio.shield(self._run(partial(self._claim.__exit__, kind, _as_exception(error), traceback)))


def _on_the_loop(on_lost: OnLost | None) -> tuple[AsyncLostEvent, OnLost]:
    """Return an event that is set when a claim is lost, and the callback that sets it, then calls `on_lost`."""
    loop = asyncio.get_running_loop()
    lost = AsyncLostEvent()

    def happened(cause: Fenced) -> None:
        lost.set()
        if on_lost is not None:
            on_lost(cause)

    def noticed(cause: Fenced) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(happened, cause)

    return lost, noticed


def _as_exception(error: BaseException | None) -> BaseException | None:
    return Closed("the task was cancelled") if isinstance(error, asyncio.CancelledError) else error


async def _or_interrupt(claiming: asyncio.Future[Claim], interrupt: Callable[[], None]) -> Claim:
    """Await a claim that a thread makes. If this task is cancelled, give the claim up, or release it."""
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        while not claiming.done():  # repeatedly: the claim may not wait yet
            await asyncio.to_thread(interrupt)
            await asyncio.wait([claiming], timeout=_LOOK_UP)
        if claiming.exception() is None:
            await asyncio.to_thread(claiming.result().release)
        raise


async def _or_undo(work: Awaitable[T], undo: Callable[[T], object]) -> T:
    """Await work that a thread does. If this task is cancelled, wait for the work and undo it."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        if working.exception() is None:
            await asyncio.to_thread(undo, working.result())
        raise


class AsyncProducer(OnePerProcess):
    """A `Producer` for asyncio, with the same settings. Tickets are awaited.

    >>> async with AsyncProducer("127.0.0.1:9092") as producer:
    ...     ticket = producer.send("orders", b"value")
    ...     delivered = await ticket
    """

    def __init__(
        self,
        servers: Servers | ClientSettings = "127.0.0.1:9092",
        *,
        ids: ProducerIds | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        check_known("AsyncProducer", options, ProducerKeywords.__annotations__)
        options.setdefault("block_timeout", 0)  # blocking would stop the event loop
        self._make: Callable[[], Producer] = lambda: Producer(servers, ids=ids, **options)
        self._producer: Producer | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, object], **options: Unpack[ProducerKeywords]) -> Self:
        """Create a producer as `Producer.from_config`."""
        from fencepost.client.cluster.config_names import producer_fields  # slow to load, and rarely needed

        settings, named = producer_fields(config)
        return cls(ClientSettings(**settings), **{**named, **options})

    async def __aenter__(self) -> Self:
        self._producer = await _or_undo(asyncio.to_thread(self._make), Producer.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._its.__exit__, kind, error, traceback)

    @property
    def _its(self) -> Producer:
        if self._producer is None:
            raise Closed("the producer is not open: use `async with AsyncProducer(…) as producer:`")
        return self._producer

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
        """Send as `Producer.send`. Raise BufferFull when the memory is full: then await `flush()` or a ticket."""
        return self._its.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    async def send_arrow(self, topic: str, table: Rows) -> BulkTicket:
        """Send as `Producer.send_arrow`. The returned ticket can be awaited."""
        return await asyncio.to_thread(self._its.send_arrow, topic, table)

    async def flush(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self._its.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self._its.close, timeout)

    async def stats(self) -> ProducerStats:
        """Return `Producer.stats`."""
        return await asyncio.to_thread(self._its.stats)

    async def ids(self) -> ProducerIds:
        return await asyncio.to_thread(lambda: self._its.ids)

    async def own(
        self,
        group: str | None = None,
        resources: Resources | None = None,
        **how: Unpack[OwnKeywords],
    ) -> AsyncClaim:
        """Claim as `Producer.own`: `async with await producer.own(…): …`. If cancelled, claim nothing."""
        its = self._its
        lost, how["on_lost"] = _on_the_loop(how.get("on_lost"))
        claiming = asyncio.ensure_future(asyncio.to_thread(partial(its.own, group, resources, **how)))
        return AsyncClaim(await _or_interrupt(claiming, its.interrupt), asyncio.to_thread, lost)

    def check_owned(self) -> None:
        """Check as `Producer.check_owned`, without waiting."""
        self._its.check_owned()

    async def init_transactions(self) -> None:
        """Claim the name as `Producer.init_transactions`."""
        await asyncio.to_thread(self._its.init_transactions)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ProducerTransaction]:
        """Begin a transaction as `Producer.transaction`: `async with producer.transaction(): …`."""
        transaction = self._its.transaction()
        await _or_undo(asyncio.to_thread(transaction.__enter__), lambda _: transaction.abort())
        try:
            yield transaction
        except BaseException as error:
            # Shielded, so that a cancelled task leaves no open transaction behind.
            await asyncio.shield(asyncio.to_thread(transaction.__exit__, type(error), error, None))
            raise
        await asyncio.to_thread(transaction.__exit__, None, None, None)

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], member: ConsumerGroupMetadata = NO_MEMBER
    ) -> None:
        await asyncio.to_thread(self._its.send_offsets, group, offsets, member)


class AsyncReader(OnePerProcess):
    """A `Reader` for asyncio, with the same settings.

    >>> async with AsyncReader("127.0.0.1:9092", "orders", stop="latest") as reader:
    ...     async for record in reader:
    ...         print(record.offset, record.value)
    """

    @all_given("AsyncReader")
    def __init__(
        self,
        servers: Servers | ClientSettings,
        topics: Readable | Iterable[Readable],
        *,
        start: Place = "earliest",
        stop: Place | None = None,
        **options: Unpack[ReaderKeywords],
    ) -> None:
        check_known("AsyncReader", options, ["start", "stop", *ReaderKeywords.__annotations__])
        if (callback := options.get("on_assigned")) is not None:
            options["on_assigned"] = self._on_loop(callback)
        if (callback := options.get("on_revoked")) is not None:
            options["on_revoked"] = self._on_loop(callback)
        if (callback := options.get("on_lost")) is not None:
            options["on_lost"] = self._on_loop(callback)
        self._make: Callable[[], Reader] = lambda: Reader(servers, topics, start=start, stop=stop, **options)
        self._reader: Reader | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fencepost-read")
        self._taking: asyncio.Future[Chunk | None] | None = None
        """A chunk that is being fetched, or is fetched and not handed out yet."""
        self._decoding: tuple[Callable[[Chunk], Any], asyncio.Future[Any]] | None = None
        """How that chunk is being decoded, or was. Both outlive a cancelled task: one with a timeout that is shorter
        than fetching and decoding a chunk gets its records at a later attempt."""
        self._records: Iterator[ReadRecord] = iter(())
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        topics: Readable | Iterable[Readable],
        *,
        start: Place | None = None,
        stop: Place | None = None,
        **options: Unpack[ReaderKeywords],
    ) -> Self:
        """Create a reader as `Reader.from_config`."""
        from fencepost.client.cluster.config_names import reader_fields  # for weight: most readers never need it

        settings, named = reader_fields(config)
        places = {name: place for name, place in (("start", start), ("stop", stop)) if place is not None}
        return cls(ClientSettings(**settings), topics, **{**named, **places, **options})

    def _on_loop(self, callback: Callable[[frozenset[TopicPartition]], Any]) -> OnPartitions:
        """Return the callback as the reader's thread calls it: it runs on the loop, and the thread waits for it."""

        async def run(partitions: frozenset[TopicPartition]) -> None:
            outcome = callback(partitions)
            if inspect.isawaitable(outcome):
                await outcome

        def call(partitions: frozenset[TopicPartition]) -> None:
            assert self._event_loop is not None
            asyncio.run_coroutine_threadsafe(run(partitions), self._event_loop).result()

        return call

    async def __aenter__(self) -> Self:
        self._event_loop = asyncio.get_running_loop()
        try:
            self._reader = await _or_undo(self._run(self._make), Reader.close)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        taking, self._taking = self._taking, None
        decoding, self._decoding = self._decoding, None
        for each in (taking, decoding[1] if decoding is not None else None):
            if each is not None:
                await asyncio.wait([each])
                each.exception()  # retrieved, so that asyncio does not log it
        if self._reader is not None:
            await self._run(self._reader.close)  # on its thread: only one thread at a time may use a reader
        self._thread.shutdown(wait=False)

    @property
    def _its(self) -> Reader:
        if self._reader is not None and self._closed:
            raise Closed("the reader is closed")
        if self._reader is None:
            raise Closed("the reader is not open: use `async with AsyncReader(…) as reader:`")
        return self._reader

    @property
    def positions(self) -> Mapping[TopicPartition, Offset]:
        return self._its.positions

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._its.assignment

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        """Store offsets as `Reader.commit`. Not on the reader's thread, which waits while `on_revoked` runs."""
        positions = self.positions if offsets is None else offsets
        commit = partial(self._its.commit, positions, wait=wait)
        await (self._run(commit) if self._its._member is None else asyncio.to_thread(commit))

    async def seek(self, partition: TopicPartition | tuple[str, int], place: Place) -> None:
        await self._of_its_own(partial(self._its.seek, partition, place))

    async def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        await self._of_its_own(partial(self._its.pause, *partitions))

    async def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        await self._of_its_own(partial(self._its.resume, *partitions))

    async def rewind(self) -> None:
        await self._of_its_own(self._its.rewind)

    async def committed(self) -> dict[TopicPartition, Offset | None]:
        return await asyncio.to_thread(self._its.committed)

    async def lag(self) -> dict[TopicPartition, int]:
        return await asyncio.to_thread(self._its.lag)

    async def _of_its_own(self, change: Callable[[], None]) -> None:
        """Run what moves positions on the reader's thread; in a callback that thread waits, so on another."""
        reader = self._its
        self._records = iter(())
        await (asyncio.to_thread(change) if reader._callback is not None else self._run(change))

    async def own(
        self,
        group: str | None = None,
        resources: Resources | None = None,
        **how: Unpack[OwnKeywords],
    ) -> AsyncClaim:
        """Claim as `Reader.own`. If cancelled, claim nothing."""
        its = self._its
        lost, how["on_lost"] = _on_the_loop(how.get("on_lost"))
        claiming = asyncio.ensure_future(self._run(partial(its.own, group, resources, **how)))
        return AsyncClaim(await _or_interrupt(claiming, its.interrupt), self._run, lost)

    async def check_owned(self) -> None:
        """Check as `Reader.check_owned`."""
        await self._run(self._its.check_owned)

    def __aiter__(self) -> Self:
        """Return itself: a loop that was left or cancelled can be resumed."""
        return self

    async def __anext__(self) -> ReadRecord:
        reader = self._its
        while (record := next(self._records, None)) is None:
            if reader._loop is not None:  # the group wants something first
                await self._go_on(reader, None)
            if reader._loop is None:
                taken = await self._take(reader._decode)
                if taken is None:
                    raise StopAsyncIteration
                reader._begin_loop(*taken)
            self._records = reader._hand_out()
        return record

    async def poll(self, timeout: float | None = None) -> list[ReadRecord] | None:
        """Return the next few records of one partition, or None at the end. Raise TimedOut if none arrive in time."""
        if rest := list(self._records):  # of a loop that was left
            return rest
        reader = self._its
        while reader._loop is not None:
            await self._go_on(reader, timeout)
            if reader._loop is not None and (rest := list(reader._hand_out())):
                return rest
        taken = await self._take(reader._decode, timeout)
        if taken is None:
            return None
        chunk, records = taken
        reader._is_at(chunk)
        return records

    async def _go_on(self, reader: Reader, timeout: float | None) -> None:
        await asyncio.shield(self._run(partial(reader._wait_to_go_on, timeout)))

    async def arrow(self) -> AsyncIterator[pa.RecordBatch]:
        reader = self._its
        while (taken := await self._take(reader._table)) is not None:
            chunk, table = taken
            reader._is_at(chunk)
            if table is not None and table.num_rows:
                yield table

    async def _take(self, decode: Callable[[Chunk], T], timeout: float | None = None) -> tuple[Chunk, T] | None:
        reader, clock = self._its, asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        while True:
            if self._taking is None:
                patience = _LOOK_UP if deadline is None else min(_LOOK_UP, max(0.0, deadline - clock()))
                self._taking = asyncio.ensure_future(self._run(partial(reader._next, patience)))
            try:
                # Shielded: a chunk that the thread has fetched is kept if this task is cancelled.
                chunk = await asyncio.shield(self._taking)
            except TimedOut:
                self._taking = None
                if deadline is not None and clock() >= deadline:
                    raise TimedOut(f"no new records within {timeout:g} s") from None
                continue
            except FencepostError:
                self._taking = None
                raise
            if chunk is None:
                self._taking = None
                return None
            if not reader._may_hand_out(chunk):  # the group wants something first; the reader keeps the chunk
                self._taking = self._decoding = None
                continue
            if self._decoding is None or self._decoding[0] != decode:
                self._decoding = decode, asyncio.ensure_future(self._run(partial(decode, chunk)))
            try:
                decoded: T = await asyncio.shield(self._decoding[1])
            except Exception:
                self._decoding = None
                raise
            self._taking = self._decoding = None
            return chunk, decoded

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
