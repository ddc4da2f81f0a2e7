"""The same on Apache Kafka: a writer is stopped (SIGSTOP) at a random moment, another takes over, the first wakes up:
nothing of it gets in (OWN-9).

Real processes, real signals, transactions open in several lanes, being committed, or about to be. The logs are the
witness: every record carries its writer's token, and tokens must never go back. Everything delivered must be there,
once and in order.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

import fencepost
from fencepost.client.admin_client import Admin
from tests.support.takeover_process import Contender
from tests.workers.own_kafka_writer import PARTITIONS

pytestmark = pytest.mark.fault

TAKE_OVERS = int(os.environ.get("FENCEPOST_TAKE_OVERS", "15"))


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka").address
    else:
        with fencepost.Server(process=True) as running:
            yield running.address


def test_nothing_of_a_fenced_writer_is_accepted_after_the_take_over(address: str, chance: random.Random) -> None:
    take_overs_at_random(address, chance, TAKE_OVERS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_of_a_fenced_writer_is_accepted_in_hundreds_of_take_overs(address: str, chance: random.Random) -> None:
    take_overs_at_random(address, chance, 20 * TAKE_OVERS)


def take_overs_at_random(address: str, chance: random.Random, count: int) -> None:
    topic = f"journal-{uuid.uuid4().hex}"
    told: dict[int, tuple[int, ...]] = {}
    ends: list[tuple[Mapping[int, int], int]] = []  # (ends of the logs when a token was granted, token)
    with Admin(address) as admin:
        admin.create_topic(topic, PARTITIONS)
        writers = [Contender("tests.workers.own_kafka_writer", address, topic, f"writers-{topic}") for _ in range(3)]
        try:
            active = writers[0]
            active.claim("claim 1")
            for _ in range(count):
                time.sleep(chance.random() * 0.03)  # not waiting for anything: the moment is what varies
                paused = chance.random() < 0.7
                if paused:
                    active.stop()
                successor = chance.choice([writer for writer in writers if writer is not active])
                successor.claim(f"claim {active.generation}")
                ends.append((admin.latest(topic), successor.token))
                if paused:
                    active.wake()
                told[active.token] = active.numbers("fenced")
                active = successor
            active.say("stop")
            told[active.token] = active.numbers("fenced")
        finally:
            for writer in writers:
                writer.close()
    with fencepost.Reader(address, topic, stop="latest") as reader:
        written = [(record.partition, record.offset, *map(int, (record.value or b"").split())) for record in reader]
    late = sum(
        offset >= end[partition] and token < granted for end, granted in ends for partition, offset, token, _ in written
    )
    unknown = sum(doubtful for _, doubtful in told.values())
    print(
        f"{count} take-overs, {len(written)} records, of which it was not known whether they are there: {unknown}; "
        f"writes of a fenced one accepted after a take-over: {late}"
    )
    assert late == 0
    there: Counter[int] = Counter()
    for each in range(PARTITIONS):
        in_order = [(token, number) for partition, _, token, number in written if partition == each]
        tokens = [token for token, _ in in_order]
        assert tokens == sorted(tokens), "a fenced writer wrote after its successor"
        for token in told:
            numbers = [number for owner, number in in_order if owner == token]
            assert numbers == list(range(each, each + len(numbers) * PARTITIONS, PARTITIONS)), "out of order, or twice"
            there[token] += len(numbers)
    for token, (delivered, doubtful) in told.items():
        assert delivered <= there[token] <= delivered + doubtful, "told is not what is there"
