"""The connections of one client: to the addresses it was given, and to the brokers that metadata names.

There is one connection per broker. After a failure a broker is dialled again with backoff; the others go on (PROD-6).
A producer that floods one gets a second one, the side connection, for small requests that must not wait (`beside`).
A question that any broker can answer goes to the least loaded one, and to another one when that is slow (`ask_any`).
An owner uses one connection for everything, and when that is lost, none (`keep_to`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.connection import BrokerConnection, Lost, Overdue
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import Metadata
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network
from fencepost.clock import Clock
from fencepost.core.broker_choice import Hedge, by_load
from fencepost.core.repeats import Repeats
from fencepost.core.retrying import backoff
from fencepost.errors import FencepostError

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF: Final = 2.0
_SIDE_AGAIN: Final = 10.0
"""Seconds between two attempts to dial a side connection: the producer works without it."""
REPORT_SECONDS: Final = 30.0
"""Seconds between two log lines about the same broker that cannot be reached or does not answer."""

KeptOut: TypeAlias = Callable[[Address | None, FencepostError], None]
"""The broker that rejects this client, or None if all of them do; and why."""


class _Question:
    """A question that any broker can answer, put to one or more of them; the first answer counts."""

    def __init__(
        self, key: int, fields: Mapping[str, Any], answered: Callable[[Any], None], lost: Lost, now: float
    ) -> None:
        self.key = key
        self._fields = fields
        self._answered = answered
        self._lost = lost
        self.hedge: Hedge[BrokerConnection] = Hedge(now)
        self.is_over = False

    def put_to(self, connection: BrokerConnection, now: float, clock: Clock) -> None:
        """Ask this broker, too. Raise Unoffered if it does not offer the API."""

        def answered(answer: Any) -> None:
            if not self.is_over:
                self.is_over = True
                self._answered(answer)

        def lost(error: FencepostError, left: bool) -> None:
            self.hedge.failed(connection, clock.monotonic())
            if not self.is_over and not self.hedge.is_waiting:
                self.is_over = True
                self._lost(error, left)

        connection.ask(self.key, self._fields, answered, lost)
        self.hedge.asked(connection, now)


class Brokers:
    def __init__(
        self,
        settings: ClientSettings,
        network: Network,
        clock: Clock,
        metadata: Metadata,
        *,
        on_ready: Callable[[BrokerConnection], None] | None = None,
        on_lost: Callable[[BrokerConnection, FencepostError], None] | None = None,
        on_kept_out: KeptOut | None = None,
    ) -> None:
        self._settings = settings
        self._network = network
        self._clock = clock
        self._metadata = metadata
        self._on_ready = on_ready
        self.on_lost = on_lost
        self._only: BrokerConnection | None = None
        self.held_back = False
        """Nothing is sent for now: the server would handle it only after a request that waits."""
        self._on_kept_out = on_kept_out
        self._connections: dict[Address, BrokerConnection] = {}
        self._sides: dict[Address, BrokerConnection] = {}
        self._no_side_before: dict[Address, float] = {}
        self.stays_alone = False
        """There is to be one connection only: something is claimed over it, or is about to be."""
        self._failures: dict[Address, int] = {}
        self._not_before: dict[Address, float] = {}
        self._refusals: dict[Address, FencepostError] = {}
        self.due = float("-inf")
        """What `next_moment` has said last: before that, `check_deadlines` has nothing to do."""
        self._questions: list[_Question] = []
        """Those of `ask_any` that are not answered yet."""
        self._reports = Repeats[Address](1, REPORT_SECONDS)
        self._random = random.Random()
        self.offers_own: bool | None = None
        """Whether the connected server offers `own`; None if none is connected. Callers' threads read it, so that a
        claim need not open a connection to ask."""
        self.last_error: FencepostError | None = None
        """Why the latest attempt failed, for the error when all attempts have failed for too long."""

    def __iter__(self) -> Iterator[BrokerConnection]:
        return iter(list(self._connections.values()))

    def of_node(self, node: int) -> BrokerConnection | None:
        """Return the connection to a broker if it is ready; otherwise dial it and return None."""
        if self._only is not None or self.held_back:
            return self._the_only()
        address = self._metadata.brokers.get(node)
        return None if address is None else self._ready(address)

    def beside(self, connection: BrokerConnection) -> BrokerConnection | None:
        """Return the side connection to the same broker if it is ready; otherwise dial it and return None. An owner has
        none: what it writes must end with the connection that owns."""
        if self._only is not None or self.held_back or self.stays_alone:
            return None
        address = connection.address
        side = self._sides.get(address)
        if side is not None:
            return side if side.is_ready else None
        now = self._clock.monotonic()
        if now >= self._no_side_before.get(address, float("-inf")):
            self._no_side_before[address] = now + _SIDE_AGAIN
            side = self._sides[address] = self._dial(address, now, None, self._side_is_lost)
            side.is_side = True
        return None

    def side(self, address: Address) -> BrokerConnection | None:
        """Return the side connection to this broker, if there is one."""
        return self._sides.get(address)

    def close_sides(self) -> bool:
        """Close the side connections as soon as nothing is in flight there. Return whether there is none left."""
        for side in list(self._sides.values()):
            if not side.in_flight or not side.versions:  # nothing was sent before it knew them
                side.close()
                del self._sides[side.address]
        return not self._sides

    def _side_is_lost(self, connection: BrokerConnection, error: FencepostError) -> None:
        if self._sides.get(connection.address) is connection:
            del self._sides[connection.address]
            logger.debug("%s; small requests use the other connection", error)

    def any(self) -> BrokerConnection | None:
        """Return the ready connection to the least loaded broker. If none is ready, dial all and return None."""
        if self._only is not None or self.held_back:
            return self._the_only()
        loads = {
            connection: connection.load
            for address in self._addresses()
            if (connection := self._connections.get(address)) is not None and connection.is_ready
        }
        if loads:
            return by_load(loads, self._clock.monotonic())[0]
        self._dial_all()
        return None

    def ask_any(
        self, key: int, fields: Mapping[str, Any], answered: Callable[[Any], None], lost: Lost
    ) -> BrokerConnection | None:
        """Put a question that changes nothing to the least loaded broker, and to another one when no answer comes soon.

        One of the two is called later: `answered` with the first answer, or `lost` when no broker is left that could
        answer. Return the broker that was asked, or None if none is ready and nothing was asked. Raise Unoffered if
        the broker does not offer the API.
        """
        connection = self.any()
        if connection is not None:
            now = self._clock.monotonic()
            question = _Question(key, fields, answered, lost, now)
            question.put_to(connection, now, self._clock)
            self._questions.append(question)
        return connection

    def _hedge(self, now: float) -> None:
        if not self._questions:
            return
        self._questions = [question for question in self._questions if not question.is_over]
        if self._only is not None or self.held_back:
            return  # an owner has no other connection
        for question in self._questions:
            if question.hedge.next_at > now:
                continue
            able = {each: each.load for each in self if each.is_ready and each.offers(question.key)}
            other = question.hedge.choose(able, now)
            if other is None:
                self._dial_all()
            else:
                question.put_to(other, now, self._clock)

    def _dial_all(self) -> None:
        for address in self._addresses():
            self._ready(address)

    def keep_to(self, connection: BrokerConnection | None) -> None:
        """Use only this connection from now on, even after it has ended. None: use all again."""
        self._only = connection

    def _the_only(self) -> BrokerConnection | None:
        only = self._only
        return only if only is not None and only.is_ready and not self.held_back else None

    def _addresses(self) -> list[Address]:
        return list(dict.fromkeys([*self._metadata.brokers.values(), *self._settings.servers]))

    def _ready(self, address: Address) -> BrokerConnection | None:
        connection = self._connections.get(address)
        if connection is not None:
            return connection if connection.is_ready else None
        now = self._clock.monotonic()
        if now < self._not_before.get(address, float("-inf")):
            return None
        self._connections[address] = self._dial(address, now, self._is_ready, self._is_lost)
        return None

    def _dial(
        self,
        address: Address,
        now: float,
        on_ready: Callable[[BrokerConnection], None] | None,
        on_lost: Callable[[BrokerConnection, FencepostError], None],
    ) -> BrokerConnection:
        return BrokerConnection(
            address,
            self._network,
            now,
            client_id=self._settings.client_id,
            connect_timeout=self._settings.connect_timeout,
            request_timeout=self._settings.request_timeout,
            security=self._settings.security,
            on_ready=on_ready,
            on_lost=on_lost,
            clock=self._clock.monotonic,
        )

    def _is_ready(self, connection: BrokerConnection) -> None:
        self._failures.pop(connection.address, None)
        self._refusals.pop(connection.address, None)
        self.offers_own = connection.is_fencepost
        self.last_error = None
        if self._on_ready is not None:
            self._on_ready(connection)

    def _is_lost(self, connection: BrokerConnection, error: FencepostError) -> None:
        address = connection.address
        if self._connections.get(address) is connection:
            del self._connections[address]
        self.offers_own = None
        self.last_error = error
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        wait = backoff(self._settings.retry_backoff, _LONGEST_BACKOFF, failures)
        now = self._clock.monotonic()
        self._not_before[address] = now + wait * self._random.uniform(0.8, 1.2)
        self._metadata.distrust()
        if self.on_lost is not None:
            self.on_lost(connection, error)
        if keeps_us_out(error):
            if address not in self._refusals:
                logger.warning("%s rejects this client: %s", address, error)
            self._refusals[address] = error
        else:
            self._refusals.pop(address, None)
            if not connection.versions or isinstance(error, Overdue):
                self._report(address, error, now)
        self._tell_who_is_kept_out(address)

    def _report(self, address: Address, error: FencepostError, now: float) -> None:
        """Log a broker that cannot be reached or does not answer, so that the user need not wait for a timeout."""
        self._reports.end_periods(now)
        if self._reports.admit(address, now):
            logger.warning("%s; trying again", error)

    def doubt(self, address: Address, error: FencepostError) -> None:
        """Distrust a broker that left a request unanswered on another connection of this client. Ask who leads its
        partitions now, and dial it again before anything else is sent to it: a broker that hung answers what it finds
        in its sockets by what it knew before. An owner keeps its connection, because it owns by it."""
        self._metadata.distrust()
        self.last_error = error
        self._report(address, error, self._clock.monotonic())
        if self._only is None and not self.stays_alone:
            for connection in (self._connections.get(address), self._sides.get(address)):
                if connection is not None and connection.is_ready and not connection.in_flight:
                    connection.close(error)

    def _tell_who_is_kept_out(self, address: Address) -> None:
        """Report a rejection at once, although later attempts may succeed (an account may be created meanwhile)."""
        if self._on_kept_out is None or not self._refusals:
            return
        if any(connection.is_ready for connection in self):
            if address in self._refusals:
                self._on_kept_out(address, self._refusals[address])
        elif all(each in self._failures for each in self._addresses()):
            self._on_kept_out(None, next(iter(self._refusals.values())))

    def _all(self) -> list[BrokerConnection]:
        return [*self._connections.values(), *self._sides.values()]

    def check_deadlines(self, now: float) -> None:
        """Close connections whose answers are overdue, and ask other brokers where one is slow."""
        for connection in self._all():
            connection.check_deadlines(now)
        self._hedge(now)

    def next_moment(self, now: float) -> float:
        """Return when something is due here: an overdue answer, or an address to dial again."""
        moment = float("inf")
        for connection in self._all():
            if (deadline := connection.next_deadline) < moment:
                moment = deadline
        for address, at in self._not_before.items():
            if now < at < moment and address not in self._connections:
                moment = at
        for question in self._questions:
            if now < question.hedge.next_at < moment:
                moment = question.hedge.next_at
        self.due = moment
        return moment

    def close(self) -> None:
        for connection in self._all():
            connection.close()
        self._connections.clear()
        self._sides.clear()
