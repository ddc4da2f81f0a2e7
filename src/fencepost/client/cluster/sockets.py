"""Non-blocking sockets in one selector, behind an interface that tests replace with a network of their own (PROD-3).

The send thread and the reader see a `Network`: they dial an address, write frames to the link, and are called from
`poll` when frames arrive. Kafka's stream consists of length-prefixed frames only, also with TLS and SASL, so the link
cuts it into frames (`wire/frame.py`).

"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.handshake import tls_failed
from fencepost.client.cluster.security import OPEN, Security, Tls
from fencepost.errors import ConfigError, FencepostError, Malformed, Unreachable
from fencepost.kernel import Buffer, room
from fencepost.wire.frame import MAX_HANDSHAKE_ANSWER, FrameReader

_BUFFERS_PER_WRITE: Final = 64
_TLS_RECORD: Final = 1 << 14
_MOST_PER_TURN: Final = 4 << 20
"""Bytes read from one socket before the next one is read."""
_LONGEST_POLL_SECONDS: Final = 3600.0
"""epoll takes no timeout of a month. Whoever polls looks again afterwards."""
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, count, by option name; not every system has them."""


class ConnectionEnded(Unreachable):
    """The peer has closed the connection."""


class Handler(Protocol):
    """The user of a link; `poll` calls it."""

    def connected(self) -> None: ...
    def frame(self, frame: memoryview) -> None:
        """Take one whole frame, without its length prefix; its memory belongs to the handler."""

    def lost(self, error: FencepostError) -> None:
        """Take note that the link ended, or could not be dialled. Called once, and not after the handler's `close`."""


class Link(Protocol):
    written: int
    """Total bytes handed to the kernel."""
    queued: int
    """Total bytes handed to `write`."""
    max_answer: int
    """The largest frame that it accepts; small until the handler raises it."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Queue the buffers; they are sent as the socket takes them. They are not copied, so they must not change."""

    @property
    def is_idle(self) -> bool:
        """True if `write_now` may be called: the link is open, and nothing waits to be written."""

    def write_now(self, data: bytes) -> bool:
        """Write at once, on the calling thread. Return False if `poll` has to write the rest: wake it."""

    def close(self) -> None: ...


class Network(Protocol):
    def dial(self, address: Address, handler: Handler) -> Link: ...
    def before_work(self) -> None:
        """Make a `wake` from now on end the next `poll`. Called before looking for work."""

    def poll(self, timeout: float | None) -> bool:
        """Wait until something happens or the time is over, and call the handlers. It may end earlier. Return whether a
        handler may have been called."""

    def wake(self) -> None:
        """End a `poll`, from any thread. Costs next to nothing while the polling thread works."""

    def close(self) -> None: ...

    def forget_sockets(self) -> None:
        """Close the copies of the sockets in a forked child. While one is open, the parent's connection outlives the
        parent, and so does what it owns."""


class SocketNetwork:
    def __init__(self, security: Security = OPEN) -> None:
        self._tls = security.tls
        if self._tls is not None:
            self._tls.context()  # raises here if a file is unusable, and not on the send thread
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._sleeping = False
        self._resolved: deque[tuple[SocketLink, Sequence[tuple[int, str, int]] | Exception]] = deque()
        self._unflushed: dict[SocketLink, None] = {}

    def dial(self, address: Address, handler: Handler) -> SocketLink:
        link = SocketLink(self, address, handler, self._tls)
        try:
            literal = ipaddress.ip_address(address.host)
        except ValueError:
            # Name lookup only exists as a blocking call: it gets a short-lived thread.
            try:
                threading.Thread(target=self._look_up, args=(link,), daemon=True, name="fencepost-lookup").start()
            except RuntimeError:  # the interpreter shuts down and starts no more threads
                self._look_up(link)
        else:
            family = socket.AF_INET6 if literal.version == 6 else socket.AF_INET
            self._resolved.append((link, [(family, address.host, address.port)]))
            self.wake()  # it may be another thread that dials
        return link

    def _look_up(self, link: SocketLink) -> None:
        try:
            found = socket.getaddrinfo(link.address.host, link.address.port, type=socket.SOCK_STREAM)
            self._resolved.append((link, [(int(family), str(at[0]), int(at[1])) for family, _, _, _, at in found]))
        except (OSError, ValueError, OverflowError) as error:  # not only OSError: the server may have named anything
            self._resolved.append((link, error))
        self._sleeping = True  # in any case: wake the poll
        self.wake()

    def before_work(self) -> None:
        self._sleeping = True

    def poll(self, timeout: float | None) -> bool:
        has_news = False
        while self._resolved:
            link, found = self._resolved.popleft()
            link.resolved(found)
            has_news |= link.socket is None  # its handler was just told that it failed
        for link in list(self._unflushed):
            link.flush()
            has_news |= link.socket is None  # likewise: the write found that the server had closed it
        self._unflushed.clear()
        if has_news or self._resolved:  # a lookup may have ended meanwhile
            timeout = 0
        elif timeout is not None:
            timeout = min(timeout, _LONGEST_POLL_SECONDS)
        ready = self._selector.select(timeout)
        self._sleeping = False
        for key, events in ready:
            if key.data is not None:
                has_news = True
                key.data.ready(events)
            else:
                self._drain_wakes()
        return has_news

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakened.recv(4096):
                pass

    def wake(self) -> None:
        if self._sleeping:
            try:  # no call between the next two lines, in which a signal handler could raise
                self._sleeping = False
                self._waker.send(b"\0")
            except OSError:  # full: it will wake anyway; closed: nothing polls
                pass

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.close()
        self._close_own()

    def _close_own(self) -> None:
        self._selector.close()
        self._waker.close()
        self._wakened.close()

    def forget_sockets(self) -> None:
        # Close only the descriptors: the parent shares the selector's registrations and needs them.
        for key in list((self._selector.get_map() or {}).values()):
            if key.data is not None and key.data.socket is not None:
                key.data.socket.close()
        self._close_own()

    # --- for links ---

    def watch(self, link: SocketLink, events: int) -> None:
        sock = link.socket
        if sock is None:
            return
        try:
            key = self._selector.get_key(sock)
        except KeyError:
            self._selector.register(sock, events, link)
        else:
            if key.events != events:
                self._selector.modify(sock, events, link)

    def forget(self, link: SocketLink) -> None:
        self._unflushed.pop(link, None)
        if link.socket is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(link.socket)

    def flush_soon(self, link: SocketLink) -> None:
        self._unflushed[link] = None


class SocketLink:
    """One TCP or TLS connection."""

    def __init__(self, network: SocketNetwork, address: Address, handler: Handler, tls: Tls | None) -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.written = 0
        self.queued = 0
        self._network = network
        self._handler: Handler | None = handler
        self._tls = tls
        self._handshaking = False
        self._is_full = False
        """The socket takes no more for now: it is watched until it does."""
        self._open = False
        self._candidates: deque[tuple[int, str, int]] = deque()
        self._out: deque[memoryview] = deque()
        self._frames = FrameReader(MAX_HANDSHAKE_ANSWER, room)

    # --- called by the handler ---

    @property
    def max_answer(self) -> int:
        return self._frames.max_size

    @max_answer.setter
    def max_answer(self, size: int) -> None:
        self._frames.max_size = size

    def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            if part:
                view = memoryview(part).cast("B")
                self._out.append(view)
                self.queued += len(view)
        if self._open:
            self._network.flush_soon(self)

    @property
    def is_idle(self) -> bool:
        return self._open and not self._out and self._tls is None

    def write_now(self, data: bytes) -> bool:
        sock = self.socket
        assert sock is not None
        self.queued += len(data)
        try:
            sent = sock.send(data)
        except OSError:  # `poll` meets the error again
            sent = 0
        self.written += sent
        if sent == len(data):
            return True
        self._out.append(memoryview(data)[sent:])
        self._network.flush_soon(self)
        return False

    def close(self) -> None:
        self._handler = None
        self._shut()

    # --- called by the network ---

    def resolved(self, found: Sequence[tuple[int, str, int]] | Exception) -> None:
        if self._handler is None:
            return
        if isinstance(found, Exception):
            said = getattr(found, "strerror", None) or found
            self._fail(f"the host of {self.address} is unknown ({said}): check the address")
            return
        self._candidates.extend(found)
        self._dial_next(None)

    def _dial_next(self, why: OSError | OverflowError | None) -> None:
        """Dial the next of the host's addresses; `why` is the failure of the previous one."""
        self._shut()
        if not self._candidates:
            said = (getattr(why, "strerror", None) or str(why)) if why is not None else "the host has no address"
            if isinstance(why, OSError) and why.errno == errno.ECONNREFUSED:
                self._fail(
                    f"nothing listens at {self.address}: start a server there with "
                    f"`fencepost serve --listen {self.address}`, or name another one"
                )
            else:
                self._fail(f"{self.address} cannot be reached: {said}")
            return
        family, host, port = self._candidates.popleft()
        try:
            self.socket = socket.socket(family, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(self.socket)
            code = self.socket.connect_ex((host, port))
        except (OSError, OverflowError) as error:  # OverflowError: a port that does not exist
            self._dial_next(error)
            return
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._dial_next(OSError(code, errno.errorcode.get(code, str(code))))
            return
        self._network.watch(self, selectors.EVENT_WRITE)

    def ready(self, events: int) -> None:
        if self.socket is None:
            return
        if self._handshaking:
            self._handshake()
        elif not self._open:
            self._dialled()
        else:
            if events & selectors.EVENT_READ:
                self._receive()
            if events & selectors.EVENT_WRITE and self.socket is not None:
                self.flush()

    def _dialled(self) -> None:
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._dial_next(OSError(code, os.strerror(code)))
            return
        self._candidates.clear()
        if self._tls is None:
            self._opened()
            return
        self._network.forget(self)
        try:
            self.socket = self._tls.context().wrap_socket(
                self.socket, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError, ConfigError) as error:
            self._fail(tls_failed(self.address, error))
            return
        self._handshaking = True
        self._handshake()

    def _handshake(self) -> None:
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._network.watch(self, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._network.watch(self, selectors.EVENT_WRITE)
        except (OSError, ValueError) as error:
            self._fail(tls_failed(self.address, error))
        else:
            self._handshaking = False
            self._opened()

    def _opened(self) -> None:
        self._open = True
        self._network.watch(self, selectors.EVENT_READ)
        assert self._handler is not None
        self._handler.connected()
        if self._out and self.socket is not None:
            self._network.flush_soon(self)

    def flush(self) -> None:
        sock = self.socket
        if sock is None or not self._open:
            return
        out = self._out
        try:
            while out:
                if isinstance(sock, ssl.SSLSocket):
                    _join_small(out)
                    sent = sock.send(out[0])
                elif len(out) == 1:
                    sent = sock.send(out[0])
                else:
                    sent = sock.sendmsg([out[i] for i in range(min(len(out), _BUFFERS_PER_WRITE))])
                self.written += sent
                while sent and sent >= len(out[0]):
                    sent -= len(out.popleft())
                if sent:
                    out[0] = out[0][sent:]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self._fail(self._ended(error))
            return
        if self._is_full or out:
            self._is_full = bool(out)
            self._network.watch(self, selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0))

    def _receive(self) -> None:
        sock, taken = self.socket, 0
        assert sock is not None
        try:
            while self.socket is not None and (taken < _MOST_PER_TURN or _has_pending(sock)):
                free = self._frames.free()
                got = sock.recv_into(free)
                if not got:
                    self._fail(ConnectionEnded(f"{self.address} closed the connection"))
                    return
                taken += got
                for frame in self._frames.filled(got):
                    if self._handler is None:
                        return
                    self._handler.frame(frame)
                if got < len(free) and not isinstance(sock, ssl.SSLSocket):
                    return  # the socket is empty: save the call that would return nothing
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Malformed as error:
            if self.max_answer == MAX_HANDSHAKE_ANSWER:
                self._fail(f"what listens at {self.address} does not speak Kafka's protocol ({error})")
            else:
                self._fail(f"{self.address} sent an invalid answer: {error}")
        except OSError as error:
            self._fail(self._ended(error))

    def _ended(self, error: OSError) -> FencepostError:
        if isinstance(error, ssl.SSLError):
            return tls_failed(self.address, error)
        return ConnectionEnded(f"{self.address} closed the connection ({error.strerror or error})")

    def _fail(self, why: str | FencepostError) -> None:
        handler, self._handler = self._handler, None
        self._shut()
        if handler is not None:
            handler.lost(Unreachable(why) if isinstance(why, str) else why)

    def _shut(self) -> None:
        self._network.forget(self)
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        self._open = self._handshaking = False


def _join_small(out: deque[memoryview]) -> None:
    """Join small buffers at the front: TLS makes a record, and a system call, of each."""
    count = size = 0
    for part in out:
        size += len(part)
        if size > _TLS_RECORD:
            break
        count += 1
    if count > 1:
        out.appendleft(memoryview(b"".join([out.popleft() for _ in range(count)])))


def _keep_alive(sock: socket.socket) -> None:
    """Turn on TCP keep-alive: a claim may wait for days, and a host that is gone sends nothing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _has_pending(sock: socket.socket) -> bool:
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
