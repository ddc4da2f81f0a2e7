"""Readers in a group, each in a thread of its own, as it would be in a process of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencepost.client.reader import Reader, ReadRecord
from fencepost.errors import TimedOut
from fencepost.types import TopicPartition

PATIENCE = 60.0


class Worker:
    """A reader in a thread, which commits what it has worked on."""

    def __init__(self, address: str, topic: Any, group: str, **options: Any) -> None:
        self.seen: list[ReadRecord] = []
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.error: BaseException | None = None
        self._over = threading.Event()

        def revoked(partitions: frozenset[TopicPartition]) -> None:
            self.events.append(("revoked", partitions))
            self.reader.commit()

        self.reader = Reader(
            address,
            topic,
            group=group,
            on_assigned=lambda partitions: self.events.append(("assigned", partitions)),
            on_revoked=revoked,
            on_lost=lambda partitions: self.events.append(("lost", partitions)),
            **options,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.reader as reader:
                while not self._over.is_set():
                    try:
                        self.seen += reader.poll(0.05) or ()
                    except TimedOut:
                        continue
                    reader.commit()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert self.error is None, self.error

    @property
    def share(self) -> frozenset[TopicPartition]:
        return self.reader.assignment


@contextmanager
def working(address: str, topic: Any, group: str, count: int, **options: Any) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        workers.extend(Worker(address, topic, group, **options) for _ in range(count))
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def until(condition: Callable[[], object]) -> None:
    waiting = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        waiting.wait(0.02)
    pytest.fail("waited for a minute in vain")


def read_by(workers: list[Worker]) -> Counter[int]:
    return Counter(int(record.value or b"") for worker in workers for record in list(worker.seen))
