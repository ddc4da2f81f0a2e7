"""`hold`: own resources without a producer or reader, over a connection that carries nothing else.

    with fencepost.hold(servers, "jobs", ["nightly"], wait=60) as held:
        ...                      # held.token fences other systems; held.lost is set after a takeover

On Apache Kafka ownership is not tied to a connection. There the claim has a session, through which the owner learns of
a takeover (`kafka_hold.py`).

To guard writes to the log use `producer.own`, which claims over the connection that carries the records: only that
fence is exact. A hold learns of a takeover a moment later, when its connection is closed. What it does to other systems
in between is rejected only if they check the token.

With a session the ownership is a lease (`core/own/lease.py`): it ends by the holder's own clock, also if the server is
out of reach.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.checks import only_known
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.claim import LostEvent, OwnedRows
from fencepost.clock import Clock, SystemClock
from fencepost.core.own.claim_request import Resources, check_claim, granted_by, own_fields
from fencepost.core.own.lease import Lease, lease_over
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced, FencepostError
from fencepost.wire.apis import Key

_BEAT_WITHOUT_SESSION: Final = 0.5


class Hold(Closing, OwnedRows):
    """Resources owned until `close` or a takeover."""

    def __init__(self, group: str, rows: Sequence[OwnedResource], lease: Lease, clock: Clock) -> None:
        self.group = group
        self.rows = {row.name: row for row in rows}
        self.lease = lease
        self._clock = clock
        self.lost: threading.Event = LostEvent(self.look)
        """Set after a takeover, when the connection ended (the server may be gone), and when the lease is over."""
        self.session = lease.session
        """Seconds; 0: none."""
        self._is_parents = False
        self.on_beat: Callable[[], object] = _nothing
        """Called on another thread after every answered heartbeat."""

    @staticmethod
    def from_config(
        config: Mapping[str, object],
        group: str | None,
        resources: Resources,
        *,
        generation: int | None = None,
        wait: bool | float | None = None,
        after: int | Mapping[str, int] | None = None,
        session: float = 0.0,
    ) -> Hold:
        """Claim as `hold`, with librdkafka's or Java's names (`bootstrap.servers`, `sasl.jaas.config` …)."""
        settings = ClientSettings.from_config(config)
        return hold(settings, group, resources, generation=generation, wait=wait, after=after, session=session)

    def check(self) -> None:
        """Raise Fenced if the ownership is lost."""
        if self._is_parents:
            names = ", ".join(self.rows)
            raise Fenced(f"{names}: only the parent owns it, and this process was forked from it", persisted="no")
        if self.lost.is_set():
            if self.lease.is_told:
                raise lease_over(self.rows, self.session)
            silent = f", or this one was silent for more than its session of {self.session:g} s" if self.session else ""
            names = ", ".join(self.rows)
            raise Fenced(f"another owner has taken over {names} in group {self.group!r}{silent}", persisted="no")

    def _let_go(self) -> None:
        """End the lease with the hold, unless it was over before: what is released is not lost."""
        if not self.look():
            self.lease.drop()

    def look(self) -> bool:
        """Look at the clock, and set `lost` if the lease is over. Return whether it is."""
        is_over = self.lease.is_over(self._clock.monotonic())
        if is_over:
            self.lost.set()
        return is_over


def _nothing() -> None:
    """Ignore the heartbeat."""


class ServerHold(Hold):
    """A hold through a connection to fencepost's server."""

    def __init__(
        self,
        connection: BlockingConnection,
        group: str,
        rows: Sequence[OwnedResource],
        lease: Lease,
        clock: Clock,
        request_timeout: float,
    ) -> None:
        super().__init__(group, rows, lease, clock)
        self._connection = connection
        self._request_timeout = request_timeout
        self._is_closed = False
        self._watcher = threading.Thread(target=self._watch, name="fencepost-hold", daemon=True)
        self._watcher.start()
        tell_after_fork(self)

    def close(self) -> None:
        """Release everything."""
        self._is_closed = True
        self._connection.stop()  # also ends a heartbeat that a silent server does not answer
        self._watcher.join()
        self._connection.close()
        self._let_go()

    def after_fork(self) -> None:
        """Mark the hold as lost in a forked child: only the parent owns the resources."""
        self.lost = threading.Event()  # a thread that the child lacks may hold the old lock
        self.lost.set()
        self._is_parents = True
        self._connection.forget_sockets()

    def _watch(self) -> None:
        """Keep the session alive, and notice the end of the connection or of the lease at once."""
        while True:
            try:
                self._connection.wait_for_end(self.lease.beat or _BEAT_WITHOUT_SESSION)
                sent_at = self._clock.monotonic()
                if not self.lease.is_over(sent_at):
                    _beat(self._connection, self.group, min(self._request_timeout, self.lease.end - sent_at))
                    self.lease.renew(sent_at)
            except FencepostError:
                if not self._is_closed:
                    self.look()  # whether it was the lease
                    self.lost.set()
                return
            if self.lost.is_set():
                return
            self.on_beat()


@only_known("hold")
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
    not own them for ever. `Hold.from_config` takes a dict with the names of librdkafka and Java.
    """
    settings, clock, lease = ClientSettings.of(servers), SystemClock(), Lease()
    request = check_claim(group, resources, generation=generation, wait=wait, after=after, session=session)
    with Routes(settings) as routes:
        address = routes.any().address
    connection = BlockingConnection(address, settings)
    try:
        if Key.OWN not in connection.versions:
            from fencepost.client.own.kafka_hold import hold_on_kafka  # for weight: loads readers and transactions

            connection.close()
            return hold_on_kafka(settings, request)
        sent_at = clock.monotonic()
        patience = settings.request_timeout + (request.wait or 0.0)
        rows = granted_by(request.group, connection.request(Key.OWN, request.fields(), timeout=patience))
        if lease.begins_with_heartbeat(sent_at, session, now := clock.monotonic()):
            sent_at = now
            _beat(connection, request.group, min(session, settings.request_timeout))
        lease.grant(sent_at, session)
    except BaseException:
        connection.close()
        raise
    return ServerHold(connection, request.group, rows, lease, clock, settings.request_timeout)


def _beat(connection: BlockingConnection, group: str, patience: float) -> None:
    """Send an empty claim as a heartbeat. The resources belong to this connection and end with it."""
    connection.request(Key.OWN, own_fields(group, []), timeout=patience)
