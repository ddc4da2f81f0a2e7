"""Random histories of one name with saved ids, through the public API alone (IDEM-4, IDEM-5).

Runs follow each other, or are paused while a later one takes over and wake up again. They save after any flush, also
while they still catch up with an earlier run, lose answers, and die before or behind a flush. Sometimes records are
deleted.
The promise: each record of the input is in its partition once and in order, or a run says why it cannot know.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import suppress

import pytest

from fencepost import Admin, Fenced, FencepostError, Producer, ProducerIds, Reader, SendFailed
from fencepost.client.admin_client import HIGH_WATERMARK
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.scripted import Api, Fate

pytestmark = pytest.mark.integration

RECORDS, PARTITIONS = 40, 3
PATIENCE = 30.0


def partition_of(record: int) -> int:
    return (record * 7 + record // 5) % PARTITIONS


class Unknown(Exception):
    """The producer has said that it cannot know what was written."""


class History:
    def __init__(self, address: str, topic: str, seed: int) -> None:
        self.address, self.topic = address, topic
        self.rnd = random.Random(seed)
        self.saved: tuple[int, str] | None = None
        self.deletes = self.rnd.random() < 0.3
        self.has_deleted = False

    def play(self) -> str:
        """Return "complete" or "unknown". Raise AssertionError if the promise is broken."""
        rnd = self.rnd
        with Admin(self.address) as admin, Proxy(self.address) as proxy:
            admin.create_topic(self.topic, PARTITIONS)
            runs: list[Generator[None]] = []
            try:
                for _ in range(rnd.randint(3, 7)):  # runs that die or fall asleep
                    runs.append(self.run(proxy))
                    for _ in range(rnd.randint(1, 14)):
                        run = runs[-1] if rnd.random() < 0.8 else rnd.choice(runs)
                        if not self.step(run):
                            runs.remove(run)
                        if self.deletes and rnd.random() < 0.1:
                            self.has_deleted = True
                            partition = rnd.randrange(PARTITIONS)
                            admin.delete_records(self.topic, {partition: HIGH_WATERMARK})
                        if not runs:
                            break
                    while runs and rnd.random() < 0.6:
                        runs.pop(rnd.randrange(len(runs))).close()
                last = self.run(proxy)
                runs.append(last)
                while self.step(last):
                    pass
            except Unknown:
                assert self.has_deleted, "nothing was deleted, and the producer says it cannot know"
                self.check(complete=False)
                return "unknown"
            finally:
                for run in runs:
                    run.close()
        self.check(complete=True)
        return "complete"

    @staticmethod
    def step(run: Generator[None]) -> bool:
        try:
            next(run)
        except (StopIteration, Fenced):
            return False
        except SendFailed as error:
            if "name= instead of ids=" in str(error):
                raise Unknown(str(error)) from error
            raise AssertionError(f"refused: {error}") from error
        return True

    def run(self, proxy: Proxy) -> Generator[None]:
        """One run of the program. It dies when the generator is closed."""
        rnd = self.rnd
        position, text = self.saved or (0, None)
        ids = None if text is None else ProducerIds.from_json(text)
        if ids is None:
            producer = Producer(proxy.address, name=self.topic, retry_backoff=0.01)
        else:
            producer = Producer(proxy.address, ids=ids, retry_backoff=0.01)
        try:
            if ids is None:
                self.saved = 0, producer.ids.to_json()
            yield
            while position < RECORDS:
                tickets = []
                for record in range(position, min(RECORDS, position + rnd.randint(1, 9))):
                    ticket = producer.send(self.topic, b"%d" % record, partition=partition_of(record))
                    tickets.append(ticket)
                    position = record + 1
                if rnd.random() < 0.2:
                    proxy.next(Api.PRODUCE, Fate.LOSE)
                if rnd.random() < 0.2:
                    yield
                for ticket in tickets:
                    ticket.result(PATIENCE)
                yield
                if rnd.random() < 0.5:
                    self.saved = position, producer.ids.to_json()
                    yield
            self.saved = position, producer.ids.to_json()
        finally:
            with suppress(FencepostError):
                producer.close(0)

    def check(self, *, complete: bool) -> None:
        found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        with Reader(self.address, self.topic, stop="latest", read_committed=False) as reader:
            for record in reader:
                found[record.partition].append(int(record.value or b""))
        for n, records in found.items():
            expected = [record for record in range(RECORDS) if partition_of(record) == n]
            if not complete:
                expected = expected[: expected.index(records[-1]) + 1] if records else []
            if self.has_deleted:
                expected = expected[len(expected) - len(records) :]
            assert records == expected, f"partition {n}: {records}"


@pytest.mark.parametrize("number", range(4))
def test_every_record_is_written_once_or_the_producer_says_why_it_cannot_know(
    server: TestedServer, name: str, number: int
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    History(server.address, f"{name}-{number}", seed).play()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_histories(server: TestedServer, name: str) -> None:
    for seed in range(100):
        print(f"seed {seed}")
        History(server.address, f"{name}-{seed}", seed).play()
