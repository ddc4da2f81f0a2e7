"""The network of a scripted cluster: bytes arrive, are answered, and connections close as the clock advances."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeAlias

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.sockets import Handler
from fencepost.errors import FencepostError, Unreachable
from fencepost.kernel import Buffer
from fencepost.wire.frame import FrameReader
from tests.support.received_frames import feed
from tests.support.scripted.fates import DelayedAnswer, Fate, Script
from tests.support.scripted.state import ScriptedState

NO_ANSWER: Final = b""
"""The response to a Produce with acks=0. A server that rejects one closes the connection; a test uses Fate.CUT."""


class ScriptedLink:
    """A connection to one scripted broker."""

    def __init__(self, network: ScriptedNetwork, address: Address, handler: Handler, number: int) -> None:
        self.address = address
        self.number = number
        self.written = 0
        self.max_answer = 0
        self.queued = 0
        self._network = network
        self._handler: Handler | None = handler
        self._frames = FrameReader()
        self.answers_until = float("-inf")
        """The time of the newest response: none overtakes another."""
        self.is_mute = False
        """No further responses: one was swallowed, or the connection is about to close."""
        self.is_severed = False
        self.lags_until: float | None = None
        """The time at which the server notices that the connection is closed."""

    def write(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(bytes(part) for part in parts)
        self.queued += len(data)
        self.written += len(data)
        for frame in feed(self._frames, data):
            self._network.carry(self, frame)

    @property
    def is_idle(self) -> bool:
        return self.is_open

    def write_now(self, data: bytes) -> bool:
        self.write([data])
        return True

    def close(self) -> None:
        self._handler = None
        self._network.ended(self)

    def sever(self) -> None:
        """Sever the connection at the server: drop the data that is in flight in both directions."""
        self.is_mute = self.is_severed = True
        self._network.sever(self)

    def lag(self, carry_out: Callable[[], object]) -> None:
        self._network.lag(self, carry_out)

    @property
    def is_open(self) -> bool:
        return self._handler is not None

    def connected(self) -> None:
        if self._handler is not None:
            self._handler.connected()

    def deliver(self, frame: bytes) -> None:
        if self._handler is None:
            return
        self._handler.frame(memoryview(frame))

    def end(self, error: FencepostError) -> None:
        handler, self._handler = self._handler, None
        self._network.ended(self)
        if handler is not None:
            handler.lost(error)


Receive: TypeAlias = Callable[[int, bytes, ScriptedLink], tuple[bytes | None, Script]]
"""Maps a node and a frame to the response (None if it is lost) and the request's fate."""


class ScriptedNetwork:
    """The client's network to a scripted cluster; implements `Network`."""

    def __init__(self, state: ScriptedState, receive: Receive) -> None:
        self._state = state
        self._receive = receive
        self._links: list[ScriptedLink] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.woken = 0

    def dial(self, address: Address, handler: Handler) -> ScriptedLink:
        link = ScriptedLink(self, address, handler, len(self._links))
        self._links.append(link)
        node = self._node(address)
        if node in self._state.keeps_out:
            refusal = self._state.keeps_out[node]
            self._later(0.0, lambda: link.end(refusal))
        elif node is None or node in self._state.down:
            self._later(0.0, lambda: link.end(Unreachable(f"nothing listens at {address}")))
        else:
            self._later(0.0, link.connected)
        return link

    def before_work(self) -> None:
        """Do nothing: no thread sleeps here."""

    def poll(self, timeout: float | None) -> bool:
        """Advance to the next event, or by `timeout`; never wait for ever."""
        clock = self._state.clock
        now = clock.monotonic()
        if self.woken:
            self.woken, timeout = 0, 0.0
        until = float("inf") if timeout is None else now + timeout
        if self._events and self._events[0][0] <= until:
            until = max(now, self._events[0][0])
        if until == float("inf"):
            raise AssertionError("the client waits, and nothing will ever happen")
        clock.advance(until - now)
        has_news = False
        while self._events and self._events[0][0] <= until:
            heapq.heappop(self._events)[2]()
            has_news = True
        return has_news

    def wake(self) -> None:
        self.woken += 1

    def close(self) -> None:
        self._events.clear()

    def forget_sockets(self) -> None:
        """Do nothing: there are no such sockets."""

    def cut(self, address: Address) -> None:
        """Close the connections to this address."""
        for link in [link for link in self._links if link.is_open and link.address == address]:
            self.sever(link)

    def sever(self, link: ScriptedLink) -> None:
        self._later(0.0, lambda: link.end(Unreachable(f"{link.address} ended the connection")))

    def lag(self, link: ScriptedLink, carry_out: Callable[[], object]) -> None:
        assert link.lags_until is not None
        left = link.lags_until - self._state.clock.monotonic()

        def heard() -> None:
            if not link.is_severed:
                carry_out()

        def noticed() -> None:
            link.lags_until = None
            self.ended(link)

        self._later(max(0.0, left), heard)
        self._later(max(0.0, left) + self._state.latency, noticed)

    def ended(self, link: ScriptedLink) -> None:
        if link.lags_until is not None:
            return
        if self._state.notices_ends:
            self._state.ownership.ended(link)

    def carry(self, link: ScriptedLink, frame: bytes) -> None:
        node = self._node(link.address)
        if node is None or node in self._state.down or not link.is_open or link.is_severed:
            return
        answer, script = self._receive(node, frame, link)
        if link.is_mute or answer is NO_ANSWER:
            return
        seconds = self._state.latency + (script.seconds if isinstance(script, DelayedAnswer) else 0.0)
        if script in (Fate.SWALLOW, Fate.IGNORE):
            link.is_mute = True
        elif script in (Fate.CUT, Fate.LOSE) or answer is None:
            link.is_mute = True
            self._later(seconds, lambda: link.end(Unreachable(f"{link.address} ended the connection")), link)
        else:
            self._later(seconds, lambda: None if link.is_severed else link.deliver(answer), link)

    def _later(self, seconds: float, event: Callable[[], None], link: ScriptedLink | None = None) -> None:
        due = self._state.clock.monotonic() + seconds
        if link is not None:
            due = link.answers_until = max(due, link.answers_until)
        heapq.heappush(self._events, (due, next(self._numbers), event))

    def _node(self, address: Address) -> int | None:
        return next((node for node, known in self._state.addresses.items() if known == address), None)
