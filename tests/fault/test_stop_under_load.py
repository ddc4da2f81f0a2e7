"""SIGTERM while producers write: the server ends cleanly, what it acknowledged is there after the restart, and the
producers go on by themselves, every record once and in order."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final, Self

import pytest

import fencepost
from fencepost.client.produce.ticket import Ticket
from fencepost.types import TopicPartition
from tests.support.crash import ServerProcess

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

TOPIC: Final = "numbers"
PARTITIONS: Final = 3
STOPS: Final = 3
IN_FLIGHT: Final = 300
PATIENCE: Final = 60.0


class Load:
    """Producers that send 0, 1, 2, … to each partition until they are told to end, with hundreds in flight."""

    def __init__(self, address: str) -> None:
        self.tickets: list[list[Ticket]] = [[] for _ in range(PARTITIONS)]
        """By partition, in the order of the sends; each thread has its own list."""
        self.failures: list[BaseException] = []
        self._address = address
        self._acknowledged = [0] * PARTITIONS
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(each,)) for each in range(PARTITIONS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()

    def acknowledged(self) -> int:
        """Return how many records of all partitions are acknowledged. Those of one partition are so in order."""
        for partition, sent in enumerate(self.tickets):
            while self._acknowledged[partition] < len(sent) and sent[self._acknowledged[partition]].done():
                self._acknowledged[partition] += 1
        return sum(self._acknowledged)

    def await_more(self, records: int) -> None:
        goal, deadline = self.acknowledged() + records, time.monotonic() + PATIENCE
        while self.acknowledged() < goal:
            assert not self.failures
            assert time.monotonic() < deadline, "the producers do not go on"
            time.sleep(0.01)

    def _write(self, partition: int) -> None:
        sent = self.tickets[partition]
        try:
            with fencepost.Producer(self._address, delivery_timeout=2 * PATIENCE) as producer:
                while not self._over.is_set():
                    sent.append(producer.send(TOPIC, b"%d" % len(sent), partition=partition))
                    if len(sent) % IN_FLIGHT == 0 and len(sent) > IN_FLIGHT:
                        sent[-IN_FLIGHT].result()
        except BaseException as error:
            self.failures.append(error)


@pytest.mark.every_run("always")
@pytest.mark.parametrize("sync", ["always", "os"])
def test_sigterm_under_load_loses_and_doubles_nothing(tmp_path: Path, sync: str) -> None:
    """IDEM-7"""
    with ServerProcess(tmp_path) as server:
        server.start(sync)
        server.await_ready()
        with fencepost.Admin(server.address) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        with Load(server.address) as load:
            for _ in range(STOPS):
                load.await_more(2000)
                assert server.stop() == 0, server.output()
                server.start(sync)
                server.await_ready()
            load.await_more(2000)
        assert not load.failures
        for partition, sent in enumerate(load.tickets):
            with fencepost.Reader(
                server.address, TopicPartition(TOPIC, partition), start="earliest", stop="latest"
            ) as reader:
                found = [(record.offset, int(record.value or b"-1")) for record in reader]
            assert found == [(number, number) for number in range(len(sent))]
            assert [ticket.result(0).offset for ticket in sent] == list(range(len(sent)))
        assert server.stop() == 0
        assert "Traceback" not in server.output()
