"""A signal handler that closes, flushes, waits or sends, whatever call of the same producer it interrupts: it succeeds,
or it is told at once that it cannot. It never hangs, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import FencepostError, Producer
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


def locks(producer: Producer) -> dict[str, Any]:
    """What a call may hold when a signal handler interrupts it, and the send thread or the handler needs, too."""
    routes = producer._routes
    return {
        "queues": producer._queues.lock,
        "tickets": producer._queues.settling,
        "turn": producer._sender._turn,
        "start": producer._start,
        "coordinator": routes.channel(routes.settings.servers[0])._lock,
    }


@pytest.mark.integration
@pytest.mark.parametrize("held", ["queues", "tickets", "turn", "start", "coordinator"])
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

        def interrupt(queue: object) -> bool:
            if not done:
                done.append(None)
                done.append(producer.send(topic, b"handler", partition=0).result(60))
            return False

        producer._queues.send_now = interrupt
        producer.send(topic, b"main", partition=0).result(60)
    assert len(done) == 2
    assert values(address, topic) == ["first", "main", "handler"]
