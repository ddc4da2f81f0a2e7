"""The shutdown matrix: however a program ends and whatever it does meanwhile, it ends, nothing acknowledged is lost or
doubled, and what is lost is said on stderr."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fencepost import Admin, Producer
from tests.support.programs import PATIENCE, values
from tests.workers import shutdown

ENDS = ["SIGTERM", "SIGINT", "exit", "exception", "atexit", "del"]
WORKS = ["idle", "send", "result", "flush", "close", "transaction", "owner"]
MODES = ["plain", "asyncio"]


def shut_down(address: str, topic: str, how: str, work: str, mode: str, folder: Path, seconds: float) -> None:
    notes, errors = folder / f"{topic}.txt", folder / f"{topic}.err"
    command = [sys.executable, shutdown.__file__, address, topic, how, work, mode, str(notes), str(seconds)]
    with errors.open("wb") as err, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", errors.read_text()
            if how.startswith("SIG"):
                time.sleep(seconds)  # at some moment of the work: which one is up to chance
                process.send_signal(signal.Signals[how])
            code = process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
    if work == "transaction":
        with Producer(address, name=topic) as successor:  # ends what is still open, which hides later records
            successor.init_transactions()
    said = errors.read_text()
    noted = [line.split() for line in notes.read_text().splitlines()]
    sent = {value for kind, value in noted if kind == "S"}
    acknowledged = {value for kind, value in noted if kind == "A"}
    found = Counter(values(address, topic))
    row = f"{how} while {work}, {mode}: exit code {code}\n{said}"
    assert not [value for value, count in found.items() if count > 1], row
    assert not acknowledged - found.keys(), row
    if work == "transaction":  # records of a block that raises are aborted: all of them or none
        assert len(found.keys() - {"last"}) % 3 == 1, row  # the first one was sent alone
        return
    lost = len(sent - found.keys())
    counted = sum(int(count) for count in re.findall(r"(\d+) records? not delivered", said))
    assert lost <= counted, f"{lost} records were lost, and {counted} of them said: {row}"


SHORT = [
    ("SIGTERM", "result", "plain"),
    ("SIGTERM", "flush", "asyncio"),
    ("SIGTERM", "transaction", "plain"),
    ("SIGINT", "send", "plain"),
    ("SIGINT", "owner", "plain"),
    ("SIGINT", "result", "asyncio"),
    ("exit", "flush", "plain"),
    ("exception", "close", "plain"),
    ("atexit", "send", "plain"),
    ("del", "idle", "plain"),
]
"""Each end and each work at least once."""


@pytest.mark.integration
@pytest.mark.parametrize(("how", "work", "mode"), SHORT)
def test_a_program_that_ends_loses_nothing_in_silence(
    address: str, topic: str, tmp_path: Path, how: str, work: str, mode: str
) -> None:
    shut_down(address, topic, how, work, mode, tmp_path, 0.2)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ENDS)
def test_many_programs_that_end_at_random_moments(address: str, name: str, tmp_path: Path, how: str, mode: str) -> None:
    """FENCEPOST_SHUTDOWNS programs for each row."""
    seed = int(os.environ.get("FENCEPOST_SEED", time.time_ns() % 2**32))
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Admin(address) as admin:
        for number in range(int(os.environ.get("FENCEPOST_SHUTDOWNS", "1000"))):
            topic = f"{name}-{number}"
            admin.create_topic(topic, partitions=1)
            shut_down(address, topic, how, chance.choice(WORKS), mode, tmp_path, chance.uniform(0, 0.3))
            admin.delete_topics([topic])
