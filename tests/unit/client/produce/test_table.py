"""`send_arrow`: a table's ticket says truthfully which of its rows are in the log (PROD-8)."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from random import Random

import pyarrow as pa
import pytest

from fencepost.client.produce.table import send_table
from fencepost.errors import BufferFull, ErrorCode, Expired, RecordTooLarge, SendFailed
from fencepost.types import TableRows
from tests.support.scripted import Api, ErrorAnswer, Fate, Script
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("is_known", [True, False])
def test_a_table_with_one_dead_leader_is_partly_there_and_says_which_rows(is_known: bool) -> None:
    on = cluster(2, t=2)
    producer = SteppedProducer(on, delivery_timeout=5.0)
    if is_known:
        producer.send("t", b"known", partition=0)
        producer.settle()
    on.move_leader("t", 0, 0)
    on.move_leader("t", 1, 1)
    on.choose = lambda request: Fate.IGNORE if request.key == Api.PRODUCE and request.node == 1 else Fate.ANSWER
    table = pa.concat_tables(
        [
            pa.table({"value": [b"0", b"1", b"2"], "partition": [0, 1, 1]}),
            pa.table({"value": [b"3", b"4", b"5", b"6"], "partition": [0, 0, 1, 0]}),
        ]
    )
    ticket = send_table(producer.sender.queues, producer.options, "t", table, producer.clock.now_ms())
    producer.settle()
    error = ticket.exception(0)
    assert isinstance(error, Expired)
    assert (error.persisted, error.count, error.retriable) == ("partly", 3, False)
    there = range(1), range(3, 5), range(6, 7)
    if is_known:  # one batch was in flight
        assert "of the table's 7 rows 4 are in the log, 1 are not, and 2 may be" in str(error)
        assert error.rows == TableRows(there, (range(5, 6),), (range(1, 3),))
    else:  # the rows of both chunks were in it
        assert "of the table's 7 rows 4 are in the log, 0 are not, and 3 may be" in str(error)
        assert error.rows == TableRows(there, (), (range(1, 3), range(5, 6)))
    assert ticket.rows(0) == error.rows
    assert isinstance(error.__cause__, Expired)
    assert error.__cause__.persisted == "unknown"


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_to_a_table_its_rows_tell_the_truth(seed: int) -> None:
    """Batches are refused, split, lost, or too many for the memory."""
    random = Random(seed)
    on = cluster(2, t=3)
    fates: list[Script] = [
        Fate.ANSWER,
        Fate.ANSWER,
        Fate.IGNORE,
        Fate.CUT,
        ErrorAnswer(ErrorCode.INVALID_RECORD),
        ErrorAnswer(ErrorCode.MESSAGE_TOO_LARGE),
    ]
    on.choose = lambda request: random.choice(fates) if request.key == Api.PRODUCE else Fate.ANSWER
    memory = random.choice([4_000, 1 << 20])
    producer = SteppedProducer(
        on, batch_size=120, buffer_memory=memory, block_timeout=0, delivery_timeout=3.0, request_timeout=1.0
    )
    if random.random() < 0.5:
        producer.send("t", b"", partition=0)
        producer.settle()
    chunks = []
    for start in range(0, 60, 20):
        values = [b"%d" % number for number in range(start, start + 20)]
        chunks.append(pa.table({"value": values, "partition": [random.randrange(3) for _ in values]}))
    table = pa.concat_tables(chunks)
    try:
        ticket = send_table(producer.sender.queues, producer.options, "t", table, producer.clock.now_ms())
    except BufferFull as error:
        ticket = error.accepted
    producer.settle()
    rows = ticket.rows(0)
    there = Counter(value for partition in range(3) for value in on.values("t", partition))
    values = table.column("value").to_pylist()
    told = [{row for each in ranges for row in each} for ranges in rows]
    assert sorted(chain(*told)) == list(range(60))
    assert all(there[values[row]] == 1 for row in told[0])
    assert all(there[values[row]] == 0 for row in told[1])
    assert all(there[values[row]] <= 1 for row in told[2])
    if (failure := ticket.exception(0)) is not None:
        assert isinstance(failure, SendFailed)
        assert failure.persisted == ("partly" if told[0] else "unknown" if told[2] else "no")


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        ({"value": b"v" * 60_000}, RecordTooLarge, "needs a buffer_memory of at least"),
        ({"headers": [("h", b"1"), (None, b"2")]}, ValueError, "row 99: a header has no name"),
        ({"headers": [None]}, ValueError, "row 99: a header has no name"),
    ],
)
def test_a_row_that_cannot_be_sent_is_found_before_the_first_row_is_accepted(
    is_known: bool, last: dict[str, object], error: type[Exception], message: str
) -> None:
    producer = SteppedProducer(cluster(t=1), batch_size=1_000, buffer_memory=100_000)
    if is_known:
        producer.send("t", b"known", partition=0)
        producer.settle()
    rows = [{"value": b"v" * 100, "headers": [("h", b"1")]} for _ in range(99)]
    columns = pa.schema([("value", pa.binary()), ("headers", HEADERS)])
    tables = [pa.Table.from_pylist(each, columns) for each in (rows[:50], [*rows[50:], {"value": b"v", **last}])]
    with pytest.raises(error, match=message):
        send_table(producer.sender.queues, producer.options, "t", pa.concat_tables(tables), producer.clock.now_ms())
    assert producer.sender.queues.held == 0
