"""`hold`: own resources without a producer or reader, over a connection that carries nothing else.

    with fencepost.hold(servers, "jobs", ["nightly"], wait=60) as held:
        ...                      # held.token fences other systems; held.lost is set after a takeover

On Apache Kafka ownership is not tied to a connection. There the claim has a session, through which the owner learns of
a takeover (`kafka_hold.py`).

To guard writes to the log use `producer.own`, which claims over the connection that carries the records: only that
fence is exact. A hold learns of a takeover a moment later, when its connection is closed. What it does to other systems
in between is rejected only if they check the token.
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
from fencepost.client.own.claim import OwnedRows
from fencepost.core.own.claim_request import Resources, check_claim, granted_by, own_fields
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced, FencepostError
from fencepost.wire.apis import Key

_BEATS_PER_SESSION: Final = 4
_BEAT_WITHOUT_SESSION: Final = 0.5


class Hold(Closing, OwnedRows):
    """Resources owned until `close` or a takeover."""

    def __init__(self, group: str, rows: Sequence[OwnedResource], session: float = 0.0) -> None:
        self.group = group
        self.rows = {row.name: row for row in rows}
        self.lost = threading.Event()
        """Set after a takeover, and when the connection ended: the server may be gone."""
        self.session = session
        self.on_beat: Callable[[], object] = _nothing
        """Called on another thread after every answered heartbeat."""

    def check(self) -> None:
        """Raise Fenced if the ownership is lost."""
        if self.lost.is_set():
            silent = f", or this one was silent for more than its session of {self.session:g} s" if self.session else ""
            names = ", ".join(self.rows)
            raise Fenced(f"another owner has taken over {names} in group {self.group!r}{silent}", persisted="no")


def _nothing() -> None:
    """Ignore the heartbeat."""


class ServerHold(Hold):
    """A hold through a connection to fencepost's server."""

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
        """Release everything."""
        self._stop.set()
        with contextlib.suppress(OSError):  # closed before
            self._wake.shutdown(socket.SHUT_RDWR)  # wakes the watcher even if a forked child has a copy
        self._watcher.join()
        self._wake.close()
        self._woken.close()
        self._channel.close()

    def after_fork(self) -> None:
        """Mark the hold as lost in a forked child: only the parent owns the resources."""
        self.lost = threading.Event()  # a thread that the child lacks may hold the old lock
        self.lost.set()
        self._wake.close()
        self._woken.close()
        self._channel.forget_socket()

    def _watch(self, beat: float) -> None:
        """Keep the session alive, and notice the end of the connection at once."""
        while True:
            self._channel.wait_for_end(beat, self._woken)
            if self._stop.is_set():
                return
            try:
                # An empty claim as a heartbeat. The resources belong to this connection and end with it.
                self._channel.request(Key.OWN, own_fields(self.group, []), reconnect=False)
            except FencepostError:
                self.lost.set()
                return
            self.on_beat()


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

    With `generation`, or a generation for each resource, claim at once: owners with equal or lower generations are
    severed; a higher one raises Refused. With `wait` (seconds, or True), wait until the resources are free; else raise
    TimedOut. `session`: the hold is lost after this many seconds without a heartbeat, so that a stopped process does
    not own them for ever.
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
            from fencepost.client.own.kafka_hold import hold_on_kafka  # for weight: loads readers and transactions

            channel.close()
            return hold_on_kafka(settings, request)
        rows = granted_by(request.group, channel.request(Key.OWN, request.fields()).message)
        channel.request_timeout = settings.request_timeout  # the claim no longer waits
    except BaseException:
        channel.close()
        raise
    return ServerHold(channel, request.group, rows, session)
