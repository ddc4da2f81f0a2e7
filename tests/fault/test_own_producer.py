"""Producers in processes of their own are stopped (SIGSTOP) and replaced at random moments while they write, and wake
up again: nothing of a fenced one gets in after the take-over, and every ticket tells the truth (OWN-9).

The log is the witness. Every record carries its writer's token, and tokens never go back. A ticket that says "yes" is
there, one that says "no" is not and never will be, and only "unknown" may be either.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter

import pytest

import fencepost
from tests.support.takeover_process import Contender

pytestmark = pytest.mark.fault


def test_a_fenced_producer_writes_nothing_and_its_tickets_tell_the_truth(
    server_by_sync: fencepost.Server, chance: random.Random
) -> None:
    run(server_by_sync, chance, take_overs=int(os.environ.get("FENCEPOST_TAKE_OVERS", "25")))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_same_for_hundreds_of_take_overs(server_by_sync: fencepost.Server, chance: random.Random) -> None:
    run(server_by_sync, chance, take_overs=int(os.environ.get("FENCEPOST_TAKE_OVERS", "500")))


def run(server: fencepost.Server, chance: random.Random, take_overs: int) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic("journal", 1, configs={"fencepost.writer.group": "writers"})
    writers = [Contender("tests.workers.own_producer", server.address, "journal", "writers") for _ in range(3)]
    said: dict[int, dict[str, list[int]]] = {}
    ends: list[tuple[int, int]] = []  # (end of the log when a token was granted, token)
    ways: Counter[str] = Counter()
    try:
        active = writers[0]
        active.claim("take 1")
        for _ in range(take_overs):
            time.sleep(chance.random() * 0.03)  # not waiting for anything: the moment is what varies
            successor = chance.choice([writer for writer in writers if writer is not active])
            way = chance.choices(["taken", "taken while stopped", "silent", "given back"], [3, 6, 1, 2])[0]
            ways[way] += 1
            if way in ("taken while stopped", "silent"):
                active.stop()
            elif way == "given back":
                active.say("stop")
            successor.claim("wait" if way in ("silent", "given back") else f"take {active.generation}")
            ends.append((end_of(server, "journal"), successor.token))
            active.wake()
            said[active.token] = json.loads(active.hear("ended"))
            active = successor
        active.say("stop")
        said[active.token] = json.loads(active.hear("ended"))
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
