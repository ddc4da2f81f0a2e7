"""Owning something for its own sake: a claim on a connection that carries nothing else.

    with fencepost.hold(servers, "jobs", ["nightly"], wait=60) as held:
        ...                      # held.token fences other systems; held.lost is set when somebody took over

On Apache Kafka no connection means anything: there the claim has a session, by which the holder learns of a take-over
(`kafka_hold.py`).

For guarding writes to the log take `producer.own` instead, which claims on the connection that carries the records:
only there is the fence exact. Here the holder learns of a take-over a moment later, when its connection is closed;
what it does in between reaches other systems only if those check the token.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import Channel
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.own.claim_request import Resources, check_claim, granted_by, own_fields
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced, FencepostError
from fencepost.types import Generation
from fencepost.wire.apis import Key

_BEATS_PER_SESSION: Final = 4
_BEAT_WITHOUT_SESSION: Final = 0.5


class Hold(Closing):
    """What is held, from the grant until `close`, or until somebody takes over."""

    def __init__(self, group: str, rows: Sequence[OwnedResource], session: float = 0.0) -> None:
        self.group = group
        self.rows = {row.name: row for row in rows}
        self.lost = threading.Event()
        """Set when somebody else took over, and when the connection ended: the server may be gone."""
        self.session = session
        self.on_beat: Callable[[], object] = _nothing
        """Called on another thread after every sign of life that was answered."""

    @property
    def generation(self) -> Generation:
        return next(iter(self.rows.values())).generation

    @property
    def token(self) -> int:
        return next(iter(self.rows.values())).token

    @property
    def generations(self) -> Mapping[str, Generation]:
        return {name: row.generation for name, row in self.rows.items()}

    @property
    def tokens(self) -> Mapping[str, int]:
        return {name: row.token for name, row in self.rows.items()}

    def check(self) -> None:
        """Raises Fenced if it is lost."""
        if self.lost.is_set():
            silent = f", or it was silent for longer than its session of {self.session:g} s" if self.session else ""
            names = ", ".join(self.rows)
            raise Fenced(f"somebody else owns {names} in group {self.group!r} now{silent}", persisted="no")


class ServerHold(Hold):
    """Held by a connection to fencepost's server."""

    def __init__(self, channel: Channel, group: str, rows: Sequence[OwnedResource], session: float) -> None:
        super().__init__(group, rows, session)
        self._channel = channel
        self._stop = threading.Event()
        self._woken, self._wake = socket.socketpair()
        beat = session / _BEATS_PER_SESSION if session else _BEAT_WITHOUT_SESSION
        self._watcher = threading.Thread(target=self._watch, args=(beat,), name="fencepost-hold", daemon=True)
        self._watcher.start()
        tell_after_fork(self)

    def close(self) -> None:
        """Gives everything back."""
        self._stop.set()
        with contextlib.suppress(OSError):  # closed before
            self._wake.shutdown(socket.SHUT_RDWR)  # which reaches the watcher although a forked child has a copy
        self._watcher.join()
        self._wake.close()
        self._woken.close()
        self._channel.close()

    def after_fork(self) -> None:
        """In the child: what is held is held by the parent, and not for longer than that lives."""
        self.lost = threading.Event()  # the lock of the old one may be held by a thread that is not here
        self.lost.set()
        self._wake.close()
        self._woken.close()
        self._channel.forget_socket()

    def _watch(self, beat: float) -> None:
        """Keeps the session alive, and notices the end of the connection at once."""
        while True:
            self._channel.wait_for_end(beat, self._woken)
            if self._stop.is_set():
                return
            try:
                # Claims nothing: what is held is held by this very connection, and ends with it.
                self._channel.request(Key.OWN, own_fields(self.group, []), reconnect=False)
            except FencepostError:
                self.lost.set()
                return
            self.on_beat()


def _nothing() -> None:
    """Nobody counts them."""


def hold(
    servers: Servers | ClientSettings,
    group: str | None,
    resources: Resources,
    *,
    generation: int | None = None,
    wait: bool | float | None = None,
    after: int | Mapping[str, int] | None = None,
    session: float = 0.0,
) -> Hold:
    """Claim `resources` in `group` (None: the group `default`).

    At once with `generation`, or with one for each resource (severing an owner whose generation is not higher; Refused
    otherwise), or with `wait` (seconds, or True) when they become free (TimedOut otherwise). `session`: severed after
    this many seconds without a sign of life, so that a stopped process does not hold them for ever.
    """
    settings = ClientSettings.of(servers)
    request = check_claim(group, resources, generation=generation, wait=wait, after=after, session=session)
    with Routes(settings) as routes:
        address = routes.any().address
    channel = Channel(
        address,
        client_id=settings.client_id,
        request_timeout=settings.request_timeout + (request.wait or 0.0),
        connect_timeout=settings.connect_timeout,
        security=settings.security,
    )
    try:
        if not channel.offers(Key.OWN):
            from fencepost.client.own.kafka_hold import (
                hold_on_kafka,
            )  # with readers and transactions, for those who need it

            channel.close()
            return hold_on_kafka(settings, request)
        rows = granted_by(request.group, channel.request(Key.OWN, request.fields()).message)
        channel.request_timeout = settings.request_timeout  # from here on nothing is waited for but an answer
    except BaseException:
        channel.close()
        raise
    return ServerHold(channel, request.group, rows, session)
