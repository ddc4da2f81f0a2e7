"""Random faults against an owner: what it sends is in order and at most once, nothing of it comes after a take-over,
and when it is fenced every ticket tells the truth (OWN-9).

As in test_producer_model.py the whole producer is played against a cluster in memory, one seed per run. Here the end of
a connection is final; the server may hear of it late, and may by then have carried out what was still on its way.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fencepost.client.produce.ticket import Ticket
from fencepost.core.own.claim_request import check_claim
from fencepost.errors import ErrorCode, Fenced
from tests.support.clock import HandWoundClock
from tests.support.producer_promise import check
from tests.support.scripted import (
    Api,
    DelayedAnswer,
    ErrorAnswer,
    Fate,
    Late,
    Script,
    ScriptedCluster,
    ScriptedRequest,
)
from tests.support.stepped_producer import SteppedProducer

pytestmark = pytest.mark.model

RUNS_PER_TEST = 50
FATES: list[Script] = [
    Fate.CUT,
    Fate.LOSE,
    Fate.SWALLOW,
    Fate.DUPLICATE,
    DelayedAnswer(0.5),
    Late(0.3),
    Late(1.5),
    Late(60.0),
    ErrorAnswer(ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorAnswer(ErrorCode.REQUEST_TIMED_OUT),
    ErrorAnswer(ErrorCode.INVALID_RECORD),
]


def play(seed: int) -> Counter[str]:
    random = Random(seed)
    cluster = ScriptedCluster(HandWoundClock(), topics={"t": 1}, knows_own=True)
    producer = SteppedProducer(cluster, request_timeout=random.choice([2.0, 10.0]), delivery_timeout=30.0)
    claim = producer.sender.owner.claim(check_claim("g", ["t-0"], generation=1, session=random.choice([0.0, 4.0])))
    producer.step_until(claim.outcome.done)
    fault_rate = random.choice([0.02, 0.1, 0.3])
    faults = random.sample(FATES, random.randint(1, len(FATES)))

    def choose(request: ScriptedRequest) -> Script:
        owning = request.key == Api.PRODUCE
        if (owning or request.key in (Api.FETCH, Api.DESCRIBE_OWNERS)) and random.random() < fault_rate:
            fate = random.choice(faults)
            return fate if owning or not isinstance(fate, ErrorAnswer | Late) else Fate.ANSWER
        return Fate.ANSWER

    cluster.choose = choose
    sent: list[tuple[bytes, Ticket]] = []
    at_take_over: int | None = None
    try:
        for _ in range(40):
            producer.sender.queues.flushing = random.randint(0, 1)  # many small batches, or few larger ones
            match random.choices(["send", "wait", "take over"], [10, 3, 0.5])[0]:
                case "send":
                    for _ in range(random.randint(1, 3)):
                        value = b"%d" % len(sent)
                        sent.append((value, producer.send("t", value, partition=0)))
                    producer.sender.run_once(0.0)
                case "wait":
                    producer.run_for(random.choice([0.001, 0.1, 3.0]))
                case "take over":
                    cluster.take_over("g", "t-0")
                    at_take_over = cluster.logs["t"][0].end
    except Fenced:
        pass
    producer.sender.queues.flushing = 1
    producer.run_for(45.0)  # longer than any ticket may stay open
    producer.run_for(60.0)  # and until the server has carried out everything that was ever on its way
    assert producer.sender.queues.is_empty
    assert producer.sender.queues.held == 0
    said = check(cluster, "t", 0, sent)
    if at_take_over is not None:
        assert cluster.logs["t"][0].end == at_take_over, "nothing of a fenced one after a take-over"
    if producer.sender.fenced is not None:
        said["fenced"] += 1
        with pytest.raises(Fenced):
            producer.send("t", b"late", partition=0)
    return said


@pytest.mark.parametrize("seed", range(0, 400, RUNS_PER_TEST))
def test_whatever_happens_to_an_owner_every_ticket_tells_the_truth(seed: int) -> None:
    """OWN-9."""
    said: Counter[str] = Counter()
    for each in range(seed, seed + RUNS_PER_TEST):
        try:
            said += play(each)
        except BaseException as error:
            error.add_note(f"seed {each}")
            raise
    print(dict(said))
    assert all(said[word] for word in ("yes", "no", "fenced")), said
