"""PROD-5: records that are encoded before their topic's partitions are known lie where later ones would."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from fencepost.client.produce.partition_queue import UNDESIGNATED
from fencepost.client.produce.table import send_table
from fencepost.client.produce.ticket import Ticket
from fencepost.errors import Expired, FencepostError, NotOwned, SendFailed
from fencepost.kernel import BatchBuilder, partition_for_key
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small batches": {"batch_size": 300},
    "compressed": {"compression": "lz4", "batch_size": 1000},
    "serialized": {"value_serializer": bytes},
    "partitioner": {"partitioner": lambda key, count: len(key or b"") % count},
    "lingering": {"linger": 0.5},
}


@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_records_of_all_forms_lie_where_they_belong_whole_and_in_order(
    partitions: int, options: dict[str, Any]
) -> None:
    random = Random(f"{partitions} {sorted(options)}")
    on = cluster(2, t=partitions)
    producer = SteppedProducer(on, **options)
    sent: list[tuple[dict[str, Any], Ticket]] = []

    def send_some(count: int) -> None:
        for _ in range(count):
            fields: dict[str, Any] = {"value": b"%d" % len(sent)}
            if random.random() < 0.6:
                fields["key"] = b"k" * random.randrange(20)
            if random.random() < 0.2:
                fields["partition"] = random.randrange(partitions)
            if random.random() < 0.2:
                fields["headers"] = [("h", b"%d" % len(sent)), ("null", None)]
            if random.random() < 0.2:
                fields["timestamp"] = 1_600_000_000_000 + random.randrange(1000)
            sent.append((fields, producer.send("t", **fields)))

    send_some(random.randrange(1, 200))
    producer.step()
    send_some(random.randrange(200))
    called: list[Ticket] = []
    asked = [ticket for _, ticket in sent[::7]]
    for ticket in asked:
        ticket.add_done_callback(called.append)
    producer.settle()
    send_some(20)
    producer.settle()
    in_order: dict[int, list[int]] = defaultdict(list)
    for fields, ticket in sent:
        where = ticket.result(0)
        record = on.records("t", where.partition)[where.offset]
        assert (record.key, record.value) == (fields.get("key"), fields["value"])
        assert list(record.headers) == fields.get("headers", [])
        assert fields.get("timestamp", where.timestamp) == record.timestamp == where.timestamp
        by_key: Callable[[Any, int], int] = options.get("partitioner", partition_for_key)
        if "partition" in fields:
            assert where.partition == fields["partition"]
        elif "key" in fields or "partitioner" in options:
            assert where.partition == by_key(fields.get("key"), partitions)
        if partitions == 1 or "key" in fields or "partition" in fields or "partitioner" in options:
            in_order[where.partition].append(where.offset)
    assert all(offsets == sorted(offsets) for offsets in in_order.values())
    assert sum(len(on.records("t", partition)) for partition in range(partitions)) == len(sent)
    assert sorted(map(id, called)) == sorted(map(id, asked))
    assert producer.sender.queues.held == 0
    assert producer.sender.queues.is_empty


def test_records_without_a_key_keep_their_order_when_a_batch_is_divided() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on, batch_size=300)
    for number in range(120):
        if number % 40 == 7:
            producer.send("t", b"keyed", key=b"k")
        if number % 40 == 27:
            rows = pa.table({"value": [b"%03d" % number]})
            send_table(producer.sender.queues, producer.options, "t", rows, producer.clock.now_ms())
        else:
            producer.send("t", b"%03d" % number)
    producer.settle()
    for partition in range(2):
        stored = [value for value in on.values("t", partition) if value is not None and value != b"keyed"]
        assert stored == sorted(stored)
        assert stored


def test_a_key_counts_that_another_thread_sends_while_a_batch_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native `send` takes no lock. It must not add a key to a batch whose records may go to any partition."""
    on = cluster(t=20)
    producer = SteppedProducer(on)
    queues = producer.sender.queues
    producer.send("t", b"before", key=b"k")
    queues.seal_open(next(iter(queues.to_place)).undesignated_queue)
    note_route, delayed = queues._note_route, list[Any]()

    def send_meanwhile(*arguments: Any) -> int:
        queues.intake.send("t", b"meanwhile", key=b"k")
        return note_route(*arguments)

    monkeypatch.setattr(queues, "_note_route", send_meanwhile)
    monkeypatch.setattr(queues.intake, "slowly", lambda *record: delayed.append(record))  # waits for the lock, really
    queues.send("t", b"keyless")
    monkeypatch.undo()
    producer.settle()
    stored = on.values("t", partition_for_key(b"k", 20))
    assert (b"meanwhile" in stored) is not bool(delayed)
    assert b"before" in stored


def test_a_young_record_does_not_expire_with_an_old_one() -> None:
    """PROD-8. They waited for the topic in batches of their own, which are divided among the same partitions."""
    on = cluster()
    on.creates_topics = False
    producer = SteppedProducer(on, delivery_timeout=10.0, unknown_topic_timeout=60.0)
    old = [producer.send("t", b"old", partition=partition) for partition in (0, 1)]
    producer.run_for(9.8)
    young = [producer.send("t", b"young", partition=partition) for partition in (0, 1)]
    on.create("t", 4)
    producer.step_until(lambda: producer.sender.queues.partition_count("t") > 0)
    young.append(producer.send("t", b"youngest", partition=0))
    producer.settle()
    assert all(isinstance(ticket.exception(0), Expired) for ticket in old)
    assert [ticket.result(0).offset for ticket in young] == [0, 0, 1]


def test_what_cannot_be_placed_fails_alone() -> None:
    def chosen(key: bytes | None, count: int) -> int:
        if key == b"raise":
            raise ValueError("no idea")
        return 7 if key == b"seven" else 0

    on = cluster(t=2)
    failed: list[SendFailed] = []
    producer = SteppedProducer(on, partitioner=chosen, on_error=failed.append)
    fine = [producer.send("t", b"%d" % number, key=b"k") for number in range(3)]
    wrong = [producer.send("t", b"no", key=key) for key in (b"raise", b"seven", b"seven")]
    wrong.append(producer.send("t", b"no", partition=2))
    fine.append(producer.send("t", b"3", partition=1))
    producer.settle()
    assert [ticket.result(0).partition for ticket in fine] == [0, 0, 0, 1]
    said = [str(ticket.exception(0)) for ticket in wrong]
    assert "no idea" in said[0]
    assert all("there is no partition 7" in each for each in said[1:3])
    assert "there is no partition 2" in said[3]
    assert sum(error.count for error in failed) == 4
    assert producer.sender.queues.held == 0


@pytest.mark.parametrize("known", [False, True], ids=["new topic", "known topic"])
@pytest.mark.parametrize("choice", [0.5, 1.0, None, "1"])
def test_a_choice_that_is_no_whole_number_fails_alone(choice: Any, known: bool) -> None:
    """And does not end the send thread."""
    on = cluster(t=2)
    producer = SteppedProducer(on, partitioner=lambda key, count: choice if key == b"bad" else 0)
    first = producer.send("t", b"first", key=b"k")
    if known:
        producer.settle()
        with pytest.raises(TypeError):
            producer.send("t", b"no", key=b"bad")
    else:
        wrong = producer.send("t", b"no", key=b"bad")
    last = producer.send("t", b"last", key=b"k")
    producer.settle()
    if not known:
        assert "TypeError" in str(wrong.exception(0))
    assert [first.result(0).offset, last.result(0).offset] == [0, 1]


def test_rows_that_fail_after_the_topic_has_become_known_are_settled() -> None:
    """A flush waited for ever for a row that failed while the table waited for room."""
    on = cluster(t=2)
    producer = SteppedProducer(on)
    queues = producer.sender.queues
    producer.send("t", b"first", partition=0)
    producer.settle()
    builder = BatchBuilder()
    for number in range(3):
        builder.append(None, b"%d" % number, 0)
    batch = queues.enqueue("t", UNDESIGNATED, builder, {0: 1, 1: 9, 2: 1})  # it has waited for room
    producer.settle()
    assert on.values("t", 1) == [b"0", b"2"]
    assert "there is no partition 9" in str(Ticket(batch, 1, 0).exception(0))
    assert queues.held == 0


def test_rows_keep_the_partitions_they_name_when_a_signal_handler_raises_in_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = cluster(t=20)
    producer = SteppedProducer(on)
    queues = producer.sender.queues

    def interrupt() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    producer.send("t", b"first", partition=0)
    builder = BatchBuilder()
    builder.append(None, b"second", 0)
    monkeypatch.setattr(queues, "_wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queues.enqueue("t", UNDESIGNATED, builder, {0: 13})
    producer.settle()
    assert on.values("t", 13) == [b"second"]


def test_an_owners_records_go_only_where_it_owns() -> None:
    """A key that chooses another partition is refused; a named partition is the caller's choice."""
    on = cluster(t=4)
    producer = SteppedProducer(on)
    producer.sender.queues.write_only_to({"t": frozenset({2})})
    keys = [b"%d" % number for number in range(20)]
    tickets = [producer.send("t", key, key=key) for key in keys]
    keyless, named = producer.send("t", b"v"), producer.send("t", b"v", partition=1)
    producer.settle()
    for key, ticket in zip(keys, tickets, strict=True):
        if partition_for_key(key, 4) == 2:
            assert ticket.result(0).partition == 2
        else:
            assert isinstance(ticket.exception(0), NotOwned)
    assert (keyless.result(0).partition, named.result(0).partition) == (2, 1)


def test_a_producer_with_saved_ids_names_every_partition() -> None:
    """IDEM-4: a record that chance would place could not be sent again."""
    producer = SteppedProducer(cluster(t=2))
    producer.sender.queues.needs_partitions = True
    by_chance, by_key = producer.send("t", b"v"), producer.send("t", b"v", key=b"k")
    producer.settle()
    assert isinstance(by_chance.exception(0), FencepostError)
    assert by_key.result(0).partition == partition_for_key(b"k", 2)


def test_a_dead_leader_holds_up_nobody_else() -> None:
    """PROD-6: records that shared a batch before the partitions were known do not wait for each other."""
    on = cluster(2, t=2)
    on.move_leader("t", 0, 0)
    on.move_leader("t", 1, 1)
    on.kill(1)
    producer = SteppedProducer(on)
    tickets = [producer.send("t", b"v", partition=number % 2) for number in range(10)]
    producer.run_for(1.0)
    assert [ticket.done() for ticket in tickets] == [True, False] * 5


@pytest.mark.parametrize("batch_size", [200, 1 << 17])
def test_a_tables_rows_lie_where_their_keys_choose_and_its_ticket_says_where(batch_size: int) -> None:
    on = cluster(t=5)
    producer = SteppedProducer(on, batch_size=batch_size)
    first = producer.send("t", b"before", key=b"1")
    keys = [b"%d" % (number % 13) for number in range(200)]
    values = [b"%d" % number for number in range(200)]
    headers = pa.array([[("h", b"x")]] * 200, pa.map_(pa.string(), pa.binary()))
    table = pa.table({"key": keys, "value": values, "headers": headers})
    rows = send_table(producer.sender.queues, producer.options, "t", table, 1_700_000_000_000)
    last = producer.send("t", b"after", key=b"1")
    producer.settle()
    assert rows.done()
    assert sum(run.records for run in rows.result(0)) == 200
    found = [
        record.value
        for run in rows.result(0)
        for record in on.records("t", run.partition)[run.offset : run.offset + run.records]
    ]
    assert sorted(found) == sorted(values)
    for partition in range(5):
        mine = [value for key, value in zip(keys, values, strict=True) if partition_for_key(key, 5) == partition]
        there = [value for value in on.values("t", partition) if value not in (b"before", b"after")]
        assert there == mine
    assert first.result(0).offset == 0
    assert last.result(0).offset == len(on.values("t", partition_for_key(b"1", 5))) - 1
    assert all(record.headers == (("h", b"x"),) for record in on.records("t", 0) if record.value in values)
