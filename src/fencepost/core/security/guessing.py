"""The pace of logins: attempts wait after failures, whoever sends them and whether or not they are right.

Two lines slow down who guesses, on any number of connections:

- one per address and user: with each failure the pause before the next attempt doubles, from 0.1 s to 5 s;
- one per address: after twenty failures within a minute its attempts are 0.05 s apart, for whatever users. A user who
  has logged in from this address before does not stand in this line.

An attempt waits before its password is checked. So it tells nobody anything that no answer has come yet, and to hang
up makes no difference. One that would have to wait too long is refused, without a look at the password.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_PAUSE: Final = 0.1
MAX_PAUSE_SECONDS: Final = 5.0
FREE_FAILURES: Final = 20
"""Failures of an address within a minute that have no effect on its other users."""
ADDRESS_PAUSE: Final = 0.05
FORGET_SECONDS: Final = 60.0
MAX_WAIT_SECONDS: Final = 10.0
MOST_KEPT: Final = 10_000
"""Addresses, and pairs of address and user, that are remembered; the oldest is forgotten first."""

K = TypeVar("K", bound=Hashable)


class _Line:
    __slots__ = ("failed_at", "failures", "free_at")

    def __init__(self, now: float) -> None:
        self.failures = 0
        self.failed_at = now
        self.free_at = now
        """The earliest start of the next attempt."""


class _Lines(Generic[K]):
    def __init__(self) -> None:
        self._lines: OrderedDict[K, _Line] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, key: K, now: float) -> _Line | None:
        found = self._lines.get(key)
        if found is not None and now - found.failed_at > FORGET_SECONDS:
            del self._lines[key]
            return None
        return found

    def failed(self, key: K, now: float) -> _Line:
        line = self.get(key, now) or _Line(now)
        self._lines[key] = line
        self._lines.move_to_end(key)
        if len(self._lines) > MOST_KEPT:
            self._lines.popitem(last=False)
        line.failures += 1
        line.failed_at = now
        return line

    def forget(self, key: K) -> None:
        self._lines.pop(key, None)


class LoginPace:
    def __init__(self) -> None:
        self._pairs: _Lines[tuple[str, str]] = _Lines()
        self._addresses: _Lines[str] = _Lines()
        self._welcome: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Pairs of address and user that have logged in."""

    def __len__(self) -> int:
        """Return how much is remembered."""
        return len(self._pairs) + len(self._addresses) + len(self._welcome)

    def attempt(self, address: str, user: str, now: float) -> float | None:
        """Return the seconds to wait before the attempt is checked, or None to refuse it. `user` may be empty, if the
        attempt does not name one."""
        pair = self._pairs.get((address, user), now) if user else None
        line = self._addresses.get(address, now)
        if line is not None and (line.failures < FREE_FAILURES or (address, user) in self._welcome):
            line = None
        place = max(now, line.free_at) if line is not None else now
        start = max(place, pair.free_at) if pair is not None else place
        if start - now > MAX_WAIT_SECONDS:
            return None
        if pair is not None:
            pair.free_at = start + _pause(pair.failures)
        if line is not None:  # from its place, not its start: one who waits for himself does not hold up the others
            line.free_at = place + ADDRESS_PAUSE
        return start - now

    def failed(self, address: str, user: str, now: float) -> None:
        if user:
            pair = self._pairs.failed((address, user), now)
            pair.free_at = max(pair.free_at, now + _pause(pair.failures))
        line = self._addresses.failed(address, now)
        line.free_at = max(line.free_at, now)

    def succeeded(self, address: str, user: str) -> None:
        """End the pauses of this user. Those of the address stay: who guesses may have a login of his own."""
        self._pairs.forget((address, user))
        self._welcome[address, user] = None
        self._welcome.move_to_end((address, user))
        if len(self._welcome) > MOST_KEPT:
            self._welcome.popitem(last=False)


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 32), MAX_PAUSE_SECONDS)
