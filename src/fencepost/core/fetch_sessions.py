"""Fetch sessions (KIP-227): the server remembers which partitions a client reads and what it has told the client.

A request of a session names only the partitions that changed for the client. Its answer contains only partitions with
news: records, an error, or a new start or end offset. A partition is *due* until a check finds nothing to read or
report; it is due again when the log changes or the client names it. So the cost of a request depends on the news, not
on the number of partitions.

    epoch 0     a new session with the named partitions; the session whose id the request carries ends
    epoch 1 …   the next request of a session; each raises the epoch by one, after 2³¹−1 comes 1
    epoch −1    no session; the session whose id the request carries ends
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fencepost.errors import ErrorCode

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1
IDLE_SECONDS: Final = 120.0
"""Seconds without use after which a session may be evicted for a new one, as in Kafka."""

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
S = TypeVar("S", bound="FetchSession[Any, Any]")


class FetchSession(Generic[K, R]):
    """The partitions that one client reads, by the client's key, each with the server's data."""

    def __init__(self, *, by_id: bool = False) -> None:
        self.id = 0
        self.epoch = INITIAL_EPOCH
        """The epoch that the next request must carry."""
        self.by_id = by_id
        """Topics are named by id."""
        self.rows: dict[K, R] = {}
        self.due: dict[K, None] = {}
        """In the order of checking."""

    def put(self, key: K, row: R) -> None:
        """Add a partition, or change the offset to read from."""
        self.rows[key] = row
        self.due[key] = None

    def forget(self, key: K) -> R | None:
        self.due.pop(key, None)
        return self.rows.pop(key, None)

    def changed(self, key: K) -> None:
        """Make the partition due: there may be something to read or report."""
        if key in self.rows:
            self.due[key] = None

    def all_changed(self) -> None:
        self.due.update(dict.fromkeys(self.rows))

    def is_idle(self, key: K) -> None:
        """Note that the partition has nothing to read, and nothing to report that the client does not know."""
        self.due.pop(key, None)

    def was_served(self, key: K) -> None:
        """Move a partition whose records went into an answer to the end, so that a busy partition does not starve the
        others."""
        if key in self.due:
            del self.due[key]
            self.due[key] = None


class _SessionEntry(NamedTuple, Generic[S]):
    session: S
    owner: Hashable
    rows: int
    used: float


class FetchSessions(Generic[S]):
    """All sessions of a server, with limits on the sessions and on the sum of their partitions.

    A session belongs to its owner (a connection) and ends with it. Without room for a new session, the longest idle one
    is evicted if it was idle long enough; otherwise the client continues without a session.
    """

    def __init__(
        self, most_sessions: int, most_rows: int, *, new_id: Callable[[], int], let_go: Callable[[S], None]
    ) -> None:
        self._most_sessions = most_sessions
        self._most_rows = most_rows
        self._new_id = new_id
        self._let_go = let_go
        self._kept: OrderedDict[int, _SessionEntry[S]] = OrderedDict()
        """By id; the most recently used is last."""
        self._of_owner: dict[Hashable, set[int]] = {}
        self.rows = 0
        """Partitions of all sessions, and of requests that wait without one."""

    def __len__(self) -> int:
        return len(self._kept)

    def judge(self, session_id: int, epoch: int, owner: Hashable, now: float, *, by_id: bool) -> S | ErrorCode | None:
        """Classify a request by its numbers: None for one that names all its partitions, its session, or an error."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            kept = self._kept.get(session_id)
            if kept is not None and kept.owner == owner:
                self.end(session_id)
            return None
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session = kept.session
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        self._kept[session_id] = kept._replace(used=now)
        self._kept.move_to_end(session_id)
        return session

    def begin(self, session: S, owner: Hashable, now: float) -> bool:
        """Register a new session, which gives it an id; return False if there is no room."""
        rows = len(session.rows)
        if not rows or rows > self._most_rows or not self._make_room(rows, now):
            return False
        while (session_id := self._new_id()) == 0 or session_id in self._kept:
            pass
        session.id, session.epoch = session_id, 1
        self._kept[session_id] = _SessionEntry(session, owner, rows, now)
        self._of_owner.setdefault(owner, set()).add(session_id)
        self.rows += rows
        return True

    def resized(self, session: S) -> bool:
        """Recount the partitions. If the session has none or too many, end it and return False."""
        kept = self._kept[session.id]
        rows = len(session.rows)
        if not rows or self.rows + rows - kept.rows > max(self._most_rows, self.rows):
            self.end(session.id)
            return False
        self.rows += rows - kept.rows
        self._kept[session.id] = kept._replace(rows=rows)
        return True

    def reserve(self, rows: int) -> bool:
        """Reserve room for the partitions of a request that waits without a session; return False if there is none."""
        if self.rows + rows > self._most_rows:
            return False
        self.rows += rows
        return True

    def unreserve(self, rows: int) -> None:
        self.rows -= rows

    def end(self, session_id: int) -> None:
        kept = self._kept.pop(session_id)
        self.rows -= kept.rows
        of_owner = self._of_owner[kept.owner]
        of_owner.discard(session_id)
        if not of_owner:
            del self._of_owner[kept.owner]
        self._let_go(kept.session)

    def ended(self, owner: Hashable) -> None:
        """End the sessions of an owner that is gone."""
        for session_id in self._sessions_of(owner):
            self.end(session_id)

    def _sessions_of(self, owner: Hashable) -> Iterable[int]:
        return tuple(self._of_owner.get(owner, ()))

    def _make_room(self, rows: int, now: float) -> bool:
        while len(self._kept) >= self._most_sessions or self.rows + rows > self._most_rows:
            oldest = next(iter(self._kept.values()), None)
            if oldest is None or now - oldest.used < IDLE_SECONDS:
                return False
            self.end(oldest.session.id)
        return True
