"""confluent-kafka's (librdkafka's) transactional producer: see also `../fault/test_transactions_history.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import confluent_kafka
import pytest

from fencepost.errors import ErrorCode
from fencepost.testing.history import History, check
from fencepost.types import Offset, TopicPartition
from tests.support.batches import batch
from tests.support.crash import ServerProcess
from tests.support.process import Child
from tests.support.raw import RawClient
from tests.support.transactions import TransactionClient
from tests.workers.history_worker import GROUP, OUT_PARTITIONS

pytestmark = pytest.mark.compat

SECONDS = 30.0


def producer(address: str, name: str) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": name, "log_level": 0})
    made.init_transactions(SECONDS)
    return made


def test_transactions_are_committed_and_aborted(
    address: str, transactional: TransactionClient, topic: str, name: str
) -> None:
    writer = producer(address, name)
    for number in range(10):
        writer.begin_transaction()
        for partition in (0, 1):
            writer.produce(topic, b"%d" % number, partition=partition)
        if number % 3 == 1:
            writer.flush(SECONDS)
            writer.abort_transaction(SECONDS)
        else:
            writer.commit_transaction(SECONDS)
    expected = [b"%d" % number for number in range(10) if number % 3 != 1]
    for partition in (0, 1):
        seen = transactional.fetch_committed(topic, partition=partition)
        assert seen.values == expected
        assert len(seen.aborted) == 3


@pytest.mark.parametrize(("isolation", "expected"), [("read_committed", 200), ("read_uncommitted", 300)])
def test_its_consumer_tells_committed_from_aborted_records(
    address: str, topic: str, name: str, isolation: str, expected: int
) -> None:
    writer = producer(address, name)
    for number in range(30):
        writer.begin_transaction()
        for _ in range(10):
            writer.produce(topic, b"no" if number % 3 == 0 else b"yes", partition=0)
        writer.flush(SECONDS)
        (writer.abort_transaction if number % 3 == 0 else writer.commit_transaction)(SECONDS)
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "not-joined",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while (message := reader.poll(SECONDS)) is not None:
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        values.append(message.value())
    reader.close()
    assert len(values) == expected
    assert (b"no" in values) is (isolation == "read_uncommitted")


def test_a_successor_fences_it(address: str, transactional: TransactionClient, topic: str, name: str) -> None:
    first = producer(address, name)
    first.begin_transaction()
    first.produce(topic, b"zombie", partition=0)
    first.flush(SECONDS)
    second = producer(address, name)
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        first.commit_transaction(SECONDS)
    assert failure.value.args[0].fatal()
    assert failure.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    second.begin_transaction()
    second.produce(topic, b"successor", partition=0)
    second.commit_transaction(SECONDS)
    assert transactional.fetch_committed(topic).values == [b"successor"]


def test_a_transaction_that_took_too_long_is_aborted_and_its_producer_told_so(
    address: str, transactional: TransactionClient, topic: str, name: str
) -> None:
    writer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": name,
            "transaction.timeout.ms": 2000,
            "log_level": 0,
        }
    )
    writer.init_transactions(SECONDS)
    writer.begin_transaction()
    writer.produce(topic, b"too slow", partition=0)
    writer.flush(SECONDS)
    transactional.await_state(name, "CompleteAbort")
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        writer.commit_transaction(SECONDS)
    assert failure.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert transactional.fetch_committed(topic).values == []


INPUTS = 800
SOURCES = 4


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.timeout(240)
def test_a_group_copies_exactly_once_through_kills_of_workers_and_of_the_server(tmp_path: Path) -> None:
    """KIP-447: each worker has a transactional id of its own, and it is the group's generation that fences a zombie."""
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        with RawClient(server.address) as client:
            client.create_topic("in", partitions=SOURCES)
            client.create_topic("out", partitions=OUT_PARTITIONS)
            now = [int(time.time() * 1000)] * INPUTS
            for partition in range(SOURCES):
                values = [b"%d:%d" % (partition, number) for number in range(INPUTS)]
                whole = batch(values, timestamps=now)
                assert client.produce("in", whole, partition=partition).error is ErrorCode.NONE
        names = iter(range(100))

        def start() -> Child:
            name = f"worker{next(names)}"
            what = ["copy", server.address, str(tmp_path / f"{name}.notes"), name, "-1", "1"]
            command = [sys.executable, "-m", "tests.workers.history_worker", *what]
            return Child(command, log=tmp_path / f"{name}.log")

        workers = [start(), start()]
        try:
            with TransactionClient(server.address) as client:
                await_copied(client, SOURCES * INPUTS // 10)
            workers[0].kill()
            workers[0] = start()
            server.kill()
            server.start("always")
            server.await_ready()
            deadline = time.monotonic() + 180
            with TransactionClient(server.address) as client:
                while copied(client) < SOURCES * INPUTS:
                    assert time.monotonic() < deadline, "\n".join(worker.output() for worker in workers)
                    workers = [start() if worker.exit_code is not None else worker for worker in workers]
                    time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
        with TransactionClient(server.address) as client:
            log = {
                TopicPartition("out", partition): [
                    (Offset(record.offset), (record.value or b"").decode())
                    for record in client.committed_records("out", partition=partition)
                ]
                for partition in range(OUT_PARTITIONS)
            }
    done = [f"{p}:{number}/{half}" for p in range(SOURCES) for number in range(INPUTS) for half in range(2)]
    report = check(History.load(sorted(tmp_path.glob("*.notes"))), log, done=done)
    print(report)
    assert report.anomalies == []


def copied(client: TransactionClient) -> int:
    """How much of the input the group has committed; what a transaction may yet change is not counted."""
    found = [client.group_offset(GROUP, "in", partition=partition) for partition in range(SOURCES)]
    return sum(offset for error, offset in found if error is ErrorCode.NONE and offset > 0)


def await_copied(client: TransactionClient, count: int) -> None:
    deadline = time.monotonic() + 60
    while copied(client) < count:
        assert time.monotonic() < deadline, f"only {copied(client)} of {count}"
        time.sleep(0.05)
