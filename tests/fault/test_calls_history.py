"""Readers of a group whose programs call whatever the interface has, at random, while members come and go.

Callbacks raise, positions are moved to committed offsets, partitions are paused, work takes too long. A record is
handled when it is handed out. Whatever was called: in the end the group has committed everything, so no partition is
left unread, and each record was handled.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from fencepost import Admin, ConfigError, PartitionsLost, Producer, Reader, TimedOut
from tests.support.processing_history import World

pytestmark = pytest.mark.fault

_SECONDS = 8.0
_PATIENCE = 60.0


class Mishap(Exception):
    """A callback has failed."""


class Program:
    """One thread that opens a reader, uses it for a while, and opens the next; when it is calmed, it only polls."""

    def __init__(self, world: World, topic: str, seed: int, handled: Counter[bytes | None]) -> None:
        self._world, self._topic, self._chance, self._handled = world, topic, random.Random(seed), handled
        self.calm, self.over = threading.Event(), threading.Event()
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                self._use_one()
        except BaseException as error:
            self.failed = error
            raise

    def _use_one(self) -> None:
        def assigned(partitions: object) -> None:
            if self._may(0.2):
                raise Mishap("assigned")

        def revoked(partitions: object) -> None:
            if self._may(0.15):
                raise Mishap("revoked")
            reader.commit()

        with Reader(
            self._world.servers, self._topic, group=self._topic, group_protocol=self._world.protocol,
            session_timeout=self._world.session * 3, processing_timeout=1.0, on_assigned=assigned, on_revoked=revoked,
        ) as reader:  # fmt: skip
            ends_at = time.monotonic() + 0.5 + 3 * self._chance.random()
            while not self.over.is_set() and (self.calm.is_set() or time.monotonic() < ends_at):
                try:
                    self._read(reader)
                    self._call(reader)
                except (TimedOut, PartitionsLost, Mishap):
                    pass
                except ConfigError as error:
                    if "is not read by this reader" not in str(error):  # it was revoked since
                        raise

    def _may(self, probability: float) -> bool:
        return not self.calm.is_set() and self._chance.random() < probability

    def _read(self, reader: Reader) -> None:
        if self._may(0.5):
            for record in reader:
                self._handled[record.value] += 1
                if self.calm.is_set() or self._chance.random() < 0.2:
                    return
        for record in reader.poll(0.1) or ():
            self._handled[record.value] += 1

    def _call(self, reader: Reader) -> None:
        partition = self._chance.choice(sorted(reader.positions) or [None])
        if partition is not None and self._may(0.1):
            reader.pause(partition)
            reader.resume(partition)
        if partition is not None and self._may(0.1):
            offset = reader.committed().get(partition)
            if offset is not None:
                reader.seek(partition, offset)
        if self._may(0.1):
            reader.rewind()
        if self._may(0.03):
            time.sleep(1.2)
        if not self._may(0.3):
            reader.commit(wait=not self._may(0.2))


def test_whatever_a_program_calls_each_record_is_handled_in_the_end(
    world: World, name: str, chance: random.Random
) -> None:
    handled: Counter[bytes | None] = Counter()
    written = 0
    with Admin(world.servers) as admin, Producer(world.servers) as producer:
        admin.create_topic(name, world.partitions)

        def write(count: int) -> None:
            nonlocal written
            for number in range(written, written + count):
                producer.send(name, str(number), partition=number % world.partitions)
            written += count

        programs = [Program(world, name, chance.randrange(2**32), handled) for _ in range(world.workers)]
        try:
            ends_at = time.monotonic() + _SECONDS
            while time.monotonic() < ends_at:
                write(chance.randrange(30))
                time.sleep(0.2 * chance.random())
            for program in programs:
                program.calm.set()
            ends_at = time.monotonic() + _PATIENCE
            while not _is_committed(admin, name, world.partitions):
                write(world.partitions if time.monotonic() < ends_at - _PATIENCE * 0.9 else 0)  # loops look up
                assert time.monotonic() < ends_at, f"not everything is committed: {admin.group_offsets(name)}"
                time.sleep(0.2)
        finally:
            for program in programs:
                program.calm.set()
                program.over.set()
            write(10 * world.partitions)
            producer.flush()
            for program in programs:
                program.thread.join(_PATIENCE)
    assert [program.failed for program in programs] == [None] * world.workers
    assert [number for number in range(written - 10 * world.partitions) if not handled[str(number).encode()]] == []


def _is_committed(admin: Admin, group: str, partitions: int) -> bool:
    offsets = admin.group_offsets(group)
    return len(offsets) == partitions and all(each.lag == 0 for each in offsets)
