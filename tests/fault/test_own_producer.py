"""Producers in processes of their own are stopped (SIGSTOP) and replaced at random moments while they write, and wake
up again: nothing of a fenced one gets in after the take-over, and every ticket tells the truth (OWN-9).

The log is the witness. Every record carries its writer's token, and tokens never go back. A ticket that says "yes" is
there, one that says "no" is not and never will be, and only "unknown" may be either.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import fencepost

pytestmark = pytest.mark.fault


class Writer:
    def __init__(self, address: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.own_producer", address, topic, "writers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.token = 0
        self.generation = 0

    def say(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")

    def _hear(self, word: str) -> str:
        assert self.process.stdout is not None
        said, _, rest = self.process.stdout.readline().partition(" ")
        assert said == word, (said, rest)
        return rest

    def owns(self) -> None:
        self.generation, self.token = map(int, self._hear("owns").split())

    def ended(self) -> dict[str, list[int]]:
        says: dict[str, list[int]] = json.loads(self._hear("ended"))
        return says

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


def test_a_fenced_producer_writes_nothing_and_its_tickets_tell_the_truth(server: fencepost.Server) -> None:
    run(server, take_overs=int(os.environ.get("FENCEPOST_TAKE_OVERS", "50")))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_same_for_hundreds_of_take_overs(server: fencepost.Server) -> None:
    run(server, take_overs=int(os.environ.get("FENCEPOST_TAKE_OVERS", "500")))


def run(server: fencepost.Server, take_overs: int) -> None:
    seed = int(os.environ.get("FENCEPOST_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    print(f"seed {seed}, sync {server.config.sync}")
    with fencepost.Admin(server.address) as admin:
        admin.create_topic("journal", 1, configs={"fencepost.writer.group": "writers"})
    writers = [Writer(server.address, "journal") for _ in range(3)]
    said: dict[int, dict[str, list[int]]] = {}
    ends: list[tuple[int, int]] = []  # (end of the log when a token was granted, token)
    ways: Counter[str] = Counter()
    try:
        active = writers[0]
        active.say("take 1")
        active.owns()
        for _ in range(take_overs):
            time.sleep(chance.random() * 0.03)  # not waiting for anything: the moment is what varies
            successor = chance.choice([writer for writer in writers if writer is not active])
            way = chance.choices(["taken", "taken while stopped", "silent", "given back"], [3, 6, 1, 2])[0]
            ways[way] += 1
            if way in ("taken while stopped", "silent"):
                active.signal(signal.SIGSTOP)
            elif way == "given back":
                active.say("stop")
            successor.say("wait" if way in ("silent", "given back") else f"take {active.generation}")
            successor.owns()
            ends.append((end_of(server, "journal"), successor.token))
            active.signal(signal.SIGCONT)
            said[active.token] = active.ended()
            active = successor
        active.say("stop")
        said[active.token] = active.ended()
    finally:
        for writer in writers:
            writer.close()
    judge(server, said, ends, ways)


def judge(
    server: fencepost.Server, said: dict[int, dict[str, list[int]]], ends: list[tuple[int, int]], ways: Counter[str]
) -> None:
    written = [(int(token), int(number)) for token, number in read_all(server, "journal")]
    tokens = [token for token, _ in written]
    late = sum(token < granted for end, granted in ends for token in tokens[end:])
    tally: Counter[str] = Counter()
    for token, says in said.items():
        there = [number for which, number in written if which == token]
        assert there == sorted(set(there)), f"token {token}: twice, or out of order"
        assert set(says["yes"]) <= set(there), f"token {token}: said to be there, and is not"
        assert set(says["no"]).isdisjoint(there), f"token {token}: said not to be there, and is"
        assert set(there) <= set(says["yes"]) | set(says["unknown"])
        for word, numbers in says.items():
            tally[word] += len(numbers)
    print(
        f"{len(ends)} take-overs ({', '.join(f'{way} {count}' for way, count in ways.items())}), "
        f"{len(written)} records; tickets: {dict(tally)}; writes of a fenced one accepted after a take-over: {late}"
    )
    assert tokens == sorted(tokens), "a fenced writer wrote after its successor"
    assert late == 0
    assert tally["yes"]
    # The server is there all the time, so the log can always be asked.
    assert not tally["unknown"]


def end_of(server: fencepost.Server, topic: str) -> int:
    with fencepost.Admin(server.address) as admin:
        return admin.offsets(topic, -1)[0].offset


def read_all(server: fencepost.Server, topic: str) -> list[list[str]]:
    with fencepost.Reader(server.address, topic, stop="latest") as reader:
        return [(record.value or b"").decode().split() for record in reader]
