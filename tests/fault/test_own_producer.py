"""Producers in processes of their own are stopped (SIGSTOP) and replaced at random moments while they write, and wake
up again: nothing of a fenced one gets in after the take-over, and every ticket tells the truth (OWN-9).

The same for both engines: our server's own, and the one for Apache Kafka, which runs on both servers. There the
transactions of several lanes are open, being committed, or about to be.

The log is the witness. Every record carries its writer's token, and tokens never go back. A ticket that says "yes" is
there, one that says "no" is not and never will be, and only "unknown" may be either.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pytest

import fencepost
from tests.support.examples import examples
from tests.support.takeover_process import Contender
from tests.workers.own_producer import PARTITIONS

pytestmark = pytest.mark.fault

TAKEN, STOPPED, SILENT, GIVEN_BACK = "taken", "taken while stopped", "silent", "given back"
ON_OUR_SERVER: Final = {TAKEN: 3, STOPPED: 6, SILENT: 1, GIVEN_BACK: 2}
ON_KAFKA: Final = {TAKEN: 3, STOPPED: 7}  # a session of Kafka's takes seconds to end


class Ground(NamedTuple):
    """Where producers take over from each other, and how often each way."""

    address: str
    engine: str
    ways: Mapping[str, int]
    take_overs: int


@pytest.fixture(params=["os", "always", "fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "kafka":
        yield Ground(request.getfixturevalue("kafka").address, "kafka", ON_KAFKA, examples(15))
        return
    is_ours = request.param in ("os", "always")
    with fencepost.Server(sync=request.param if is_ours else "os", process=True) as server:
        if is_ours:
            yield Ground(server.address, "server", ON_OUR_SERVER, examples(25))
        else:
            yield Ground(server.address, "kafka", ON_KAFKA, examples(15))


def test_a_fenced_producer_writes_nothing_and_its_tickets_tell_the_truth(
    ground: Ground, name: str, chance: random.Random
) -> None:
    run(ground, name, chance)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_for_hundreds_of_take_overs(ground: Ground, name: str, chance: random.Random) -> None:
    run(ground._replace(take_overs=20 * ground.take_overs), name, chance)


def run(ground: Ground, topic: str, chance: random.Random) -> None:
    group = f"writers-{topic}"
    guard = {"fencepost.writer.group": group} if ground.engine == "server" else None
    said: dict[int, dict[str, list[int]]] = {}
    ends: list[tuple[Mapping[int, int], int]] = []  # (ends of the logs when a token was granted, token)
    ways: Counter[str] = Counter()
    with fencepost.Admin(ground.address) as admin:
        admin.create_topic(topic, PARTITIONS, configs=guard)
        writers = [
            Contender("tests.workers.own_producer", ground.address, topic, group, ground.engine) for _ in range(3)
        ]
        try:
            active = writers[0]
            active.claim("take 1")
            for _ in range(ground.take_overs):
                time.sleep(chance.random() * 0.03)  # not waiting for anything: the moment is what varies
                successor = chance.choice([writer for writer in writers if writer is not active])
                way = chance.choices(list(ground.ways), list(ground.ways.values()))[0]
                ways[way] += 1
                if way in (STOPPED, SILENT):
                    active.stop()
                elif way == GIVEN_BACK:
                    active.say("stop")
                successor.claim("wait" if way in (SILENT, GIVEN_BACK) else f"take {active.generation}")
                ends.append((admin.latest(topic), successor.token))
                active.wake()
                said[active.token] = json.loads(active.hear("ended"))
                active = successor
            active.say("stop")
            said[active.token] = json.loads(active.hear("ended"))
        finally:
            for writer in writers:
                writer.close()
    judge(ground, topic, said, ends, ways)


def judge(
    ground: Ground,
    topic: str,
    said: Mapping[int, Mapping[str, list[int]]],
    ends: list[tuple[Mapping[int, int], int]],
    ways: Counter[str],
) -> None:
    with fencepost.Reader(ground.address, topic, stop="latest") as reader:
        written = [(record.partition, record.offset, *map(int, (record.value or b"").split())) for record in reader]
    late = sum(
        offset >= end[partition] and token < granted for end, granted in ends for partition, offset, token, _ in written
    )
    tally: Counter[str] = Counter()
    for says in said.values():
        tally.update({word: len(numbers) for word, numbers in says.items()})
    print(
        f"{len(ends)} take-overs ({', '.join(f'{way} {count}' for way, count in ways.items())}), "
        f"{len(written)} records; tickets: {dict(tally)}; writes of a fenced one accepted after a take-over: {late}"
    )
    assert late == 0
    for each in range(PARTITIONS):
        in_order = [(token, number) for partition, _, token, number in written if partition == each]
        assert in_order == sorted(set(in_order)), "twice, out of order, or by a fenced writer after its successor"
    for token, says in said.items():
        there = {number for _, _, which, number in written if which == token}
        assert set(says["yes"]) <= there, f"token {token}: said to be there, and is not"
        assert there.isdisjoint(says["no"]), f"token {token}: said not to be there, and is"
        assert there <= {*says["yes"], *says["unknown"]}
    assert tally["yes"]
    if ground.engine == "server":  # it is there all the time, so the log can always be asked
        assert not tally["unknown"]
