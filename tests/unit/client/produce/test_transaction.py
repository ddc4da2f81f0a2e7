"""A producer with a name, stepped by hand, with a coordinator that answers when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.lanes import NO_NODE, WriteId
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.sender import Sender
from fencepost.client.produce.state import KEEPS_NAME
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata
from fencepost.core.producers.pid import Identity, PidState
from fencepost.core.producers.recollection import SavedPlace
from fencepost.errors import ConfigError, ErrorCode, Expired, Fenced, FencepostError, SendFailed, ServerError, TimedOut
from fencepost.kernel import read_header
from fencepost.types import Epoch, Offset, Pid, Sequence, TopicPartition
from tests.support.scripted import Api, ErrorAnswer, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

PID = Pid(77)


class Coordinator:
    """A coordinator that gives epochs at once; the other steps wait until the test lets them through."""

    name = "n"
    last_refusal = None

    def __init__(self) -> None:
        self.doubts = 0
        self.epoch = -1
        self.expected: list[Identity | None] = []
        self.added: list[TopicPartition] = []
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.refusal: FencepostError | None = None
        self.ended: list[Identity] = []
        self.aborted: list[Identity] = []
        self.abort_refusal: FencepostError | None = None
        self.commit_refusal: FencepostError | None = None
        self.lost_answers = 0
        self.doubtful = 0

    def init(self, timeout_ms: int, who: Identity | None = None) -> Identity:
        self.expected.append(who)
        if who is not None and len(self.aborted) < self.epoch + 1:
            raise AssertionError("the one before is to be aborted first")
        if self.lost_answers:
            self.lost_answers -= 1
            raise TimedOut("the answer was lost")
        self.epoch += 1
        return Identity(PID, Epoch(self.epoch))

    def add_partitions(self, who: Identity, partitions: Iterable[TopicPartition]) -> None:
        self.asked.set()
        assert self.answer.wait(10)
        if self.refusal is not None:
            raise self.refusal
        self.added += partitions

    def add_offsets(
        self,
        who: Identity,
        group: str,
        offsets: Mapping[TopicPartition, int],
        member: ConsumerGroupMetadata = NO_MEMBER,
    ) -> None:
        if self.refusal is not None:
            raise self.refusal

    def end(self, who: Identity, *, commit: bool) -> None:
        if not commit:
            self.aborted.append(who)
            if self.abort_refusal is not None:
                raise self.abort_refusal
            return
        self.ended.append(who)
        self.doubts += self.doubtful
        if self.commit_refusal is not None:
            raise self.commit_refusal


class NamedProducer(SteppedProducer):
    def __init__(self, cluster: ScriptedCluster, **options: Any) -> None:
        self.coordinator = Coordinator()
        super().__init__(cluster, steps=self.coordinator, name="n", **options)
        self.until(self.sender.state.identity_settled.is_set)

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until the condition holds, while thread_calls run on their threads."""
        deadline = 2_000
        while not condition():
            self.sender.run_once(0.01)
            deadline -= 1
            assert deadline, "never"
            threading.Event().wait(0.0005)


def produced(on: ScriptedCluster) -> int:
    return sum(request.key == Api.PRODUCE for request in on.seen)


def test_nothing_is_sent_to_a_partition_before_the_coordinator_has_added_it() -> None:
    on = cluster(t=2)
    producer = NamedProducer(on)
    producer.sender.transactions.begin()
    ticket = producer.send("t", b"v", partition=1)
    producer.until(producer.coordinator.asked.is_set)
    for _ in range(20):
        producer.sender.run_once(0.01)
    assert produced(on) == 0
    producer.coordinator.answer.set()
    producer.until(ticket.done)
    assert producer.coordinator.added == [TopicPartition("t", 1)]
    header = read_header(on.logs["t"][1].batches[0])
    assert header.is_transactional
    assert (header.pid, header.epoch, header.base_sequence) == (PID, 0, 0)


def test_a_record_outside_of_a_transaction_is_stamped_but_not_transactional() -> None:
    on = cluster(t=1)
    producer = NamedProducer(on)
    producer.until(producer.send("t", b"v").done)
    header = read_header(on.logs["t"][0].batches[0])
    assert not header.is_transactional
    assert (header.pid, header.epoch) == (PID, 0)


def test_after_an_abort_the_next_epoch_is_asked_for_with_the_one_before() -> None:
    """IDEM-5: only the present holder of the name gets it."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    producer.coordinator.answer.set()
    producer.sender.transactions.begin()
    producer.until(producer.send("t", b"v").done)
    dropped = producer.send("t", b"w")
    producer.sender.transactions.drop()
    assert isinstance(dropped.exception(0), SendFailed)
    producer.until(producer.sender.state.identity_settled.is_set)
    assert producer.coordinator.expected == [None, Identity(PID, Epoch(0))]
    producer.sender.transactions.begin()
    producer.until(producer.send("t", b"x").done)
    header = read_header(on.logs["t"][0].batches[-1])
    assert (header.epoch, header.base_sequence) == (1, 0)


def test_an_abort_is_sent_once_and_before_the_next_epoch_is_requested() -> None:
    """IDEM-5: an older Kafka fences a producer that requests it during a transaction. Any Kafka fences one that aborts
    under an old epoch."""
    producer = NamedProducer(cluster(t=1))
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    assert sender.transactions.begin()
    producer.until(producer.send("t", b"v").done)
    coordinator.lost_answers = 2
    sender.transactions.drop()
    producer.until(sender.state.identity_settled.is_set)
    first = Identity(PID, Epoch(0))
    assert coordinator.aborted == [first]
    assert coordinator.expected == [None, first, first, first]
    assert sender.identity == Identity(PID, Epoch(1))


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED]
)
def test_an_abort_of_nothing_is_none_and_one_that_is_fenced_is_the_end(code: ErrorCode) -> None:
    """IDEM-5: to ask for the next epoch after a fence would abort the successor's transaction. A name that was idle for
    so long that the coordinator has forgotten it is no fence."""
    producer = NamedProducer(cluster(t=1))
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    coordinator.abort_refusal = ServerError(code, "n")
    assert sender.transactions.begin()
    producer.until(producer.send("t", b"v").done)
    sender.transactions.drop()
    producer.until(sender.state.identity_settled.is_set)
    is_fenced = code is ErrorCode.PRODUCER_FENCED
    assert isinstance(sender.queues.broken, Fenced) == is_fenced
    assert len(coordinator.expected) == (1 if is_fenced else 2)


def test_a_partition_added_late_is_rejected_by_our_next_epoch_which_fences_nobody() -> None:
    """IDEM-5. The coordinator was busy with the previous transaction while this one was begun and aborted."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    coordinator = producer.coordinator
    producer.sender.transactions.begin()
    aborted = producer.send("t", b"aborted")
    producer.until(coordinator.asked.is_set)
    producer.sender.transactions.drop()
    producer.until(producer.sender.state.identity_settled.is_set)
    assert isinstance(aborted.exception(0), SendFailed)
    late = [thread for thread in threading.enumerate() if thread.name == "fencepost-blocking"]
    coordinator.refusal = ServerError(ErrorCode.PRODUCER_FENCED, "an epoch before")
    coordinator.answer.set()
    for thread in late:
        thread.join(20)
    producer.sender.run_once(0.01)
    coordinator.refusal = None
    producer.sender.transactions.begin()
    following = producer.send("t", b"v")
    producer.until(following.done)
    assert following.exception(0) is None
    assert read_header(on.logs["t"][0].batches[0]).epoch == 1


@pytest.mark.parametrize("doubts", [0, 1])
def test_a_commit_that_had_to_be_repeated_is_followed_by_the_next_epoch(doubts: int) -> None:
    """A delayed commit must not commit half of the next transaction."""
    producer = NamedProducer(cluster(t=1))
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    coordinator.doubtful = doubts
    transaction = ProducerTransaction(sender, coordinator, 10)

    def work() -> None:
        for value in (b"v", b"w"):
            with transaction:
                producer.send("t", value)

    caller = threading.Thread(target=work)
    caller.start()
    producer.until(lambda: not caller.is_alive())
    assert coordinator.ended == [Identity(PID, Epoch(0)), Identity(PID, Epoch(doubts))]


@pytest.mark.parametrize(
    ("doubts", "at_offsets", "persisted"), [(0, False, "no"), (1, False, "unknown"), (0, True, "no")]
)
def test_a_fenced_transaction_is_in_doubt_only_if_the_answer_to_a_commit_was_lost(
    doubts: int, at_offsets: bool, persisted: str
) -> None:
    """PROD-8."""
    producer = NamedProducer(cluster(t=1))
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    coordinator.doubtful = doubts
    raised: list[Fenced] = []

    def work() -> None:
        transaction = ProducerTransaction(sender, coordinator, 10)
        try:
            with transaction:
                producer.send("t", b"v").result(10)
                coordinator.refusal = coordinator.commit_refusal = TAKEN
                if at_offsets:
                    transaction.send_offsets("g", {TopicPartition("t", 0): 1})
        except Fenced as error:
            raised.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    producer.until(lambda: not caller.is_alive())
    assert [error.persisted for error in raised] == [persisted]
    with pytest.raises(Fenced) as later:
        producer.send("t", b"w")
    assert later.value.persisted == "no"


def test_a_record_behind_one_in_doubt_is_refused_and_not_in_the_log() -> None:
    """PROD-8, IDEM-4: nothing of a named producer may follow its first failure."""
    on = cluster(t=1)
    producer = NamedProducer(on, delivery_timeout=2.0)
    on.next(Api.PRODUCE, Fate.SWALLOW)
    first = producer.send("t", b"v")
    producer.settle()
    failure = first.exception(0)
    assert isinstance(failure, Expired)
    assert failure.persisted == "unknown"
    producer.sender.run_once(0.0)
    with pytest.raises(Expired, match="a record before this one failed") as refused:
        producer.send("t", b"w")
    assert refused.value.persisted == "no"
    assert str(refused.value.__cause__) == str(failure)


def test_a_transaction_begun_during_an_epoch_bump_is_committed_under_the_new_epoch() -> None:
    """IDEM-5: under the old epoch, it would be fenced by its own producer."""
    producer = NamedProducer(cluster(t=1))
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    sender.state.renew_identity()
    assert sender.transactions.begin() is None

    def work() -> None:
        with ProducerTransaction(sender, coordinator, 10):
            producer.send("t", b"v")

    caller = threading.Thread(target=work)
    caller.start()
    producer.until(lambda: not caller.is_alive())
    assert coordinator.ended == [Identity(PID, Epoch(1))]


def test_a_transaction_whose_beginning_was_interrupted_is_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = NamedProducer(cluster(t=1))
    sender, call = producer.sender, producer.sender.call
    outcomes: list[object] = []

    def interrupted(what: Callable[[], Any]) -> Any:
        result = call(what)
        if sender.open_transaction is not None:
            raise KeyboardInterrupt
        return result

    def work() -> None:
        try:
            ProducerTransaction(sender, producer.coordinator, 10).__enter__()
        except KeyboardInterrupt as error:
            outcomes.append(error)

    monkeypatch.setattr(sender, "call", interrupted)
    caller = threading.Thread(target=work)
    caller.start()
    producer.until(lambda: not caller.is_alive())
    assert outcomes
    assert sender.open_transaction is None


def test_transactions_do_not_nest_whoever_begins_them() -> None:
    producer = NamedProducer(cluster(t=1))
    assert producer.sender.transactions.begin() == Identity(PID, Epoch(0))
    with pytest.raises(FencepostError, match="do not nest"):
        producer.sender.transactions.begin()


def test_a_producer_that_goes_on_from_saved_ids_has_no_transactions() -> None:
    """IDEM-4: it fences each partition with a new epoch of its name, which would abort an open transaction."""
    on, coordinator = cluster(t=1), Coordinator()
    settings, ids = (
        ClientSettings(tuple(on.addresses.values())),
        ProducerIds("scripted", "n", frozenset({PID}), {}),
    )
    sender = Sender(settings, ProducerOptions(name="n"), on.network(), on.clock, steps=coordinator, ids=ids)
    with pytest.raises(ConfigError, match="saved ids"):
        sender.transactions.begin()


def test_who_waits_for_an_identity_while_the_producer_is_fenced_is_told_so() -> None:
    producer = NamedProducer(cluster(t=1))
    sender = producer.sender
    sender.state.identity.finished(ErrorCode.PRODUCER_FENCED)  # the first half of it
    outcomes: list[object] = []

    def work() -> None:
        try:
            sender.wait_for_identity(10)
        except Fenced as error:
            outcomes.append(error)

    caller = threading.Thread(target=work)
    asked = threading.Event()
    sender._thread_calls._wake = asked.set
    caller.start()
    assert asked.wait(10)
    sender.settling.fence(ErrorCode.PRODUCER_FENCED)
    producer.until(lambda: not caller.is_alive())
    assert [str(outcome) for outcome in outcomes] == [str(sender.queues.broken)]
    sender.state.renew_identity()
    assert sender.state.identity_settled.is_set(), "there is nothing more to wait for"


STALE = [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE]
"""What a leader that hung and wakes may answer to a Produce, although nobody took the name."""
TAKEN = ServerError(ErrorCode.PRODUCER_FENCED, "n")


@pytest.mark.parametrize("code", STALE)
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_stale_leader_ends_the_transaction_and_the_coordinator_decides_the_rest(
    code: ErrorCode, is_taken: bool
) -> None:
    """IDEM-5, KIP-588."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    coordinator, sender = producer.coordinator, producer.sender
    coordinator.answer.set()
    coordinator.abort_refusal = TAKEN if is_taken else None
    raised: list[SendFailed] = []

    def work() -> None:
        on.next(Api.PRODUCE, ErrorAnswer(code))
        for value in (b"v", b"w"):
            try:
                with ProducerTransaction(sender, coordinator, 10):
                    producer.send("t", value)
            except SendFailed as error:
                raised.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    producer.until(lambda: not caller.is_alive())
    assert coordinator.aborted == [Identity(PID, Epoch(0))]
    if is_taken:
        assert [type(error) for error in raised] == [Fenced, Fenced]
        assert on.values("t", 0) == []
        assert coordinator.expected == [None]  # a request for the next epoch could abort the successor's transaction
        return
    assert [(type(error), error.code, error.persisted) for error in raised] == [(SendFailed, code, "no")]
    assert on.values("t", 0) == [b"w"]
    assert coordinator.ended == [Identity(PID, Epoch(1))]


def test_a_record_in_doubt_that_fails_in_a_transaction_is_not_persisted() -> None:
    """It may be in the log, but its transaction fails with it. So the program may write the transaction again."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    producer.coordinator.answer.set()
    producer.sender.transactions.begin()
    on.next(Api.PRODUCE, Fate.CUT, ErrorAnswer(STALE[0]))
    ticket = producer.send("t", b"v")
    producer.until(ticket.done)
    error = ticket.exception(0)
    assert isinstance(error, SendFailed)
    assert (error.code, error.persisted) == (STALE[0], "no")
    assert producer.sender.open_transaction is not None
    assert str(producer.sender.open_transaction.error) == str(error)


@pytest.mark.parametrize("code", STALE[:2])
@pytest.mark.parametrize("is_taken", [False, True])
def test_outside_of_transactions_the_coordinator_says_whether_a_leader_is_stale(
    code: ErrorCode, is_taken: bool
) -> None:
    """IDEM-5."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    coordinator = producer.coordinator
    coordinator.abort_refusal = TAKEN if is_taken else ServerError(ErrorCode.INVALID_TXN_STATE, "nothing is open")
    producer.until(producer.send("t", b"first").done)
    on.next(Api.PRODUCE, ErrorAnswer(code))
    ticket = producer.send("t", b"second")
    producer.until(ticket.done)
    assert coordinator.aborted == [Identity(PID, Epoch(0))]
    if is_taken:
        error = ticket.exception(0)
        assert isinstance(error, Fenced)
        assert error.persisted == "no"
        assert coordinator.expected == [None]
        return
    assert ticket.result(0).offset == 1
    assert [read_header(batch).epoch for batch in on.logs["t"][0].batches] == [0, 1]


@pytest.mark.parametrize("code", STALE)
@pytest.mark.parametrize("is_taken", [False, True])
def test_in_a_lane_a_stale_leader_starts_the_transaction_over(code: ErrorCode, is_taken: bool) -> None:
    """OWN-9."""
    on, lane = cluster(t=1), Coordinator()
    producer = SteppedProducer(on)
    sender = producer.sender
    lane.answer.set()
    lane.abort_refusal = TAKEN if is_taken else None
    write_id = WriteId(lane, "w.1", lane.init(0), NO_NODE)
    assert sender.write_under(lane, Identity(Pid(1), Epoch(0)), [write_id], lambda *_: True)  # type: ignore[arg-type]
    on.next(Api.PRODUCE, ErrorAnswer(code))
    ticket = producer.send("t", b"v")
    for _ in range(2_000):
        if ticket.done():
            break
        sender.run_once(0.01)
        threading.Event().wait(0.0005)
    assert lane.aborted == [Identity(PID, Epoch(0))]
    if is_taken:
        error = ticket.exception(0)
        assert isinstance(error, Fenced)
        assert error.persisted == "no"
    else:
        assert ticket.result(0).offset == 0
        assert read_header(on.logs["t"][0].batches[0]).epoch == 1


def test_a_silent_coordinator_makes_the_partitions_it_leads_doubtful(caplog: pytest.LogCaptureFixture) -> None:
    """PROD-6: the next record goes to the leader's successor, not into the socket of a node that hangs."""
    on = cluster(2, t=1)
    on.move_leader("t", 0, 0)
    producer = SteppedProducer(on)
    producer.send("t", b"first")
    producer.settle()
    on.choose = lambda request: Fate.IGNORE if request.node == 0 else Fate.ANSWER
    on.move_leader("t", 0, 1)
    on.seen.clear()
    began = on.clock.monotonic()
    producer.sender.doubt(on.addresses[0], TimedOut("no answer to EndTxn within 30 s"))
    producer.step(2)
    producer.send("t", b"second")
    producer.settle()
    assert on.values("t", 0) == [b"first", b"second"]
    assert {request.node for request in on.requests(Api.PRODUCE)} == {1}
    assert on.clock.monotonic() - began < 1.0
    assert [record.getMessage() for record in caplog.records] == ["no answer to EndTxn within 30 s; trying again"]


def test_a_partition_rejected_by_the_coordinator_fails_only_the_transaction() -> None:
    producer = NamedProducer(cluster(t=1))
    producer.coordinator.refusal = ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
    producer.coordinator.answer.set()
    producer.sender.transactions.begin()
    ticket = producer.send("t", b"v")
    producer.until(ticket.done)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(ticket.exception(0))
    with pytest.raises(SendFailed, match="the transaction has failed"):
        producer.send("t", b"w")
    producer.sender.transactions.drop()
    producer.send("t", b"x")


def test_a_coordinator_that_fences_ends_the_producer() -> None:
    producer = NamedProducer(cluster(t=1))
    producer.coordinator.refusal = ServerError(ErrorCode.PRODUCER_FENCED, "n")
    producer.coordinator.answer.set()
    producer.sender.transactions.begin()
    ticket = producer.send("t", b"v")
    producer.until(ticket.done)
    assert isinstance(ticket.exception(0), Fenced)
    producer.sender.transactions.drop()
    with pytest.raises(Fenced):
        producer.send("t", b"w")


def test_a_server_that_lost_track_fails_the_transaction_instead_of_an_epoch_bump() -> None:
    on = cluster(t=1)
    producer = NamedProducer(on)
    producer.coordinator.answer.set()
    producer.sender.transactions.begin()
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    ticket = producer.send("t", b"v")
    producer.until(ticket.done)
    assert isinstance(ticket.exception(0), SendFailed)
    assert producer.coordinator.expected == [None]


def test_ids_are_the_same_when_they_come_back_from_json() -> None:
    partitions = {
        TopicPartition("a", 0): SavedPlace("id", Offset(9), Identity(PID, Epoch(1)), Sequence(5)),
        TopicPartition("b", 3): SavedPlace(None, Offset(0), Identity(PID, Epoch(2)), Sequence(0)),
    }
    ids = ProducerIds("cluster", "n", frozenset({PID, Pid(7)}), partitions)
    assert ProducerIds.from_json(ids.to_json()) == ids


def test_ids_of_the_first_format_are_refused_because_they_could_duplicate_records() -> None:
    """IDEM-4: they named a run of the producer, not a place in the log."""
    text = '{"cluster_id": "c", "name": "n", "pid": 1, "epoch": 0, "partitions": [["t", 0, 1, 0, 5, 9]]}'
    with pytest.raises(ConfigError, match="earlier version"):
        ProducerIds.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2, "cluster_id": "c", "name": "n", "pids": [], "partitions": [[1]]}'],
)
def test_what_are_no_ids_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no saved ids"):
        ProducerIds.from_json(text)


def test_a_name_is_asked_for_again_once_a_day_before_anything_is_written() -> None:
    """IDEM-5: coordinators forget a name that only writes. Here another producer has got it since."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    coordinator = producer.coordinator
    producer.until(producer.send("t", b"0", partition=0).done)
    producer.clock.advance(KEEPS_NAME - 1)
    producer.until(producer.send("t", b"1", partition=0).done)
    assert coordinator.expected == [None]
    producer.clock.advance(1)
    coordinator.init = _name_is_taken  # type: ignore[method-assign, assignment]
    ticket = producer.send("t", b"2", partition=0)
    producer.until(ticket.done)
    assert isinstance(ticket.exception(0), Fenced)
    assert on.values("t", 0) == [b"0", b"1"]


def test_a_name_is_asked_for_again_while_nothing_is_sent() -> None:
    producer = NamedProducer(cluster(t=1))
    producer.clock.advance(KEEPS_NAME)
    producer.until(lambda: len(producer.coordinator.expected) == 2)
    assert producer.coordinator.expected == [None, Identity(PID, Epoch(0))]


def test_who_asks_whether_the_name_was_taken_asks_at_once() -> None:
    """IDEM-5: all in flight was rejected. Perhaps nothing else wakes the send thread before the records expire."""
    on = cluster(t=1)
    producer = NamedProducer(on)
    producer.until(producer.send("t", b"0", partition=0).done)
    producer.coordinator.init = _name_is_taken  # type: ignore[method-assign, assignment]
    for _ in range(3):
        on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.INVALID_PRODUCER_EPOCH))
    tickets = [producer.send_alone("t", b"%d" % i, partition=0) for i in (1, 2, 3)]
    began = producer.clock.monotonic()
    for _ in range(50):
        if producer.sender.state.identity.state is PidState.ASKING:
            break
        producer.sender.run_once()
    producer.until(tickets[-1].done)
    assert [type(ticket.exception(0)) for ticket in tickets] == [Fenced] * 3
    assert producer.clock.monotonic() - began < 0.05


def _name_is_taken(*_: object) -> Identity:
    raise ServerError(ErrorCode.PRODUCER_FENCED)


def test_behind_a_failed_record_no_ids_are_handed_out_not_even_in_the_same_turn() -> None:
    """IDEM-4: `on_error` takes the failure, so `flush` does not raise, and the program reads its ids at once."""
    on = cluster(t=1)
    producer = NamedProducer(on, on_error=lambda _: None)
    sender = producer.sender
    producer.until(producer.send("t", b"fine", partition=0).done)
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.INVALID_RECORD))
    producer.until(producer.send("t", b"v", partition=0).done)
    with pytest.raises(SendFailed, match="INVALID_RECORD"):
        sender._settled_queues()


def _refuse(*_: object) -> int:
    raise ValueError("no good")


@pytest.mark.parametrize(
    ("options", "partition"),
    [({"value_serializer": _refuse}, None), ({"partitioner": _refuse}, None), ({}, 9)],
    ids=["serializer", "partitioner", "no such partition"],
)
def test_a_transaction_is_not_committed_without_a_record_that_never_had_a_batch(
    options: dict[str, Any], partition: int | None
) -> None:
    """PIPE-2. Once all is settled a caller finds the transaction failed, even while the send thread polls."""
    producer = NamedProducer(cluster(t=1), **options)
    sender, poll = producer.sender, producer.network.poll
    seen: list[object] = []

    def look(timeout: float | None, turn: threading.RLock | None = None) -> bool:
        assert sender.open_transaction is not None
        seen.append((sender.queues.is_empty, sender.open_transaction.error is not None))
        return poll(timeout)

    assert sender.transactions.begin()
    ticket = producer.send("t", b"v", partition=partition)
    producer.network.poll = look  # type: ignore[method-assign]
    producer.until(ticket.done)
    producer.sender.run_once(0.01)
    assert (True, False) not in seen
    assert seen[-1] == (True, True)


def test_a_missing_topic_dooms_the_transaction_before_its_records_are_settled() -> None:
    on = cluster()
    on.creates_topics = False
    producer = NamedProducer(on, unknown_topic_timeout=1.0)
    sender = producer.sender
    assert sender.transactions.begin()
    ticket = producer.send("t", b"v")
    settled: list[bool] = []
    ticket.add_done_callback(lambda _: settled.append(sender.queues.is_empty))
    producer.until(lambda: bool(settled))
    assert settled == [False]
    assert sender.queues.is_empty
    assert sender.open_transaction is not None
    assert str(sender.open_transaction.error) == str(ticket.exception(0))
