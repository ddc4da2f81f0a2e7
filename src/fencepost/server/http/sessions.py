"""Sessions of people who logged in with the form. The server keeps them; the cookie is only a random key."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, Generic, NamedTuple, TypeVar

from fencepost.clock import Clock

SESSION_SECONDS: Final = 8 * 3600.0
MOST_SESSIONS: Final = 1000
MOST_OF_A_USER: Final = 20
"""So that nobody pushes the sessions of all others out by logging in again and again."""
_KEY_BYTES: Final = 32

C = TypeVar("C")


class _KeptSession(NamedTuple, Generic[C]):
    client: C
    user: str
    credentials: object
    """Those of the user at the login."""
    ends_at: float


class HttpSessions(Generic[C]):
    """The sessions by the digests of their keys: memory that leaks does not give anyone a session."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._sessions: dict[bytes, _KeptSession[C]] = {}
        """In the order of their ends."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, client: C, user: str, credentials: object) -> str:
        """Return the key of a new session. The oldest session makes way if there are too many, of this user or at
        all."""
        now = self._monotonic()
        own = [digest for digest, kept in self._sessions.items() if kept.user == user]
        if len(own) >= MOST_OF_A_USER:
            del self._sessions[own[0]]
        while self._sessions:
            oldest = next(iter(self._sessions))
            if len(self._sessions) < MOST_SESSIONS and self._sessions[oldest].ends_at > now:
                break
            del self._sessions[oldest]
        key = secrets.token_urlsafe(_KEY_BYTES)
        self._sessions[_digest(key)] = _KeptSession(client, user, credentials, now + SESSION_SECONDS)
        return key

    def find(self, key: str) -> tuple[C, object] | None:
        """Return the client and the credentials of a session that has not ended."""
        found = self._sessions.get(_digest(key))
        if found is None or found.ends_at <= self._monotonic():
            return None
        return found.client, found.credentials

    def end(self, key: str | None) -> None:
        if key is not None:
            self._sessions.pop(_digest(key), None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
