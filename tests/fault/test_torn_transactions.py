"""A transaction that a stranger's client was told is committed is whole: its client aborts and the server is killed.

A client may give up a batch that has reached the log, and use its sequences again for other records. A server that
takes those for a duplicate acknowledges what it has not stored. Here librdkafka is brought to do so, once on purpose
and then by chance in a loop of aborts and kills. FENCEPOST_TORN_SEED repeats a loop's dice.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

import fencepost
from tests.support.crash import ServerProcess
from tests.support.kafka import java
from tests.support.process import Child
from tests.support.proxy import Proxy
from tests.support.scripted import Api, Fate
from tests.support.transactions import TransactionClient
from tests.workers.transactions_loop import PARTITIONS, TOPIC, retried

pytestmark = pytest.mark.fault

SECONDS = 30.0
CONFLUENT: Final = (sys.executable, "-m", "tests.workers.transactions_loop")
JAVA_LOOP: Final = Path(__file__).parents[1] / "compat" / "java" / "TransactionsLoop.java"


@pytest.mark.long
@pytest.mark.parametrize("records", [1, 2], ids=["as many records", "more records"])
def test_sequences_used_again_after_an_abort_do_not_swallow_records(
    fencepost_server: fencepost.Server, name: str, records: int
) -> None:
    """The batch is written, its answer is lost, the transaction aborted; the next one gets the same sequences."""
    with TransactionClient(fencepost_server.address) as client, Proxy(fencepost_server.address) as proxy:
        client.create_topic(name)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": proxy.address,
                "transactional.id": name,
                "linger.ms": 0,
                "retry.backoff.ms": 5000,  # so that the abort comes before the batch is sent again
                "reconnect.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(SECONDS)
        expected = []
        for number in range(3):
            written = threading.Event()

            def fate(key: int, written: threading.Event = written) -> Fate:
                if key != Api.PRODUCE or written.is_set():
                    return Fate.ANSWER
                written.set()
                return Fate.CUT

            end = client.end_offset(name)
            proxy.choose = fate
            producer.begin_transaction()
            producer.produce(name, b"aborted", partition=0)
            assert written.wait(SECONDS)
            while client.end_offset(name) == end:
                time.sleep(0.01)
            retried(lambda: producer.abort_transaction(SECONDS))
            values = [b"%d of %d" % (i, number) for i in range(records)]
            while not committed(producer, name, values):
                retried(lambda: producer.abort_transaction(SECONDS))
            expected += values
        assert client.fetch_committed(name).values == expected


def committed(producer: confluent_kafka.Producer, topic: str, values: list[bytes]) -> bool:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    try:
        producer.commit_transaction(SECONDS)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        return False
    return True


@dataclass
class Outcome:
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    kills: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    fatal: int = 0
    torn: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)


def run(folder: Path, transactions: int, lines: tuple[int, int], command: Sequence[str | Path] = CONFLUENT) -> Outcome:
    """Three clients at work while the server is killed again and again, each time that they have noted so many `lines`,
    until all of them are done."""
    given = os.environ.get("FENCEPOST_TORN_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    outcome = Outcome()
    notes = [folder / f"{name}.notes" for name in "abc"]
    with ServerProcess(folder) as server:
        server.start("os")
        server.await_ready()
        with TransactionClient(server.address) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
        workers = [
            Child(
                [*command, server.address, str(path), path.stem, str(transactions // 3), str(seed + number)],
                log=path.with_suffix(".log"),
            )
            for number, path in enumerate(notes)
        ]
        try:
            while any(worker.exit_code is None for worker in workers):
                await_lines(notes, dice.randint(*lines), workers)
                server.kill()
                server.start(dice.choice(("os", "always")))
                server.await_ready()
                outcome.kills += 1
            for worker in workers:
                assert worker.exit_code == 0, worker.output()
        finally:
            for worker in workers:
                worker.kill()
        with TransactionClient(server.address) as client:
            found = Counter(
                (record.value or b"").decode()
                for partition in range(PARTITIONS)
                for record in client.committed_records(TOPIC, partition=partition)
            )
    for path in notes:
        judge(path, found, outcome)
    return outcome


def await_lines(notes: list[Path], more: int, workers: list[Child]) -> None:
    def size() -> int:
        return sum(path.read_bytes().count(b"\n") for path in notes if path.exists())

    wanted = size() + more
    while size() < wanted and any(worker.exit_code is None for worker in workers):
        time.sleep(0.01)


def judge(notes: Path, found: Counter[str], outcome: Outcome) -> None:
    """Compare what one client was told with what readers of committed records see."""
    begun: dict[str, list[str]] = {}
    ended: dict[str, str] = {}
    for line in notes.read_text().splitlines():
        what, *rest = line.split()
        if what == "begin":
            begun[rest[0]] = [f"{notes.stem}:{rest[0]}:{number}" for number in range(int(rest[1]))]
        elif what in ("committed", "aborted"):
            ended[rest[0]] = what
        elif what == "refused":
            outcome.refused[rest[0]] += 1
        elif what == "fatal":
            outcome.fatal += 1
    for number, values in begun.items():
        there = [found[value] for value in values]
        told = ended.get(number, "unknown")
        right = {"committed": ({1},), "aborted": ({0},), "unknown": ({0}, {1})}[told]
        if max(there) > 1:
            outcome.doubled.append(f"{notes.stem}:{number} {told} {there}")
        elif set(there) not in right:
            outcome.torn.append(f"{notes.stem}:{number} {told} {there}")
        setattr(outcome, told, getattr(outcome, told) + 1)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_transaction_is_torn_in_a_loop_of_aborts_and_kills(tmp_path: Path) -> None:
    outcome = run(tmp_path, 150, (1, 60))
    print(outcome)
    assert outcome.torn == []
    assert outcome.doubled == []
    assert outcome.committed > 0
    assert outcome.aborted > 0
    assert outcome.kills > 1


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.timeout(300)
def test_no_transaction_of_java_is_torn_in_a_loop_of_aborts_and_kills(tmp_path: Path) -> None:
    outcome = run(tmp_path, 75, (1, 30), java(JAVA_LOOP))
    print(outcome)
    assert outcome.torn == []
    assert outcome.doubled == []
    assert outcome.committed > 0
    assert outcome.aborted > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_transaction_is_torn_in_ten_thousand(tmp_path: Path) -> None:
    """FENCEPOST_TORN_TRANSACTIONS sets how many."""
    transactions = int(os.environ.get("FENCEPOST_TORN_TRANSACTIONS", "10000"))
    outcome = run(tmp_path, transactions, (1, 120))
    print(outcome)
    assert outcome.torn == []
    assert outcome.doubled == []
    assert outcome.committed > transactions // 4
