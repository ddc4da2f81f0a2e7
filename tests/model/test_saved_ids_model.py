"""Saved ids against random histories of one name (IDEM-4, IDEM-5): runs, saves at any moment, crashes and pauses
between any two steps, up to three runs at a time, strangers, retention, compaction, forgotten pids and names, recreated
and truncated topics, stale leaders.

The promise: each record of the input is in its partition once and in order, or the run says why it cannot know before
it writes anything. The world below is a server that forgets nothing it need not forget. A run takes the producer's
steps in the producer's order, with a point of interruption (`yield`) between any two, and decides by the real rules of
`core/producers/recollection.py`. Each rule can be left out, and then the promise must be seen to break.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from fencepost.core.producers.pid import Identity
from fencepost.core.producers.recollection import Known, PartitionFence, Recollection, SavedPlace, Taken
from fencepost.types import Epoch, Offset, Pid, Sequence
from tests.support.examples import examples

pytestmark = pytest.mark.model

RECORDS, PARTITIONS = 60, 3

RULES = (
    "fence before read",
    "fence in every partition",
    "place of the last acknowledged record",
    "all runs count",
    "missing records noticed",
    "topic id compared",
    "pids written down",
    "partitions written down",
    "the place is looked up before the fence",
    "a truncated log is noticed",
    "the marker is in what is read",
)


class Fenced(Exception): ...


class Unknown(Exception): ...


class Broken(Exception):
    """The promise is broken."""


class Batch(NamedTuple):
    offset: int
    identity: Identity | None
    """None: a stranger's."""
    first: int
    items: dict[int, int]
    """Inputs by position; compaction removes some."""
    length: int
    marker: bool = False


@dataclass
class Partition:
    topic_id: str = "0"
    log: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    state: dict[Pid, tuple[int, int]] = field(default_factory=dict)
    """The server's epoch and H(P), by pid."""
    truth: list[int] = field(default_factory=list)
    """All inputs that were ever appended."""
    offsets: list[int] = field(default_factory=list)
    stale: tuple[list[Batch], int] | None = None
    """The log and its end as a stale leader has them."""
    cut_at: int | None = None
    """The server lost acknowledged records from here on."""
    left: int = 0
    """The number of the name's records that a cut left."""

    def append(self, identity: Identity | None, first: int, items: list[int], *, marker: bool = False) -> int:
        if identity is not None:
            epoch, _ = self.state.get(identity.pid, (-1, -1))
            if epoch > identity.epoch:
                raise Fenced
            last = -1 if marker else first + len(items) - 1
            if marker and epoch == identity.epoch:
                last = self.state[identity.pid][1]
            self.state[identity.pid] = (identity.epoch, last)
        length = max(1, len(items))
        self.log.append(Batch(self.end, identity, first, dict(enumerate(items)), length, marker))
        self.truth += items
        self.offsets += range(self.end, self.end + len(items))
        self.end += length
        return self.end - length


class Saved(NamedTuple):
    position: int
    pids: frozenset[Pid]
    places: dict[int, SavedPlace]


class World:
    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.pid, self.epoch = Pid(0), -1
        self.ids_topic: list[tuple[int | None, Pid | SavedPlace]] = []
        """What is written down: pids, and places by partition."""
        self.saved: Saved | None = None
        self.recreated: set[int] = set()
        if rnd.random() < 0.5:
            self.used_before()

    def used_before(self) -> None:
        """The name was used for topics that have been deleted since."""
        who = self.init()
        self.ids_topic.append((None, who.pid))
        for n in range(PARTITIONS):
            self.ids_topic.append((n, SavedPlace("deleted", Offset(7), who, Sequence(0))))

    def written_down(self) -> tuple[set[Pid], dict[int, SavedPlace]]:
        places = {n: what for n, what in self.ids_topic if isinstance(what, SavedPlace) and n is not None}
        pids = {what for _, what in self.ids_topic if not isinstance(what, SavedPlace)}
        return pids, {n: place for n, place in places.items() if place.offset >= 0}

    def init(self, expected: Identity | None = None) -> Identity:
        if expected is not None:
            self.check(expected)
        self.epoch += 1
        return Identity(self.pid, Epoch(self.epoch))

    def check(self, identity: Identity) -> None:
        if identity != (self.pid, self.epoch):
            raise Fenced

    def forget_name(self) -> None:
        self.pid, self.epoch = Pid(self.rnd.choice([self.pid + 3, 1000 - self.pid])), -1  # not always a higher one
        used = {what for _, what in self.ids_topic} | (set() if self.saved is None else set(self.saved.pids))
        while self.pid in used:
            self.pid = Pid(self.pid + 1)


def partition_of(record: int) -> int:
    return (record * 7 + record // 5) % PARTITIONS


EXPECTED = [[i for i in range(RECORDS) if partition_of(i) == n] for n in range(PARTITIONS)]


class Run:
    """One run of the program."""

    def __init__(self, world: World, off: frozenset[str]) -> None:
        self.world, self.off = world, off
        saved = world.saved
        self.is_first = saved is None
        self.position, pids, places = saved or Saved(0, frozenset(), {})
        self.pids = set(pids)
        self.saved_places = dict(places)
        self.places: dict[int, SavedPlace] = dict(places)
        self.known: dict[int, list[Known]] = {}
        self.flights: dict[int, tuple[Identity, int, int | None]] = {}
        """Identity, next sequence, last acknowledged offset."""

    def steps(self) -> Iterator[None]:
        yield
        self.identity = self.world.init()
        yield
        if self.is_first:
            yield from self.begin()
        yield from self.note_pid()
        queued: dict[int, list[int]] = {}
        rnd = self.world.rnd
        while self.position < RECORDS or any(queued.values()):
            if self.position < RECORDS:
                n = partition_of(self.position)
                queued.setdefault(n, []).append(self.position)
                self.position += 1
            if rnd.random() < 0.5 or self.position == RECORDS:
                for n in rnd.sample(list(queued), len(queued)):
                    yield from self.send(n, queued.pop(n))
            if not any(queued.values()) and rnd.random() < 0.3:
                self.save()
                yield
        self.save()

    def begin(self) -> Iterator[None]:
        """The first run, as far as it knows, saves before the first record."""
        world = self.world
        self.pids.add(self.identity.pid)
        yield from self.look_up()
        for n, place in world.written_down()[1].items():
            if place.is_of(world.partitions[n].topic_id):
                raise Unknown("the name has written before")
            if "places in deleted topics are forgotten" not in self.off:
                world.ids_topic.append((n, place._replace(offset=Offset(-1))))
        yield
        self.save()
        yield

    def note_pid(self) -> Iterator[None]:
        pid = self.identity.pid
        if pid in self.pids:
            return
        self.pids.add(pid)
        if "pids written down" not in self.off:
            yield from self.look_up()

    def look_up(self) -> Iterator[None]:
        """Write the pid down, then read what is written down."""
        self.world.ids_topic.append((None, self.identity.pid))
        yield
        self.pids |= self.world.written_down()[0]

    def send(self, n: int, records: list[int]) -> Iterator[None]:
        p = self.world.partitions[n]
        if n not in self.known:
            yield from self.open(n)
            yield
        known = self.known[n]
        while known and records:
            there = known.pop(0)
            if there.content not in (None, records[0]):
                raise Broken(f"partition {n} has {there.content} instead of {records[0]}")
            records = records[1:]
            self.places[n] = there.behind(self.places[n])
            if "place of the last acknowledged record" in self.off:
                self.places[n] = self.places[n]._replace(offset=Offset(p.end))
        if not records:
            return
        identity, following, _ = self.flights.get(n, (self.identity, 0, None))
        if identity != self.identity:
            identity, following = self.identity, 0
        offset = p.append(identity, following, records)
        if self.world.rnd.random() < 0.1:
            raise Crash  # written, and dead before the answer
        self.flights[n] = identity, following + len(records), offset + len(records) - 1
        yield

    def open(self, n: int) -> Iterator[None]:
        off, world = self.off, self.world
        p = world.partitions[n]
        topic_id, end, remembered = p.topic_id, p.end, dict(p.state)
        yield
        marker = self.identity
        if "fence before read" not in off:
            yield from self.fence(n)
        place = self.saved_places.get(n)
        if place is None and "partitions written down" not in off:
            yield from self.look_up()
            place = world.written_down()[1].get(n)
            yield
            if place is None:
                if "the place is looked up before the fence" in off:
                    end = p.end
                place = SavedPlace(topic_id, Offset(end), self.identity, Sequence(0))
                world.ids_topic.append((n, place))
                yield
        if place is None:
            place = SavedPlace(topic_id, Offset(p.start), self.identity, Sequence(0))
        if not place.is_of(p.topic_id) and "topic id compared" not in off:
            raise Unknown("the topic was recreated")
        log, until, start = p.log, p.end, p.start
        if p.stale is not None and world.rnd.random() < 0.5:
            log, until = p.stale
        log = list(log)
        found = self.read(place, log, until, start, PartitionFence(marker, self.identity, Offset(end)), remembered)
        if found is None:
            yield from self.open(n)
            return
        if "fence before read" in off:
            yield
            yield from self.fence(n)
        self.known[n] = found
        self.places[n] = place

    def fence(self, n: int) -> Iterator[None]:
        world = self.world
        world.check(self.identity)
        yield
        world.check(self.identity)
        if "fence in every partition" not in self.off:
            world.partitions[n].append(self.identity, 0, [], marker=True)
        yield
        self.identity = world.init(self.identity)
        yield from self.note_pid()

    def read(
        self,
        place: SavedPlace,
        log: list[Batch],
        end: int,
        start: int,
        fence: PartitionFence,
        remembered: dict[Pid, tuple[int, int]],
    ) -> list[Known] | None:
        off = self.off
        recollection = Recollection(place, self.pids, fence)
        if "missing records noticed" in off:
            recollection = Careless(place, self.pids, fence)
        try:
            for batch in log:
                following = Offset(batch.offset + batch.length)
                if following <= max(recollection.start, start):
                    continue
                if batch.identity is None:
                    recollection.pass_over(Offset(batch.offset), following)
                elif batch.marker:
                    recollection.mark(batch.identity, Offset(batch.offset))
                elif "all runs count" in off and batch.identity.epoch < fence.now.epoch - 2:
                    recollection.pass_over(Offset(batch.offset), following)
                else:
                    first, at = Sequence(batch.first), Offset(batch.offset)
                    recollection.meet(batch.identity, first, batch.items, at, following)
        except Taken:
            raise Fenced from None
        if not recollection.is_fenced and not off & {
            "the marker is in what is read",
            "fence before read",
            "fence in every partition",
        }:
            return None
        if recollection.is_truncated and "a truncated log is noticed" not in off:
            raise Unknown("the log was truncated")
        found = recollection.finish(Offset(max(end, place.offset)), remembered)
        if found is None:
            raise Unknown("records are missing")
        return found

    def save(self) -> None:
        places = dict(self.saved_places)
        for n, known in self.known.items():
            places[n] = self.places[n]
            if not known and n in self.flights:
                identity, following, last = self.flights[n]
                at = None if last is None else Offset(last)
                places[n] = places[n].written_on(at, identity, Sequence(following))
        self.world.saved = Saved(self.position, frozenset(self.pids), places)


class Careless(Recollection):
    def pass_over(self, first: Offset, following: Offset) -> None:
        self._position = max(self._position, following)


class Crash(Exception): ...


def play(seed: int, off: frozenset[str] = frozenset(), disturbances: frozenset[str] | None = None) -> str:
    """Play one history. Return how it ended: complete, unknown or unfinished. Raise Broken."""
    rnd = random.Random(seed)
    world = World(rnd)
    rates = {
        what: rnd.choice((0.0, rate)) if disturbances is None or what in disturbances else 0.0
        for what, rate in {
            "retention": 0.01,
            "compaction": 0.02,
            "stranger": 0.2,
            "forget name": 0.02,
            "forget pids": 0.02,
            "recreate": 0.003,
            "truncate": 0.002,
            "stale": 0.05,
            "die": 0.03,
            "start": 0.03,
        }.items()
    }
    runs: list[Iterator[None]] = []
    for _ in range(4000):
        if not runs or (len(runs) < 3 and rnd.random() < rates["start"]):
            runs.append(Run(world, off).steps())
        run = rnd.choice(runs) if rnd.random() < 0.3 else runs[-1]  # older ones are paused most of the time
        try:
            next(run)
        except (StopIteration, Fenced, Crash):
            runs.remove(run)
        except Unknown as unknown:
            check(world)
            return str(unknown)
        disturb(world, runs, rates)
        cut = [p for p in world.partitions if p.cut_at is not None and len(p.truth) == p.left]
        if any(p.end > (p.cut_at or 0) + 1 for p in cut):
            return "a truncated log has grown again"  # perhaps beyond the saved place: then nobody can tell
        check(world)
        if world.saved is not None and world.saved.position == RECORDS:
            for n, p in enumerate(world.partitions):
                if n not in world.recreated and p.truth != EXPECTED[n]:
                    raise Broken(f"partition {n} lost records: {p.truth}")
            return "complete"
    return "unfinished"


def disturb(world: World, runs: list[Iterator[None]], rates: dict[str, float]) -> None:
    rnd = world.rnd
    due = {what for what, rate in rates.items() if rnd.random() < rate}
    n = rnd.randrange(PARTITIONS)
    p = world.partitions[n]
    if "die" in due and runs:
        runs.remove(rnd.choice(runs))
    if "stranger" in due and p.cut_at is None:
        p.append(None, 0, [])
    if "retention" in due and p.log:
        p.start = rnd.randint(p.start, p.end)
        p.log = [batch for batch in p.log if batch.offset + batch.length > p.start]
    if "compaction" in due:
        compact(p, rnd)
    if "stale" in due:
        p.stale = None if p.stale is not None else (list(p.log), p.end)
    if "forget name" in due and len(runs) <= 1:  # a zombie that sleeps longer than the server remembers: see the docs
        runs.clear()
        world.forget_name()
    if "forget pids" in due and len(runs) <= 1:
        runs.clear()
        p.state.clear()
    if "recreate" in due:
        runs.clear()
        world.recreated.add(n)
        world.partitions[n] = Partition(str(int(p.topic_id) + 1))
        for _ in range(rnd.choice((0, 50))):
            world.partitions[n].append(None, 0, [])
    if "truncate" in due and p.log:
        runs.clear()
        world.recreated.add(n)  # what was cut off is lost, and the server says nothing
        cut = rnd.randrange(len(p.log))
        p.end = p.log[cut].offset
        p.offsets = [offset for offset in p.offsets if offset < p.end]
        del p.truth[len(p.offsets) :], p.log[cut:]
        p.state.clear()
        p.stale, p.cut_at, p.left = None, p.end, len(p.truth)


def compact(p: Partition, rnd: random.Random) -> None:
    """Remove records, and batches without records, but never a pid's newest batch."""
    newest = {batch.identity.pid: batch.offset for batch in p.log if batch.identity is not None}
    kept = []
    for batch in p.log[:-1]:
        items = {at: item for at, item in batch.items.items() if rnd.random() < 0.7}
        if items or rnd.random() < 0.3 or batch.offset in newest.values():
            kept.append(batch._replace(items=items))
    p.log = kept + p.log[-1:]


def check(world: World) -> None:
    for n, p in enumerate(world.partitions):
        if p.truth != EXPECTED[n][: len(p.truth)]:
            raise Broken(f"partition {n}: {p.truth}")


def survey(seeds: range, off: frozenset[str] = frozenset()) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        try:
            found[play(seed, off)] += 1
        except Broken as broken:
            found["BROKEN"] += 1
            found.setdefault(f"first: seed {seed}, {broken}", 1)
    return found


def test_every_record_is_written_once_or_the_run_says_why_it_cannot_know() -> None:
    """IDEM-4, IDEM-5."""
    first = random.randrange(10**9)
    print(f"seeds from {first}")
    found = survey(range(first, first + examples(600)))
    assert not found["BROKEN"], found
    assert found["complete"] > 0


def test_where_nothing_is_lost_or_forgotten_every_history_ends() -> None:
    first = random.randrange(10**9)
    print(f"seeds from {first}")
    for seed in range(first, first + examples(200)):
        assert play(seed, disturbances=PEACEFUL) in ("complete", "the name has written before"), f"seed {seed}"


PEACEFUL = frozenset({"stranger", "die", "start", "stale"})


@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_rule_the_promise_breaks(rule: str) -> None:
    for seed in range(20_000):
        try:
            play(seed, frozenset({rule}))
        except Broken:
            return
    raise AssertionError(f"no history needs the rule {rule!r}")


def test_places_in_deleted_topics_must_be_forgotten() -> None:
    off = frozenset({"places in deleted topics are forgotten"})
    assert any(play(seed, off, PEACEFUL) == "the topic was recreated" for seed in range(1000))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_histories_hold() -> None:
    found = survey(range(100_000))
    print(found)
    assert not found["BROKEN"], found


@pytest.mark.soak
@pytest.mark.parametrize("rule", RULES)
def test_how_many_histories_break_without_a_rule(rule: str) -> None:
    broken = survey(range(2000), frozenset({rule}))["BROKEN"]
    print(f"without {rule!r}: {broken} of 2000")
    assert broken
