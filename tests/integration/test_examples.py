"""Every example does what its docstring says. Those with Spark are run by tests/spark/test_examples.py."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from examples import web_handler
from tests.conftest import Engine
from tests.support.spoken_process import Heard

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


class Example:
    """An example at work as a process."""

    def __init__(self, file: str, log: Path, *arguments: object) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", f"examples/{file}", *map(str, arguments)], cwd=ROOT, stdout=out, stderr=out
            )

    def said(self) -> str:
        return self.log.read_text()

    def until(self, reached: Callable[[], object]) -> None:
        while not reached():
            assert self.process.poll() is None, self.said()
            time.sleep(0.01)  # another process has to come so far

    def ends(self) -> None:
        assert self.process.wait(100) == 0, self.said()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    started: list[Example] = []

    def begin(file: str, *arguments: object) -> Example:
        started.append(Example(file, tmp_path / f"{len(started)}.txt", *arguments))
        return started[-1]

    yield begin
    for example in started:
        if example.process.poll() is None:
            example.process.kill()
        example.process.wait()


@pytest.fixture
def other(fencepost_server_factory: Callable[..., fencepost.Server]) -> str:
    return fencepost_server_factory().address


def values(servers: str, topic: str) -> list[str]:
    with fencepost.Reader(servers, topic, stop="latest") as reader:
        return [(record.value or b"").decode() for record in reader]


@pytest.mark.fault
def test_active_and_standby_write_one_row_of_numbers(start: Callable[..., Example], engine: Engine, name: str) -> None:
    """OWN-9, OWN-10: the active one is stopped, replaced and woken up; the next is killed, and the first goes on."""
    other, topic, group = engine.address, name, f"{name}-writers"
    with fencepost.Admin(other) as admin:

        def has_grown() -> bool:
            return admin.latest(topic)[0] >= end + 5

        end = 0
        admin.create_topic(topic, 1, configs=engine.guarded_by(group))
        anna = start("active_standby.py", other, topic, "anna")
        anna.until(has_grown)
        bert = start("active_standby.py", other, topic, "bert")
        bert.until(lambda: admin.owners(group).waiting)
        anna.process.send_signal(signal.SIGSTOP)
        bert.until(lambda: "bert: active" in bert.said())
        anna.process.send_signal(signal.SIGCONT)
        anna.until(lambda: "anna: fenced" in anna.said())
        end = admin.latest(topic)[0]
        bert.until(has_grown)
        anna.until(lambda: admin.owners(group).waiting)
        bert.process.kill()
        anna.until(lambda: anna.said().count("anna: active") == 2)
        end = admin.latest(topic)[0]
        anna.until(has_grown)
        anna.process.send_signal(signal.SIGINT)
        anna.ends()
    lines = [line.split() for line in values(other, topic)]
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    turns = "".join(name[0] for _, name in lines)
    assert re.fullmatch("a+b+a+", turns), "each has its turn, and nothing of a fenced one comes later"


@pytest.mark.fault
def test_a_mirror_that_is_killed_goes_on_and_holds_every_record_once(
    start: Callable[..., Example], fencepost_server: fencepost.Server, other: str
) -> None:
    source, topic, count = fencepost_server.address, "mirrored", 30_000
    with fencepost.Admin(source) as admin:
        admin.create_topic(topic, 3)
    with fencepost.Producer(source) as producer:
        for number in range(count):
            producer.send(topic, str(number), key=str(number % 100), headers=[("h", b"1")], timestamp=1000 + number)
    mirror = start("mirror.py", source, other, topic)
    mirror.until(lambda: mirror.said().count("\n") >= 5)
    mirror.process.kill()
    mirror.process.wait()
    start("mirror.py", source, other, topic).ends()

    def content(servers: str) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        with fencepost.Reader(servers, topic, stop="latest") as reader:
            for record in reader:
                found[record.partition].append((record.key, record.value, list(record.headers), record.timestamp))
        return found

    assert content(other) == content(source)
    again = start("mirror.py", source, other, topic)
    again.ends()
    assert again.said() == "", "nothing was left to mirror"


def test_the_pytest_fixture_is_a_broker(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "pytest_fixture.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_a_web_handler_answers_when_the_record_is_stored(
    start: Callable[..., Example], fencepost_server: fencepost.Server
) -> None:
    web = start("web_handler.py", fencepost_server.address, 0)
    web.until(lambda: "listening" in web.said())
    port = int(web.said().strip().rpartition(":")[2])

    def ask(method: str, path: str, body: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, body=body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    assert ask("POST", "/web-orders", "two apples") == (201, {"partition": 0, "offset": 0})
    assert ask("POST", "/web-orders", "a pear") == (201, {"partition": 0, "offset": 1})
    assert ask("GET", "/web-orders", "")[0] == 404
    status, told = ask("POST", "/web%20orders", "a pear")
    assert (status, told["persisted"]) == (400, "no")
    assert "may only have ASCII letters" in told["error"]
    status, told = ask("POST", "/web-orders", "x" * (2 << 20))
    assert (status, told["persisted"]) == (413, "no")
    assert values(fencepost_server.address, "web-orders") == ["two apples", "a pear"]
    web.process.send_signal(signal.SIGINT)
    web.ends()


def test_a_web_handler_whose_memory_is_full_says_so_and_may_be_asked_again() -> None:
    class Full:
        def send(self, topic: str, value: bytes) -> object:
            raise fencepost.BufferFull("the memory is full")

    status, told = asyncio.run(web_handler.answer(Full(), "POST", "/orders", b"a pear"))  # type: ignore[arg-type]
    assert status == 503
    assert told == {"error": "the memory is full", "persisted": "no"}


@pytest.mark.fault
def test_exactly_once_workers_write_each_result_once(
    start: Callable[..., Example], fencepost_server_factory: Callable[..., fencepost.Server], name: str
) -> None:
    """One is killed in the middle, and started again under its name; another joins and leaves."""
    short = {"group_consumer_session_timeout_ms": 1000, "group_consumer_heartbeat_interval_ms": 200}
    servers, target, dead = fencepost_server_factory(**short).address, f"{name}-out", f"{name}-dead"
    arguments = (servers, name, target, f"{name}-group", "--dead-letter", dead, "--seconds-per-record", 0.005)
    with fencepost.Admin(servers) as admin, fencepost.Producer(servers) as producer:
        for topic in (name, target, dead):
            admin.create_topic(topic, 2)

        def lag() -> int:
            stored = {each.partition: each.committed or 0 for each in admin.group_offsets(f"{name}-group")}
            return sum(end - stored.get(partition, 0) for partition, end in admin.latest(name).items())

        def write(first: int) -> None:
            for number in range(first, first + 100):
                producer.send(name, json.dumps({"id": number, "price": 2, "count": number}), key=str(number))
            producer.send(name, b"no order")
            producer.flush()

        write(0)
        anna = start("exactly_once_worker.py", *arguments, "--member", "anna")
        anna.until(lambda: admin.latest(target) != {0: 0, 1: 0})
        anna.process.kill()
        anna = start("exactly_once_worker.py", *arguments, "--member", "anna")
        anna.until(lambda: lag() == 0)
        bert = start("exactly_once_worker.py", *arguments, "--member", "bert")
        bert.until(lambda: len(admin.describe_group(f"{name}-group").members) == 2)
        write(100)
        anna.until(lambda: lag() == 0)
        for each in (anna, bert):
            each.process.send_signal(signal.SIGTERM)
            each.ends()
    results = [json.loads(value) for value in values(servers, target)]
    assert sorted((each["id"], each["total"]) for each in results) == [(number, 2 * number) for number in range(200)]
    assert values(servers, dead) == ["no order"] * 2


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("active_standby.py", ["SERVERS", "missing", "anna"]),
        ("exclusive_readers.py", ["SERVERS", "missing"]),
        ("workers.py", ["SERVERS", "missing", "group"]),
        ("exactly_once_worker.py", ["SERVERS", "missing", "there", "group"]),
        ("journal.py", ["SERVERS", "missing"]),
        ("mirror.py", ["SERVERS", "SERVERS", "missing"]),
        ("outbox_relay.py", ["SERVERS", "missing", "outbox.db"]),
        ("replicated_store.py", ["SERVERS", "missing", "anna"]),
        ("saved_ids.py", ["SERVERS", "missing", "there", "saved.json"]),
    ],
    ids=lambda given: given if isinstance(given, str) else given[-1],
)
def test_what_cannot_be_done_is_said_in_one_line(file: str, arguments: list[str], other: str, tmp_path: Path) -> None:
    with fencepost.Admin(other) as admin:
        admin.create_topic("there", 1)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / file, *[other if word == "SERVERS" else word for word in arguments]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode in (1, 2), done.stderr
    last = done.stderr.splitlines()[-1]
    assert "there is no topic 'missing'" in last
    assert "Traceback" not in done.stderr


def test_a_mirror_that_follows_is_ended_quietly(
    start: Callable[..., Example], fencepost_server: fencepost.Server, other: str
) -> None:
    with fencepost.Producer(fencepost_server.address) as producer:
        producer.send("followed", b"1")
    mirror = start("mirror.py", fencepost_server.address, other, "followed", "--follow")
    mirror.until(lambda: "1 mirrored" in mirror.said())
    mirror.process.send_signal(signal.SIGINT)
    assert mirror.process.wait(100) == 130, mirror.said()
    assert mirror.said() == "1 mirrored\n"


def test_a_replicated_store_says_what_it_does_not_understand(engine: Engine, name: str) -> None:
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 1, configs=engine.guarded_by("store-masters"))
    with Heard("examples/replicated_store.py", engine.address, name, "anna") as anna:
        anna.hear(lambda line: line == "anna is the master")
        for line in ("add a x", "add a 3", "sell a", "add a -1"):
            anna.say(line)
        anna.hang_up()
        assert anna.wait() == 0, anna
        assert anna.lines[1:] == ["? add a x", "a 3", "? sell a", "a 2"]


def test_forked_workers_send_everything_once(start: Callable[..., Example], fencepost_server: fencepost.Server) -> None:
    workers = start("fork_workers.py", fencepost_server.address, "forked", 4)
    workers.ends()
    assert workers.said() == "4 of 4 workers sent 1000 records each\n"
    found = Counter(values(fencepost_server.address, "forked"))
    expected = {f"worker {worker}: {number}" for worker in range(4) for number in range(1000)}
    assert set(found) == expected | {"parent: before the fork", "parent: after the fork"}
    assert set(found.values()) == {1}


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_says_how_to_start_it_and_is_run_by_a_test(example: str) -> None:
    """A test runs it if it starts the file, or imports the module and calls it."""
    text = (ROOT / "examples" / example).read_text(encoding="utf-8")
    docstring = text.removeprefix('"""').partition('"""')[0]
    assert f"examples/{example}" in docstring, "the docstring says how to start it"
    stem = example.removesuffix(".py")
    runs = re.compile(
        rf'"(examples/)?{re.escape(example)}"|from examples import [^\n]*\b{stem}\b|from examples\.{stem} import'
    )
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if runs.search(path.read_text(encoding="utf-8"))]
    assert tests, f"no test runs examples/{example}"


def test_a_web_handler_without_arguments_says_how_to_call_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "web_handler.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    assert done.stderr == "usage: python examples/web_handler.py SERVERS PORT, for example 127.0.0.1:9092 8080\n"
