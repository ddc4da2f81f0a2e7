"""Fetch sessions (KIP-227): the server remembers which partitions a client reads and what it was told of them.

A request of a session names only what the client wants otherwise than before, and its answer has only the partitions
with news: records, an error, or another end or beginning. A partition is *due* until a look at it found nothing to
read and nothing to tell; it is due again when the log changes or the client names it. So a request costs as much as
there is news, however many partitions the session has.

    epoch 0     a new session, with all that the request names; one that it names is ended
    epoch 1 …   the next request of a session; each raises the epoch by one, after 2³¹−1 comes 1
    epoch −1    no session; one that the request names is ended
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
"""A session that was not used for so long makes way for a new one, as in Kafka."""

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
S = TypeVar("S", bound="FetchSession[Any, Any]")


class FetchSession(Generic[K, R]):
    """What one client reads: partitions, as it names them, each with what the server keeps of it."""

    def __init__(self, *, by_id: bool = False) -> None:
        self.id = 0
        self.epoch = INITIAL_EPOCH
        """What the next request has to carry."""
        self.by_id = by_id
        """Whether topics are named by their ids."""
        self.rows: dict[K, R] = {}
        self.due: dict[K, None] = {}
        """In the order in which they are looked at."""

    def put(self, key: K, row: R) -> None:
        """The client wants this partition, or wants it from elsewhere."""
        self.rows[key] = row
        self.due[key] = None

    def forget(self, key: K) -> R | None:
        self.due.pop(key, None)
        return self.rows.pop(key, None)

    def changed(self, key: K) -> None:
        """There may be something to read or to tell."""
        if key in self.rows:
            self.due[key] = None

    def all_changed(self) -> None:
        self.due.update(dict.fromkeys(self.rows))

    def is_idle(self, key: K) -> None:
        """There is nothing to read, and nothing to tell that the client does not know."""
        self.due.pop(key, None)

    def was_served(self, key: K) -> None:
        """Its records go into an answer. Next time those come first that had no room: a busy partition must not keep
        the others from their turn."""
        if key in self.due:
            del self.due[key]
            self.due[key] = None


class Full(NamedTuple):
    """The request names everything that it wants."""

    wants_session: bool


class _SessionEntry(NamedTuple, Generic[S]):
    session: S
    owner: Hashable
    rows: int
    used: float


class FetchSessions(Generic[S]):
    """All sessions of a server, at most so many, with at most so many partitions in all of them together.

    A session belongs to its owner (a connection) and ends with it. When there is no room, the one that was idle for
    longest makes way if it was idle for long; else no new one is begun, and the client goes on without.
    """

    def __init__(
        self, most_sessions: int, most_rows: int, *, new_id: Callable[[], int], let_go: Callable[[S], None]
    ) -> None:
        self._most_sessions = most_sessions
        self._most_rows = most_rows
        self._new_id = new_id
        self._let_go = let_go
        self._kept: OrderedDict[int, _SessionEntry[S]] = OrderedDict()
        """By the id; the one that was used last is the last."""
        self._of_owner: dict[Hashable, set[int]] = {}
        self.rows = 0
        """Of all sessions, and lent."""

    def __len__(self) -> int:
        return len(self._kept)

    def judge(self, session_id: int, epoch: int, owner: Hashable, now: float, *, by_id: bool) -> Full | S | ErrorCode:
        """What a request with these numbers is: one that names all, the next one of a session, or wrong."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            kept = self._kept.get(session_id)
            if kept is not None and kept.owner == owner:
                self.end(session_id)
            return Full(epoch == INITIAL_EPOCH)
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
        """Keep a new session if there is room for it; it then has an id."""
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
        """Partitions came or went: whether the session may stay. It is ended if it has none, or too many by now."""
        kept = self._kept[session.id]
        rows = len(session.rows)
        if not rows or self.rows + rows - kept.rows > max(self._most_rows, self.rows):
            self.end(session.id)
            return False
        self.rows += rows - kept.rows
        self._kept[session.id] = kept._replace(rows=rows)
        return True

    def lend(self, rows: int) -> bool:
        """Room for the partitions of a request that waits without a session."""
        if self.rows + rows > self._most_rows:
            return False
        self.rows += rows
        return True

    def give_back(self, rows: int) -> None:
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
        """The owner is gone, and its sessions with it."""
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
