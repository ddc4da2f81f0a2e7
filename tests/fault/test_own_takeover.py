"""A writer is stopped (SIGSTOP) at a random moment, another takes over, the first wakes up: nothing of it gets in
(OWN-9).

Real processes, real signals, pipelined writes in flight. The log is the witness: every record carries its writer's
token, and tokens must never go back. Everything acknowledged must be there, once and in order.
"""

from __future__ import annotations

import os
import random
import time

import pytest

import fencepost
from fencepost.kernel import decode_batch, split_batches
from tests.support.examples import examples
from tests.support.raw import RawClient
from tests.support.takeover_process import Contender

pytestmark = pytest.mark.fault

TAKE_OVERS = int(os.environ.get("FENCEPOST_TAKE_OVERS", examples(50)))


def test_nothing_of_a_fenced_writer_is_accepted_after_the_take_over(
    server_by_sync: fencepost.Server, chance: random.Random
) -> None:
    with RawClient(server_by_sync.address) as reader:
        reader.create_topic("journal", configs={"fencepost.writer.group": "writers"})
        writers = [
            Contender("tests.workers.own_writer", server_by_sync.address, "journal", "writers") for _ in range(3)
        ]
        acknowledged: dict[int, int] = {}
        ends: list[tuple[int, int]] = []  # (end of the log when a token was granted, token)
        try:
            active = writers[0]
            active.claim("claim 1")
            for _ in range(TAKE_OVERS):
                time.sleep(chance.random() * 0.01)  # not waiting for anything: the moment is what varies
                paused = chance.random() < 0.7
                if paused:
                    active.stop()
                successor = chance.choice([writer for writer in writers if writer is not active])
                successor.claim(f"claim {active.generation}")
                ends.append((reader.end_offset("journal"), successor.token))
                if paused:
                    active.wake()
                (acknowledged[active.token],) = active.numbers("fenced")
                active = successor
            active.say("stop")
            (acknowledged[active.token],) = active.numbers("fenced")
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
