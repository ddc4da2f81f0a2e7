"""A proxy between a client and its brokers that injects faults: it cuts, delays, swallows, ignores and duplicates.

    with Proxy(server.address) as proxy:
        producer = Producer(proxy.address)
        proxy.next(Api.PRODUCE, Fate.CUT)      # the server carries it out, the client gets no response

It parses the frames it forwards, so a fault can target one request of one API. It opens a listener for each broker in a
response to Metadata or FindCoordinator, and rewrites the address there, so that the client stays behind the proxy. This
works with any number of brokers, also of Apache Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from struct import Struct
from types import TracebackType
from typing import Any, Final, Self

from fencepost.client.cluster.addresses import Address, parse_address
from fencepost.wire import messages
from fencepost.wire.frame import read_request_head, read_response_head, response_head
from tests.support.scripted.fates import Api, DelayedAnswer, Fate, Script

_LENGTH: Final = Struct(">i")
_HOST: Final = "127.0.0.1"


class Proxy:
    """The proxy, which runs in its own thread; every method is thread-safe."""

    def __init__(self, upstream: str) -> None:
        self._upstream = parse_address(upstream.split(",", maxsplit=1)[0])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fencepost-proxy", daemon=True)
        self._started = threading.Event()
        self._listeners: dict[Address, tuple[asyncio.Server, Address]] = {}
        self._lines: set[ProxiedConnection] = set()
        self._refusing = False
        self._is_audible = asyncio.Event()
        self._is_audible.set()
        self._scripts: defaultdict[int, deque[Script]] = defaultdict(deque)
        self.choose: Callable[[int], Script] = lambda key: Fate.ANSWER
        """The fate of a request by its API key, unless `next` has set one."""
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        self.address = str(self._call(self._listen(self._upstream)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- what tests do ---

    def next(self, api: Api, *scripts: Script) -> None:
        """Set the fates of the next requests of this API, one each. `ErrorAnswer` is for scripted clusters only."""
        self._scripts[api].extend(scripts)

    def cut(self) -> None:
        """Close every connection now."""
        self._call(self._cut())

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, until called with False."""
        self._refusing = refusing

    def silence(self, silent: bool = True) -> None:
        """Carry nothing in either direction, not even the end of a connection, as if a cable were unplugged. With
        False, close the connections of that time and carry again."""
        self._call(self._silence(silent))

    # --- in the loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._started.set)
        self._loop.run_forever()

    def _call(self, work: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result(30)

    async def _listen(self, upstream: Address) -> Address:
        """Return the broker's address at the proxy."""
        if upstream not in self._listeners:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._accept(upstream, reader, writer)

            listener = await asyncio.start_server(accept, _HOST, 0)
            self._listeners[upstream] = listener, Address(_HOST, listener.sockets[0].getsockname()[1])
        return self._listeners[upstream][1]

    async def _accept(self, upstream: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(upstream.host, upstream.port)
        except OSError:
            writer.transport.abort()
            return
        line = ProxiedConnection(self, (reader, writer), (up_reader, up_writer))
        self._lines.add(line)
        try:
            await line.carry()
        finally:
            self._lines.discard(line)

    async def _cut(self) -> None:
        for line in list(self._lines):
            line.end()

    async def _silence(self, silent: bool) -> None:
        if silent:
            self._is_audible.clear()
        elif not self._is_audible.is_set():
            await self._cut()
            self._is_audible.set()

    @property
    def is_silent(self) -> bool:
        return not self._is_audible.is_set()

    async def audible(self) -> None:
        """Wait for the end of the silence."""
        await self._is_audible.wait()

    async def _close(self) -> None:
        self._refusing = True
        await self._cut()
        # A connection that was only just accepted has a task and no line yet: it is refused, or cut when it has one.
        # The listeners stay open until then: asyncio leaks the socket of a connection that it sets up after a close.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=0.001)
            await self._cut()
        for listener, _ in self._listeners.values():
            listener.close()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn

    def script_for(self, key: int) -> Script:
        scripts = self._scripts[key]
        return scripts.popleft() if scripts else self.choose(key)

    async def renamed(self, key: int, version: int, frame: bytes) -> bytes:
        """Rewrite the brokers' addresses in a response to Metadata or FindCoordinator to the proxy's listeners."""
        correlation_id, at = read_response_head(key, version, frame)
        fields = dataclasses.asdict(messages.decode_response(key, version, frame, at))
        for broker in fields.get("brokers") or fields.get("coordinators") or [fields]:
            if broker.get("host"):  # without a host there is no coordinator yet
                here = await self._listen(Address(broker["host"], broker["port"]))
                broker["host"], broker["port"] = here
        return response_head(key, version, correlation_id) + messages.encode_response(key, version, fields)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxiedConnection:
    """A connection of the client, and the proxy's connection to the broker."""

    def __init__(self, proxy: Proxy, client: Ends, broker: Ends) -> None:
        self._proxy = proxy
        self._client = client
        self._is_cut = asyncio.Event()
        self._broker = broker
        self._asked: deque[tuple[int, int, Script, bool]] = deque()  # key, version, fate, is the response surplus

    async def carry(self) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._proxy.is_silent and not self._is_cut.is_set():
                tasks += [asyncio.create_task(self._proxy.audible()), asyncio.create_task(self._is_cut.wait())]
                await asyncio.wait(tasks[2:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        self._is_cut.set()
        for _, writer in (self._client, self._broker):
            writer.transport.abort()

    async def _requests(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _read(self._client[0])
                if self._proxy.is_silent:
                    continue
                head = read_request_head(frame)
                script = self._proxy.script_for(head.key)
                if script is Fate.LOSE:
                    return
                if script is Fate.IGNORE:
                    continue
                self._asked.append((head.key, head.version, script, False))
                await _write(self._broker[1], frame)
                if script is Fate.DUPLICATE:
                    self._asked.append((head.key, head.version, script, True))
                    await _write(self._broker[1], frame)

    async def _answers(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _read(self._broker[0])
                key, version, script, unasked = self._asked.popleft()
                if self._proxy.is_silent:
                    continue
                if script is Fate.CUT:
                    return
                if script is Fate.SWALLOW or unasked:
                    continue
                if isinstance(script, DelayedAnswer):
                    await asyncio.sleep(script.seconds)
                if key in (Api.METADATA, Api.FIND_COORDINATOR):
                    frame = await self._proxy.renamed(key, version, frame)
                await _write(self._client[1], frame)


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = _LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(size)


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_LENGTH.pack(len(frame)) + frame)
    await writer.drain()
