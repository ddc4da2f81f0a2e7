"""Fetch sessions against small models: who may go on, and which partitions an answer has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.fetch_sessions import IDLE_SECONDS, FetchSession, FetchSessions
from fencepost.errors import ErrorCode

pytestmark = pytest.mark.unit

KEYS = st.sampled_from("abcdef")
Plain = FetchSession[str, int]


# --- which partitions an answer has ---


@dataclass
class World:
    """Partitions of which each has an end, and may be out of order."""

    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abcdef", 0))
    broken: set[str] = field(default_factory=set)


@dataclass
class Naive:
    """A session that looks at all of its partitions, each time."""

    offsets: dict[str, int] = field(default_factory=dict)
    told: dict[str, int | None] = field(default_factory=dict)

    def answer(self, world: World) -> set[str]:
        answered = set()
        for key, offset in self.offsets.items():
            if key in world.broken:
                answered.add(key)
                self.told[key] = None
            elif offset < world.ends[key] or self.told.get(key) != world.ends[key]:
                answered.add(key)
                self.told[key] = world.ends[key]
        return answered


class Lazy:
    """The same by the rule: only due partitions are looked at, `room` of them at most have records in an answer."""

    def __init__(self) -> None:
        self.session: Plain = FetchSession()
        self.told: dict[str, int | None] = {}
        self.looked = 0

    def answer(self, world: World, room: int = 1000) -> tuple[set[str], set[str]]:
        """All that were answered, and those with records."""
        answered, read = set[str](), set[str]()
        for key in tuple(self.session.due):
            self.looked += 1
            offset, end = self.session.rows[key], world.ends[key]
            if key in world.broken:
                answered.add(key)
                self.told[key] = None
                continue
            has_records = offset < end
            if has_records and len(read) < room:
                read.add(key)
            if key in read or self.told.get(key) != end:
                answered.add(key)
                self.told[key] = end
            if key in read:
                self.session.was_served(key)
            elif not has_records:
                self.session.is_idle(key)
        return answered, read


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), KEYS),
        st.tuples(st.just("break"), KEYS),
        st.tuples(st.just("mend"), KEYS),
        st.tuples(st.just("want"), KEYS),
        st.tuples(st.just("forget"), KEYS),
        st.tuples(st.just("fetch"), st.just("")),
    ),
    max_size=60,
)


def change(world: World, lazy: Lazy, operation: str, key: str) -> None:
    if operation == "append":
        world.ends[key] += 1
    elif operation == "break":
        world.broken.add(key)
    elif operation == "mend":
        world.broken.discard(key)
    lazy.session.changed(key)


@given(OPERATIONS)
def test_an_answer_has_exactly_what_a_look_at_all_partitions_would_find(operations: list[tuple[str, str]]) -> None:
    world, naive, lazy = World(), Naive(), Lazy()
    for operation, key in [*operations, ("fetch", "")]:
        if operation == "fetch":
            assert lazy.answer(world)[0] == naive.answer(world)
        elif operation == "want":
            naive.offsets[key] = world.ends[key]
            lazy.session.put(key, world.ends[key])
        elif operation == "forget":
            naive.offsets.pop(key, None)
            naive.told.pop(key, None)
            lazy.session.forget(key)
            lazy.told.pop(key, None)
        else:
            change(world, lazy, operation, key)


@given(st.lists(KEYS, min_size=1, max_size=40), st.integers(1, 3))
def test_no_partition_is_kept_from_its_turn_by_busy_ones(appends: list[str], room: int) -> None:
    """One that always has more cannot take all the room of an answer for itself."""
    world, lazy = World(), Lazy()
    for key in "abcdef":
        lazy.session.put(key, 0)
    lazy.answer(world)
    for key in appends:
        change(world, lazy, "append", key)
    waiting = set(appends)
    for _ in range(len(waiting)):
        waiting -= lazy.answer(world, room)[1]  # nobody moves on: all of them have records each time
    assert not waiting


def test_without_news_nothing_is_looked_at() -> None:
    world, lazy = World(), Lazy()
    for key in "abcdef":
        lazy.session.put(key, 0)
    assert lazy.answer(world)[0] == set("abcdef")
    lazy.looked = 0
    assert lazy.answer(world)[0] == set()
    assert lazy.looked == 0
    change(world, lazy, "append", "c")
    assert lazy.answer(world)[0] == {"c"}
    assert lazy.looked == 1


# --- who may go on ---

MOST_SESSIONS, MOST_ROWS = 3, 10


def table(ended: list[int] | None = None) -> FetchSessions[Plain]:
    numbers: Iterator[int] = count()
    return FetchSessions(
        MOST_SESSIONS,
        MOST_ROWS,
        new_id=lambda: next(numbers),  # begins with 0, which no session has
        let_go=lambda session: (ended if ended is not None else []).append(session.id),
    )


def session_of(rows: int, *, by_id: bool = False) -> Plain:
    session: Plain = FetchSession(by_id=by_id)
    for number in range(rows):
        session.put(str(number), 0)
    return session


@dataclass
class Known:
    owner: str
    epoch: int
    rows: int
    used: float
    by_id: bool


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from("xyz"), st.integers(0, 12), st.booleans()),
        st.tuples(st.just("ask"), st.sampled_from("xyz"), st.integers(-1, 6), st.integers(-2, 4)),
        st.tuples(st.just("next"), st.integers(1, 6), st.booleans(), st.just(0)),
        st.tuples(st.just("resize"), st.integers(1, 6), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from("xyz"), st.just(0), st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from([1.0, IDLE_SECONDS]), st.just(0), st.just(0)),
    ),
    max_size=50,
)


@given(STEPS)
def test_sessions_begin_go_on_and_end_as_in_a_plain_model(steps: list[tuple[str, object, object, object]]) -> None:
    ended: list[int] = []
    sessions, model, now = table(ended), dict[int, Known](), 0.0
    alive: dict[int, Plain] = {}
    for step, first, second, third in steps:
        if step == "begin":
            session = session_of(int(str(second)), by_id=bool(third))
            rows = len(session.rows)
            idle = sorted((known.used, id_) for id_, known in model.items() if now - known.used >= IDLE_SECONDS)
            fits = 0 < rows <= MOST_ROWS
            while fits and (
                len(model) >= MOST_SESSIONS or sum(known.rows for known in model.values()) + rows > MOST_ROWS
            ):
                if not idle:
                    fits = False
                else:
                    # The one used first: of those used at the same time the model cannot tell, the table can.
                    gone = next(id_ for id_ in sessions._kept if id_ in model)
                    assert model[gone].used == idle[0][0]
                    idle = [(used, id_) for used, id_ in idle if id_ != gone]
                    del model[gone]
                    sessions.end(gone)
            assert sessions.begin(session, first, now) == fits
            if fits:
                assert session.id not in model
                model[session.id] = Known(str(first), 1, rows, now, bool(third))
                alive[session.id] = session
        elif step in ("ask", "next"):
            if step == "next":
                id_ = int(str(first))
                if id_ not in model:
                    continue
                owner, epoch, by_id = model[id_].owner, model[id_].epoch, bool(second)
            else:
                owner, id_, epoch, by_id = str(first), int(str(second)), int(str(third)), False
            judged = sessions.judge(id_, epoch, owner, now, by_id=by_id)
            known = model.get(id_)
            mine = known is not None and known.owner == owner
            if epoch in (0, -1):
                assert judged is None
                if mine:
                    del model[id_]
            elif known is None or not mine:
                assert judged is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            elif known.epoch != epoch:
                assert judged is ErrorCode.INVALID_FETCH_SESSION_EPOCH
            elif known.by_id != by_id:
                assert judged is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            else:
                assert judged is alive[id_]
                known.epoch += 1
                known.used = now
        elif step == "resize":
            id_, rows = int(str(first)), int(str(second))
            if id_ not in model:
                continue
            session = alive[id_]
            session.rows.clear()
            session.rows.update(session_of(rows).rows)
            others = sum(known.rows for known in model.values()) - model[id_].rows
            stays = rows > 0 and (others + rows <= MOST_ROWS or rows <= model[id_].rows)
            assert sessions.resized(session) == stays
            if stays:
                model[id_].rows = rows
            else:
                del model[id_]
        elif step == "leave":
            sessions.ended(first)
            model = {id_: known for id_, known in model.items() if known.owner != first}
        else:
            now += float(str(first))
        assert len(sessions) == len(model) <= MOST_SESSIONS
        assert sessions.rows == sum(known.rows for known in model.values()) <= MOST_ROWS
        assert set(alive) - set(ended) == set(model)


def test_after_the_last_epoch_comes_1() -> None:
    sessions = table()
    session = session_of(1)
    assert sessions.begin(session, "x", 0.0)
    session.epoch = 2**31 - 1
    assert sessions.judge(session.id, 2**31 - 1, "x", 0.0, by_id=False) is session
    assert session.epoch == 1


def test_what_is_reserved_leaves_less_for_sessions() -> None:
    sessions = table()
    assert sessions.reserve(MOST_ROWS)
    assert not sessions.reserve(1)
    assert not sessions.begin(session_of(1), "x", 0.0)
    sessions.unreserve(MOST_ROWS)
    assert sessions.begin(session_of(1), "x", 0.0)
