"""The topic of the audit log: every line is appended once, however slow the disk is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.producers.dedup import Accept
from fencepost.errors import StorageError
from fencepost.kernel import decode_batch
from fencepost.server.security import audit_places as audit_places_module
from fencepost.server.security.audit_places import AuditTopic, audit_places
from tests.support.clock import HandWoundClock

pytestmark = pytest.mark.unit


class SlowPartition:
    """A partition whose appends are fast and whose syncs end when a test wants that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._syncs: list[asyncio.Future[None]] = []
        self.batches: list[list[bytes | None]] = []
        self.failures = 0
        self.is_slow = False

    def usable(self) -> bool:
        return True

    async def open(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageError("the disk is full")

    def append(self, batch: memoryview, *_: object) -> tuple[Accept, int]:
        self.batches.append([record.value for record in decode_batch(bytes(batch), 0)])
        return Accept.__new__(Accept), 0

    def join(self, _: object) -> asyncio.Future[None]:
        future = self._loop.create_future()
        if self.is_slow:
            self._syncs.append(future)
        else:
            future.set_result(None)
        return future

    def sync(self) -> None:
        def end() -> None:
            self.is_slow = False
            for each in self._syncs:
                each.set_result(None)

        self._loop.call_soon_threadsafe(end)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture
def partition(loop: asyncio.AbstractEventLoop) -> SlowPartition:
    return SlowPartition(loop)


@pytest.fixture
def topic(loop: asyncio.AbstractEventLoop, partition: SlowPartition) -> AuditTopic:
    broker: Any = SimpleNamespace(
        clock=HandWoundClock(),
        config=SimpleNamespace(sync="always"),
        syncer=partition,
        partition=lambda *_: partition,
    )

    async def make() -> AuditTopic:
        return AuditTopic(broker, "audit")

    return asyncio.run_coroutine_threadsafe(make(), loop).result(60)


def test_a_slow_sync_does_not_append_the_lines_again(
    topic: AuditTopic, partition: SlowPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_places_module, "_SECONDS", 0.05)
    monkeypatch.setattr(audit_places_module, "_MORE_SECONDS", 0.05, raising=False)
    partition.is_slow = True
    lines = [b"one\n"]
    for more in (b"two\n", b"three\n"):
        with pytest.raises(StorageError, match="could not be written within"):
            topic.write(lines)
        lines.append(more)
    partition.sync()
    monkeypatch.setattr(audit_places_module, "_SECONDS", 60)
    monkeypatch.setattr(audit_places_module, "_MORE_SECONDS", 60, raising=False)
    topic.write(lines)
    assert lines == []
    assert partition.batches == [[b"one"], [b"two", b"three"]]


def test_lines_that_could_not_be_appended_stay_for_the_next_try(topic: AuditTopic, partition: SlowPartition) -> None:
    partition.failures = 1
    lines = [b"one\n"]
    with pytest.raises(StorageError, match="the disk is full"):
        topic.write(lines)
    assert lines == [b"one\n"]
    topic.write(lines)
    assert partition.batches == [[b"one"]]


def test_many_lines_are_several_batches(topic: AuditTopic, partition: SlowPartition) -> None:
    long = b"x" * 600_000
    topic.write([b"%d\n" % number for number in range(1100)] + [long, long, b"end\n"])
    assert [len(batch) for batch in partition.batches] == [500, 500, 101, 2]
    assert partition.batches[-1] == [long, b"end"]


def test_a_reload_keeps_the_object_that_knows_what_it_is_appending(topic: AuditTopic) -> None:
    broker: Any = SimpleNamespace(audit=SimpleNamespace(places=(topic,)))
    config: Any = SimpleNamespace(audit_file=None, audit_topic="audit")
    assert audit_places(broker, config) == [topic]
