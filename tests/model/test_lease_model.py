"""Random histories of an owner with a session and its server: never do two believe to own (OWN-8, OWN-9).

Owner and server have clocks with different zeros. Requests and answers travel in order, for any time, until the link
goes silent in one direction or in both. Either side may be paused between any two steps, and then finds everything
that has arrived meanwhile. The owner may claim at once or wait, and later claim again with another session. A successor
waits in line all the time, so the moment at which the server finds the owner silent is the moment of its grant. Our
server has severed the old owner then. In half of the histories the server is a group coordinator of Apache Kafka, which
has removed the old owner, says so when that one is back, and lets it join again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from fencepost.core.own.lease import Lease, is_silent

pytestmark = pytest.mark.model

RUNS = 2_000
PATROL = 0.05


class Side:
    """The owner or the server: what happens to it while it is paused happens when it wakes."""

    def __init__(self, random: Random) -> None:
        self.zero = random.uniform(-1e4, 1e4)
        self.wakes_at = 0.0


class History:
    def __init__(self, seed: int, lease: Lease) -> None:
        self.random = random = Random(seed)
        self.lease = lease
        self.now = 0.0
        self.owner, self.server = Side(random), Side(random)
        self._events: list[tuple[float, int, Side, Callable[[], None]]] = []
        self._count = 0
        self._slow = random.choice([0.01, 0.5, 3.0])
        self._silent_from = [random.choice([random.uniform(0, 10), 1e9]) for _ in range(2)]
        self._arrived = [0.0, 0.0]
        self.session = random.choice([0.5, 1.0, 2.0])
        self.is_told = False
        """The owner's program was told that it owns."""
        self.heard_at: float | None = None
        """The server's: when it last heard of the owner that has a session now."""
        self.server_session = 0.0
        self.is_replaced = False
        self.is_coordinator = random.random() < 0.5
        self.has_joined_again = False
        self.beats = False

    # --- time ---

    def at(self, when: float, side: Side, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, side, what))

    def clock(self, side: Side) -> float:
        return self.now + side.zero

    def run(self) -> None:
        for side in (self.owner, self.server):
            for _ in range(self.random.randint(0, 2)):
                self.at(self.random.uniform(0, 10), side, lambda side=side: self.pause(side))  # type: ignore[misc]
        self.at(0.0, self.owner, self.claims)
        self.at(PATROL, self.server, self.patrols)
        while self._events and self.now < 30.0:
            when, _, side, what = heapq.heappop(self._events)
            self.now = max(self.now, when)
            if self.now < side.wakes_at:
                self.at(side.wakes_at, side, what)
                continue
            what()
            self.check()

    def pause(self, side: Side) -> None:
        side.wakes_at = self.now + self.random.choice([0.2, 1.0, 5.0])

    def check(self) -> None:
        """The promise. `is_over` is not asked: the owner's program asks when it runs, and this is at every moment."""
        believes = self.is_told and not self.lease.is_told and self.clock(self.owner) < self.lease.end
        assert not (self.is_replaced and believes), f"at {self.now:.3f} both believe to own"

    # --- the link ---

    def travels(self, direction: int, to: Side, what: Callable[[], None]) -> None:
        arrives = max(self._arrived[direction], self.now + self.random.uniform(0, self._slow))
        self._arrived[direction] = arrives
        if self.now < self._silent_from[direction]:
            self.at(arrives, to, what)

    def sends(self, handled: Callable[[Callable[[], None]], None], answered: Callable[[float], None]) -> None:
        """Send a request; the server answers it by calling what it is given."""
        sent_at, is_new_member = self.clock(self.owner), self.has_joined_again

        def hears() -> None:
            self.lease.renew(sent_at)
            answered(sent_at)

        def answers() -> None:
            if not self.is_replaced or is_new_member:
                self.travels(1, self.owner, hears)

        def arrives() -> None:
            if not self.is_replaced or is_new_member:
                self.heard_at = self.clock(self.server)
                handled(answers)
            elif self.is_coordinator:
                self.travels(1, self.owner, self.joins_again)

        self.travels(0, self.server, arrives)

    def joins_again(self) -> None:
        def joined() -> None:
            self.has_joined_again = True

        self.travels(0, self.server, lambda: self.travels(1, self.owner, joined))

    # --- the owner ---

    def claims(self) -> None:
        session, wait = self.session, self.random.choice([0.0, self.random.uniform(0, 6)])

        def handled(answers: Callable[[], None]) -> None:
            def granted() -> None:
                self.heard_at, self.server_session = self.clock(self.server), session
                answers()

            self.at(self.now + wait, self.server, granted)

        def answered(sent_at: float) -> None:
            now = self.clock(self.owner)
            if self.lease.begins_with_heartbeat(sent_at, session, now):
                self.sends(lambda answers: answers(), lambda sent_at: self.owns(sent_at, session))
            else:
                self.owns(sent_at, session)

        self.sends(handled, answered)

    def owns(self, sent_at: float, session: float) -> None:
        self.lease.grant(sent_at, session)
        self.is_told = True
        if not self.beats:
            self.beats = True
            self.heartbeat()
            self.at(self.now + self.random.uniform(0, 5), self.owner, self.claims_again)

    def claims_again(self) -> None:
        session, is_refused, before = (
            self.random.choice([0.3, 1.0, 4.0]),
            self.random.random() < 0.3,
            self.lease.session,
        )
        self.lease.ask(self.clock(self.owner), session)

        def handled(answers: Callable[[], None]) -> None:
            if not is_refused:
                self.server_session = session
            answers()

        def answered(sent_at: float) -> None:
            if is_refused:
                self.lease.refuse(sent_at, before)
            else:
                self.lease.grant(sent_at, session)

        self.sends(handled, answered)

    def heartbeat(self) -> None:
        if self.random.random() < 0.3:
            self.lease.is_over(self.clock(self.owner))  # the program asks
        self.sends(lambda answers: answers(), lambda _: None)
        self.at(self.now + max(self.lease.beat, 0.05), self.owner, self.heartbeat)

    # --- the server ---

    def patrols(self) -> None:
        if self.server_session and self.heard_at is not None:
            self.is_replaced |= is_silent(self.heard_at, self.server_session, self.clock(self.server))
        self.at(self.now + PATROL, self.server, self.patrols)


def play(seeds: Iterable[int], lease: Callable[[], Lease] = Lease) -> dict[str, int]:
    seen = {"told": 0, "replaced": 0, "lost": 0, "kept": 0}
    for seed in seeds:
        history = History(seed, lease())
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        is_over = history.lease.is_over(history.clock(history.owner))
        seen["told"] += history.is_told
        seen["replaced"] += history.is_replaced
        seen["lost"] += history.is_told and is_over
        seen["kept"] += history.is_told and not is_over
    return seen


def test_never_do_two_believe_to_own() -> None:
    start = Random().randrange(10**9)
    print(f"seeds from {start}")
    seen = play(range(start, start + RUNS))
    assert all(count > RUNS / 60 for count in seen.values()), seen  # every kind of history was there


class CountsFromTheAnswer(Lease):
    """Counts from the moment at which the newest answer is read, as if that were when the server heard."""

    __slots__ = ("clock",)
    clock: Callable[[], float]

    def renew(self, sent_at: float) -> None:
        super().renew(self.clock())


class NeedsNoHeartbeat(Lease):
    """Begins with the sending of a claim, however long that waited, and so with the last part of it at best."""

    __slots__ = ("clock",)
    clock: Callable[[], float]

    def begins_with_heartbeat(self, sent_at: float, session: float, now: float) -> bool:
        return False

    def grant(self, sent_at: float, session: float) -> None:
        super().grant(max(sent_at, self.clock()), session)


class ShortensWhenGranted(Lease):
    """Leaves the lease as it is while a claim with a shorter session is under way."""

    __slots__ = ()

    def ask(self, sent_at: float, session: float) -> None:
        pass


class RevivesUnlessTold(Lease):
    """Counts the answer to a request that was sent after the end, if nobody has asked in between."""

    __slots__ = ()

    def _go_on(self, sent_at: float, session: float) -> None:
        self.end = max(self.end, sent_at + session)


@pytest.mark.parametrize("rule", [CountsFromTheAnswer, NeedsNoHeartbeat, ShortensWhenGranted, RevivesUnlessTold])
def test_the_model_notices_when_a_rule_is_left_out(rule: type[Lease]) -> None:
    def broken(seed: int) -> bool:
        lease: Any = rule()
        history = History(seed, lease)
        if "clock" in rule.__slots__:
            lease.clock = lambda: history.clock(history.owner)
        try:
            history.run()
        except AssertionError:
            return True
        return False

    assert any(map(broken, range(RUNS)))
