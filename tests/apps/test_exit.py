"""The end of a program: what was sent is delivered, or a line on stderr says how much was not. Nothing hangs."""

from __future__ import annotations

import pytest

from tests.support.process import free_port
from tests.support.programs import run, values

pytestmark = pytest.mark.integration

TEN = [str(number) for number in range(10)]


def test_a_producer_that_is_first_used_in_an_exit_hook_delivers(address: str, topic: str) -> None:
    """Python runs no hook that is registered while hooks run, so fencepost's is registered by its import."""
    ended = run(f"""
import atexit, fencepost
@atexit.register
def last_words():
    producer = fencepost.Producer({address!r})
    for number in range(10):
        producer.send({topic!r}, str(number), partition=0)
""")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(address, topic) == TEN


def test_an_exit_hook_that_is_older_than_the_first_send_may_still_send(address: str, topic: str) -> None:
    ended = run(f"""
import atexit, fencepost
producer = fencepost.Producer({address!r})
@atexit.register
def last_words():
    for number in range(5, 10):
        producer.send({topic!r}, str(number), partition=0)
    producer.flush()
    print("flushed")
for number in range(5):
    producer.send({topic!r}, str(number), partition=0)
""")
    assert (ended.stdout, ended.stderr) == ("flushed\n", "")
    assert values(address, topic) == TEN


def test_what_an_exit_hook_cannot_deliver_is_said_with_the_count() -> None:
    ended = run(f"""
import atexit, fencepost
@atexit.register
def last_words():
    producer = fencepost.Producer("127.0.0.1:{free_port()}", exit_timeout=0.2)
    for number in range(10):
        producer.send("orders", str(number))
""")
    assert "fencepost: 10 records not delivered when the program ended" in ended.stderr


@pytest.mark.parametrize("is_used", [False, True], ids=["first use", "used before"])
def test_an_exit_hook_that_is_older_than_the_import_is_refused(address: str, topic: str, is_used: bool) -> None:
    """It runs after fencepost's own hook: nobody would wait for its records."""
    first = f"producer.send({topic!r}, b'in time').result(60)" if is_used else ""
    ended = run(f"""
import atexit
@atexit.register
def too_late():
    producer.send({topic!r}, b"too late")
import fencepost
producer = fencepost.Producer({address!r})
{first}
""")
    assert "Closed" in ended.stderr
    assert values(address, topic) == ["in time"] * is_used


@pytest.mark.parametrize("is_used", [False, True], ids=["first use", "used before"])
def test_a_send_by_a_finalizer_at_the_interpreters_end_is_refused(address: str, topic: str, is_used: bool) -> None:
    """Threads no longer run then. The traceback of a finalizer is printed, and does not change the exit code."""
    first = f"producer.send({topic!r}, b'in time').result(60)" if is_used else ""
    ended = run(f"""
import fencepost
producer = fencepost.Producer({address!r})
{first}
class Last:
    def __init__(self, producer):
        self.producer = producer
    def __del__(self):
        self.producer.send({topic!r}, b"too late")
last = Last(producer)
""")
    assert ended.returncode == 0
    assert "Closed" in ended.stderr
    assert values(address, topic) == ["in time"] * is_used


INTERRUPTED = """
import signal, sys, threading, os, fencepost
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def interrupt():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
producer = fencepost.Producer("127.0.0.1:{port}", exit_timeout={patience})
"""


def test_a_close_that_a_signal_handler_interrupts_says_what_it_has_lost() -> None:
    """The handler's SystemExit is not shown, and nobody else would know."""
    ended = run(
        INTERRUPTED.format(port=free_port(), patience=60.0)
        + """
producer.send("orders", b"value")
interrupt()
producer.close()
"""
    )
    assert ended.returncode == 143
    assert "fencepost: 1 record not delivered when close() was interrupted" in ended.stderr


def test_a_block_that_sys_exit_leaves_says_what_it_has_lost() -> None:
    ended = run(
        INTERRUPTED.format(port=free_port(), patience=0.2)
        + """
with producer:
    ticket = producer.send("orders", b"value")
    interrupt()
    threading.Event().wait()
"""
    )
    assert ended.returncode == 143
    assert "fencepost: 1 record not delivered" in ended.stderr


def test_a_daemon_thread_that_sends_to_the_end_loses_nothing_in_silence(address: str, topic: str) -> None:
    """Once the records are counted no more are accepted: its `send` raises."""
    ended = run(f"""
import os, threading, time, fencepost
producer = fencepost.Producer({address!r})
begun = threading.Event()
def send_for_ever():
    try:
        while True:
            producer.send({topic!r}, b"value", partition=0)
            os.write(1, b".")
            begun.set()
    except fencepost.Closed:
        pass
threading.Thread(target=send_for_ever, daemon=True).start()
begun.wait()
time.sleep(0.1)
""")
    accepted = ended.stdout.count(".")
    assert ended.stderr == ""
    assert accepted <= len(values(address, topic)) <= accepted + 1  # it may end between a send and its dot


def test_a_producer_that_a_daemon_thread_starts_at_the_end_loses_nothing_unsaid(address: str, topic: str) -> None:
    """Its first record is refused, or waited for."""
    ended = run(f"""
import atexit, threading
@atexit.register
def at_the_very_end():  # after fencepost's own hook
    is_over.set()
    worker.join()
is_over, has_begun = threading.Event(), threading.Event()
import time, fencepost
start = threading.Thread.start
def start_slowly(thread):
    start(thread)
    if thread.name == "fencepost-send":
        has_begun.set()
        is_over.wait()
threading.Thread.start = start_slowly
def slow(value):
    time.sleep(0.5)
    return value
def work():
    producer = fencepost.Producer({address!r}, value_serializer=slow)
    try:
        producer.send({topic!r}, b"value", partition=0)
        print("accepted", flush=True)
    except fencepost.Closed:
        print("refused", flush=True)
worker = threading.Thread(target=work, daemon=True)
worker.start()
has_begun.wait()
""")
    assert (ended.stdout, ended.stderr) in {("refused\n", ""), ("accepted\n", "")}
    assert values(address, topic) == ["value"] * (ended.stdout == "accepted\n")


def test_the_end_of_a_program_waits_for_the_records_of_a_close_in_a_daemon_thread(address: str, topic: str) -> None:
    ended = run(f"""
import threading, time, fencepost
from fencepost.client.produce.queues import Queues
waiting, wait = threading.Event(), Queues.wait_until_settled
def wait_and_say(queues, timeout):
    waiting.set()
    return wait(queues, timeout)
Queues.wait_until_settled = wait_and_say
def slow(value):
    time.sleep(0.5)  # on the send thread: the program ends before the record is sent
    return value
producer = fencepost.Producer({address!r}, value_serializer=slow)
producer.send({topic!r}, b"value", partition=0)
threading.Thread(target=producer.close, daemon=True).start()
waiting.wait()
""")
    assert ended.stderr == ""
    assert values(address, topic) == ["value"]
