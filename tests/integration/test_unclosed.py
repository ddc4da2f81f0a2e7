"""A producer that nobody flushed or closed: its records are sent all the same, and what is lost is said in one line."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import AsyncProducer, Producer
from tests.integration.conftest import TestedServer
from tests.support.process import free_port
from tests.support.programs import run, values

pytestmark = pytest.mark.integration


FORGETFUL = """
import fencepost
producer = fencepost.Producer({address!r})
for number in range(1000):
    producer.send({topic!r}, str(number), partition=0)
"""


@pytest.mark.parametrize("stdin", [False, True], ids=["python -c", "a script"])
def test_records_that_nobody_flushed_are_sent_when_the_program_ends(
    server: TestedServer, topic: str, stdin: bool
) -> None:
    ended = run(FORGETFUL.format(address=server.address, topic=topic), stdin=stdin)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(server.address, topic) == [str(number) for number in range(1000)]


def test_records_are_sent_also_when_the_program_ends_by_an_exception(server: TestedServer, topic: str) -> None:
    ended = run(FORGETFUL.format(address=server.address, topic=topic) + "raise SystemExit(3)")
    assert (ended.returncode, ended.stderr) == (3, "")
    assert len(values(server.address, topic)) == 1000


def test_one_line_says_how_many_records_of_which_topics_were_lost() -> None:
    script = f"""
import fencepost
producer = fencepost.Producer("127.0.0.1:{free_port()}", exit_timeout=0.2)
for number in range(30):
    producer.send("orders", b"value")
producer.send("clicks", b"value")
"""
    ended = run(script)
    assert ended.returncode == 0
    lines = [line for line in ended.stderr.splitlines() if line.startswith("fencepost: ")]
    assert len(lines) == 1, ended.stderr
    assert "31 records not delivered when the program ended" in lines[0]
    assert "clicks: 1, orders: 30." in lines[0]
    assert "producer.flush() or close()" in lines[0]


def test_records_that_failed_before_the_end_and_were_not_looked_at_are_said_too(ours: TestedServer, topic: str) -> None:
    script = f"""
import fencepost
from fencepost.errors import Undelivered
producer = fencepost.Producer({ours.address!r})
seen = producer.send({topic!r}, b"v", partition=77)
unseen = producer.send({topic!r}, b"v", partition=78)
assert seen.exception() is not None
"""
    assert f"1 record not delivered when the program ended: {topic}: 1." in run(script).stderr


def test_an_unclosed_producer_is_a_resource_warning(ours: TestedServer, topic: str) -> None:
    ended = run(FORGETFUL.format(address=ours.address, topic=topic), "-W", "default::ResourceWarning")
    assert f"ResourceWarning: unclosed fencepost producer of {ours.address}" in ended.stderr
    script = FORGETFUL.format(address=ours.address, topic=topic) + "producer.close()"
    assert run(script, "-W", "error::ResourceWarning").stderr == ""


def test_a_producer_that_sent_nothing_needs_no_closing(ours: TestedServer) -> None:
    """It has no thread, and nothing to lose."""
    script = f"import fencepost\nproducer = fencepost.Producer({ours.address!r})"
    assert "unclosed fencepost producer" not in run(script, "-W", "default::ResourceWarning").stderr


def test_an_unclosed_async_producer_sends_its_records_when_the_program_ends(server: TestedServer, topic: str) -> None:
    script = f"""
import asyncio, fencepost
async def main():
    producer = await fencepost.AsyncProducer({server.address!r}).__aenter__()
    for number in range(100):
        producer.send({topic!r}, str(number), partition=0)
    return producer
kept = asyncio.run(main())
"""
    ended = run(script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(server.address, topic) == [str(number) for number in range(100)]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_of_multiprocessing_sends_its_records_too(ours: TestedServer, topic: str, how: str) -> None:
    """It leaves without `atexit`. What the parent sent is the parent's, and is there once."""
    script = f"""
import multiprocessing, fencepost
producer = None
def child():
    mine = producer or fencepost.Producer({ours.address!r})
    for number in range(100):
        mine.send({topic!r}, f"child {{number}}", partition=0)
    globals()["producer"] = mine
if __name__ == "__main__":
    producer = fencepost.Producer({ours.address!r}, linger=0.2)
    for number in range(100):
        producer.send({topic!r}, f"parent {{number}}", partition=0)
    process = multiprocessing.get_context({how!r}).Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"fencepost-{topic}.py")
    with open(folder, "w") as file:
        file.write(script)
    try:
        ended = subprocess.run([sys.executable, folder], capture_output=True, text=True, timeout=120, check=False)
    finally:
        os.remove(folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = values(ours.address, topic)
    for who in ("parent", "child"):
        assert [value for value in found if value.startswith(who)] == [f"{who} {number}" for number in range(100)]


def test_a_forked_child_that_ends_leaves_its_parents_records_alone(ours: TestedServer, topic: str) -> None:
    script = f"""
import os, sys, fencepost
producer = fencepost.Producer({ours.address!r}, linger=1.0)
for number in range(10):
    producer.send({topic!r}, str(number), partition=0)
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    ended = run(script, "-W", "default::ResourceWarning")
    assert ended.stderr.count("unclosed fencepost producer") == 1, ended.stderr
    assert values(ours.address, topic) == [str(number) for number in range(10)]


@pytest.fixture
def send_threads() -> Any:
    before = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each.name == "fencepost-send" and each not in before]


def forgotten(work: Callable[[], object]) -> None:
    """Does it, and collects what it leaves behind."""
    work()
    gc.collect()


def until_none(threads: Any) -> None:
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        for thread in threads():
            thread.join(1)
    assert not threads()


def test_a_producer_that_is_garbage_sends_its_records_and_ends(
    server: TestedServer, topic: str, send_threads: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def forget() -> None:
        producer = Producer(server.address)
        for number in range(100):
            producer.send(topic, str(number), partition=0)

    with pytest.warns(ResourceWarning, match="unclosed fencepost producer"):
        forgotten(forget)
    until_none(send_threads)
    assert values(server.address, topic) == [str(number) for number in range(100)]
    assert capfd.readouterr().err == ""


def test_a_garbage_producer_whose_records_cannot_be_sent_says_so_and_ends(
    send_threads: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def forget() -> None:
        producer = Producer(f"127.0.0.1:{free_port()}", exit_timeout=0.2)
        for _ in range(7):
            producer.send("orders", b"value")

    with pytest.warns(ResourceWarning):
        forgotten(forget)
    until_none(send_threads)
    assert "fencepost: 7 records not delivered when its producer was garbage-collected" in capfd.readouterr().err


def test_an_async_producer_that_is_garbage_sends_its_records(ours: TestedServer, topic: str, send_threads: Any) -> None:
    async def forget() -> None:
        producer = await AsyncProducer(ours.address).__aenter__()
        producer.send(topic, b"value")

    with pytest.warns(ResourceWarning):
        forgotten(lambda: asyncio.run(forget()))
    until_none(send_threads)
    assert values(ours.address, topic) == ["value"]


def test_a_producer_of_which_only_send_is_kept_is_no_garbage(ours: TestedServer, topic: str) -> None:
    def keep_only_send() -> None:
        send = Producer(ours.address).send
        for value in (b"first", b"second"):
            gc.collect()
            send(topic, value).result(30)

    with pytest.warns(ResourceWarning):
        forgotten(keep_only_send)


def test_a_producer_without_a_server_does_not_take_another_ones_time_at_the_end(ours: TestedServer, topic: str) -> None:
    """All wait together: records that linger are sent at once, also those of the producer that is looked at last. That
    one has met its server before, so that one answer is all it needs in the time that both have."""
    script = f"""
import fencepost
nobody_there = fencepost.Producer("127.0.0.1:{free_port()}", exit_timeout=3.0)
nobody_there.send("orders", b"value")
lingers = fencepost.Producer({ours.address!r}, exit_timeout=3.0, linger=60.0)
lingers.send({topic!r}, b"first", partition=0)
lingers.flush()
lingers.send({topic!r}, b"value", partition=0)
"""
    lines = [line for line in run(script).stderr.splitlines() if line.startswith("fencepost: ")]
    assert values(ours.address, topic) == ["first", "value"]
    assert [topics for line in lines for topics in ("orders: 1", topic) if topics in line] == ["orders: 1"]


def test_a_warning_that_is_an_error_does_not_cost_another_producers_records(ours: TestedServer, topic: str) -> None:
    script = f"""
import fencepost
producers = [fencepost.Producer({ours.address!r}, linger=60.0) for _ in range(3)]
for number, producer in enumerate(producers):
    producer.send({topic!r}, str(number), partition=0)
"""
    ended = run(script, "-W", "error::ResourceWarning")
    assert sorted(values(ours.address, topic)) == ["0", "1", "2"]
    assert "unclosed fencepost producer" in ended.stderr


def test_what_a_garbage_producer_loses_is_said_once_also_when_the_program_ends() -> None:
    script = f"""
import fencepost, gc
producer = fencepost.Producer("127.0.0.1:{free_port()}", exit_timeout=0.5)
producer.send("orders", b"value")
del producer
gc.collect()
"""
    assert run(script).stderr.count("1 record not delivered") == 1


def test_what_a_garbage_producer_loses_is_said_also_if_nobody_waits_for_it_any_more() -> None:
    """Ctrl-C while the program ends."""
    script = f"""
import fencepost, gc, os, signal, threading
from fencepost.client.produce.send_thread import SendThread
producer = fencepost.Producer("127.0.0.1:{free_port()}", exit_timeout=60.0)
producer.send("orders", b"value")
del producer
gc.collect()
at_exit = SendThread.at_exit
def interrupted(remains, begun):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    at_exit(remains, begun)
SendThread.at_exit = interrupted
"""
    assert run(script).stderr.count("1 record not delivered") == 1
