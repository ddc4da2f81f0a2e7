"""A signal handler that closes, flushes, waits or sends, whatever call of the same producer it interrupts: it succeeds,
or it is told at once that it cannot. It never hangs, and nothing that was acknowledged is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.support.programs import PATIENCE, values

pytestmark = pytest.mark.integration

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


def test_a_signal_handler_that_sends_never_hangs(address: str, topic: str) -> None:
    script = REPEATED.format(address=address, topic=topic)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.stderr == ""
    found = values(address, topic)
    assert found.count("main") == 3000
    assert found.count("handler") == int(ended.stdout)
