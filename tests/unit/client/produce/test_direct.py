"""The direct way: a record that its own caller writes, stepped."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client.produce.direct import _EAGER_TURNS, _SELDOM_TURNS
from fencepost.errors import ErrorCode
from tests.support.scripted import Api, ErrorAnswer, Late
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


def test_what_left_before_an_interrupt_may_still_arrive() -> None:
    """A signal handler raises in `send`, after the bytes have left. The connection is closed by this side, so the
    server may read them much later: a batch that expires in between is of unknown fate, not absent (IDEM-7)."""
    on = cluster(t=1)
    producer = SteppedProducer(on, direct=True, delivery_timeout=4.0, request_timeout=2.0)
    producer.send("t", b"first")
    producer.settle()
    producer.step(2)
    [connection] = producer.sender.brokers
    link: Any = connection._link
    write = link.write_now

    def interrupted(data: Any) -> Any:
        write(data)
        raise KeyboardInterrupt

    link.write_now = interrupted
    on.next(Api.PRODUCE, Late(10.0))
    with pytest.raises(KeyboardInterrupt):
        producer.send("t", b"second")
    on.deal(ErrorAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), Api.PRODUCE)
    [batch] = producer.sender.queues.list_unsettled()
    producer.run_for(6.0)
    assert batch.error is not None
    assert getattr(batch.error, "persisted", None) == "unknown"
    producer.run_for(10.0)
    assert on.values("t", 0) == [b"first", b"second"]


def test_the_send_thread_looks_less_often_while_the_callers_read() -> None:
    """A record that meets a turn of the send thread waits for it."""
    producer = SteppedProducer(cluster(t=1), direct=True)
    direct, state = producer.sender.direct, producer.sender.state
    now = direct._eager_until = state.now() + 1000.0
    direct._eager_until += 1.0
    for last_read, pause in ((now - 0.001, _SELDOM_TURNS), (now - 1.0, _EAGER_TURNS)):
        direct._last_read, state.next_due = last_read, float("inf")
        direct.look(now)
        assert state.next_due == now + pause
