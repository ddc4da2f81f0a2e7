"""Limits on reports of things that keep happening, so that they bury nothing else. The caller passes the time.

`Repeats` is for log lines: of each kind the first few in a period are reported, the rest is only counted. A server that
cannot be reached fails several attempts a second.

`Floods` is for the audit log: nobody can fill it, and nobody can hide in it. Of each culprit the first refusal in a
period is reported, and of each of its next deeds the first. The rest is counted. A culprit is, for example, a principal
and its address, and a deed the operation and its resource. Culprits choose their deeds, so only a few deeds of a
culprit are told apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Repeats(Generic[K]):
    """Counts events by kind, and admits the `first` ones of each kind in every period of `seconds`.

    A kind's period starts with its first event and ends at the first call of `end_periods` after `seconds`.
    """

    def __init__(self, first: int, seconds: float) -> None:
        self._first = first
        self._seconds = seconds
        self._began: dict[K, float] = {}
        self._seen: dict[K, int] = {}

    def admit(self, kind: K, now: float) -> bool:
        """Count an event; return whether to report it."""
        if kind not in self._seen:
            self._began[kind] = now
            self._seen[kind] = 0
        self._seen[kind] += 1
        return self._seen[kind] <= self._first

    def end_periods(self, now: float, *, all_of_them: bool = False) -> list[tuple[K, int]]:
        """End the periods that are over; return the kinds that had unreported events in them, and how many."""
        over = [kind for kind, began in self._began.items() if all_of_them or now - began >= self._seconds]
        ended = []
        for kind in over:
            del self._began[kind]
            unreported = self._seen.pop(kind) - self._first
            if unreported > 0:
                ended.append((kind, unreported))
        return ended


WhoT = TypeVar("WhoT", bound=Hashable)
WhatT = TypeVar("WhatT", bound=Hashable)

MOST_DEEDS: Final = 20
"""Deeds of a culprit that are told apart in a period, unless the caller says otherwise."""
MOST_CULPRITS: Final = 10_000
"""Culprits that are told apart."""


class Counted(NamedTuple, Generic[WhoT, WhatT]):
    """Refusals that were not reported one by one."""

    who: WhoT | None
    """None: culprits beyond `MOST_CULPRITS`."""
    what: WhatT | None
    """None: deeds beyond those that are told apart."""
    times: int


class _Culprit(Generic[WhatT]):
    __slots__ = ("began", "deeds", "others")

    def __init__(self, began: float) -> None:
        self.began = began
        self.deeds: dict[WhatT, int] = {}
        self.others = 0


class Floods(Generic[WhoT, WhatT]):
    def __init__(self, seconds: float, most_deeds: int = MOST_DEEDS) -> None:
        self._seconds = seconds
        """Length of a period; a culprit's period begins with its first refusal."""
        self._most_deeds = most_deeds
        self._culprits: dict[WhoT, _Culprit[WhatT]] = {}
        self._beyond = 0

    def add(self, who: WhoT, what: WhatT, now: float) -> tuple[bool, bool]:
        """Count a refusal. Return whether to report it, and whether it is the culprit's first."""
        culprit = self._culprits.get(who)
        first = culprit is None
        if culprit is None:
            if len(self._culprits) >= MOST_CULPRITS:
                self._beyond += 1
                return False, False
            culprit = self._culprits[who] = _Culprit(now)
        deeds = culprit.deeds
        if what in deeds:
            deeds[what] += 1
            return False, False
        if len(deeds) >= self._most_deeds:
            culprit.others += 1
            return False, False
        deeds[what] = 0
        return True, first

    def end_periods(self, now: float, *, all_of_them: bool = False) -> list[Counted[WhoT, WhatT]]:
        """End the periods that are over; return what was counted in them."""
        over = [who for who, each in self._culprits.items() if all_of_them or now - each.began >= self._seconds]
        found: list[Counted[WhoT, WhatT]] = []
        for who in over:
            culprit = self._culprits.pop(who)
            found += [Counted(who, what, count) for what, count in culprit.deeds.items() if count]
            if culprit.others:
                found.append(Counted(who, None, culprit.others))
        if self._beyond and (over or all_of_them):
            found.append(Counted(None, None, self._beyond))
            self._beyond = 0
        return found
