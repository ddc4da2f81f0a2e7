"""Errors in applications: a task's reach the process that started it, and repeated ones do not fill the memory."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

import pyarrow as pa
import pytest

from fencepost import Closed, Fenced, FencepostError, Producer, Reader, SendFailed, TopicPartition
from tests.support.programs import run

pytestmark = pytest.mark.integration

TASK = """
import concurrent.futures, multiprocessing, sys
import fencepost

def task(address):
    with fencepost.Producer(address) as producer:
        producer.send({topic!r}, b"value", partition=77).result(60)

def main():
    context = multiprocessing.get_context("spawn")
    if sys.argv[1:] == ["pool"]:
        pool = context.Pool(1)
        call = pool.apply_async(task, ({address!r},)).get
    else:
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
        call = pool.submit(task, {address!r}).result
    try:
        call(100)
    except fencepost.SendFailed as error:
        print(error.persisted, error.topic, error.message)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("pool", ["pool", "executor"])
def test_the_error_of_a_task_reaches_the_process_that_waits_for_it(
    address: str, topic: str, pool: str, tmp_path: pytest.TempPathFactory
) -> None:
    program = f"{tmp_path}/task.py"
    with open(program, "w") as file:
        file.write(TASK.format(address=address, topic=topic))
    ended = run(
        f"import sys, runpy; sys.argv = [{program!r}, {pool!r}]; runpy.run_path({program!r}, run_name='__main__')"
    )
    assert ended.stdout == f"no {topic} there is no partition 77, the topic has 1\n", ended.stderr


def same_each_time(call: Callable[[], object], kind: type[FencepostError]) -> None:
    """Raises an equal error each time, and not the same object: that would collect tracebacks."""
    caught: list[FencepostError] = []
    for _ in range(3):
        with pytest.raises(kind) as raised:
            call()
        caught.append(raised.value)
    assert len({id(error) for error in caught}) == 3
    assert len({str(error) for error in caught}) == 1
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in caught}) == 1


def test_a_closed_producer_raises_a_fresh_error_each_time(address: str, topic: str) -> None:
    producer = Producer(address)
    producer.send(topic, b"value").result(60)
    producer.close()
    same_each_time(lambda: producer.send(topic, b"value"), Closed)
    same_each_time(lambda: producer.send_arrow(topic, pa.table({"value": [b"value"]})), Closed)


def test_a_failed_ticket_raises_a_fresh_error_each_time(address: str, topic: str) -> None:
    """Records of one batch share its error. Each topic is new: a call that knows the number of partitions raises."""
    with Producer(address) as producer:
        ticket = producer.send(topic, b"value", partition=77)
        rows = producer.send_arrow(f"{topic}-rows", pa.table({"value": [b"value"], "partition": [77]}))
        same_each_time(lambda: ticket.result(60), SendFailed)
        same_each_time(lambda: rows.result(60), SendFailed)

        def raised() -> None:
            if (error := ticket.exception(60)) is not None:
                raise error

        same_each_time(raised, SendFailed)

        async def awaited() -> None:
            await ticket

        same_each_time(lambda: asyncio.run(awaited()), SendFailed)


def test_a_lost_owner_raises_a_fresh_error_each_time(address: str, topic: str, name: str) -> None:
    with Producer(address) as producer, Reader(address, TopicPartition(topic, 0)) as reader, Producer(address) as other:
        claim = producer.own(f"w-{name}", [f"{topic}-0"], generation=1)
        read = reader.own(f"r-{name}", generation=1)
        other.own(f"w-{name}", [f"{topic}-0"], generation=2)
        other.own(f"r-{name}", [f"{topic}-0"], generation=2)
        assert claim.lost.wait(60)
        with pytest.raises(Fenced):
            reader.poll(60)
        for call in (
            claim.check,
            producer.check_owned,
            lambda: producer.send(topic, b"value"),
            read.check,
            reader.poll,
        ):
            same_each_time(call, Fenced)
        same_each_time(reader.check_owned, Fenced)
