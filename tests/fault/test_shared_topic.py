"""Workers that share a topic (`examples/workers.py`), killed, stopped, woken and replaced under load, on both servers.

Each record is handled at least once; a worker that leaves in good order costs no record twice; one that was paused and
replaced commits nothing afterwards.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

import fencepost
from tests.conftest import Engine
from tests.support.spoken_process import Heard

pytestmark = pytest.mark.fault

PARTITIONS = 4


def handled(workers: list[Heard]) -> Counter[tuple[str, int]]:
    done: Counter[tuple[str, int]] = Counter()
    for worker in workers:
        for line in list(worker.lines):
            what, *rest = line.split()
            if what == "did":
                done[rest[0], int(rest[1])] += 1
    return done


@pytest.mark.every_run("fencepost")
def test_every_record_is_handled_whoever_is_killed_or_paused(engine: Engine, name: str) -> None:
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, PARTITIONS)
    chance = random.Random(name)
    sent, done = [0] * PARTITIONS, threading.Event()
    with ExitStack() as stack:
        workers: list[Heard] = []

        def start() -> Heard:
            worker = stack.enter_context(
                Heard(
                    "examples/workers.py", engine.address, name, name, "--session", "6", "--seconds-per-record", "0.001"
                )
            )
            workers.append(worker)
            worker.hear(lambda line: line.startswith("gets "))
            return worker

        def write() -> None:
            with fencepost.Producer(engine.address) as producer:
                while not done.wait(0.02):
                    for partition in range(PARTITIONS):
                        producer.send(name, b"", partition=partition)
                        sent[partition] += 1

        writer = threading.Thread(target=write)
        first, second = start(), start()
        writer.start()
        try:
            second.signal(signal.SIGSTOP)  # its session ends, and the first one reads everything
            third = start()
            third.kill()
            before = len(first.lines)
            first.hear(lambda line: line.startswith("gets "), after=before)
            second.signal(signal.SIGCONT)
            second.hear(lambda line: line.startswith(("lost ", "gives ")))
            leaver = start()
            threading.Event().wait(chance.uniform(0.1, 0.5))
            leaver.signal(signal.SIGTERM)
            assert leaver.wait() == 0, leaver
        finally:
            done.set()
            writer.join()
        everything = {(f"{name}-{partition}", at) for partition in range(PARTITIONS) for at in range(sent[partition])}
        for _ in range(3000):
            if set(handled(workers)) >= everything:
                break
            threading.Event().wait(0.02)
        assert set(handled(workers)) == everything
        for worker in (first, second):
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker
    with fencepost.Admin(engine.address) as admin:
        assert [row.committed for row in admin.group_offsets(name)] == sent
