"""The audit log: one JSON line per decision worth keeping, in a file or in a topic.

The loop puts events into a bounded queue; a thread makes the lines and writes them. If a place cannot be written, its
lines wait, the thread tries again every second, and the server's health says so. The other place gets its lines
meanwhile. Events that do not fit into the queue, and lines beyond those that may wait, are counted, and the count
becomes a line. Repeated refusals, logins, takeovers and aborts are counted too, but the first refusal of each culprit
is always queued.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.clock import Clock
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.repeats import Floods
from fencepost.core.security.access import Need
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.core.security.audit_events import NOTHING, SERVER, Actor, AuditTarget, Event, line
from fencepost.server.config.addresses import one_client
from fencepost.server.process.line_thread import LineThread
from fencepost.server.security.audit_places import AuditPlace
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.net.session import Client

logger = logging.getLogger(__name__)

_MOST_EVENTS: Final = 10_000
"""Limit of the queue, and of the lines that wait for a place."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Limit of the lines that wait for a place."""
_AT_ONCE: Final = 500
_PERIOD_SECONDS: Final = 10.0
"""Repeated refusals, logins, takeovers and aborts become one line per period."""
_MOST_TAKEOVERS: Final = 200
"""Takeovers of one claimant that are told apart in a period. A standby takes over many resources at once, and each
line has generations and tokens that somebody may need; but two connections can take a resource from each other for
ever."""
_MOST_ABORTS: Final = 200
"""Transactional ids of one client whose aborts are told apart in a period: a job that restarts has many."""
_MOST_NAMES: Final = 1000
"""Resources that the first takeover of a period names."""
_MOST_NAMES_LATER: Final = 20
"""Resources that each further one names: clients choose the names, and must not fill the log with them."""
_RETRY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0
_ONCE: Final[tuple[Mapping[str, Any], ...]] = ({},)


class _Entry(NamedTuple):
    time_ms: Milliseconds
    event: Event
    actor: Actor
    target: AuditTarget
    failed: bool
    each: Iterable[Mapping[str, Any]]
    """The details of one line each. The thread walks through them, because they may be many."""


class _Who(NamedTuple):
    event: Event
    principal: str | None
    client: str
    """The address, or the network of an IPv6 client."""
    listener: str


class _What(NamedTuple):
    target: AuditTarget
    details: tuple[tuple[str, Any], ...]
    principal: str | None
    digest: int = 0
    """Tells takeovers of different resources apart."""


def actor_of(connection: Client) -> Actor:
    session = connection.session
    return Actor(str(session.principal), connection.peer, connection.client_id or None, session.listener.name)


class Audit:
    """The loop calls it. Without a place it does nothing."""

    def __init__(self, clock: Clock, report: Callable[[Exception | None], None]) -> None:
        """`report` hears from the thread of a failure to write, and of the next success."""
        self._clock = clock
        self._report = report
        self.places: tuple[AuditPlace, ...] = ()
        self.failed_logins = 0
        """Since the start of the server, also without a place."""
        self._failing = False
        """A place has failed and not yet succeeded. Only the thread uses it."""
        self._lock = threading.Lock()
        """Guards `_floods`. The loop takes it, so it is never held for long."""
        self._writing = threading.Lock()
        """Guards what waits for the places. Held while the thread writes, which may take long; the loop never waits for
        it."""
        refusals: Floods[_Who, _What] = Floods(_PERIOD_SECONDS)
        self._floods: dict[Event, Floods[_Who, _What]] = {
            Event.ACCESS_DENIED: refusals,
            Event.LOGIN_FAILED: refusals,
            Event.LOGIN_SUCCEEDED: Floods(_PERIOD_SECONDS),  # its own, so that it takes no room from refusals
            Event.OWNER_SEVERED: Floods(_PERIOD_SECONDS, _MOST_TAKEOVERS),
            Event.TRANSACTION_ABORTED: Floods(_PERIOD_SECONDS, _MOST_ABORTS),
        }
        self._thread: LineThread[_Entry] | None = None

    @property
    def is_on(self) -> bool:
        return bool(self.places)

    def use(self, *places: AuditPlace) -> None:
        """Write to these places from now on, and close the others; a new place gets what the others have not taken.
        Blocks while the thread writes."""
        with self._writing:
            gone = [place for place in self.places if place not in places]
            for place in gone:
                place.close()
            for place in places:
                if place not in self.places:
                    place.waiting = [line for old in gone for line in old.waiting]
                    place.dropped = sum(old.dropped for old in gone)
                    gone = []
            self.places = places
        if places and self._thread is None:
            self._thread = LineThread("fencepost-audit", self._write, self._look, most=_MOST_EVENTS, at_once=_AT_ONCE)

    def close(self) -> None:
        """Write what is queued, for at most a few seconds. Blocks."""
        if self._thread is not None and not self._thread.close(_CLOSE_SECONDS):
            logger.error("the last lines of the audit log could not be written")
            return
        for place in self.places:
            place.close()

    # -- events -------------------------------------------------------------------------------------------------

    def record(
        self,
        event: Event,
        actor: Actor = SERVER,
        target: AuditTarget = NOTHING,
        *,
        failed: bool = False,
        each: Iterable[Mapping[str, Any]] | None = None,
        **details: Any,
    ) -> None:
        """Add a line with these details, or one line for `each`, which must not change any more."""
        if self._thread is not None and self.places:
            made = each if each is not None else (details,) if details else _ONCE
            self._thread.put(_Entry(self._clock.now_ms(), event, actor, target, failed, made))

    def changed(
        self,
        connection: Client,
        event: Event,
        need: Need,
        name: str = CLUSTER_NAME,
        *,
        each: Iterable[Mapping[str, Any]] | None = None,
        **details: Any,
    ) -> None:
        """Add a line, or one for `each`, about what a client did to this resource, by the permission that it needs."""
        target = AuditTarget(need.operation.name, need.resource_type.name, name)
        self.record(event, actor_of(connection), target, each=each, **details)

    def denied(self, connection: Client, api: str, need: Need, name: str) -> None:
        """Add a line about an operation that a client may not perform, unless it repeats itself."""
        target = AuditTarget(need.operation.name, need.resource_type.name, name)
        self._refuse(connection, Event.ACCESS_DENIED, str(connection.session.principal), target, {"api": api})

    def login_failed(self, connection: Client, user: str, mechanism: str, reason: str) -> None:
        """Add a line about a client that has not proved who it is, unless it repeats itself. The principal is the one
        that the client claims to be."""
        self.failed_logins += 1
        claimed, details = f"User:{user}" if user else None, {"mechanism": mechanism, "reason": reason}
        self._refuse(connection, Event.LOGIN_FAILED, claimed, NOTHING, details)

    def login_succeeded(self, connection: Client, mechanism: str) -> None:
        """Add a line about a client that has logged in, unless it repeats itself: a client may log in again at any
        time, and must not be able to push older lines out."""
        actor, event = actor_of(connection), Event.LOGIN_SUCCEEDED
        if self._is_new(event, connection, actor.principal, NOTHING, {"mechanism": mechanism})[0]:
            self.record(event, actor, mechanism=mechanism)

    def owner_severed(
        self, owner: Client, group: str, rows: Sequence[OwnedResource], reason: str, by: Client | None
    ) -> None:
        """Add a line about an owner that has lost these resources, unless it repeats itself. Without `by` the server
        itself has severed the owner."""
        if not self.places:
            return
        lost, actor = actor_of(owner), SERVER if by is None else actor_of(by)
        target = AuditTarget(Operation.READ.name, ResourceType.GROUP.name, group)
        details: dict[str, Any] = {"reason": reason, "severed_principal": lost.principal}
        digest = hash(tuple(row.name for row in rows))
        is_new, is_first = self._is_new(Event.OWNER_SEVERED, by or owner, actor.principal, target, details, digest)
        if not is_new:
            return
        self.record(
            Event.OWNER_SEVERED,
            actor,
            target,
            **details,
            severed_address=lost.address,
            severed_client_id=lost.client_id,
            resources=[
                {"resource": row.name, "generation": row.generation, "token": row.token}
                for row in rows[: _MOST_NAMES if is_first else _MOST_NAMES_LATER]
            ],
            resource_count=len(rows),
        )

    def transaction_aborted(self, connection: Client, api: str, name: str, pid: int, epoch: int) -> None:
        """Add a line about a client that has ended the open transaction of a transactional id, unless it repeats
        itself: it may open and abort one after the other."""
        actor, event = actor_of(connection), Event.TRANSACTION_ABORTED
        target = AuditTarget(Operation.WRITE.name, ResourceType.TRANSACTIONAL_ID.name, name)
        if self._is_new(event, connection, actor.principal, target, {"api": api})[0]:
            self.record(event, actor, target, api=api, producer_id=pid, producer_epoch=epoch)

    def _refuse(
        self, connection: Client, event: Event, principal: str | None, target: AuditTarget, details: dict[str, Any]
    ) -> None:
        is_new, is_first = self._is_new(event, connection, principal, target, details)
        if is_new and self._thread is not None:
            actor = actor_of(connection)._replace(principal=principal)
            entry = _Entry(self._clock.now_ms(), event, actor, target, True, (details,))
            self._thread.put(entry, even_if_full=is_first)

    def _is_new(
        self,
        event: Event,
        cause: Client,
        principal: str | None,
        target: AuditTarget,
        details: Mapping[str, Any],
        digest: int = 0,
    ) -> tuple[bool, bool]:
        """Count an event. Return whether it becomes a line of its own, and whether it is the culprit's first."""
        if not self.places:
            return False, False
        session = cause.session
        # Whoever fails to log in chooses the name, so only the address tells the culprit.
        culprit = None if event is Event.LOGIN_FAILED else principal
        who = _Who(event, culprit, one_client(session.client_host), session.listener.name)
        with self._lock:
            what = _What(target, tuple(details.items()), principal, digest)
            return self._floods[event].add(who, what, self._clock.monotonic())

    # -- the thread ---------------------------------------------------------------------------------------------

    def _write(self, entries: list[_Entry]) -> None:
        self._deliver(
            [
                line(entry.time_ms, entry.event, entry.actor, entry.target, details, failed=entry.failed)
                for entry in entries
                for details in entry.each
            ]
        )

    def _look(self, dropped: int, ended: bool) -> None:
        """Write what was only counted."""
        with self._lock:
            time = self._clock.monotonic()
            floods = dict.fromkeys(self._floods.values())  # refusals share one
            counted = [each for flood in floods for each in flood.end_periods(time, all_of_them=ended)]
        now = self._clock.now_ms()
        lines = []
        for who, what, count in counted:
            if who is None:
                lines.append(line(now, Event.AUDIT_DROPPED, SERVER, NOTHING, {"count": count}, failed=True))
                continue
            found = what or _What(NOTHING, (), who.principal)
            actor = Actor(found.principal, who.client, None, who.listener)
            details = {**dict(found.details), "count": count}
            failed = who.event not in (Event.LOGIN_SUCCEEDED, Event.OWNER_SEVERED, Event.TRANSACTION_ABORTED)
            lines.append(line(now, who.event, actor, found.target, details, failed=failed))
        if dropped:
            lines.append(line(now, Event.AUDIT_DROPPED, SERVER, NOTHING, {"count": dropped}, failed=True))
        if ended:
            lines.append(line(now, Event.SERVER_STOPPED, SERVER, NOTHING, {}, failed=False))
        if lines or self._failing:
            self._deliver(lines, last=ended)

    def _deliver(self, lines: list[bytes], *, last: bool = False) -> None:
        """Write the lines to all places, with those that wait. What a place does not take waits for the next try,
        unless this is the last one."""
        with self._writing:
            for place in self.places:
                place.waiting += lines
                if last or place.retry_at is None or self._clock.monotonic() >= place.retry_at:
                    self._try(place, last=last)
                if place.retry_at is not None:
                    _cut(place)
            failing = any(place.retry_at is not None for place in self.places)
        if self._failing and not failing:
            self._report(None)
        self._failing = failing

    def _try(self, place: AuditPlace, *, last: bool) -> None:
        try:
            place.write(place.waiting)
            if place.dropped:
                count, place.dropped = place.dropped, 0
                now = self._clock.now_ms()
                place.waiting.append(line(now, Event.AUDIT_DROPPED, SERVER, NOTHING, {"count": count}, failed=True))
                place.write(place.waiting)
            place.retry_at = None
        except Exception as error:  # noqa: BLE001 - if this thread ended, nothing more would be written anywhere
            place.retry_at = self._clock.monotonic() + _RETRY_SECONDS
            self._report(error)
            if last:
                lost = len(place.waiting) + place.dropped
                logger.error("%d lines of the audit log may be lost: %s", lost, error)


def _cut(place: AuditPlace) -> None:
    """Drop and count the newest lines beyond the limits. The place may have begun with the oldest ones."""
    size = 0
    for number, each in enumerate(place.waiting):
        size += len(each)
        if number >= _MOST_EVENTS or size > _MOST_BYTES:
            place.dropped += len(place.waiting) - number
            del place.waiting[number:]
            return
