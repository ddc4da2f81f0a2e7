"""A writer is stopped (SIGSTOP) at a random moment, another takes over, the first wakes up: nothing of it gets in
(OWN-9).

Real processes, real signals, pipelined writes in flight. The log is the witness: every record carries its writer's
token, and tokens must never go back. Everything acknowledged must be there, once and in order.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import fencepost
from fencepost.kernel import decode_batch, split_batches
from tests.support.raw import RawClient

pytestmark = pytest.mark.fault

TAKE_OVERS = int(os.environ.get("FENCEPOST_TAKE_OVERS", "150"))


class Writer:
    def __init__(self, address: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.own_writer", address, topic, "writers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.token = 0

    def say(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")

    def hear(self, word: str) -> list[int]:
        assert self.process.stdout is not None
        said, *numbers = self.process.stdout.readline().split()
        assert said == word, (said, numbers)
        return [int(number) for number in numbers]

    def claim(self, generation: int) -> int:
        self.say(f"claim {generation}")
        granted, self.token = self.hear("owns")
        return granted

    def signal(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["os", "always"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fencepost.Server]:
    sync: Literal["os", "always"] = request.param
    with fencepost.Server(tmp_path, sync=sync, process=True) as running:
        yield running


def test_nothing_of_a_fenced_writer_is_accepted_after_the_take_over(server: fencepost.Server) -> None:
    seed = int(os.environ.get("FENCEPOST_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    print(f"seed {seed}, sync {server.config.sync}")
    with RawClient(server.address) as reader:
        reader.create_topic("journal", configs={"fencepost.writer.group": "writers"})
        writers = [Writer(server.address, "journal") for _ in range(3)]
        acknowledged: dict[int, int] = {}
        ends: list[tuple[int, int]] = []  # (end of the log when a token was granted, token)
        try:
            active = writers[0]
            generation = active.claim(1)
            for _ in range(TAKE_OVERS):
                time.sleep(chance.random() * 0.01)  # not waiting for anything: the moment is what varies
                paused = chance.random() < 0.7
                if paused:
                    active.signal(signal.SIGSTOP)
                successor = chance.choice([writer for writer in writers if writer is not active])
                generation = successor.claim(generation)
                ends.append((reader.end_offset("journal"), successor.token))
                if paused:
                    active.signal(signal.SIGCONT)
                (acknowledged[active.token],) = active.hear("fenced")
                active = successor
            active.say("stop")
            (acknowledged[active.token],) = active.hear("fenced")
        finally:
            for writer in writers:
                writer.close()
        written = read_all(reader, "journal")
    tokens = [token for token, _ in written]
    assert tokens == sorted(tokens), "a fenced writer wrote after its successor"
    late = sum(token < granted for end, granted in ends for token in tokens[end:])
    numbers: dict[int, list[int]] = {}
    for token, number in written:
        numbers.setdefault(token, []).append(number)
    for token, count in acknowledged.items():
        assert numbers.get(token, []) == list(range(len(numbers.get(token, []))))
        assert len(numbers.get(token, [])) >= count, "something acknowledged is missing"
    print(f"{TAKE_OVERS} take-overs, {len(written)} records, writes of a fenced one accepted after a take-over: {late}")
    assert late == 0


def read_all(reader: RawClient, topic: str) -> list[tuple[int, int]]:
    end, offset = reader.end_offset(topic), 0
    found: list[tuple[int, int]] = []
    while offset < end:
        fetched = reader.fetch(topic, offset)
        assert fetched.error == 0
        for data in split_batches(fetched.data):
            for record in decode_batch(data):
                if record.offset >= offset:
                    token, number = (record.value or b"").split()
                    found.append((int(token), int(number)))
                    offset = record.offset + 1
    return found
