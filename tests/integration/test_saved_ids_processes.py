"""Random histories of one name with saved ids, in real processes (IDEM-4, IDEM-5).

A program sends a fixed input to a topic, in random ways: one at a time, many at a time, as tables, in batches of all
sizes. It saves after some of its flushes. It is killed (SIGKILL) and paused (SIGSTOP) at any moment, and others start
beside it. Answers are lost, strangers write into its topic, records are deleted, the topic is created again; on our
server compaction removes records, and the server forgets pids and names.
The promise: each record is in its partition once and in order, or a process says why it cannot know.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import fencepost
from fencepost import Admin, ConfigError, Fenced, Producer, ProducerIds, Reader, SendFailed, Undelivered, Unreachable
from fencepost.client.admin_client import HIGH_WATERMARK
from fencepost.client.produce import state
from fencepost.server.coordinators import transactions
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.scripted import Api, Fate

pytestmark = pytest.mark.integration

STRANGER: Final = b"stranger"
PATIENCE: Final = 60.0
COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0.01"}

DONE, TAKEN, UNKNOWN = 0, 2, 3
"""Exit codes: all was sent; another process has taken over or begun, or the answer was lost that the first look at the
ids waited for; it cannot know what was written."""

NAME_LASTS: Final = 0.05
"""Seconds in place of a day, where the server forgets names."""


class Input:
    """The records of a program: numbers, each with its partition, and a key if compaction needs one."""

    def __init__(self, records: int, partitions: int, keys: int | None) -> None:
        self.records, self.partitions, self._keys = records, partitions, keys

    def partition(self, record: int) -> int:
        return (record * 7 + record // 5) % self.partitions

    def key(self, record: int) -> bytes | None:
        return None if self._keys is None else b"%d" % (record % self._keys)

    def of(self, partition: int) -> list[int]:
        return [record for record in range(self.records) if self.partition(record) == partition]

    def table(self, records: range) -> pa.Table:
        return pa.table(
            {
                "value": pa.array([b"%d" % record for record in records], pa.binary()),
                "key": pa.array([self.key(record) for record in records], pa.binary()),
                "partition": pa.array([self.partition(record) for record in records], pa.int32()),
            }
        )


def save(path: Path, position: int, ids: ProducerIds) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps([position, ids.to_json()]))
    new.replace(path)


def program(address: str, topic: str, what: Input, path: Path, rnd: random.Random) -> Iterator[None]:
    """Run the program to its end. Yield after each step."""
    options: dict[str, Any] = {"retry_backoff": 0.02, "batch_size": rnd.choice((1, 60, 300, 131072))}
    if path.exists():
        position, text = json.loads(path.read_text())
        producer = Producer(address, ids=ProducerIds.from_json(text), **options)
    else:
        position, producer = 0, Producer(address, name=topic, **options)
        save(path, 0, producer.ids)
    yield
    while position < what.records:
        records = range(position, min(what.records, position + rnd.choice((1, 2, 5, 20, 60))))
        way = rnd.choice(("one by one", "many", "table"))
        if way == "table":
            producer.send_arrow(topic, what.table(records)).result(PATIENCE)
        else:
            for record in records:
                ticket = producer.send(topic, b"%d" % record, key=what.key(record), partition=what.partition(record))
                if way == "one by one":
                    ticket.result(PATIENCE)
        position = records.stop
        yield
        if rnd.random() < 0.5:
            producer.flush()
            yield
            if rnd.random() < 0.6:
                save(path, position, producer.ids)
                yield
    producer.flush()
    save(path, position, producer.ids)
    producer.close()


class CannotKnow(Exception):
    """A process has said so."""


class History:
    def __init__(self, address: str, topic: str, path: Path, seed: int, *, configs: Mapping[str, str] | None = None):
        self.address, self.topic, self.path = address, topic, path
        self.rnd = rnd = random.Random(seed)
        self.configs = dict(configs or {})
        self.is_compacted = "cleanup.policy" in self.configs
        self.input = Input(rnd.choice((40, 120)), rnd.randint(1, 3), rnd.choice((2, 5)) if self.is_compacted else None)
        self.disturbances = {
            "stranger": rnd.random() < 0.5,
            "delete": rnd.random() < 0.3 and not self.is_compacted,
            "recreate": rnd.random() < 0.15,
            "lose": rnd.random() < 0.5,
        }
        self.forgets_names = self.forgets_pids = False
        self.is_damaged = self.is_compacted
        """Records were deleted, so that a process may say that it cannot know."""
        self.awake: dict[int, int] = {}
        """Processes, and the pipes that get a byte per step."""
        self.asleep: dict[int, int] = {}
        self.seen: list[dict[int, int]] = []
        """What was ever read from each partition, by offset."""
        self.before = [0] * self.input.partitions
        """The number of records in the topic that was deleted."""

    def play(self) -> str:
        """Return "complete" or "unknown". Raise AssertionError if the promise is broken."""
        rnd, outcome = self.rnd, "complete"
        with Admin(self.address) as admin, Proxy(self.address) as self.proxy:
            self.create(admin)
            try:
                for _ in range(rnd.randint(2, 7)):
                    self.disturb(admin)
                    child = self.start()
                    for _ in range(rnd.choice((0, rnd.randint(1, 6)))):
                        os.read(self.awake[child], 1)
                    time.sleep(rnd.random() * rnd.choice((0.004, 0.03)))  # not an event: any moment will do
                    self.disturb(admin)
                    self.let_go(child)
                    if self.asleep and rnd.random() < 0.5:
                        self.wake(rnd.choice(list(self.asleep)))
                self.proxy.choose = lambda key: Fate.ANSWER
                last = self.start()
                for child in list(self.asleep):
                    self.wake(child)
                self.end(last)
                for _ in range(2):  # the first one may be beside those that were woken up
                    while self.awake:
                        self.end(next(iter(self.awake)))
                    self.start()
                assert self.end(next(iter(self.awake))) == DONE
            except CannotKnow:
                outcome = "unknown"
            finally:
                for child in (*self.awake, *self.asleep):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
            assert outcome == "complete" or self.is_damaged or self.forgets_pids, "refused for nothing"
            self.check(complete=outcome == "complete")
        return outcome

    # --- processes ---

    def start(self) -> int:
        steps, write = os.pipe()
        rnd = random.Random(self.rnd.randrange(10**9))
        child = os.fork()
        if child:
            os.close(write)
            self.awake[child] = steps
            return child
        code = 1  # nothing of pytest may run in the child
        try:
            if self.forgets_names:
                state.KEEPS_NAME = NAME_LASTS  # type: ignore[misc]
            for _ in program(self.proxy.address, self.topic, self.input, self.path, rnd):
                os.write(write, b".")
            code = DONE
        except (Fenced, ConfigError, Unreachable):
            code = TAKEN
        except (SendFailed, Undelivered) as error:  # of a ticket, or of a flush
            code = UNKNOWN if "name= instead of ids=" in str(error) else code
            print(error, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def let_go(self, child: int) -> None:
        """Kill the process, pause it, or let it run to its end."""
        what = self.rnd.choice(("kill", "kill", "pause", "pause", "leave"))
        if what == "pause" and len(self.asleep) < 2:
            os.kill(child, signal.SIGSTOP)
            self.asleep[child] = self.awake.pop(child)
            return
        if what == "kill":
            os.kill(child, signal.SIGKILL)
        self.end(child)

    def wake(self, child: int) -> None:
        self.awake[child] = self.asleep.pop(child)
        os.kill(child, signal.SIGCONT)
        if self.rnd.random() < 0.5:
            self.end(child)

    def end(self, child: int) -> int:
        """Wait for the end of a process, and return its exit code; negative: a signal."""
        if child not in self.awake:
            return DONE
        while os.read(self.awake[child], 4096):
            pass
        os.close(self.awake.pop(child))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == UNKNOWN:
            raise CannotKnow
        assert code in (DONE, TAKEN, -signal.SIGKILL), f"a process ended with {code}"
        return code

    # --- the world around them ---

    def create(self, admin: Admin) -> None:
        admin.create_topic(self.topic, self.input.partitions, configs=self.configs)
        self.seen = [{} for _ in range(self.input.partitions)]

    def disturb(self, admin: Admin) -> None:
        due = {what for what, is_on in self.disturbances.items() if is_on and self.rnd.random() < 0.25}
        partition = self.rnd.randrange(self.input.partitions)
        if "stranger" in due:
            with Producer(self.address) as stranger:
                for _ in range(self.rnd.randint(1, 30)):
                    stranger.send(self.topic, STRANGER, key=b"stranger", partition=partition)
        if "lose" in due:
            fates = chain([Fate.LOSE], repeat(Fate.ANSWER))
            self.proxy.choose = lambda key: next(fates) if key == Api.PRODUCE else Fate.ANSWER
        if "delete" in due:
            self.look()
            read = max(self.seen[partition], default=-1) + 1  # no record goes before it was read
            everything = self.rnd.random() < 0.3 and not self.awake
            if read > admin.earliest(self.topic)[partition]:
                self.is_damaged = True
                admin.delete_records(self.topic, {partition: HIGH_WATERMARK if everything else read})
        if "recreate" in due and not self.awake and not self.asleep:
            self.is_damaged = True
            self.disturbances["recreate"] = False
            self.before = [len(records) for records in self.check_order()]
            admin.delete_topic(self.topic)
            self.create(admin)
        if self.forgets_names and not self.awake and self.rnd.random() < 0.25:
            time.sleep(2 * NAME_LASTS)  # who is asleep has slept for so long
            with forgotten_names():
                while any(each.name == self.topic for each in admin.transactions()):
                    time.sleep(0.01)

    # --- the promise ---

    def look(self) -> None:
        with Reader(self.address, self.topic, stop="latest", read_committed=False) as reader:
            for record in reader:
                if record.value is not None and record.value != STRANGER:
                    self.seen[record.partition][record.offset] = int(record.value)

    def check_order(self) -> list[list[int]]:
        self.look()
        found = [[seen[offset] for offset in sorted(seen)] for seen in self.seen]
        for partition, records in enumerate(found):
            assert records == sorted(set(records)), f"partition {partition}: {records}"
        return found

    def check(self, *, complete: bool) -> None:
        for partition, records in enumerate(self.check_order()):
            expected = self.input.of(partition)[self.before[partition] :]
            if self.is_compacted:
                if complete and not any(self.before):  # the newest record of each key is left
                    newest = {self.input.key(record): record for record in records}
                    assert newest == {self.input.key(record): record for record in expected}, f"{partition}: {records}"
            elif complete:
                assert records == expected, f"partition {partition}: {records}"
            else:
                assert records == expected[: len(records)], f"partition {partition}: {records}"


@contextmanager
def forgotten_names() -> Iterator[None]:
    """Have our server forget all names that have no open transaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "_FORGET_AFTER_MS", -1)
        yield


def play(server: TestedServer, name: str, path: Path, seed: int) -> None:
    print(f"seed {seed}")
    History(server.address, f"{name}-{seed}", path / f"{seed}", seed).play()


def play_forgetful(path: Path, seed: int) -> None:
    """On a server of its own, which forgets."""
    print(f"seed {seed}")
    rnd = random.Random(seed)
    forgets_pids = rnd.random() < 0.3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "_PATROL_SECONDS", 0.02)
        expiry = 300 if forgets_pids else 3_600_000
        with fencepost.Server(path / f"data-{seed}", background_interval_ms=30, producer_expiry_ms=expiry) as server:
            configs = COMPACTED if rnd.random() < 0.4 else None
            history = History(server.address, "t", path / f"{seed}", seed, configs=configs)
            history.forgets_names, history.forgets_pids = rnd.random() < 0.6, forgets_pids
            history.play()


@pytest.mark.parametrize("number", range(3))
def test_killed_and_paused_processes_write_every_record_once(
    server: TestedServer, name: str, tmp_path: Path, number: int
) -> None:
    play(server, name, tmp_path, random.randrange(10**9))


@pytest.mark.parametrize("number", range(3))
def test_on_a_server_that_forgets_they_do_so_too(tmp_path: Path, number: int) -> None:
    play_forgetful(tmp_path, random.randrange(10**9))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_histories_of_processes(server: TestedServer, name: str, tmp_path: Path) -> None:
    for seed in range(100):
        play(server, name, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_histories_on_servers_that_forget(tmp_path: Path) -> None:
    for seed in range(100):
        play_forgetful(tmp_path, seed)
