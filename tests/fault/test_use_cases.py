"""The four use cases that `own` was asked for (OWN-10): the examples, as real processes, stopped and woken under load,
on fencepost's server and on Apache Kafka.

After each the log is the witness: one writer at any offset, order kept, nothing of a fenced one after the take-over.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fencepost
from examples import exclusive_readers, journal, outbox_relay, replicated_store
from fencepost.types import TopicPartition
from tests.conftest import Engine
from tests.support import postgres
from tests.support.examples import examples
from tests.support.group_client import await_offsets
from tests.support.spoken_process import Heard

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

STOP, WAKE = signal.SIGSTOP, signal.SIGCONT


@pytest.fixture
def server(engine: Engine) -> Engine:
    return engine


@pytest.fixture
def topic(name: str) -> str:
    """One of this test's own: the tests share a Kafka."""
    return name


def create(server: Engine, topic: str, partitions: int = 1, **groups: str) -> None:
    with fencepost.Admin(server.address) as admin:
        ((who, group),) = groups.items()
        admin.create_topic(topic, partitions, configs=server.guarded_by(group, who))


def written(server: Engine, topic: str) -> list[Any]:
    with fencepost.Reader(server.address, topic, start="earliest", stop="latest") as reader:
        return list(reader)


def await_a_record(server: Engine, topic: str, token: int) -> None:
    """Wait for a record of the journal that was written under this token."""
    with fencepost.Reader(server.address, topic, start="earliest") as reader:
        next(record for record in reader if record.value is not None and int(record.value.split()[1]) == token)


def a_moment(chance: random.Random) -> None:
    time.sleep(chance.random() * 0.3)  # not waiting for anything: the moment is what varies


# --- a job's journal ---


@pytest.mark.every_run("fencepost")
def test_a_task_restarted_while_the_first_is_paused_has_one_journal_writer(
    server: Engine, topic: str, chance: random.Random
) -> None:
    """OWN-10, the fourth case."""
    create(server, topic, writer=journal.GROUP)
    rounds = examples(2 if server.is_kafka else 4)
    with ExitStack() as tasks:

        def attempt(replaced: int) -> Heard:
            return tasks.enter_context(Heard("examples/journal.py", server.address, topic, replaced))

        def start(replaced: int) -> tuple[Heard, int]:
            task = attempt(replaced)
            return task, token_of(task.hear(lambda line: "goes on" in line))

        task, token = start(journal.NOBODY)
        granted = [token]
        await_a_record(server, topic, token)
        for _ in range(rounds):
            a_moment(chance)
            task.signal(STOP)
            successor, token = start(token)
            task.signal(WAKE)
            assert task.wait() == journal.FENCED, task
            task = successor
            granted.append(token)
        for older in (journal.NOBODY, granted[0], granted[-2]):
            late = attempt(older)
            assert late.wait() == journal.REFUSED, late
        await_a_record(server, topic, granted[-1])
        task.signal(signal.SIGINT)
        assert task.wait() == 130, task
        assert not any("Traceback" in line for line in task.lines), task
    states, tokens = zip(*[map(int, record.value.split()) for record in written(server, topic)], strict=True)
    assert list(states) == list(range(1, len(states) + 1)), "two tasks wrote at the same time"
    assert list(tokens) == sorted(tokens), "a fenced task wrote after its successor"
    # A task between may have been paused before its first write; the first one and the last one were waited for.
    assert set(tokens) <= set(granted)
    assert (tokens[0], tokens[-1]) == (granted[0], granted[-1])


def token_of(line: str) -> int:
    """Of a task that tells what it was granted."""
    return int(line.rpartition("token ")[2])


def test_an_attempt_that_comes_late_is_refused_even_when_nobody_is_at_work_any_more(
    server: Engine, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """OWN-10, the fourth case: generations begin again at 1 when the owner is gone (OWN-3), tokens never do."""
    create(server, topic, writer=journal.GROUP)

    def attempt(replaced: int) -> int:
        return journal.run(server.address, topic, replaced, 3)

    assert attempt(3) == journal.REFUSED, "nobody was ever granted that token"
    assert attempt(journal.NOBODY) == 0
    first = token_of(next(line for line in capfd.readouterr().out.splitlines() if "goes on" in line))
    assert attempt(first) == 0
    for late in (journal.NOBODY, first):
        assert attempt(late) == journal.REFUSED
    assert [record.value.split()[0] for record in written(server, topic)] == [b"%d" % n for n in range(1, 7)]


# --- a replicated store ---


@pytest.mark.every_run("kafka")
def test_a_replicated_store_has_one_master_at_any_offset(server: Engine, topic: str, chance: random.Random) -> None:
    """OWN-10, the first case: every value follows from the one before it, so a second master would be seen."""
    create(server, topic, writer=replicated_store.GROUP)
    rounds = examples(2)
    with ExitStack() as stack:
        replicas = {
            replica: stack.enter_context(Heard("examples/replicated_store.py", server.address, topic, replica, 1))
            for replica in "abc"
        }
        done = threading.Event()
        pause = 0.05 if server.is_kafka else 0.002  # slower than a commit: what was said is worked off in the end

        def use(replica: Heard) -> None:
            while not done.is_set():
                replica.say("add x 1")
                time.sleep(pause)  # as a user's traffic comes; a stopped process's pipe holds the rest

        users = [threading.Thread(target=use, args=(replica,)) for replica in replicas.values()]
        for user in users:
            user.start()
        try:
            heard: dict[str, int] = {}
            master = next_master(replicas, heard)
            for _ in range(rounds):
                # It has written in this term: a busy machine may take longer than a moment.
                replicas[master].hear(lambda line: line.startswith("x "), after=heard.get(master, 0))
                a_moment(chance)
                heard = {name: len(replica.lines) for name, replica in replicas.items() if name != master}
                replicas[master].signal(STOP)
                successor = next_master({name: replicas[name] for name in heard}, heard)
                was_said = len(replicas[master].lines)
                replicas[master].signal(WAKE)
                replicas[master].hear(lambda line: line.endswith("is the master no more"), after=was_said)
                master = successor
        finally:
            done.set()
            for replica in replicas.values():
                replica.signal(WAKE)
            for user in users:
                user.join()
        for replica in replicas.values():
            replica.hang_up()
        for replica in replicas.values():
            assert replica.wait() == 0, replica
    changes = [json.loads(record.value) for record in written(server, topic)]
    values = [change["value"] for change in changes]
    assert values == list(range(1, len(values) + 1)), "two masters worked from different states"
    terms = [change["term"] for change in changes]
    assert terms == sorted(terms), "a replaced master wrote after its successor"
    assert len(set(terms)) > rounds
    by = {change["value"]: change["by"] for change in changes}
    for name, replica in replicas.items():
        answered = [int(line.split()[1]) for line in replica.lines if line.startswith("x ")]
        assert answered == sorted(set(answered))
        assert [by[value] for value in answered] == [name] * len(answered), "answered, but not in the log"


def next_master(replicas: dict[str, Heard], heard: dict[str, int]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for name, replica in replicas.items():
            if any(line == f"{name} is the master" for line in replica.lines[heard.get(name, 0) :]):
                return name
        time.sleep(0.01)  # whoever is first: three pipes, none of which tells of the others
    raise AssertionError(f"no master: {replicas}")


# --- an outbox relay ---


class Application(NamedTuple):
    """Something that writes rows while the relays come and go, and knows them all in their order."""

    address: str
    write: Callable[[int], None]
    """The row of that number, in a transaction of its own."""
    rows: Callable[[], list[str]]
    close: Callable[[], None]


class PerThread:
    """A connection for each thread that asks for one; they are closed together."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._local = threading.local()
        self._all: list[Any] = []

    def __call__(self) -> Any:
        if not hasattr(self._local, "database"):
            self._local.database = self._connect()
            self._all.append(self._local.database)
        return self._local.database

    def close(self) -> None:
        for database in self._all:
            database.close()


def sqlite_application(folder: Path) -> Application:
    path = str(folder / "application.db")
    outbox_relay.SqliteOutbox(path).close()
    database = PerThread(lambda: sqlite3.connect(path, timeout=60, check_same_thread=False))

    def write(number: int) -> None:
        with database() as transaction:
            transaction.execute("insert into outbox (key, value) values (?, ?)", (f"k{number % 7}", f"row {number}"))

    def rows() -> list[str]:
        return [row[0] for row in database().execute("select value from outbox order by id")]

    return Application(path, write, rows, database.close)


def postgres_application(address: str) -> Application:
    import psycopg

    outbox_relay.PostgresOutbox(address).close()
    database = PerThread(lambda: psycopg.connect(address))

    def write(number: int) -> None:
        with database().transaction():
            database().execute("insert into outbox (key, value) values (%s, %s)", (f"k{number % 7}", f"row {number}"))
            if number % 50 == 0:
                time.sleep(0.02)  # a slow transaction: rows with higher numbers are committed before it

    def rows() -> list[str]:
        found = database().execute("select value from outbox order by transaction, id").fetchall()
        return [row[0] for row in found]

    return Application(address, write, rows, database.close)


@pytest.fixture(params=["sqlite", "postgresql"])
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    if request.param == "sqlite":
        with closing(sqlite_application(tmp_path)) as found:
            yield found
        return
    if postgres.binaries() is None:
        absent = "PostgreSQL is not installed (Debian: postgresql)"
        pytest.fail(absent) if os.environ.get("CI", "").lower() == "true" else pytest.skip(absent)
    with postgres.running(tmp_path) as address, closing(postgres_application(address)) as found:
        yield found


@pytest.mark.every_run("fencepost-sqlite")
def test_an_outbox_is_relayed_in_order_each_row_once_despite_stops_and_kills(
    server: Engine, topic: str, application: Application, chance: random.Random
) -> None:
    """OWN-10, the second case."""
    create(server, topic, writer=outbox_relay.GROUP)
    numbers = itertools.count()
    done = threading.Event()
    failed: list[BaseException] = []

    def use() -> None:
        try:
            while not done.is_set():
                application.write(next(numbers))
        except BaseException as error:
            failed.append(error)

    users = [threading.Thread(target=use) for _ in range(3)]
    with ExitStack() as relays:

        def start(*options: str) -> Heard:
            arguments = [server.address, topic, application.address, "--session", "1", *options]
            return relays.enter_context(Heard("examples/outbox_relay.py", *arguments))

        def is_relaying(line: str) -> bool:
            return line.startswith("relaying from")

        active, standby = start(), start()
        for user in users:
            user.start()
        try:
            if not any(map(is_relaying, active.lines)) and any(map(is_relaying, standby.lines)):
                active, standby = standby, active
            for how in ("stop", "kill", "stop", "end", "stop"):
                active, standby = in_order(active, standby, is_relaying)
                a_moment(chance)
                match how:
                    case "stop":
                        active.signal(STOP)
                        standby.hear(is_relaying)
                        active.signal(WAKE)
                        assert active.wait() == outbox_relay.FENCED, active
                    case "kill":
                        active.kill()
                    case "end":
                        active.signal(signal.SIGINT)
                        active.wait()
                active, standby = standby, start()
        finally:
            done.set()
            for user in users:
                user.join()
        active, standby = in_order(active, standby, is_relaying)
        active.kill()
        standby.kill()
        last = start("--until-empty")
        assert last.wait() == 0, last
    assert failed == []
    expected = application.rows()
    relayed = [record.value.decode() for record in written(server, topic)]
    assert len(expected) > 100
    assert relayed == expected


def in_order(one: Heard, other: Heard, is_active: Callable[[str], bool]) -> tuple[Heard, Heard]:
    """(active, standby), once there is an active one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for active, standby in ((one, other), (other, one)):
            if any(map(is_active, active.lines)):
                return active, standby
        time.sleep(0.01)  # whoever is first
    raise AssertionError(f"nobody is active: {one}, {other}")


# --- readers ---


@pytest.mark.every_run("fencepost")
def test_two_readers_never_both_hold_a_partition(server: Engine, topic: str, chance: random.Random) -> None:
    """OWN-10, the third case: what a reader stores as its position is where the next one goes on."""
    partitions, rounds = 3, examples(2)
    create(server, topic, partitions, reader=exclusive_readers.GROUP)
    with ExitStack() as stack:
        producer = stack.enter_context(fencepost.Producer(server.address))
        readers: list[Heard] = []

        def start() -> Heard:
            reader = Heard("examples/exclusive_readers.py", server.address, topic, "--session", "6")
            readers.append(stack.enter_context(reader))
            return reader

        def wait_until_all_held(reader: Heard) -> None:
            """A member of the group gets its share when it joins, and the rest when the other one is gone."""
            for partition in range(partitions):
                reader.hear(lambda line, start=f"holds {topic}-{partition} ": line.startswith(start))  # type: ignore[misc]

        done = threading.Event()
        sent = [0] * partitions

        heard: dict[int, int] = {}
        stored = [0] * partitions

        def behind() -> int:
            """How far the readers are behind in the partition where they are farthest."""
            for number, reader in enumerate(readers):
                lines = reader.lines[heard.get(number, 0) :]
                heard[number] = heard.get(number, 0) + len(lines)
                for what, *where in map(str.split, lines):
                    if what == "stored":
                        partition = int(where[0].rpartition("-")[2])
                        stored[partition] = max(stored[partition], int(where[-1]))
            return max(map(int.__sub__, sent, stored))

        def send() -> None:
            for partition in range(partitions):
                for _ in range(20):
                    producer.send(topic, str(sent[partition]), partition=partition)
                    sent[partition] += 1
            producer.flush()

        def use() -> None:
            """A user's traffic, which leaves the readers their cores, and slows down when they are far behind."""
            while not done.wait(0.1 if behind() > 2000 else 0.005):
                send()
            send()  # so that the last reader has something left to store, of every partition

        user = threading.Thread(target=use)
        active = start()
        wait_until_all_held(active)
        user.start()
        try:
            for _ in range(rounds):
                successor = start()
                a_moment(chance)
                active.signal(STOP)
                wait_until_all_held(successor)
                active.signal(WAKE)
                assert active.wait() == exclusive_readers.FENCED, active
                active = successor
        finally:
            done.set()
            user.join()
        for partition, count in enumerate(sent):
            everything = f"stored {topic}-{partition} "
            active.hear(lambda line, start=everything, end=f" {count}": line.startswith(start) and line.endswith(end))  # type: ignore[misc]
        active.kill()
    for partition in range(partitions):
        check_readers(
            f"{topic}-{partition}", [line.split() for reader in readers for line in reader.lines], sent[partition]
        )


def check_readers(resource: str, said: list[list[str]], count: int) -> None:
    read: dict[int, list[range]] = {}
    stored: dict[int, int] = {}
    for what, *rest in said:
        if rest[:1] != [resource] or what not in ("read", "stored"):
            continue
        token = int(rest[1])
        if what == "read":
            read.setdefault(token, []).append(range(int(rest[2]), int(rest[3]) + 1))
        else:
            stored[token] = int(rest[2])
    # Each goes on at the last position that was taken from the others: from the woken one none was taken since. A
    # process may be stopped between storing a position and saying so, hence the second possibility.
    possible = {0}
    for token in sorted(read):
        first, last = read[token][0], read[token][-1]
        assert first.start in possible, (resource, token, possible)
        possible = {stored.get(token, first.start), last.stop}
    assert set().union(*(part for parts in read.values() for part in parts)) == set(range(count))


def test_a_woken_reader_that_was_replaced_cannot_store_its_results_any_more(server: Engine, topic: str) -> None:
    group = f"{topic}-readers"  # of its own: the example's may still have the members of killed processes
    create(server, topic, reader=group)
    with fencepost.Producer(server.address) as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=0)
    partition = TopicPartition(topic, 0)
    with (
        fencepost.Reader(server.address, partition, group=group) as first,
        fencepost.Reader(server.address, partition, group=group) as second,
    ):
        claim = first.own(group, [f"{topic}-0"], generation=1)
        assert next(iter(first)).value == b"0"
        second.own(group, [f"{topic}-0"], generation=claim.generation)
        with pytest.raises(fencepost.Fenced):
            first.commit()
        second.commit({partition: 7})
        with fencepost.Admin(server.address) as admin:
            await_offsets(admin, group, [7], topic=topic)
