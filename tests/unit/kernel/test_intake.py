"""The way into a partition's open batch: compiled and twin make the same batches and charge the same."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernel.implementations import COMPILED, NOW, TWIN, Kernel

pytestmark = pytest.mark.unit

TOPIC = "t"
BATCH_SIZE = 600


class Desk:
    """A topic whose slow way is as simple as can be: opens a batch, or closes the full one and opens the next."""

    def __init__(self, kernel: Kernel, partitions: int = 3, *, limit: int = 1 << 20) -> None:
        self.kernel = kernel
        self.budget = kernel.Budget(limit)
        self.lane = kernel.TopicSlots(self.budget)
        self.lane.set_slots([kernel.Slot() for _ in range(partitions)])
        self.lane.undesignated = kernel.Slot()
        self.closed: list[tuple[int, bytes]] = []
        self.slow = 0
        self.intake = kernel.Intake({TOPIC: self.lane}, kernel.Place, self.slowly, BATCH_SIZE)
        self.intake.is_open = True
        self.lock = threading.Lock()

    def slot(self, key: Any, partition: int | None) -> tuple[int, Any]:
        if partition is None and len(self.lane.slots) > 1:
            if key is None:
                return -1, self.lane.undesignated
            data = key.encode() if isinstance(key, str) else key
            partition = self.kernel.partition_for_key(data, len(self.lane.slots))
        index = partition or 0
        return index, self.lane.slots[index]

    def slowly(self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp: int) -> Any:
        with self.lock:
            self.slow += 1
            index, slot = self.slot(key, partition)
            size = 36 + sum(3 * len(part) for part in (key, value) if part is not None)
            if slot.builder is not None and slot.builder.size + size > BATCH_SIZE:
                self.close(index, slot)
            if slot.builder is None:
                slot.begin(object(), self.kernel.BatchBuilder(64))
            at = slot.append(self.lane, key, value, timestamp, headers)
            return self.kernel.Place(slot.batch, at, timestamp)

    def close(self, index: int, slot: Any) -> None:
        builder = slot.builder
        slot.end()
        self.closed.append((index, bytes(builder.build())))

    def close_all(self) -> list[tuple[int, bytes]]:
        for index, slot in [*enumerate(self.lane.slots), (-1, self.lane.undesignated)]:
            if slot.builder is not None:
                self.close(index, slot)
        return self.closed


small = st.none() | st.binary(max_size=60)


@given(
    records=st.lists(st.tuples(small, small, st.none() | st.integers(0, 2)), max_size=80),
    partitions=st.sampled_from([1, 3]),
)
def test_both_implementations_make_the_same_records_in_the_same_order(
    records: list[tuple[bytes | None, bytes | None, int | None]], partitions: int
) -> None:
    """Where a batch ends may differ (the slow way estimates); what is in it and in which order may not."""
    found = []
    for kernel in (COMPILED, TWIN):
        desk = Desk(kernel, partitions)
        for i, (key, value, partition) in enumerate(records):
            chosen = None if partition is None else partition % partitions
            desk.intake.send(TOPIC, value, key=key, partition=chosen, timestamp=NOW + i)
        by_slot: dict[int, list[Any]] = {}
        for index, batch in desk.close_all():
            by_slot.setdefault(index, []).extend(
                (record.timestamp, record.key, record.value) for record in kernel.decode_batch(batch)
            )
        found.append(by_slot)
    assert found[0] == found[1]


@given(records=st.lists(st.tuples(small, small), min_size=1, max_size=4))
def test_a_batch_that_both_close_at_the_same_record_is_equal_to_the_byte(
    records: list[tuple[bytes | None, bytes | None]],
) -> None:
    made, held = [], []
    for kernel in (COMPILED, TWIN):
        desk = Desk(kernel, 1)
        places = [desk.intake.send(TOPIC, v, key=k, timestamp=NOW + i) for i, (k, v) in enumerate(records)]
        assert [place.index for place in places] == list(range(len(records)))
        assert [place.timestamp for place in places] == [NOW + i for i in range(len(records))]
        assert {place.settlement for place in places} == {desk.lane.slots[0].batch}
        held.append((desk.lane.held, desk.budget.held))
        made.append(desk.close_all())
    assert made[0] == made[1]
    assert held[0] == held[1]
    assert held[0][0] == held[0][1]


def test_only_the_compiled_one_has_a_fast_way_and_it_takes_it() -> None:
    for kernel, slow in ((COMPILED, 1), (TWIN, 5)):
        desk = Desk(kernel)
        for i in range(5):
            desk.intake.send(TOPIC, b"v", key=b"k", timestamp=NOW + i)
        assert desk.slow == slow


@pytest.mark.parametrize(
    "how",
    [
        {"headers": [("h", b"1")]},
        {"key": bytearray(b"k"), "partition": 0},
        {"partition": True},
        {"topic": "unknown"},
        {"closed": True},
        {"partition": 0, "limit": 10},
    ],
    ids=["headers", "a bytearray", "a partition that is no int", "an unknown topic", "closed", "no room"],
)
def test_what_the_fast_way_cannot_do_goes_the_slow_way(kernel: Kernel, how: dict[str, Any]) -> None:
    desk = Desk(kernel, limit=how.pop("limit", 1 << 20))
    for partition in range(3):
        desk.intake.send(TOPIC, b"first", partition=partition, timestamp=NOW)
    taken: list[Any] = []
    desk.intake.slowly = lambda *record: taken.append(record)
    desk.intake.is_open = not how.pop("closed", False)
    desk.intake.send(how.pop("topic", TOPIC), b"v", timestamp=NOW, **how)
    assert len(taken) == 1


def test_a_partition_that_is_none_is_for_the_slow_way_to_refuse(kernel: Kernel) -> None:
    desk = Desk(kernel)
    taken: list[Any] = []
    desk.intake.slowly = lambda *record: taken.append(record[4])
    for partition in (-1, 3, 2**31, -(2**63), 2**70):
        desk.intake.send(TOPIC, b"v", partition=partition)
    assert taken == [-1, 3, 2**31, -(2**63), 2**70]


def test_a_kept_ticket_is_never_used_again(kernel: Kernel) -> None:
    """The compiled one uses the ticket of the record before once more, if nobody has it any more."""
    desk = Desk(kernel)
    kept = []
    for i in range(50):
        ticket = desk.intake.send(TOPIC, b"v", key=b"k", timestamp=NOW + i)
        if i % 3 == 0:
            kept.append(ticket)
        del ticket
    assert len({id(ticket) for ticket in kept}) == len(kept)
    assert [ticket.timestamp - NOW for ticket in kept] == list(range(0, 50, 3))


def test_a_ticket_that_only_a_container_or_a_frame_has_is_kept(kernel: Kernel) -> None:
    desk = Desk(kernel)
    desk.intake.send(TOPIC, b"first", partition=0, timestamp=NOW)
    pair = tuple(desk.intake.send(TOPIC, b"v", partition=0, timestamp=stamp) for stamp in (1, 2))
    assert [pair[0].timestamp, pair[1].timestamp] == [1, 2]
    assert [pair[0].index, pair[1].index] == [1, 2]


def test_a_record_without_a_timestamp_gets_the_time_of_its_send() -> None:
    desk, now = Desk(COMPILED, limit=1 << 40), time.time_ns
    desk.lane.slots[0].begin(object(), COMPILED.BatchBuilder())
    desk.lane.slots[0].append(desk.lane, None, b"first", NOW)
    wide = COMPILED.Intake({TOPIC: desk.lane}, COMPILED.Place, desk.slowly, 1 << 30)
    wide.is_open = True
    send = wide.send
    seen: set[int] = set()
    while len(seen) < 30:  # milliseconds, so that records come shortly before and after the next one begins
        before = now() // 1_000_000
        ticket = send(TOPIC, b"v", partition=0)
        after = now() // 1_000_000
        assert before <= ticket.timestamp <= after
        seen.add(ticket.timestamp)
    assert desk.slow == 0


def test_two_topics_in_turn_and_equal_names_find_their_own_lanes(kernel: Kernel) -> None:
    desk = Desk(kernel, 1)
    other = kernel.TopicSlots(desk.budget)
    other.set_slots([kernel.Slot()])
    taken: list[Any] = []
    lanes = {TOPIC * 9: desk.lane}
    intake = kernel.Intake(lanes, kernel.Place, lambda *record: taken.append(record[:2]), BATCH_SIZE)
    intake.is_open = True
    intake.send("u" * 9, b"unknown as yet", timestamp=NOW)
    lanes["u" * 9] = other
    for lane in (desk.lane, other):
        lane.slots[0].begin(object(), kernel.BatchBuilder())
        lane.slots[0].append(lane, None, b"first", NOW)
    for i in range(4):
        for name in ("t", "u"):
            intake.send("".join([name] * 9), b"%d" % i, timestamp=NOW)
    if kernel is COMPILED:
        assert taken == [("u" * 9, b"unknown as yet")]
        assert [desk.lane.slots[0].builder.count, other.slots[0].builder.count] == [5, 5]
    else:
        assert [topic[0] for topic, _ in taken] == ["u", *("t", "u") * 4]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topic": TOPIC},
        {"value": b"v"},
        {"topic": TOPIC, "value": b"v", "offset": 1},
        {"topic": TOPIC, "value": b"v", "": 1},
    ],
    ids=["none", "no value", "no topic", "an unknown one", "one without a name"],
)
def test_wrong_arguments_are_refused_as_python_does_it(kernel: Kernel, arguments: dict[str, Any]) -> None:
    desk = Desk(kernel)
    with pytest.raises(TypeError, match=r"send\(\)"):
        desk.intake.send(**arguments)
    with pytest.raises(TypeError, match=r"send\(\)"):
        desk.intake.send(TOPIC, b"v", b"k")
    with pytest.raises(TypeError, match=r"send\(\) got multiple values for argument 'topic'"):
        desk.intake.send(TOPIC, b"v", topic=TOPIC)
    assert desk.slow == 0


@given(st.permutations(["topic", "value", "key", "headers", "partition", "timestamp"]), st.integers(0, 2))
def test_arguments_have_their_names_in_any_order(names: list[str], positional: int) -> None:
    """Also names that are equal to the usual ones but not the same objects, as those of a parsed file."""
    values = {"topic": TOPIC, "value": b"v", "key": b"k", "headers": [("h", b"1")], "partition": 2, "timestamp": 5}
    first = [values[name] for name in ("topic", "value")[:positional]]
    rest = {"".join(list(name)): values[name] for name in names if name not in ("topic", "value")[:positional]}
    for kernel in (COMPILED, TWIN):
        taken: list[Any] = []
        desk = Desk(kernel)
        desk.intake.slowly = lambda *record, taken=taken: taken.append(record)
        desk.intake.send(*first, **rest)
        assert taken == [tuple(values.values())]


def test_a_ticket_type_must_be_a_place() -> None:
    with pytest.raises(TypeError, match="Place"):
        COMPILED.Intake({}, dict, print, 100)


def test_nothing_is_lost_or_doubled_when_threads_send_while_another_closes(kernel: Kernel) -> None:
    desk = Desk(kernel, 1)
    done = threading.Event()

    def caller(number: int) -> None:
        for i in range(2000):
            desk.intake.send(TOPIC, b"%d:%d" % (number, i), timestamp=NOW)

    def closer() -> None:
        while not done.is_set():
            with desk.lock:
                if desk.lane.slots[0].builder is not None:
                    desk.close(0, desk.lane.slots[0])

    closing = threading.Thread(target=closer)
    callers = [threading.Thread(target=caller, args=(number,)) for number in range(3)]
    for thread in (closing, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    done.set()
    closing.join()
    values = [record.value for _, batch in desk.close_all() for record in kernel.decode_batch(batch)]
    for number in range(3):
        mine = [int(value.split(b":")[1]) for value in values if value.startswith(b"%d:" % number)]
        assert mine == list(range(2000))
