"""The schedule of a producer: the only rule that decides what is sent next, and when (PROD-4, PROD-6, PROD-8, PROD-9).

`Schedule.decide` is the rule for one partition. It looks at the partition's queue and its `Flight`, at linger, hurry
and the time, and answers:

    EXPIRE      the time of a batch is over: the caller fails it, and asks again
    LOOK_BACK   the log is to be read for batches in doubt                          `core/producers/inflight.py`
    BUMP        the rest is to be renumbered under the next epoch                   `core/producers/inflight.py`
    RESEND      send the oldest batch again
    SEND        send the next new batch
    WAIT        for an event (a record, an answer), or until `again_at`
    NOTHING     the queue is empty, and nothing of it is in flight

A batch is ready when it is full, when its linger is over, or when somebody is in a hurry (a flush, a caller without
memory). A ready partition stands in the line of its leader until the leader's window admits it. So nobody looks at all
partitions: an event (`changed`) or a due time (one heap) brings a partition to `decide`, and a turn costs what it
sends.

`Line` decides who is next to one leader. The topics take turns, and within a topic the longest waiting partition goes
first (PROD-6). Small batches go ahead of large ones, because they delay nobody. There are two exceptions, in which all
batches go in the order in which they became ready:

    a topic is behind    More than `FEW_PARTITIONS` of its batches are large: its leader takes less than it is given.
                         Then a small batch is one that has not waited for long. If such batches went first, no batch
                         would ever grow, and large ones cost less per record (1,000 partitions: 1.23 instead of 0.86
                         million records per second, 2,700 instead of 4,400 batches).
    a standstill         Small batches have filled the window again and again, and no large one was sent for
                         `STANDSTILL` seconds.

Two rules let small batches grow where many partitions have a little each. There a record costs what its batch costs:

    gather    A batch that is not full waits for the answer to the one before it: `GATHER` seconds at most, or
              `LONG_GATHER` if more than `FEW_PARTITIONS` partitions are active.
    rest      After a turn that sent batches of more than `FEW_PARTITIONS`, small ones wait for `PAUSE` seconds
              per batch sent, or twice as long as sending the small ones took. So the callers have most of the time
              (1,000 partitions: 17 instead of 25 µs of CPU per batch).

A batch that expires in the next moments is not sent for the first time: its answer would come too late, and nobody
could say whether it is persisted. Unsent, it certainly is not.

The caller passes the time, reads and writes the sockets, and settles. A queue is any object with what `ScheduledQueue`
lists.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from enum import Enum
from itertools import count
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from fencepost.core.producers.inflight import Flight, Step
from fencepost.core.producers.window import LITTLE

FEW_PARTITIONS: Final = 32
"""Active partitions that are so few that each batch may go when it is ready; and large batches of a topic that is not
behind."""

GATHER: Final = 0.005
"""Seconds that a batch waits for more records, at most, while an earlier one of its partition is in flight."""

LONG_GATHER: Final = 0.1
"""The same where many partitions are active."""

PAUSE: Final = 50e-6
"""Seconds of rest for each batch that was sent."""

LONGEST_REST: Final = 0.1

STANDSTILL: Final = 0.25
"""Seconds for which many small batches may keep all large ones from being sent."""

LOOK_BACK_SHARE: Final = 0.25
LONGEST_LOOK_BACK: Final = 5.0
"""The last part of `delivery_timeout`, and its maximum in seconds, in which a batch in doubt is looked for in the log.
`delivery_timeout` itself is a promise: a batch whose outcome is unknown by then fails with persisted="unknown"."""

TOO_LATE_SHARE: Final = 0.05
TOO_LATE_MAX: Final = 0.25
"""The last part of `delivery_timeout`, and its maximum in seconds, in which a batch is not sent for the first time."""

NEVER: Final = float("inf")
_STALE_DUE_TIMES: Final = 64
"""Due times without effect that may be in the heap, beside two per active partition."""


class ScheduledBatch(Protocol):
    @property
    def opened(self) -> float: ...
    @property
    def deadline(self) -> float: ...


class ScheduledQueue(Protocol):
    """A partition's queue, as the schedule sees it."""

    @property
    def topic(self) -> Hashable: ...
    @property
    def flight(self) -> Flight[Any] | None: ...
    @property
    def sealed(self) -> Sequence[Any]:
        """Full batches, oldest first."""

    @property
    def open(self) -> Any | None:
        """The batch that records are appended to."""

    @property
    def next_size(self) -> int:
        """Bytes of the batch that is sent next."""

    @property
    def is_followed_up(self) -> bool:
        """True if an earlier batch is in flight."""

    @property
    def is_mixed(self) -> bool:
        """True if a younger batch may stand before an older one."""

    def first_to_expire(self) -> Any | None:
        """Return the unsent batch with the earliest deadline."""


QueueT = TypeVar("QueueT", bound=ScheduledQueue)


class Action(Enum):
    SEND = "send"
    RESEND = "resend"
    LOOK_BACK = "look back"
    BUMP = "bump"
    EXPIRE = "expire"
    WAIT = "wait"
    NOTHING = "nothing"


class Until(Enum):
    """An event that many partitions may wait for, and that is not told for each of them."""

    IDENTITY = "identity"
    """Another pid or epoch."""
    NEWS = "news"
    """Any news: an answer, a connection, the outcome of a request to a coordinator."""

    __hash__ = object.__hash__  # the one of enums is written in Python, and an answer may change many partitions


class Decision(NamedTuple):
    action: Action
    again_at: float
    """When to ask again, if no event comes before."""


_EXPIRE: Final = Decision(Action.EXPIRE, NEVER)
_NOTHING: Final = Decision(Action.NOTHING, NEVER)
READY: Final = (Action.SEND, Action.RESEND)
"""A tuple: to look into a set, Python would hash the enum in Python, for each batch."""


class _Entry(Generic[QueueT]):
    """An active partition: where it stands in line, and when it is due."""

    __slots__ = ("action", "due_at", "in_line", "is_large", "queue", "since")

    def __init__(self, queue: QueueT) -> None:
        self.queue = queue
        self.in_line: _TopicLine[QueueT] | None = None
        self.is_large = False
        self.since = 0
        """Its place in the order in which partitions became ready; 0: it is not ready."""
        self.due_at = NEVER
        self.action = Action.WAIT
        """The last decision. It holds until something changes, or the partition is due."""


class _TopicLine(Generic[QueueT]):
    """The ready partitions of one topic and leader."""

    __slots__ = ("_large", "_small", "is_behind", "large_count", "line", "small_count", "topic")

    def __init__(self, line: Line[QueueT], topic: Hashable) -> None:
        self.line = line
        self.topic = topic
        self._small: deque[tuple[int, _Entry[QueueT]]] = deque()
        """Small when last seen, the longest waiting first; with partitions that are not in it any more."""
        self.small_count = 0
        self._large: list[tuple[int, _Entry[QueueT]]] = []
        """A heap by `since`; likewise."""
        self.large_count = 0
        self.is_behind = False
        """In this turn, also when fewer are left."""

    def __len__(self) -> int:
        return self.small_count + self.large_count

    def add(self, entry: _Entry[QueueT], *, is_large: bool) -> None:
        entry.in_line, entry.is_large = self, is_large
        if is_large:
            heapq.heappush(self._large, (entry.since, entry))
            self.large_count += 1
            self.line.large_count += 1
            self.is_behind |= self.large_count > FEW_PARTITIONS
        else:
            self._small.append((entry.since, entry))
            self.small_count += 1
            self.line.small_count += 1

    def remove(self, entry: _Entry[QueueT]) -> None:
        entry.in_line = None
        if entry.is_large:
            self.large_count -= 1
            self.line.large_count -= 1
            if not self.large_count:
                self._large.clear()
        else:
            self.small_count -= 1
            self.line.small_count -= 1
            if not self.small_count:
                self._small.clear()

    def entries(self) -> list[_Entry[QueueT]]:
        small = [entry for since, entry in self._small if self._has(entry, since) and not entry.is_large]
        return small + [entry for since, entry in self._large if self._has(entry, since) and entry.is_large]

    def _has(self, entry: _Entry[QueueT], since: int) -> bool:
        return entry.in_line is self and entry.since == since

    def first_small(self) -> _Entry[QueueT] | None:
        """Return the longest waiting small one. One that has grown meanwhile joins the large ones."""
        while self._small:
            since, entry = self._small[0]
            if self._has(entry, since) and not entry.is_large:
                if not is_large(entry.queue):
                    return entry
                self.remove(entry)
                self.add(entry, is_large=True)
            if self._small:
                self._small.popleft()
        return None

    def first_large(self) -> _Entry[QueueT] | None:
        while self._large:
            since, entry = self._large[0]
            if self._has(entry, since) and entry.is_large:
                return entry
            heapq.heappop(self._large)
        return None


class Line(Generic[QueueT]):
    """The ready partitions of one leader."""

    def __init__(self, leader: int, now: float) -> None:
        self.leader = leader
        self.small_count = self.large_count = 0
        self._topics: dict[Hashable, _TopicLine[QueueT]] = {}
        self._in_turn: deque[_TopicLine[QueueT]] = deque()
        self._moved_at = now
        """When a large batch was last sent, or there was none."""
        self._ahead = 0
        """Small batches that have taken the leader's room since then."""

    def __len__(self) -> int:
        return self.small_count + self.large_count

    def topics(self) -> list[Hashable]:
        return [topic.topic for topic in self._in_turn if len(topic)]

    def queues(self) -> Iterator[QueueT]:
        for topic in self._in_turn:
            for entry in topic.entries():
                yield entry.queue

    def add(self, entry: _Entry[QueueT], now: float, *, is_large: bool) -> None:
        topic = self._topics.get(entry.queue.topic)
        if topic is None:
            topic = self._topics[entry.queue.topic] = _TopicLine(self, entry.queue.topic)
            self._in_turn.append(topic)
        if not self.large_count:
            self._moved(now)
        topic.add(entry, is_large=is_large)

    def begin_turn(self, now: float) -> bool:
        """Return whether small batches have kept all large ones from being sent for too long."""
        for topic in self._in_turn:
            topic.is_behind = topic.large_count > FEW_PARTITIONS
        return self.large_count > 0 and self._ahead > FEW_PARTITIONS and now - self._moved_at > STANDSTILL

    def went_ahead(self) -> None:
        """Take note that a small batch that was taken out of turn uses room that large ones wait for."""
        self._ahead += 1

    def _moved(self, now: float) -> None:
        self._moved_at, self._ahead = now, 0

    def next_small(self) -> QueueT | None:
        """Take the next partition whose batch is small and may go ahead of large ones."""
        if not self.small_count:
            return None
        for topic in self._in_turn if len(self._in_turn) == 1 else self._by_turns():
            entry = topic.first_small()
            if entry is None:
                continue
            if topic.is_behind:
                large = topic.first_large()
                if large is not None and large.since < entry.since:
                    continue
            topic.remove(entry)
            return entry.queue
        return None

    def next_in_order(self, now: float, *, small_too: bool, everybody: bool) -> QueueT | None:
        """Take the next partition whose batch is large; or small, if its topic is behind, or with `everybody`.
        `small_too`: there is room for another small one."""
        for topic in self._by_turns():
            large = topic.first_large()
            entry = large
            if small_too and (everybody or topic.is_behind):
                small = topic.first_small()
                if small is not None and (large is None or small.since < large.since):
                    entry = small
            if entry is None:
                continue
            topic.remove(entry)
            if entry.is_large:
                self._moved(now)
            return entry.queue
        return None

    def _by_turns(self) -> Iterator[_TopicLine[QueueT]]:
        """Yield each topic once, beginning with the one after the last that was served. Who is served stops here."""
        for _ in range(len(self._in_turn)):
            topic = self._in_turn.popleft()
            if len(topic):
                self._in_turn.append(topic)
                yield topic
            else:
                del self._topics[topic.topic]


def is_large(queue: ScheduledQueue) -> bool:
    """Return whether the partition has more to send than a leader handles in no noticeable time."""
    return queue.next_size > LITTLE or len(queue.sealed) > 1


class Schedule(Generic[QueueT]):
    def __init__(self, *, linger: float, delivery_timeout: float) -> None:
        self.linger = linger
        self._look_back = min(delivery_timeout * LOOK_BACK_SHARE, LONGEST_LOOK_BACK)
        self._too_late = min(delivery_timeout * TOO_LATE_SHARE, TOO_LATE_MAX)
        self.looks_back = True
        """The log tells what became of a batch in doubt. In a transaction it does not: the batch fails with it."""
        self.is_hurried = False
        """Somebody waits for records: no batch waits for more of them."""
        self.elsewhere: dict[QueueT, Any] = {}
        """Partitions with a request in flight on another connection than their leader's line uses: what is sent there
        could be overtaken."""
        self._entries: dict[QueueT, _Entry[QueueT]] = {}
        self._lines: dict[int, Line[QueueT]] = {}
        self._changed: dict[QueueT, None] = {}
        self._stuck: dict[Until, dict[QueueT, None]] = {until: {} for until in Until}
        self._happened: set[Until] = set()
        self._due: list[tuple[float, int, _Entry[QueueT]]] = []
        self._numbers = count(1)
        self._rests_until = float("-inf")

    # --- events ---

    def changed(self, queue: QueueT) -> None:
        """Look at this partition in the next turn: a record came, or an answer, or something else has changed."""
        self._changed[queue] = None
        self._happened.add(Until.NEWS)

    def records_came(self, queues: dict[QueueT, None]) -> None:
        """Look at these partitions in the next turn: callers have added batches."""
        self._changed.update(queues)

    def stuck(self, queue: QueueT, until: Until) -> None:
        """Look at this partition again when `happened` tells that this has happened."""
        self._leave_line(queue)
        self._stuck[until][queue] = None

    def happened(self, what: Until) -> None:
        """Look at all partitions in the next turn that are stuck until then."""
        self._happened.add(what)

    def hurry(self, is_hurried: bool) -> None:
        """Take note whether somebody waits for records."""
        if is_hurried and not self.is_hurried:
            self._changed.update((queue, None) for queue, entry in self._entries.items() if entry.in_line is None)
        self.is_hurried = is_hurried

    def leaders_changed(self, leader_of: Callable[[QueueT], int]) -> None:
        """Look again at the ready partitions whose leader is another one now."""
        for line in self._lines.values():
            for queue in line.queues():
                if leader_of(queue) != line.leader:
                    self._changed[queue] = None

    def forget(self, queue: QueueT) -> None:
        """Leave out a partition that has nothing left to do, until `changed`."""
        entry = self._entries.pop(queue, None)
        if entry is not None:
            entry.due_at = NEVER
            if entry.in_line is not None:
                entry.in_line.remove(entry)
        for stuck in self._stuck.values():
            if stuck:
                stuck.pop(queue, None)
        if self._changed:
            self._changed.pop(queue, None)

    # --- a turn ---

    @property
    def active(self) -> Collection[QueueT]:
        """The partitions that hold something, or have it in flight, as far as the schedule was told."""
        return self._entries.keys()

    @property
    def are_many(self) -> bool:
        return len(self._entries) > FEW_PARTITIONS

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changed(self, now: float) -> list[QueueT]:
        """Return the partitions to `decide` about in this turn."""
        changed, self._changed = self._changed, {}
        while self._due and self._due[0][0] <= now:
            moment, _, entry = heapq.heappop(self._due)
            if entry.due_at == moment:
                entry.due_at = NEVER
                changed[entry.queue] = None
                self._happened.add(Until.NEWS)
        while self._happened:
            stuck = self._stuck[self._happened.pop()]
            changed.update(stuck)
            stuck.clear()
        return list(changed)

    def decided(self, queue: QueueT, now: float) -> Action | None:
        """Return what `decide` has said, if nothing has changed since, and no batch of the partition expires soon."""
        entry = self._entries.get(queue)
        if entry is None or queue in self._changed or entry.due_at - now <= self._too_late:
            return None
        return entry.action

    def decide(self, queue: QueueT, now: float) -> Decision:
        """The rule for one partition."""
        flight, again_at = queue.flight, NEVER
        is_empty = flight is None or not len(flight)
        if flight is not None and not is_empty:
            for sent in flight:
                deadline = sent.batch.deadline
                if deadline <= now:
                    return _EXPIRE
                if sent.in_doubt and self.looks_back:
                    look_at = deadline - self._look_back
                    if now >= look_at:
                        flight.wants_look_back(sent)
                    else:
                        again_at = min(again_at, look_at)
                again_at = min(again_at, deadline)
                if not queue.is_mixed:
                    break  # later batches have later deadlines
        sealed = queue.sealed
        batch = sealed[0] if sealed else queue.open
        unsent = queue.first_to_expire() if queue.is_mixed else batch
        if unsent is not None:
            deadline = unsent.deadline
            if deadline <= now:
                return _EXPIRE
            again_at = min(again_at, deadline)
        step = Step.SEND if flight is None else flight.next_step(now)
        if step is Step.WAIT:
            assert flight is not None
            return Decision(Action.WAIT, min(again_at, flight.not_before) if flight.not_before > now else again_at)
        if step is Step.LOOK_BACK:
            return Decision(Action.LOOK_BACK, again_at)
        if step is Step.BUMP:
            return Decision(Action.BUMP, again_at)
        if queue in self.elsewhere:
            return Decision(Action.WAIT, again_at)
        if step is Step.RESEND:
            return Decision(Action.RESEND, again_at)
        if unsent is None:
            return _NOTHING if is_empty else Decision(Action.WAIT, again_at)
        if batch is None:
            return Decision(Action.WAIT, again_at)  # a caller is about to seal it, and says so
        if not sealed and (ready_at := self.ready_at(batch, queue)) > now:
            return Decision(Action.WAIT, min(again_at, ready_at))
        if batch.deadline - now <= self._too_late:
            return Decision(Action.WAIT, again_at)
        return Decision(Action.SEND, again_at)

    def ready_at(self, batch: ScheduledBatch, queue: QueueT) -> float:
        """Return when a batch that is not full may be sent."""
        if self.is_hurried:
            return float("-inf")
        ready_at = batch.opened + self.linger
        if queue.is_followed_up:
            ready_at += LONG_GATHER if len(self._entries) > FEW_PARTITIONS else GATHER
        return ready_at

    def takes_more(self, queue: QueueT, now: float) -> bool:
        """Return whether a whole batch that joins this queue could be sent at once, as far as the partition goes."""
        if queue.sealed or queue in self.elsewhere:
            return False
        return queue.flight is None or queue.flight.next_step(now) is Step.SEND

    def place(self, queue: QueueT, decision: Decision, leader: int, now: float) -> None:
        """Put the partition where it belongs by the decision: into its leader's line, or among those that wait."""
        entry = self._entries.get(queue)
        if entry is None:
            entry = self._entries[queue] = _Entry(queue)
        entry.action = decision.action
        if decision.action is not Action.SEND and decision.action is not Action.RESEND:
            if entry.in_line is not None:
                entry.in_line.remove(entry)
            entry.since = 0
        else:
            line = self._lines.get(leader)
            if line is None:
                line = self._lines[leader] = Line(leader, now)
            if entry.in_line is not None and entry.in_line.line is not line:
                entry.in_line.remove(entry)
            if not entry.since:
                entry.since = next(self._numbers)
            if entry.in_line is None:
                line.add(entry, now, is_large=decision.action is Action.RESEND or is_large(queue))
        if decision.again_at < entry.due_at:
            self._note_due(entry, decision.again_at)

    def was_sent(self, queue: QueueT, deadline: float) -> None:
        """Take note that a batch of the partition was sent: it goes behind the others."""
        entry = self._entries.get(queue)
        if entry is not None:
            entry.since, entry.action = 0, Action.WAIT
            if deadline < entry.due_at:
                self._note_due(entry, deadline)

    def lines(self) -> list[Line[QueueT]]:
        """Return the lines in which somebody stands."""
        return [line for line in self._lines.values() if len(line)]

    def is_resting(self, now: float) -> bool:
        """Return whether small batches wait, so that they grow and the callers get their time."""
        return now < self._rests_until and not self.is_hurried

    def rest(self, sent: int, seconds: float, now: float) -> None:
        """Take note that so many batches were sent, and how long the small ones took: if that was long, it waited for
        the GIL or for a core."""
        self._happened.add(Until.NEWS)
        if self.are_many and not self.is_hurried:
            rest = min(LONGEST_REST, max(sent * PAUSE, 2 * seconds))
            self._rests_until = max(self._rests_until, now + rest)

    def next_moment(self, now: float) -> float:
        """Return when the next turn is due, if no event comes before."""
        while self._due and self._due[0][2].due_at != self._due[0][0]:
            heapq.heappop(self._due)
        moment = self._due[0][0] if self._due else NEVER
        if self._rests_until > now and any(line.small_count for line in self._lines.values()):
            moment = min(moment, self._rests_until)
        return moment

    def _note_due(self, entry: _Entry[QueueT], moment: float) -> None:
        entry.due_at = moment
        heapq.heappush(self._due, (moment, next(self._numbers), entry))
        if len(self._due) > _STALE_DUE_TIMES + 2 * len(self._entries):
            self._due = [each for each in self._due if each[2].due_at == each[0]]
            heapq.heapify(self._due)

    def _leave_line(self, queue: QueueT) -> None:
        entry = self._entries.get(queue)
        if entry is not None and entry.in_line is not None:
            entry.in_line.remove(entry)
