"""What an application cannot do with a producer or reader is refused at once, in words that help."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fencepost
from fencepost import Admin, AsyncProducer, AsyncReader, FencepostError, Producer, Reader
from tests.support.process import free_port
from tests.support.programs import values

pytestmark = pytest.mark.integration

TABLE = pa.table({"key": ["a", "b"], "value": ["1", "2"]})


# --- pickle and copy ---


@pytest.mark.parametrize("crossing", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_can_be_neither_pickled_nor_copied(address: str, topic: str, crossing: Callable[[Any], Any]) -> None:
    """Closing a copy would close the original."""
    with Producer(address) as producer, Reader(address, topic) as reader, Admin(address) as admin:
        ticket = producer.send(topic, b"value")
        for client in (producer, reader, admin, AsyncProducer(address), AsyncReader(address, topic)):
            with pytest.raises(TypeError, match=f"a {type(client).__name__} cannot be .*: create one in each process"):
                crossing(client)
        with pytest.raises(TypeError, match="a ticket cannot be pickled or copied"):
            crossing(ticket)


# --- callbacks ---


def raised_in_callback(producer: Producer, topic: str, call: Callable[[], object]) -> BaseException | None:
    """What the call raises on the send thread."""
    raised: list[BaseException | None] = []
    done = threading.Event()

    def callback(ticket: object) -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    producer.send(topic, b"first").add_done_callback(callback)
    assert done.wait(60), "the call hangs"
    return raised[0]


@pytest.mark.parametrize("call", ["flush", "close", "result", "exception", "ids", "transaction"])
def test_a_callback_that_would_wait_for_itself_is_told_so_at_once(address: str, topic: str, call: str) -> None:
    """Callbacks run on the send thread."""
    with Producer(address, name=topic) as producer:
        calls: dict[str, Callable[[], object]] = {
            "flush": producer.flush,
            "close": producer.close,
            "result": lambda: producer.send(topic, b"second").result(30),
            "exception": lambda: producer.send(topic, b"second").exception(),
            "ids": lambda: producer.ids,
            "transaction": lambda: producer.transaction().__enter__(),
        }
        error = raised_in_callback(producer, topic, calls[call])
        assert isinstance(error, FencepostError)
        assert "on the send thread" in str(error)
        producer.send(topic, b"last").result(60)  # it goes on


def test_a_callback_may_send_and_look_at_what_is_settled(address: str, topic: str) -> None:
    with Producer(address) as producer:
        settled = producer.send(topic, b"zeroth")
        settled.result(60)
        assert raised_in_callback(producer, topic, settled.result) is None
        assert raised_in_callback(producer, topic, lambda: producer.send(topic, b"second").done()) is None


# --- the end of a block ---


def test_an_error_inside_the_block_is_not_kept_back_while_records_wait_for_a_server() -> None:
    """The block ends after `exit_timeout`, and not after `delivery_timeout`, two minutes by default."""
    producer = Producer(f"127.0.0.1:{free_port()}", exit_timeout=0.2)
    with pytest.raises(fencepost.TimedOut) as caught, producer:
        producer.send("orders", b"value").result(0.1)
    assert any("1 record not delivered" in note for note in caught.value.__notes__)


# --- tables ---


def batches() -> Iterator[pa.RecordBatch]:
    yield from TABLE.to_batches(max_chunksize=1)


@pytest.mark.parametrize("is_warm", [False, True], ids=["partitions unknown", "partitions known"])
@pytest.mark.parametrize(
    "rows",
    [
        lambda: pa.RecordBatchReader.from_batches(TABLE.schema, batches()),
        batches,
        lambda: list(batches()),
        lambda: [TABLE.slice(0, 1), *TABLE.slice(1).to_batches()],
        lambda: pa.table({"key": TABLE["key"].dictionary_encode(), "value": TABLE["value"].cast(pa.string_view())}),
        lambda: pa.table({"value": TABLE["value"].cast(pa.binary()).cast(pa.binary_view()).combine_chunks()}),
    ],
    ids=["reader", "generator", "list", "tables", "dictionary and text view", "binary view"],
)
def test_send_arrow_takes_what_pyarrows_users_have(
    address: str, topic: str, rows: Callable[[], Any], is_warm: bool
) -> None:
    with Producer(address) as producer:
        if is_warm:
            producer.send(topic, b"0").result(60)
        ticket = producer.send_arrow(topic, rows())
        assert sum(run.records for run in ticket.result(60)) == 2
    assert values(address, topic) == ["0"] * is_warm + ["1", "2"]


@pytest.mark.parametrize("rows", [None, 5, "orders", {"value": [b"1"]}, [b"1"]], ids=repr)
def test_send_arrow_says_what_it_takes(address: str, topic: str, rows: Any) -> None:
    with Producer(address) as producer, pytest.raises(TypeError, match="send_arrow takes a pyarrow Table, RecordBatch"):
        producer.send_arrow(topic, rows)


# --- asyncio ---


@pytest.mark.parametrize("is_settled", [False, True], ids=["pending", "settled"])
async def test_asyncio_wait_says_at_once_that_it_takes_no_tickets(address: str, topic: str, is_settled: bool) -> None:
    """It would have its callback called on the send thread, and never wake up."""
    async with AsyncProducer(address, linger=0.0 if is_settled else 0.5) as producer:
        ticket: Any = producer.send(topic, b"value")
        if is_settled:
            await ticket
        with pytest.raises(TypeError, match="takes futures, and no tickets"):
            await asyncio.wait([ticket])
        with pytest.raises(TypeError):
            await asyncio.create_task(ticket)
        assert (await asyncio.gather(ticket, producer.send(topic, b"other")))[0].offset == 0


def test_a_ticket_that_is_made_a_future_can_be_waited_for_with_others(address: str, topic: str) -> None:
    """`asyncio.wait` and `create_task` take futures and coroutines only; `ensure_future` makes one of a ticket."""

    async def main() -> int:
        async with AsyncProducer(address) as producer:
            futures = [asyncio.ensure_future(producer.send(topic, b"value")) for _ in range(3)]
            done, _ = await asyncio.wait(futures)
            return len(done)

    assert asyncio.run(main()) == 3
