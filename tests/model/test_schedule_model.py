"""The schedule of a producer, played alone: few and ten thousand partitions, several topics and brokers.

Brokers here take a time for each byte, refuse, lose answers and stand still. After every turn the promises are checked:
order, linger, windows, deadlines, fairness, no standstill, and that a partition stands in one list at most. Each fault
of `FAULTS` is planted into the schedule in turn, and must be noticed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from fencepost.core.producers import schedule as rules
from fencepost.core.producers import window as windows
from fencepost.core.producers.inflight import Flight, Sent, Stamp, Step
from fencepost.core.producers.pid import Identity
from fencepost.core.producers.schedule import READY, Action, Decision, Line, Schedule
from fencepost.core.producers.window import LITTLE, Room, Window
from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Offset, Pid
from tests.support.examples import examples

pytestmark = pytest.mark.model

ME = Identity(Pid(1), Epoch(0))
BATCH_SIZE = 32 << 10
SOON = rules.LONG_GATHER + rules.LONGEST_REST + 0.05
"""Seconds in which a batch is sent whose linger is over, if its leader has nothing else to do."""


@dataclass(eq=False)
class Batch:
    number: int
    opened: float
    deadline: float
    size: int


class Queue:
    """A partition's queue, as the schedule sees it."""

    is_mixed = False

    def __init__(self, topic: str, index: int, leader: int) -> None:
        self.topic = topic
        self.index = index
        self.leader = leader
        self.sealed: list[Batch] = []
        self.open: Batch | None = None
        self.flight: Flight[Batch] | None = None
        self.next_number = 0
        self.log: list[int] = []
        """Numbers of the batches that its leader has."""
        self.last_epoch, self.next_sequence = -1, 0
        """Of the producer, as its leader knows them."""
        self.lost: list[int] = []
        """Numbers of the batches that have failed."""

    @property
    def next_size(self) -> int:
        return self.sealed[0].size if self.sealed else self.open.size if self.open is not None else 0

    @property
    def is_followed_up(self) -> bool:
        return self.flight is not None and self.flight.in_flight > 0

    def first_to_expire(self) -> Batch | None:
        return self.sealed[0] if self.sealed else self.open

    def receive(self, batch: Batch, stamp: Stamp) -> None:
        """Append the batch, if its sequence is the next one: what its leader does."""
        if stamp.epoch > self.last_epoch:
            self.last_epoch, self.next_sequence = stamp.epoch, 0
        if (stamp.epoch, stamp.sequence) == (self.last_epoch, self.next_sequence):
            assert not self.log or self.log[-1] < batch.number, "the log is out of order"
            self.log.append(batch.number)
            self.next_sequence += 1

    def take(self) -> Batch:
        if self.sealed:
            return self.sealed.pop(0)
        batch, self.open = self.open, None
        assert batch is not None
        return batch


@dataclass
class Broker:
    window: Window = field(default_factory=Window)
    busy_until: float = 0.0
    stands_still: bool = False


@dataclass(order=True)
class Answer:
    at: float
    number: int
    queue: Queue = field(compare=False)
    sent: Sent[Batch] = field(compare=False)
    stamp: Stamp = field(compare=False)
    fate: str = field(compare=False)
    size: int = field(compare=False)


class Play:
    """A producer's turns around the schedule, brokers that answer, and the promises."""

    def __init__(
        self,
        random: Random,
        *,
        topics: dict[str, int],
        brokers: int = 2,
        linger: float = 0.005,
        delivery_timeout: float = 5.0,
        rate: float = 50e6,
        faults: float = 0.0,
    ) -> None:
        self.random = random
        self.now = 0.0
        self.linger, self.timeout, self.rate, self.faults = linger, delivery_timeout, rate, faults
        self.schedule: Schedule[Queue] = Schedule(linger=linger, delivery_timeout=delivery_timeout)
        self.brokers = [Broker() for _ in range(brokers)]
        self.queues = {
            name: [Queue(name, index, index % brokers) for index in range(count)] for name, count in topics.items()
        }
        self.answers: list[Answer] = []
        self.unsettled: dict[Batch, Queue] = {}
        self.sent_of_topic: Counter[str] = Counter()
        self.decided = self.sent = self.turns = self._numbers = 0
        decide = self.schedule.decide

        def count_and_decide(queue: Queue, now: float) -> Decision:
            self.decided += 1
            return decide(queue, now)

        self.schedule.decide = count_and_decide  # type: ignore[method-assign]

    def everybody(self) -> Iterator[Queue]:
        for queues in self.queues.values():
            yield from queues

    # --- a caller ---

    def append(self, queue: Queue, size: int) -> None:
        if queue.open is not None and queue.open.size + size > BATCH_SIZE:
            queue.sealed.append(queue.open)
            queue.open = None
            self.schedule.changed(queue)
        if queue.open is None:
            queue.open = Batch(queue.next_number, self.now, self.now + self.timeout, 0)
            queue.next_number += 1
            self.unsettled[queue.open] = queue
            self.schedule.changed(queue)
        queue.open.size += size

    # --- a turn ---

    def turn(self) -> None:
        now, schedule = self.now, self.schedule
        self.turns += 1
        looks_at_all = len(self.unsettled) < 500 or not self.turns % 50
        if looks_at_all:
            late = [batch for batch in self.unsettled if batch.deadline < now - 1e-6]
            assert not late, "a deadline is missed: no turn came in time"
        while changed := schedule.take_changed(now):
            for queue in changed:
                self._look_at(queue)
            if not schedule.has_changes:
                break
        if looks_at_all:
            assert not [batch for batch in self.unsettled if batch.deadline <= now], "a deadline is missed"
        is_resting = schedule.is_resting(now)
        sent = sum([self._send_to(line, is_resting) for line in schedule.lines()])
        if sent:
            schedule.rest(sent, 0.0, now)
        if looks_at_all:
            check_lists(schedule)

    def _look_at(self, queue: Queue) -> None:
        schedule, now = self.schedule, self.now
        while True:
            decision = schedule.decide(queue, now)
            match decision.action:
                case Action.EXPIRE:
                    assert self._expire(queue), "nothing has expired"
                case Action.LOOK_BACK:
                    assert queue.flight is not None
                    asked = queue.flight.in_doubt()
                    found = {sent.stamp: Offset(0) for sent in asked if sent.batch.number in queue.log}
                    for sent, _ in queue.flight.looked_back(found, asked):
                        del self.unsettled[sent.batch]
                case Action.BUMP:
                    assert queue.flight is not None
                    assert queue.flight.identity is not None
                    for sent in queue.flight.take_late():
                        self._fail(queue, sent.batch)
                    pid, epoch = queue.flight.identity
                    queue.flight.renumber(Identity(pid, Epoch(epoch + 1)))
                case Action.NOTHING:
                    schedule.forget(queue)
                    return
                case _:
                    schedule.place(queue, decision, queue.leader, now)
                    return

    def _expire(self, queue: Queue) -> bool:
        overdue = [sent for sent in queue.flight or () if sent.batch.deadline <= self.now]
        for sent in overdue:
            assert queue.flight is not None
            queue.flight.give_up(sent)
            self._fail(queue, sent.batch)
        count = len(overdue)
        while (batch := queue.first_to_expire()) is not None and batch.deadline <= self.now:
            self._fail(queue, queue.take())
            count += 1
        return count > 0

    def _fail(self, queue: Queue, batch: Batch) -> None:
        del self.unsettled[batch]
        queue.lost.append(batch.number)

    def _send_to(self, line: Line[Queue], is_resting: bool) -> int:
        broker, sent = self.brokers[line.leader], 0
        room, everybody = broker.window.room(BATCH_SIZE), line.begin_turn(self.now)
        if not everybody and not is_resting:
            while room.admits(small=True) and (queue := line.next_small()) is not None:
                sent += self._send(queue, broker, room)
                line.went_ahead()
        while room.admits(small=False):
            small_too = not is_resting and room.admits(small=True)
            next_one = line.next_in_order(self.now, small_too=small_too, everybody=everybody)
            if next_one is None:
                break
            sent += self._send(next_one, broker, room)
        return sent

    def _send(self, queue: Queue, broker: Broker, room: Room) -> int:
        schedule, now = self.schedule, self.now
        decision = schedule.decide(queue, now)
        if decision.action not in READY:  # it has become too late
            schedule.changed(queue)
            return 0
        if queue.flight is None:
            queue.flight = Flight()
            queue.flight.begin(ME)
        flight, window = queue.flight, broker.window
        if decision.action is Action.RESEND:
            sent = flight.resend()
        else:
            assert all(earlier.in_flight for earlier in flight), "order: an earlier batch is to be sent again first"
            assert flight.next_step(now) is Step.SEND, "order: the partition has to wait"
            is_full = bool(queue.sealed)
            batch = queue.take()
            if not is_full and not schedule.is_hurried:
                assert now >= batch.opened + self.linger, "linger is not kept"
            assert batch.deadline > now
            sent = flight.send(batch, 1)
        size, is_small = sent.batch.size, sent.batch.size <= LITTLE
        limit = max(windows.BATCHES * BATCH_SIZE, window.size(BATCH_SIZE)) * (2 if is_small else 1)
        assert window.under_way < limit, "the window is not kept"
        assert not is_small or window.batches < windows.MOST_BATCHES, "too many small batches are in flight"
        window.sent(size, now, int(is_small))
        room.take(size)
        self.sent += 1
        self.sent_of_topic[queue.topic] += 1
        schedule.was_sent(queue, sent.batch.deadline)
        self._look_at(queue)
        fate = "answer"
        if broker.stands_still:
            fate = "none"
        elif self.random.random() < self.faults:
            fate = self.random.choice(["refuse", "lose answer", "lose request"])
        broker.busy_until = max(broker.busy_until, now) + 2e-5 + size / self.rate
        self._numbers += 1
        heapq.heappush(
            self.answers, Answer(broker.busy_until + 0.001, self._numbers, queue, sent, sent.stamp, fate, size)
        )
        return 1

    # --- the brokers ---

    def _answer(self, answer: Answer) -> None:
        queue, sent, now = answer.queue, answer.sent, self.now
        flight, batch = queue.flight, sent.batch
        assert flight is not None
        if answer.fate == "none":
            if not self.brokers[queue.leader].stands_still:  # it goes on where it stood still
                answer.fate = "answer"
            else:
                answer.at = now + 0.5
                heapq.heappush(self.answers, answer)
                return
        self.brokers[queue.leader].window.answered(answer.size, now, int(answer.size <= LITTLE))
        if answer.fate != "lose request" and answer.fate != "refuse":
            queue.receive(batch, answer.stamp)
        has_it = batch.number in queue.log
        if sent not in flight:
            return
        self.schedule.changed(queue)
        if answer.fate == "answer" and has_it:
            flight.acknowledged(sent, Offset(len(queue.log)), now)
            del self.unsettled[batch]
        elif answer.fate == "answer":
            flight.refused(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, now, 0.05)
        elif answer.fate == "refuse":
            flight.refused(sent, ErrorCode.NOT_LEADER_OR_FOLLOWER, now, 0.05)
        else:
            flight.lost(sent, now, 0.05)

    # --- time ---

    def run_until(self, end: float, then: Callable[[], object] = bool) -> None:
        """Play turns. `then` is called before each one, for the callers."""
        while True:
            then()
            self.turn()
            self._check_progress()
            moment = self.now if self.schedule.has_changes else self.schedule.next_moment(self.now)
            if self.answers:
                moment = min(moment, self.answers[0].at)
            if moment > end:
                self.now = end
                return
            self.now = max(self.now, moment)
            while self.answers and self.answers[0].at <= self.now:
                self._answer(heapq.heappop(self.answers))

    def _check_progress(self) -> None:
        """Nobody waits for long whose leader has nothing to do."""
        if self.turns % 20 or self.schedule.is_resting(self.now):
            return
        for batch, queue in self.unsettled.items():
            flight = queue.flight
            if queue.first_to_expire() is not batch or (
                flight is not None and (len(flight) or self.now < flight.not_before)
            ):
                continue
            if batch.deadline - self.now > rules.TOO_LATE_MAX and self.now - batch.opened - self.linger > SOON:
                assert self.brokers[queue.leader].window.under_way, "a standstill: its leader has nothing to do"

    def finish(self) -> None:
        """Without faults everything that is left arrives, in order."""
        self.faults = 0.0
        for broker in self.brokers:
            broker.stands_still = False
        self.run_until(self.now + 3 * self.timeout)
        assert not self.unsettled, "a standstill: nothing happens any more"
        assert not self.answers
        for queue in self.everybody():
            assert queue.log == sorted(set(queue.log))
            assert set(queue.log) | set(queue.lost) == set(range(queue.next_number))
        assert not list(self.schedule.active), "a partition without anything to do is active"
        assert self.schedule.next_moment(self.now) == float("inf")


def check_lists(schedule: Schedule[Queue]) -> None:
    """Every ready partition stands in one list, and the counts are true."""
    found: Counter[Any] = Counter()
    for line in schedule._lines.values():
        small = large = 0
        for topic in line._in_turn:
            entries = topic.entries()
            assert sum(entry.is_large for entry in entries) == topic.large_count, "the large ones are counted wrong"
            assert len(entries) == len(topic), "the small ones are counted wrong"
            small, large = small + topic.small_count, large + topic.large_count
            found.update(entries)
        assert (small, large) == (line.small_count, line.large_count)
    assert all(count == 1 for count in found.values()), "a partition is in two lists"
    for entry in schedule._entries.values():
        assert (entry.in_line is not None) == (entry in found), "a partition is in a list that it does not know"


# --- histories ---


def few(seed: int) -> None:
    """Random callers, refusals, lost answers, and a broker that stands still for a while."""
    random = Random(seed)
    topics = {f"t{number}": random.randint(1, 8) for number in range(random.randint(1, 4))}
    play = Play(
        random,
        topics=topics,
        brokers=random.randint(1, 3),
        linger=random.choice([0.0, 0.005, 0.1]),
        rate=random.choice([2e6, 50e6]),
        faults=random.choice([0.0, 0.1, 0.3]),
    )
    everybody = list(play.everybody())
    for _ in range(60):
        for _ in range(random.randint(0, 20)):
            play.append(random.choice(everybody), random.choice([100, 100, 3_000, 20_000]))
        if random.random() < 0.05:
            play.random.choice(play.brokers).stands_still ^= True
        play.run_until(play.now + random.choice([0.0, 0.003, 0.2, 1.0]))
    play.finish()


def flooded(seed: int) -> None:
    """Fairness: topics and partitions that always have more than their leader takes get equal shares of it, however
    many partitions each topic has; one with a little is not kept waiting (PROD-6)."""
    play = Play(Random(seed), topics={"wide": 40, "narrow": 2, "light": 1}, brokers=1, rate=20e6, linger=0.0)

    def fill() -> None:
        for name in ("wide", "narrow"):
            for queue in play.queues[name]:
                while len(queue.sealed) < 2:
                    play.append(queue, 20_000)
        light = play.queues["light"][0]
        if light.open is None:
            play.append(light, 100)

    play.run_until(3.0, fill)
    wide, narrow, light = (play.sent_of_topic[name] for name in ("wide", "narrow", "light"))
    assert min(wide, narrow) * 2 > max(wide, narrow), f"a topic is starved: {wide} and {narrow}"
    assert light > 100, f"a topic is starved: {light}"
    shares = [len(queue.log) for queue in play.queues["wide"]]
    assert min(shares) * 2 >= max(shares), "a partition is starved"
    play.finish()


def many(seed: int, partitions: int = 10_000) -> None:
    """Ten thousand partitions with a record each, again and again, on three brokers and in three topics."""
    random = Random(seed)
    play = Play(random, topics={"a": partitions // 2, "b": partitions // 4, "c": partitions // 4}, brokers=3)
    everybody = list(play.everybody())
    for _ in range(3):
        for queue in everybody:
            play.append(queue, 100)
        play.run_until(play.now + 0.5)
        for queue in random.sample(everybody, 100):
            play.append(queue, 20_000)
        play.run_until(play.now + 0.02)
    assert all(len(queue.log) >= 2 for queue in everybody), "a partition is starved"
    play.finish()
    assert play.decided < 8 * play.sent, "a turn costs what it sends"


HISTORIES: list[Callable[[int], None]] = [few, flooded]
RUNS_PER_TEST = examples(5)


@pytest.mark.parametrize("seed", range(0, 10 * RUNS_PER_TEST, RUNS_PER_TEST))
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_promise_is_kept(history: Callable[[int], None], seed: int) -> None:
    """PROD-4, PROD-6, PROD-8, PROD-9, IDEM-6."""
    for each in range(seed, seed + (RUNS_PER_TEST if history is few else 1)):
        try:
            history(each)
        except BaseException as error:
            error.add_note(f"seed {each}")
            raise


def test_ten_thousand_partitions_cost_what_they_send() -> None:
    """PROD-11."""
    many(1)


def test_one_record_beside_ten_thousand_partitions_in_flight_costs_its_own_turn() -> None:
    """PROD-11: nobody looks at those that only wait for their answers."""
    play = Play(Random(1), topics={"many": 10_000, "one": 1}, brokers=1, rate=1e12, linger=0.0)
    for queue in play.queues["many"]:
        play.append(queue, 100)
    play.run_until(play.now + 3.0)
    play.brokers[0].stands_still = True
    for queue in play.queues["many"][:1500]:
        play.append(queue, 100)
    play.run_until(play.now + 0.2)
    play.decided = 0
    for _ in range(20):
        play.append(play.queues["one"][0], 100)
        play.run_until(play.now + 0.001)
    assert play.decided < 200
    play.finish()


def test_a_large_batch_is_sent_beside_few_partitions_that_keep_the_window_full() -> None:
    """PROD-6: so few that their small batches go first. They fill the window again whenever there is room."""
    play = Play(Random(1), topics={"busy": rules.FEW_PARTITIONS, "large": 1}, brokers=1, rate=2e6, linger=0.0)
    play.schedule.hurry(is_hurried=True)
    (large,) = play.queues["large"]

    def fill() -> None:
        for queue in play.queues["busy"]:
            if queue.open is None:
                play.append(queue, LITTLE)

    play.run_until(1.0, fill)
    for _ in range(5):
        play.append(large, 20_000)
        began, before = play.now, len(large.log)
        play.run_until(began + 2.0, fill)
        assert len(large.log) > before, "a partition is starved"
    assert min(len(queue.log) for queue in play.queues["busy"]) > 30
    play.finish()


def test_a_batch_that_expires_in_the_next_moments_is_not_sent() -> None:
    """PROD-8: its answer would come too late, and it would be unknown whether it is persisted. Unsent, it is not."""
    play = Play(Random(1), topics={"t": 1}, brokers=1, delivery_timeout=2.0, linger=0.0)
    (queue,) = play.queues["t"]
    play.append(queue, 100)
    play.run_until(0.5)
    play.brokers[0].stands_still = True
    began = play.now
    play.append(queue, 100)
    play.run_until(began + 0.01)
    assert queue.flight is not None
    assert queue.flight.in_flight == 1
    for _ in range(6):  # more than may be in flight; the last one is opened a moment after the first
        play.append(queue, 20_000)
        play.run_until(play.now + 0.008)
    waiting = list(queue.sealed)
    sent = play.sent
    play.run_until(began + 2.2)
    assert waiting
    assert play.sent == sent
    assert not play.unsettled


# --- planted faults ---


def linger_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Schedule, "ready_at", lambda *_: float("-inf"))


def window_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Room, "admits", lambda *_, **__: True)


def topic_starved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Line, "_by_turns", lambda line: iter([topic for topic in line._in_turn if len(topic)]))


def deadline_missed(patch: pytest.MonkeyPatch) -> None:
    decide = Schedule.decide

    def without_deadlines(schedule: Schedule[Queue], queue: Queue, now: float) -> Decision:
        decision = decide(schedule, queue, now)
        return Decision(Action.WAIT, float("inf")) if decision.action is Action.EXPIRE else decision

    patch.setattr(Schedule, "decide", without_deadlines)


def order_broken_after_a_retry(patch: pytest.MonkeyPatch) -> None:
    decide = Schedule.decide

    def new_ones_first(schedule: Schedule[Queue], queue: Queue, now: float) -> Decision:
        decision = decide(schedule, queue, now)
        is_new_there = queue.first_to_expire() is not None
        return (
            Decision(Action.SEND, decision.again_at) if decision.action is Action.RESEND and is_new_there else decision
        )

    patch.setattr(Schedule, "decide", new_ones_first)


def lost_wake_up(patch: pytest.MonkeyPatch) -> None:
    changed, calls = Schedule.changed, Counter[str]()

    def sometimes(schedule: Schedule[Queue], queue: Queue) -> None:
        calls["all"] += 1
        if calls["all"] % 20:
            changed(schedule, queue)

    patch.setattr(Schedule, "changed", sometimes)


def partition_in_two_lists(patch: pytest.MonkeyPatch) -> None:
    remove = rules._TopicLine.remove

    def remains(topic: Any, entry: Any) -> None:
        remove(topic, entry)
        if len(topic):
            entry.in_line = topic

    patch.setattr(rules._TopicLine, "remove", remains)


def due_time_dropped(patch: pytest.MonkeyPatch) -> None:
    note, calls = Schedule._note_due, Counter[str]()

    def sometimes(schedule: Schedule[Queue], entry: Any, moment: float) -> None:
        calls["all"] += 1
        if calls["all"] % 20:
            note(schedule, entry, moment)

    patch.setattr(Schedule, "_note_due", sometimes)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    linger_ignored,
    window_ignored,
    topic_starved,
    deadline_missed,
    order_broken_after_a_retry,
    lost_wake_up,
    partition_in_two_lists,
    due_time_dropped,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    noticed = 0
    for seed in range(12):
        for history in HISTORIES if seed < 2 else [few]:
            try:
                history(seed)
            except (AssertionError, ValueError, IndexError):  # counts and lists that contradict each other
                noticed += 1
    assert noticed > 0
