"""A signal handler that closes, flushes, waits or sends, whatever call of the same producer it interrupts: it succeeds,
or it is told at once that it cannot. It never hangs, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from fencepost import FencepostError, Producer
from fencepost.client.cluster.blocking import Loop
from fencepost.client.cluster.routing import Routes
from tests.support.programs import PATIENCE, values
from tests.workers import interrupted

SECONDS = float(os.environ.get("FENCEPOST_SOAK_SECONDS", "600"))

SERVICE = """
import itertools, signal, sys, fencepost
producer = fencepost.Producer({address!r})
def handler(*_):
    {action}
    sys.exit(0)
signal.signal(signal.SIGTERM, handler)
for number in itertools.count():
    value = str(number)
    producer.send({topic!r}, value, partition=0).result()
    print(value, flush=True)
"""

REPEATED = """
import itertools, signal, sys, fencepost
producer = fencepost.Producer({address!r})
refused = sent = 0
def handler(*_):
    global refused, sent
    try:
        producer.send({topic!r}, b"handler", partition=0, headers=[("h", b"1")])
        sent += 1
    except fencepost.FencepostError as error:
        assert "interrupted a call of the same producer" in str(error), error
        refused += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for number in range(3000):
    producer.send({topic!r}, b"main", partition=0, headers=[("h", b"1")])
signal.setitimer(signal.ITIMER_REAL, 0)
producer.close()
print(sent)
"""


@pytest.mark.integration
@pytest.mark.parametrize("action", ["producer.close()", "producer.close(3)", "producer.flush()"])
def test_a_signal_handler_that_ends_a_service_never_hangs(address: str, topic: str, action: str) -> None:
    script = SERVICE.format(address=address, topic=topic, action=action)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)  # at some moment of the work: which one is up to chance
        process.send_signal(signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    said = err.decode()
    assert said == "" or "interrupted a call of the same producer" in said
    found = values(address, topic)
    assert set(out.decode().split()) <= set(found)
    assert len(set(found)) == len(found)


@pytest.mark.integration
def test_a_signal_handler_that_sends_never_hangs(address: str, topic: str) -> None:
    script = REPEATED.format(address=address, topic=topic)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.stderr == ""
    found = values(address, topic)
    assert found.count("main") == 3000
    assert found.count("handler") == int(ended.stdout)


def run_interrupted(address: str, topic: str, what: str, seconds: float) -> None:
    seed = os.environ.get("FENCEPOST_SEED", str(time.time_ns() % 2**32))
    command = [sys.executable, interrupted.__file__, address, topic, what, seed, str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + PATIENCE, check=False)
    assert ended.returncode == 0, f"seed {seed}\n{ended.stderr}"
    assert ended.stderr == "", f"seed {seed}"
    assert len(values(address, topic)) >= int(ended.stdout)


@pytest.mark.integration
@pytest.mark.parametrize("what", interrupted.KINDS)
def test_a_handler_that_calls_the_client_it_interrupts_never_hangs(address: str, topic: str, what: str) -> None:
    run_interrupted(address, topic, what, 3.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("what", interrupted.KINDS)
def test_handlers_call_the_client_they_interrupt_for_a_long_time(address: str, topic: str, what: str) -> None:
    run_interrupted(address, topic, what, SECONDS)


# What is raised in a callback of a weak reference is reported, and goes no further.
ignores_swallowed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Raised(BaseException):
    """What a signal handler raises."""


def interrupted_at(point: int, call: Callable[[], object]) -> bool:
    """Raise at this point of the call; return False if it has fewer points.

    A point is where Python looks for signals: at the begin of a function, and after a call.
    """
    passed = 0

    def look(frame: FrameType, event: str, what: object) -> None:
        nonlocal passed
        if event != "c_call":
            passed += 1
            if passed == point:
                raise Raised

    try:
        sys.setprofile(look)
        call()
    except Raised:
        pass
    except RuntimeError as error:  # Python's Event, which `Thread.start` waits for, releases its lock twice then
        if not isinstance(error.__context__, Raised):
            raise
    finally:
        sys.setprofile(None)
    return passed >= point


def send_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "fencepost-send" and each.is_alive()} - before


def await_send_threads(count: int, before: set[threading.Thread]) -> None:
    until = time.monotonic() + PATIENCE
    while len(send_threads(before)) > count and time.monotonic() < until:
        time.sleep(0.001)
    assert len(send_threads(before)) == count


@pytest.mark.integration
@ignores_swallowed
@pytest.mark.parametrize("goes_on", [True, False], ids=["it goes on", "it closes"])
def test_a_first_send_that_is_interrupted_anywhere_leaves_one_send_thread(
    address: str, topic: str, goes_on: bool
) -> None:
    """Two would run the same producer, and the end of one would wait for the other for ever (PROD-2)."""
    before, point, sent = set(threading.enumerate()), 0, list[str]()
    while True:
        point += 1
        producer = Producer(address)
        sends = partial(producer.send, topic, b"first", partition=0)
        was_interrupted = [interrupted_at(point, sends) for _ in range(2)]
        if goes_on:
            producer.send(topic, str(point), partition=0).result(PATIENCE)
            sent.append(str(point))
            await_send_threads(1, before)
        producer.close()
        await_send_threads(0, before)
        if not any(was_interrupted):
            break
    assert point > 50
    assert [value for value in values(address, topic) if value != "first"] == sent


@pytest.mark.integration
@ignores_swallowed
@pytest.mark.parametrize("what", ["send", "result", "flush"])
def test_a_call_that_is_interrupted_anywhere_loses_and_repeats_nothing(address: str, topic: str, what: str) -> None:
    """IDEM-1: the next call finds the producer in order, and so does the send thread, which ends (PROD-2)."""
    point = missed = 0
    with Producer(address, retry_backoff=0.01) as producer:
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send(topic, b"interrupted %d" % point, partition=0),
            "flush": producer.flush,
        }
        producer.send(topic, b"first", partition=0).result(PATIENCE)
        while missed < 20:  # some take a short cut: the answer is there already
            point += 1
            time.sleep(0.0005)  # the send thread falls asleep
            ticket = producer.send(topic, str(point), partition=0)
            if what == "send":
                ticket.result(PATIENCE)
                time.sleep(0.0005)
            missed = 0 if interrupted_at(point, calls.get(what, partial(ticket.result, PATIENCE))) else missed + 1
            assert ticket.result(PATIENCE).partition == 0
    assert point > 50
    found = values(address, topic)
    assert [value for value in found if value.isdecimal()] == [str(each) for each in range(1, point + 1)]
    assert len(set(found)) == len(found)


@contextmanager
def asking(routes: Routes) -> Iterator[None]:
    """This thread has put a question to a broker, as far as others can tell."""
    with closing(Loop(routes.settings)) as loop:
        routes._busy[loop] = threading.get_ident()
        yield
        del routes._busy[loop]


def locks(producer: Producer) -> dict[str, Any]:
    """What a call may hold when a signal handler interrupts it, and the send thread or the handler needs, too."""
    return {
        "queues": producer._queues.lock,
        "tickets": producer._queues.settling,
        "start": producer._start,
        "coordinator": asking(producer._routes),
    }


@pytest.mark.integration
@pytest.mark.parametrize("held", ["queues", "tickets", "start", "coordinator"])
def test_a_handler_that_has_interrupted_a_holder_of_a_lock_is_refused(address: str, topic: str, held: str) -> None:
    """Another thread could wait for it. A handler would wait for ever."""
    with Producer(address, name=topic, linger=60.0) as producer:
        ticket = producer.send(topic, b"value", partition=0)
        calls: dict[str, Callable[[], object]] = {"close": producer.close}
        if held != "start":
            calls |= {"flush": producer.flush, "result": ticket.result, "stats": producer.stats}
        for call in calls.values():
            with locks(producer)[held], pytest.raises(FencepostError, match="interrupted a call of the same producer"):
                call()
        producer.flush()


@pytest.mark.integration
def test_a_handler_that_waits_tells_the_send_thread_of_its_frames_batch(address: str, topic: str) -> None:
    """The handler's record joins that batch, and the frame goes on to wake the send thread only afterwards."""
    with Producer(address) as producer:
        producer.send(topic, b"first", partition=0).result(60)
        time.sleep(0.2)  # the send thread sleeps
        done: list[object] = []

        def interrupt(opened: object) -> bool:
            if not done:
                done.append(None)
                done.append(producer.send(topic, b"handler", partition=0).result(60))
            return True

        producer._queues.needs_wake_up = interrupt  # type: ignore[method-assign]
        producer.send(topic, b"main", partition=0).result(60)
    assert len(done) == 2
    assert values(address, topic) == ["first", "main", "handler"]
