"""Wrong credentials, or TLS without trust: a task that reads or writes fails at once, with the reason, and so does its
micro-batch. Waiting, and another attempt, are for what they can cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import MicroBatchSteps, Runner
from fencepost.client.read.ranges import Range, fetch
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch.protocol import StepFailed
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError, TimedOut, TlsRefused, Unreachable
from fencepost.kernel import BatchBuilder
from fencepost.types import Epoch, Pid, TopicPartition
from tests.support.sink_rows import Rows

pytestmark = pytest.mark.unit

REFUSALS = [TlsRefused("the certificate is not trusted"), ServerError(ErrorCode.SASL_AUTHENTICATION_FAILED, "who?")]
PATIENCE = 0.3
"""What would be waited, were it not for the refusal."""
SETTINGS = ClientSettings.of("127.0.0.1:1")

refused = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)


class Refusing:
    """Routes on which nobody finds a leader, for one reason; counts who tries."""

    def __init__(self, error: FencepostError) -> None:
        self.error, self.asked = error, 0

    def leaders(self, *_: Any) -> Any:
        self.asked += 1
        raise self.error


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[FencepostError], tuple[Routes, Refusing]]:
    def make(error: FencepostError) -> tuple[Routes, Refusing]:
        routes, by = Routes(SETTINGS), Refusing(error)
        monkeypatch.setattr(routes, "leaders", by.leaders)
        return routes, by

    return make


Make = Callable[[FencepostError], tuple[Routes, Refusing]]


@refused
def test_a_reader_that_is_kept_out_asks_once(refusing: Make, refusal: FencepostError) -> None:
    routes, by = refusing(refusal)
    with pytest.raises(type(refusal)):
        list(fetch(routes, Range("t", 0, 0, 10), patience=PATIENCE))
    assert by.asked == 1


def test_a_reader_that_reaches_nobody_asks_again(refusing: Make) -> None:
    routes, by = refusing(Unreachable("nobody is there"))
    with pytest.raises(Unreachable):
        list(fetch(routes, Range("t", 0, 0, 10), patience=PATIENCE))
    assert by.asked > 1


def write(routes: Routes) -> None:
    builder = BatchBuilder()
    builder.append(None, b"value", 0, ())
    links = LeaderChannels(routes)
    transaction = SharedTransaction("name", Identity(Pid(7), Epoch(0)))
    writer = PartitionWriter(links, transaction, TopicPartition("t", 0), fresh=True, patience=PATIENCE)
    try:
        writer.write(builder.build(0))
    finally:
        links.close()


@refused
def test_a_writer_that_is_kept_out_asks_once(refusing: Make, refusal: FencepostError) -> None:
    routes, by = refusing(refusal)
    with pytest.raises(type(refusal)):
        write(routes)
    assert by.asked == 1


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_micro_batch_that_is_kept_out_is_not_tried_again(error: FencepostError) -> None:
    with pytest.raises(type(error)):
        attempt(error)


@pytest.mark.parametrize("error", [Unreachable("nobody is there"), TimedOut("too late")])
def test_a_micro_batch_that_reaches_nobody_is(error: FencepostError) -> None:
    with pytest.raises(StepFailed):
        attempt(error)


def attempt(error: FencepostError) -> None:
    runner = Runner(SETTINGS, "name")
    try:
        with MicroBatchSteps(runner, Rows(runner, "t", 1))._attempt():
            raise error
    finally:
        runner.close()
