"""Random faults against a ten-line model of the promise: in order, at most once, every ticket truthful.

The whole producer is played (queues, send thread, connections, wire) against a cluster in memory that cuts, swallows,
loses, delays and refuses requests, kills brokers and moves leaders. Each run is one seed, named in the test's id: what
fails once fails again. What must hold is `check`, and no more.
"""

from __future__ import annotations

from random import Random

import pytest

from fencepost.client.produce.ticket import Ticket
from fencepost.errors import ErrorCode
from fencepost.testing.clock import HandWoundClock
from fencepost.testing.scripted import Api, DelayedAnswer, ErrorAnswer, Fate, Script, ScriptedCluster, ScriptedRequest
from tests.support.examples import examples
from tests.support.promise import check
from tests.support.stepped import SteppedProducer

pytestmark = pytest.mark.model

PARTITIONS = 2
NODES = 2
RUNS_PER_TEST = examples(7)

FATES: list[Script] = [
    Fate.CUT,
    Fate.LOSE,
    Fate.SWALLOW,
    Fate.DUPLICATE,
    DelayedAnswer(0.5),
    ErrorAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ErrorAnswer(ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorAnswer(ErrorCode.INVALID_RECORD),
    ErrorAnswer(ErrorCode.MESSAGE_TOO_LARGE),
]


def play(seed: int) -> None:
    random = Random(seed)
    cluster = ScriptedCluster(HandWoundClock(), nodes=NODES, topics={"t": PARTITIONS})
    fault_rate = random.choice([0.1, 0.3, 0.6])
    faults = random.sample(FATES, random.randint(1, len(FATES)))

    def choose(request: ScriptedRequest) -> Script:
        if request.key in (Api.PRODUCE, Api.FETCH) and random.random() < fault_rate:
            return random.choice(faults)
        return Fate.ANSWER

    cluster.choose = choose
    producer = SteppedProducer(cluster, delivery_timeout=random.choice([4.0, 30.0]), request_timeout=2.0)
    sent: dict[int, list[tuple[bytes, Ticket]]] = {partition: [] for partition in range(PARTITIONS)}
    number = 0
    for _ in range(60):
        producer.sender.queues.flushing = random.randint(0, 1)  # many small batches, or few larger ones
        match random.choices(["send", "wait", "kill", "revive", "move"], [10, 3, 0.3, 1, 0.5])[0]:
            case "send":
                partition = random.randrange(PARTITIONS)
                for _ in range(random.randint(1, 3)):
                    value = b"%d" % number
                    number += 1
                    sent[partition].append((value, producer.send("t", value, partition=partition)))
                producer.sender.run_once(0.0)
            case "wait":
                producer.run_for(random.choice([0.001, 0.1, 3.0]))
            case "kill":
                cluster.kill(random.randrange(NODES))
            case "revive":
                cluster.revive(random.randrange(NODES))
            case "move":
                cluster.move_leader("t", random.randrange(PARTITIONS), random.randrange(NODES))
    for node in range(NODES):
        cluster.revive(node)
    cluster.choose = lambda request: Fate.ANSWER
    producer.sender.queues.flushing = 0
    producer.settle()
    for partition, records in sent.items():
        check(cluster, "t", partition, records)
    assert producer.sender.queues.held == 0

    for partition in range(PARTITIONS):
        last = producer.send("t", b"last", partition=partition)
        producer.settle()
        assert last.exception() is None, "whatever happened, it goes on"


@pytest.mark.parametrize("seed", range(0, 20 * RUNS_PER_TEST, RUNS_PER_TEST))
def test_whatever_happens_every_ticket_tells_the_truth(seed: int) -> None:
    """PROD-4, PROD-8, PROD-10, IDEM-6."""
    for each in range(seed, seed + RUNS_PER_TEST):
        try:
            play(each)
        except BaseException as error:
            error.add_note(f"seed {each}")
            raise
