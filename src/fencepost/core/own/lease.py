"""The lease of an owner with a session: both sides of the rule, with the time passed in (OWN-8, OWN-9).

    owner     has lost what it owns once the newest request that was *answered* was *sent* a session ago (`Lease`)
    server    replaces an owner once nothing was *received* from it for longer than its session (`is_silent`)

Why the two never overlap. Let the owner's newest answered request be sent at s and received at r. Nothing is received
before it is sent, so s ≤ r. The owner's lease ends at s + session. The server replaces the owner only when it has heard
nothing since some moment r' ≥ r, so after r + session, and that is not before s + session. Delays, lost answers and
pauses only move r and r' further back, or s further into the past: each makes the owner stop earlier, or the server
wait longer. The two clocks are never compared, each side measures a duration. So it needs no common time, only clocks
that run at the same rate: 100 ppm of difference are 1 ms in a session of 10 s.

A grant is such an answer, and begins the lease. But a claim that waited was sent long before it was granted. So if much
of the session is over by then, a heartbeat is sent first; its answer begins the lease, and only then is the claimant
told (`begins_with_heartbeat`). A claim may also shorten the session: the server applies that before the owner hears of
it, so the lease is shortened when the claim is sent (`ask`).

The end is final. Once somebody was told that the lease is over, no late answer revives it. Nor does the answer to a
request that was sent after the end, whether somebody was told or not: on Apache Kafka a claimant that was stopped may
join its group again, and somebody else may have owned in between.

What the lease cannot know. A claim with a generation takes over at once, by intent (OWN-5), and so does any claim after
the server has seen the connection end, or has restarted (OWN-8). An old owner that cannot hear of it goes on until the
end of its lease. Its writes to the log are rejected all the same: the lease says who *believes* to own, the fence
decides what is *written*.

On Apache Kafka the server is the coordinator of the owner's consumer group, and the requests are its heartbeats. A new
coordinator, after a failover, begins to count anew, which is later. One that was replaced and does not know it yet may
still answer heartbeats; then only the fence, which the owner asks for with every heartbeat, tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.errors import ErrorCode, Fenced

BEATS_PER_SESSION: Final = 4
NEVER: Final = float("inf")


class Lease:
    """The owner's side. Without a session it never ends. One thread renews it, and any thread may ask `is_over`."""

    __slots__ = ("_is_over", "end", "session")

    def __init__(self) -> None:
        self.session = 0.0
        """Seconds; 0: none."""
        self.end = NEVER
        """The moment, by the owner's clock, at which the ownership is over unless an answer comes before."""
        self._is_over = False

    @property
    def beat(self) -> float:
        """Return the seconds between two heartbeats."""
        return self.session / BEATS_PER_SESSION

    def ask(self, sent_at: float, session: float) -> None:
        """Note that a claim with this session is sent by somebody who owns something already. A shorter session counts
        from now on: the server may know of it before the answer comes."""
        if session:
            self.session = min(self.session, session) if self.session else session
            self.end = min(self.end, sent_at + session)

    def grant(self, sent_at: float, session: float) -> None:
        """Note the grant of a claim that was sent at this moment. 0: the claim does not change the session."""
        if session:
            if self.end == NEVER:
                self.end = sent_at + session
            self._go_on(sent_at, session)
            self.session = session

    def refuse(self, sent_at: float, before: float) -> None:
        """Note that the claim was refused, so that the session is what it was before."""
        self.session = before
        if before:
            self._go_on(sent_at, before)
        else:
            self.end = NEVER

    def renew(self, sent_at: float) -> None:
        """Note the answer to a request that was sent at this moment."""
        if self.session:
            self._go_on(sent_at, self.session)

    def _go_on(self, sent_at: float, session: float) -> None:
        if sent_at < self.end:
            self.end = max(self.end, sent_at + session)

    def begins_with_heartbeat(self, sent_at: float, session: float, now: float) -> bool:
        """Return whether a claim that was sent at this moment, and is granted now, was sent too long ago to begin the
        lease. Somebody who has a lease already needs no other."""
        return session > 0 and self.end == NEVER and now >= sent_at + session / 2

    def is_over(self, now: float) -> bool:
        """Return whether the ownership is lost. Once it is, it stays so."""
        if not self._is_over and now >= self.end:
            self._is_over = True
        return self._is_over

    @property
    def is_told(self) -> bool:
        """True once somebody has been told that it is over, whatever `end` says since."""
        return self._is_over

    def drop(self) -> None:
        """Note that nothing is owned any more, so that nothing can be lost."""
        self.session, self.end = 0.0, NEVER


def lease_over(names: Iterable[str], session: float) -> Fenced:
    """Return the error of an owner whose lease is over."""
    first, *more = [*names] or ["what this producer owned"]
    others = f" and {len(more)} more" if more else ""
    return Fenced(
        f"{first}{others}: the lease is over: nothing that was sent in the last {session:g} s (the session) was "
        "answered, so somebody else may own it now; claim again with another producer, reader or hold",
        persisted="no",  # of records sent from now on; each earlier ticket has its own answer
        code=ErrorCode.PRODUCER_FENCED,
    )


def is_silent(heard_at: float, session: float, now: float) -> bool:
    """Return whether an owner was silent for longer than its session, so that the server may replace it."""
    return now - heard_at > session
