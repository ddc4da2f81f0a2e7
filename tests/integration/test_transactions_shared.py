"""One transaction, written by many processes and ended by another: the ground of the exactly-once sink (PIPE-2).

Client libraries bind a transaction to one process; the wire does not. The same test on both servers, with the same
answers, but for NOT_ENOUGH_REPLICAS, which Kafka answers while it verifies a partition's first batch, and which every
writer must take for "again".
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.transactions import TransactionalProducer, TransactionClient
from tests.workers import shared_writers
from tests.workers.shared_writers import Job, value

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NONE = ErrorCode.NONE
WRITERS = {"fencepost": 16, "kafka": 50}
BATCHES = 5


@pytest.fixture
def driver(server: TestedServer) -> Iterator[TransactionClient]:
    with TransactionClient(server.address) as connection:
        yield connection


def test_many_processes_write_one_transaction_whole_or_not_at_all(
    server: TestedServer, driver: TransactionClient, name: str
) -> None:
    writers = WRITERS[server.name]
    driver.create_topic(name, partitions=writers)
    everywhere = {name: list(range(writers))}
    producer = TransactionalProducer.start(driver, f"{name}-id")
    for number, commit in enumerate((True, False, True)):
        # A new epoch for every transaction: nothing that is still on its way for the last one can touch the next.
        _, _, producer.epoch = driver.init(producer.name)
        job = Job(server.address, producer.name, producer.pid, producer.epoch, name, writers, BATCHES, f"{number}:")
        assert driver.add(producer, everywhere) == [NONE] * writers
        answers = shared_writers.run(job)
        first = {0: 0, 1: BATCHES + 1, 2: 2 * (BATCHES + 1)}[number]  # behind what is there, and its markers
        for partition in range(writers):
            assert answers[partition] == {
                "codes": ["NONE"] * BATCHES,
                "offsets": list(range(first, first + BATCHES)),
                "repeated": first + BATCHES - 1,
                "gap": "OUT_OF_ORDER_SEQUENCE_NUMBER",
                "zombie": "INVALID_PRODUCER_EPOCH",
            }, f"partition {partition} of transaction {number}"
            assert driver.stable_offset(name, partition=partition) == first
        with TransactionClient(server.address) as committer:
            assert committer.end(producer, commit=commit) is NONE
            committer.await_state(producer.name, "CompleteCommit" if commit else "CompleteAbort")
            for partition in range(writers):
                late = committer.write(producer, name, [b"late"], partition=partition, sequence=BATCHES)
                assert late.error is ErrorCode.INVALID_TXN_STATE
    for partition in range(writers):
        expected = [
            value(Job("", "", 0, 0, "", 0, 0, f"{number}:"), partition, batch)
            for number in (0, 2)
            for batch in range(BATCHES)
        ]
        assert driver.fetch_committed(name, partition=partition).values == expected
