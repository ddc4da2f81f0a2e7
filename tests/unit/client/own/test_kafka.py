"""The Apache Kafka backend, as far as it goes without a broker: who claims, releases and commits (OWN-9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.kafka import KafkaOwner, KafkaProducerBackend, KafkaReaderBackend
from fencepost.client.own.kafka_topic import GroupOwners
from fencepost.client.produce.lanes import WriteId
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.transactions.coordinator import DescribedTransactionState, Transactional
from fencepost.core.own.claim_request import ClaimRequest, check_claim
from fencepost.core.own.kafka_steps import DescribeWriter
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import Closed, ErrorCode, Fenced, ServerError, TimedOut
from fencepost.types import Epoch, Generation, Pid, TopicPartition
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

PID = Pid(77)


class Writing:
    """The coordinator of a write id."""

    name = "w"

    def __init__(self) -> None:
        self.doubts = 0
        self.epoch = 0
        self.steps: list[str] = []
        self.interrupts = 0

    def init(self, timeout_ms: int, who: Identity | None = None) -> Identity:
        assert who == Identity(PID, Epoch(self.epoch))
        self.steps.append("init")
        self.epoch += 1
        return Identity(PID, Epoch(self.epoch))

    def add_offsets(self, *_: object) -> None:
        self.steps.append("add")
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt

    def end(self, who: Identity, *, commit: bool) -> None:
        assert who == Identity(PID, Epoch(self.epoch))
        self.steps.append("commit" if commit else "abort")


class OwnerDouble:
    """Notes as whom it was asked."""

    def __init__(self) -> None:
        self.writing = Writing()
        self.identity: Identity | None = None
        self.lanes: tuple[WriteId, ...] = ()
        self.asked: list[tuple[str, Identity | None]] = []

    def claim(self, wanted: ClaimRequest) -> list[OwnedResource]:
        self.identity = self.identity or Identity(PID, Epoch(0))
        self.asked.append(("claim", self.identity))
        return [OwnedResource(name, Generation(1), 1) for name in wanted.resources]

    def release(self, group: str, names: Sequence[str]) -> None:
        self.asked.append(("release", self.identity))

    def release_all(self) -> None:
        self.asked.append(("release", self.identity))

    def is_committed(self, *_: object) -> bool:
        return True


class Case:
    def __init__(self, patience: float = 10.0) -> None:
        self.owner = OwnerDouble()
        self.producer = SteppedProducer(cluster(t=1))
        self.sender = self.producer.sender
        options = ProducerOptions(delivery_timeout=patience)
        self.backend = KafkaProducerBackend(self.sender, cast("KafkaOwner", self.owner), options)

    def claim(self) -> object:
        return self.backend.claim(check_claim("g", ["t-0"], generation=1))

    def does(self, work: Callable[[], object]) -> BaseException | None:
        """On another thread, while this one makes the send thread's turns."""
        outcomes: list[BaseException | None] = []

        def run() -> None:
            try:
                work()
                outcomes.append(None)
            except BaseException as error:
                outcomes.append(error)

        caller = threading.Thread(target=run)
        caller.start()
        while caller.is_alive():
            self.sender.run_once(0.01)
            caller.join(0.0005)
        return outcomes[0]


@pytest.mark.parametrize("is_closing", [False, True])
def test_an_owner_gives_back_under_the_epoch_that_is_on_its_way(is_closing: bool) -> None:
    """Under the one before, it would take itself for fenced."""
    case = Case()
    assert case.does(case.claim) is None
    case.sender.state.renew_identity()
    if is_closing:
        case.sender.queues.refuse_from_now(Closed("the producer is closed"))
    assert case.does(case.backend.close if is_closing else lambda: case.backend.release("g", ["t-0"])) is None
    assert case.owner.asked[-1] == ("release", Identity(PID, Epoch(1)))


def test_a_claim_that_could_not_begin_is_given_back_and_can_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else the next one would own, and go on to write as if nobody could be fenced."""
    case = Case(patience=0.01)
    with monkeypatch.context() as others_send:
        others_send.setattr(case.sender, "write_under", lambda *_: False)
        assert isinstance(case.does(case.claim), TimedOut)
    assert [what for what, _ in case.owner.asked] == ["claim", "release"]
    assert case.sender.state.lanes is None
    assert case.does(case.claim) is None
    assert case.sender.state.lanes is not None


def test_a_commit_that_was_interrupted_is_followed_by_the_next_epoch() -> None:
    """What of it is still on its way must not become part of the next one."""
    backend, writing = KafkaReaderBackend(ClientSettings.of("127.0.0.1:1")), Writing()
    backend.owner.identity, backend.owner.writing = Identity(PID, Epoch(0)), cast("Any", writing)
    offsets = {TopicPartition("t", 0): 1}
    writing.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        backend.commit("g", offsets)
    backend.commit("g", offsets)
    backend.commit("g", offsets)
    assert writing.steps == ["add", "abort", "init", "add", "commit", "add", "commit"]


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_stale_epoch_fences_a_reader_only_if_its_write_id_was_taken(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWN-9. The group's coordinator cannot tell a takeover from a bump that it has missed; the transaction's can."""
    backend, writing = KafkaReaderBackend(ClientSettings.of("127.0.0.1:1")), Writing()
    backend.owner.identity, backend.owner.writing = Identity(PID, Epoch(0)), cast("Any", writing)

    def add(*_: object) -> None:
        raise ServerError(ErrorCode.TRANSACTION_ABORTABLE, "the epoch is stale")

    def end(*_: object, commit: bool) -> None:
        assert not commit
        if is_taken:
            raise ServerError(ErrorCode.PRODUCER_FENCED, "somebody else has the name")

    monkeypatch.setattr(writing, "add_offsets", add)
    monkeypatch.setattr(writing, "end", end)
    with pytest.raises(Fenced if is_taken else ServerError) as raised:
        backend.commit("g", {TopicPartition("t", 0): 1})
    assert raised.value.code is (ErrorCode.PRODUCER_FENCED if is_taken else ErrorCode.TRANSACTION_ABORTABLE)
    assert not isinstance(raised.value, Fenced) or raised.value.persisted == "no"


# --- a coordinator that hung, was replaced and wakes: it knows only an earlier epoch of the write id ---


def described(monkeypatch: pytest.MonkeyPatch, *known: Identity) -> None:
    """Have the coordinators answer with these identities, one after the other."""
    answers = iter(known)

    def describe(_: Transactional) -> DescribedTransactionState:
        return DescribedTransactionState("Empty", next(answers), 60_000)

    monkeypatch.setattr(Transactional, "describe", describe)


MINE, EARLIER, LATER = (Identity(PID, Epoch(epoch)) for epoch in (3, 2, 4))
OTHER = Identity(Pid(PID + 1), Epoch(0))


@pytest.mark.parametrize(("known", "is_lost"), [(MINE, False), (EARLIER, False), (LATER, True), (OTHER, True)])
def test_a_heartbeat_reports_a_takeover_and_not_an_outdated_coordinator(
    known: Identity, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWN-9: whoever takes over has a higher epoch, or another pid."""
    described(monkeypatch, known)
    settings, told = ClientSettings.of("127.0.0.1:1"), threading.Event()
    owner = KafkaOwner(settings, Routes(settings))
    owner.identity, owner.on_lost = MINE, told.set
    owner._held["g", "it"] = None
    owner._look_after()
    assert told.is_set() == is_lost


@pytest.mark.parametrize("truth", [MINE, LATER, OTHER])
def test_a_claim_asks_an_outdated_coordinator_again(truth: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    described(monkeypatch, EARLIER, EARLIER, truth)
    settings = ClientSettings.of("127.0.0.1:1")
    group = GroupOwners(settings, Routes(settings), "g", write_timeout_ms=60_000, patience=10.0)
    assert group._do(DescribeWriter("w", MINE)) == truth
