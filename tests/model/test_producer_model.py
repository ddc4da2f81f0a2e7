"""Random faults against a ten-line model of the promise: in order, at most once, every ticket truthful.

The whole producer is played (queues, send thread, connections, wire) against a cluster in memory that cuts, swallows,
loses, delays and refuses requests, kills brokers and moves leaders. Each run is one seed, named in the test's id: what
fails once fails again. What must hold is `check`, and no more.
"""

from __future__ import annotations

from random import Random

import pytest

from fencepost.client.produce.ticket import Ticket
from fencepost.core.producers import schedule
from fencepost.core.producers.window import BUSY
from fencepost.errors import ErrorCode
from tests.support.clock import HandWoundClock
from tests.support.examples import examples
from tests.support.producer_promise import check
from tests.support.scripted import Api, DelayedAnswer, ErrorAnswer, Fate, Script, ScriptedCluster, ScriptedRequest
from tests.support.stepped_producer import SteppedProducer

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
    ErrorAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, appended=True),
    ErrorAnswer(ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorAnswer(ErrorCode.INVALID_RECORD),
    ErrorAnswer(ErrorCode.MESSAGE_TOO_LARGE),
]


def play(seed: int, partitions: int = PARTITIONS, longest: int = 0, **options: float) -> None:
    """`longest`: bytes by which a value is made longer, at most."""
    random = Random(seed)
    cluster = ScriptedCluster(HandWoundClock(), nodes=NODES, topics={"t": partitions})
    fault_rate = random.choice([0.1, 0.3, 0.6])
    faults = random.sample(FATES, random.randint(1, len(FATES)))

    connections: dict[tuple[int, int], int] = {}
    """By partition and node: the one of the latest Produce request. When a partition moves, batches may be in flight to
    its old leader: the sequences keep the order."""

    last_nodes: dict[int, int] = {}
    """By partition: the node of the latest one."""

    def choose(request: ScriptedRequest) -> Script:
        if request.key == Api.PRODUCE:
            for part in request.message.topics[0].partitions:
                flight = next(
                    queue for queue in producer.sender.queues.everything() if queue.index == part.index
                ).flight
                assert flight is not None
                before = connections.setdefault((part.index, request.node), request.connection)
                has_moved = last_nodes.get(part.index) != request.node
                assert has_moved or before == request.connection or flight.in_flight == 1, "one connection at a time"
                connections[part.index, request.node] = request.connection
                last_nodes[part.index] = request.node
        if request.key in (Api.PRODUCE, Api.FETCH) and random.random() < fault_rate:
            return random.choice(faults)
        return Fate.ANSWER

    cluster.choose = choose
    producer = SteppedProducer(
        cluster,
        delivery_timeout=random.choice([4.0, 30.0]),
        request_timeout=2.0,
        **options,  # type: ignore[arg-type]
    )
    producer.sender.dispatch.busy = random.choice([1, BUSY])  # with 1, many go over the side connection
    sent: dict[int, list[tuple[bytes, Ticket]]] = {partition: [] for partition in range(partitions)}

    number = 0
    for _ in range(60):
        producer.sender.queues.flushing = random.randint(0, 1)  # many small batches, or few larger ones
        match random.choices(["send", "wait", "kill", "revive", "move"], [10, 3, 0.3, 1, 0.5])[0]:
            case "send":
                partition = random.randrange(partitions)
                for _ in range(random.randint(1, 3)):
                    value = b"%d" % number + (b"." * random.randrange(longest) if longest else b"")
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
                cluster.move_leader("t", random.randrange(partitions), random.randrange(NODES))
    for node in range(NODES):
        cluster.revive(node)
    cluster.choose = lambda request: Fate.ANSWER
    producer.sender.queues.flushing = 0
    producer.settle()
    for partition, records in sent.items():
        check(cluster, "t", partition, records)
    assert producer.sender.queues.held == 0

    for partition in range(partitions):
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


@pytest.mark.parametrize("seed", range(0, 20 * RUNS_PER_TEST, RUNS_PER_TEST))
def test_whatever_happens_in_a_crowd_every_ticket_tells_the_truth(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of three, with full, large and small batches (PROD-6, PROD-11)."""
    monkeypatch.setattr(schedule, "FEW_PARTITIONS", 1)
    monkeypatch.setattr(schedule, "LITTLE", 250)
    for each in range(seed, seed + RUNS_PER_TEST):
        try:
            play(each, partitions=6, longest=200, batch_size=400, linger=each % 3 * 0.005)
        except BaseException as error:
            error.add_note(f"seed {each}")
            raise
