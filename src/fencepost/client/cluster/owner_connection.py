"""The ownership of one connection to fencepost's server: claims, releases, heartbeats, and its end (OWN-8, OWN-9).

A claim belongs to the connection that it came over. So from the first claim on, the client uses one connection for
everything (`Brokers.keep_to`). If that ends while something is owned, the loss is final: the client does not reconnect,
and the producer or reader is `Fenced`. After a rejected claim, or once everything is released, the connection is an
ordinary one again.

The server handles a connection's requests in order, so while a claim waits there, nothing else is sent. For the same
reason an owner with a session cannot wait for more: its heartbeats would queue behind the claim. And a claim waits no
longer than the connection's login; then the connection logs in again, and the claim goes to the end of the line.

Before a claim goes a Metadata request for the topics that it names, so that the partitions are known when the owner
sends its first record: a claim that waits is often granted when every millisecond counts.

With a session the ownership is a lease (`core/own/lease.py`). Every answer on the connection renews it, a heartbeat at
the latest. When it ends, so does the connection.

It has no thread of its own: the send thread, or the reader's caller, drives `turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection, ignore_answer
from fencepost.client.cluster.interrupts import Outcome
from fencepost.client.cluster.metadata import Metadata, question
from fencepost.clock import Clock
from fencepost.core.own.claim_request import ClaimRequest, granted_by, own_fields
from fencepost.core.own.lease import Lease, lease_over
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Closed, ErrorCode, Fenced, FencepostError, ServerError, TimedOut, Unreachable
from fencepost.types import partition_named
from fencepost.wire.apis import Key

_BEAT_WITHOUT_SESSION: Final = 30.0
"""Seconds. A server closes connections that are idle for minutes, and an owner's must not be one of them."""

_MOST_AHEAD: Final = 100
"""Most topics that are requested before a claim. An owner of more is not in such a hurry."""


@dataclass(slots=True, eq=False)
class PendingClaim:
    """A claim or a release, with its outcome."""

    group: str
    fields: Mapping[str, Any]
    wait: float = 0.0
    session: float = 0.0
    names: Sequence[str] = ()
    """The claimed resources."""
    gives_back: Sequence[str] = ()
    fresh: Sequence[str] = ()
    """The granted resources that were not owned before."""
    outcome: Outcome[list[OwnedResource]] = field(default_factory=Outcome)
    given_up: bool = False
    """The caller no longer waits: what is granted all the same is released at once."""
    until: float = 0.0
    """When the wait is over; 0: the claim was not sent yet."""

    def fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    @classmethod
    def of(cls, request: ClaimRequest) -> Self:
        return cls(request.group, request.fields(), request.wait or 0.0, request.session, request.resources)


class OwnerConnection:
    def __init__(
        self,
        brokers: Brokers,
        metadata: Metadata,
        clock: Clock,
        request_timeout: float,
        on_fenced: Callable[[Fenced, Mapping[tuple[str, str], OwnedResource]], None],
        lease: Lease,
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._clock = clock
        self._request_timeout = request_timeout
        self._on_fenced = on_fenced
        self.lease = lease
        self.connection: BrokerConnection | None = None
        """The only connection, from the first claim until everything is released."""
        self.held: dict[tuple[str, str], OwnedResource] = {}
        """By group and name."""
        self.fenced: Fenced | None = None
        self._to_send: deque[PendingClaim] = deque()
        self._under_way: dict[PendingClaim, None] = {}
        self._next_beat = float("inf")

    # --- called by the producer or reader ---

    def claim(self, request: ClaimRequest) -> PendingClaim:
        return self.ask(PendingClaim.of(request))

    def release(self, group: str, names: Sequence[str]) -> PendingClaim:
        mine = [name for name in names if (group, name) in self.held]
        return self.ask(self._release(group, mine))

    @staticmethod
    def _release(group: str, names: Sequence[str]) -> PendingClaim:
        return PendingClaim(group, own_fields(group, [], release=names), gives_back=names)

    def ask(self, pending: PendingClaim) -> PendingClaim:
        """Send a claim or a release in the next turn. Raise if it cannot be."""
        if pending.fields["wait_ms"] and (self.lease.session or (pending.session and self.held)):
            # Behind a claim that waits no heartbeat is answered, and the session may begin before the answer comes.
            raise FencepostError("an owner with a session cannot wait for more over the same connection")
        if self.fenced is not None:
            raise self.fenced.fresh()
        self._to_send.append(pending)
        return pending

    def give_up(self, pending: PendingClaim) -> None:
        """Cancel a claim. One that waits in line on the server ends with the connection, if nothing else is owned over
        that; one that was granted just now is released."""
        pending.given_up = True
        if pending.outcome.done():
            self._give_back(pending)
            return
        pending.fail(Closed("the claim was given up"))
        if pending in self._to_send:
            self._to_send.remove(pending)
        elif pending in self._under_way and pending.wait and not self.held and self.connection is not None:
            self.connection.close(Closed("a claim that waited was given up"))

    def give_up_waiting(self) -> None:
        for pending in [*self._to_send, *self._under_way]:
            if pending.wait:
                self.give_up(pending)

    def close(self) -> None:
        """Fail all pending claims: nothing drives this any more."""
        for pending in [*self._to_send, *self._under_way]:
            pending.fail(Closed("closed before the claim was answered"))
        self._to_send.clear()

    def ready(self) -> BrokerConnection:
        """Return the owner's connection for requests that must go over it. Raise if it is not usable."""
        if self.fenced is not None:
            raise self.fenced.fresh()
        if self.connection is None or not self.connection.is_ready or self._brokers.held_back:
            raise Unreachable("the owner's connection is not ready")
        return self.connection

    # --- called by the thread that drives the connection ---

    def turn(self, now: float) -> float:
        """Send pending claims and heartbeats, and end a lease that is over. Return when to look again."""
        if self.held and self.connection is not None and self.lease.is_over(now):
            self.connection.close(Unreachable("no heartbeat was answered in time"))
            return float("inf")
        self._brokers.stays_alone = bool(self._to_send) or self.connection is not None
        if self._brokers.stays_alone and not self._brokers.close_sides():
            return self._next_beat  # what was sent aside must not arrive after the claim, or after the next owner's
        while self._to_send and not self._brokers.held_back:
            connection = self._reach()
            if connection is None:
                break
            self._send(connection, self._to_send.popleft())
        if now >= self._next_beat:
            self._beat(now)
        return min(self._next_beat, self.lease.end)

    def lost(self, connection: BrokerConnection, error: FencepostError) -> None:
        """React to the end of a connection, after its requests in flight have failed."""
        if connection is not self.connection:
            return
        self._brokers.held_back = False
        self._next_beat = float("inf")
        if not self.held:
            self._let_go()
            return
        self.fenced = self._cause(error)
        held, self.held = self.held, {}
        while self._to_send:
            self._to_send.popleft().fail(self.fenced)
        self._on_fenced(self.fenced, held)

    def _cause(self, error: FencepostError) -> Fenced:
        if self.lease.is_over(self._clock.monotonic()):
            return lease_over((name for _, name in self.held), self.lease.session)
        names = ", ".join(name for _, name in list(self.held)[:3]) + (", …" if len(self.held) > 3 else "")
        session = self.lease.session
        silent = f"; or it was silent for longer than its session of {session:g} s" if session else ""
        return Fenced(
            f"{names}: somebody else has taken over, or will, since the connection that owned it has ended ({error})"
            + silent,
            persisted="no",  # of records sent from now on; each earlier ticket has its own answer
            code=ErrorCode.PRODUCER_FENCED,
        )

    # --- the requests ---

    def _reach(self) -> BrokerConnection | None:
        """Return the connection that carries the data, if it is ready."""
        if self.connection is not None:
            return self.connection if self.connection.is_ready else None
        nodes = list(self._metadata.brokers)
        if not nodes:
            self._metadata.distrust()  # so that metadata is requested
            return None
        connection = self._brokers.of_node(nodes[0])
        if connection is None or (len(nodes) == 1 and connection.is_fencepost):
            return connection
        refusal = ServerError(
            ErrorCode.UNSUPPORTED_VERSION, f"{connection.address} does not know `own`: it is no fencepost server"
        )
        while self._to_send:
            self._to_send.popleft().fail(refusal)
        return None

    def _send(self, connection: BrokerConnection, pending: PendingClaim) -> None:
        def answered(answer: Any) -> None:
            self._brokers.held_back = False
            del self._under_way[pending]
            try:
                rows = granted_by(pending.group, answer)
            except TimedOut as error:
                if wait < left and not pending.given_up:
                    self._to_send.appendleft(pending)  # once the connection has logged in again
                else:
                    pending.fail(error)
            except FencepostError as error:
                if pending.session and self.held and not self._under_way:
                    self.lease.refuse(now, before)
                pending.fail(error)
            else:
                self._granted(pending, rows, now)
            self._let_go_if_free()

        def lost(error: FencepostError, left: bool) -> None:
            del self._under_way[pending]
            pending.fail(error)

        now = self._clock.monotonic()
        pending.until = pending.until or now + pending.wait
        left = pending.until - now if pending.wait else 0.0
        # A login cannot be renewed behind a claim that waits, so the claim does not wait for longer than it lasts.
        wait = min(left, connection.session_ends - now) if pending.wait else 0.0
        fields = pending.fields if wait >= left else {**pending.fields, "wait_ms": max(1, int(wait * 1000))}
        self.connection = connection
        connection.on_answer = self.lease.renew
        before = self.lease.session
        if self.held:
            self.lease.ask(now, pending.session)
        self._brokers.keep_to(connection)
        self._look_ahead(connection, pending)
        self._brokers.held_back = pending.wait > 0
        self._under_way[pending] = None
        connection.ask(Key.OWN, fields, answered, lost, timeout=self._request_timeout + max(wait, 0.0))

    def _look_ahead(self, connection: BrokerConnection, pending: PendingClaim) -> None:
        """Request metadata of the claimed partitions. Creates no topic: a resource may only look like a partition."""
        topics = {partition.topic for name in pending.names if (partition := partition_named(name)) is not None}
        unknown = sorted(topic for topic in topics if not self._metadata.partition_count(topic))
        if not 0 < len(unknown) <= _MOST_AHEAD:
            return

        def answered(answer: Any) -> None:
            self._metadata.overheard(answer, self._clock.monotonic())

        connection.ask(Key.METADATA, question(unknown), answered, _nothing_to_learn)

    def _granted(self, pending: PendingClaim, rows: list[OwnedResource], sent_at: float) -> None:
        for name in pending.gives_back:
            self.held.pop((pending.group, name), None)
        pending.fresh = [row.name for row in rows if (pending.group, row.name) not in self.held]
        for row in rows:
            self.held[pending.group, row.name] = row
        now = self._clock.monotonic()
        if self.lease.begins_with_heartbeat(sent_at, pending.session, now):
            self._confirm(pending, rows, now)
        else:
            self._tell(pending, rows, sent_at)

    def _tell(self, pending: PendingClaim, rows: list[OwnedResource], sent_at: float) -> None:
        """Begin or go on with the lease, and tell the claimant."""
        self.lease.grant(sent_at, pending.session)
        self._next_beat = self._clock.monotonic() + self._pause
        if pending.given_up:
            self._give_back(pending)
        elif not pending.outcome.done():
            pending.outcome.set_result(rows)

    def _confirm(self, pending: PendingClaim, rows: list[OwnedResource], now: float) -> None:
        """Send a heartbeat, and tell the claimant when that is answered."""

        def answered(_: Any) -> None:
            del self._under_way[pending]
            self._tell(pending, rows, now)

        def lost(error: FencepostError, left: bool) -> None:
            del self._under_way[pending]
            pending.fail(error)

        assert self.connection is not None
        self._under_way[pending] = None
        self.connection.ask(Key.OWN, own_fields(pending.group, []), answered, lost, timeout=pending.session)

    def _give_back(self, pending: PendingClaim) -> None:
        """Release what a cancelled claim was granted, but not what was owned before it."""
        names, pending.fresh = [name for name in pending.fresh if (pending.group, name) in self.held], ()
        if names:
            self._to_send.append(
                PendingClaim(pending.group, own_fields(pending.group, [], release=names), gives_back=names)
            )

    def _beat(self, now: float) -> None:
        """Send an empty claim as a heartbeat. An overdue answer shows that the server is gone."""
        self._next_beat = now + self._pause
        if self.connection is not None and self.connection.is_ready and self.held:
            group = next(iter(self.held))[0]
            self.connection.ask(Key.OWN, own_fields(group, []), _nothing_to_learn, _nothing_to_learn)

    @property
    def _pause(self) -> float:
        return self.lease.beat or _BEAT_WITHOUT_SESSION

    def _let_go_if_free(self) -> None:
        if not self.held and not self._under_way and not self._to_send:
            self._let_go()

    def _let_go(self) -> None:
        """Make the connection an ordinary one again, which may end and be dialled again."""
        if self.connection is not None:
            self.connection.on_answer = ignore_answer
        self.connection = None
        self._brokers.keep_to(None)
        self.lease.drop()
        self._next_beat = float("inf")


def _nothing_to_learn(*answer: Any) -> None:
    """Ignore the answer, or its loss: `lost` reports the end of the connection."""
