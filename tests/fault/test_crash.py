"""kill -9 at random moments: every acknowledged record is in the log once, in order, and its producer goes on (IDEM-7).

FENCEPOST_CRASH_KILLS sets the number of kills. The seed of a run is in its output; FENCEPOST_CRASH_SEED repeats its
dice, though not the moments at which the machine gave each process its turn.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.crash import CrashTest, ServerProcess
from tests.support.raw import RawClient

pytestmark = pytest.mark.fault


def seed() -> int:
    given = os.environ.get("FENCEPOST_CRASH_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


def killed_many_times(folder: Path, kills: int) -> None:
    test = CrashTest(folder, seed())
    print(f"seed {test.seed}")
    test.run(kills)
    print(test.summary())
    assert test.kills >= kills
    assert (test.lost, test.doubled, test.changed) == (0, 0, 0)


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    """IDEM-2, IDEM-7."""
    killed_many_times(tmp_path, int(os.environ.get("FENCEPOST_CRASH_KILLS", "15")))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_or_doubled_by_thousands_of_kills(tmp_path: Path) -> None:
    """IDEM-7, at length: in rounds, each on a fresh log, so that reading it all after every kill stays affordable."""
    rounds = int(os.environ.get("FENCEPOST_SOAK_ROUNDS", "20"))
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        killed_many_times(folder, 100)


def write_with_librdkafka(server: ServerProcess, topic: str, *, kills: int) -> int:
    """Writes 0, 1, 2, … through so many kills; returns how many were delivered, each at the offset of its number."""
    delivered: dict[int, int] = {}
    failures: list[str] = []

    def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            delivered[int(message.value())] = message.offset()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.address,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 50,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
    )
    number = 0
    dice = random.Random(seed())
    for _ in range(kills):
        goal = len(delivered) + dice.randint(200, 3000)
        while len(delivered) < goal:
            if len(producer) < 2000:
                producer.produce(topic, str(number).encode(), partition=0, on_delivery=note)
                number += 1
            producer.poll(0 if len(producer) < 2000 else 0.01)
            assert not failures, failures[0]
        server.kill()
        server.start(dice.choice(["os", "always"]))
        server.await_ready()
    assert producer.flush(60) == 0
    assert not failures, failures[0]
    assert delivered == {position: position for position in range(number)}
    return number


@pytest.mark.timeout(180)
def test_librdkafkas_idempotent_producer_survives_kills(tmp_path: Path) -> None:
    """IDEM-7 with a stranger's client: what it was told is delivered lies at the offset it was told, once, in order."""
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        with RawClient(server.address) as client:
            client.create_topic("numbers")
        number = write_with_librdkafka(server, "numbers", kills=4)
        with RawClient(server.address) as client:
            found: list[bytes | None] = []
            while len(found) < number:
                found += client.fetch("numbers", len(found)).values
            assert found == [str(position).encode() for position in range(number)]
            assert client.end_offset("numbers") == number
    print(f"4 kills, {number} records delivered by librdkafka, lost 0, doubled 0")
