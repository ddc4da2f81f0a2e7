"""`own` on Apache Kafka: what a claimant, its successor and their readers see (OWN-3 to OWN-9).

Each test runs on a real Apache Kafka and, with the same backend, on fencepost's server.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar, cast

import pytest

import fencepost
from fencepost.client.admin_client import LATEST, Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.kafka_topic import describe_owners
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.own.claim_request import Refused
from fencepost.core.own.kafka_steps import ClaimStep
from fencepost.errors import ConfigError, ErrorCode, Fenced, FencepostError, SendFailed, ServerError
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.group_client import await_offsets
from tests.support.kafka_owners import KafkaOwner, KafkaOwningReader

pytestmark = pytest.mark.integration

T = TypeVar("T")
PATIENCE = 60.0


class Owners:
    """Producers that own, of one server and one group."""

    def __init__(self, server: TestedServer, topic: str) -> None:
        self.address = server.address
        self.topic = topic
        self.group = f"g-{topic}"
        self.resource = f"{topic}-0"
        self._made: list[KafkaOwner] = []

    def make(self, **options: Any) -> KafkaOwner:
        producer = KafkaOwner(self.address, **options)
        self._made.append(producer)
        return producer

    def owner(self, generation: int = 1, **options: Any) -> tuple[KafkaOwner, fencepost.Claim]:
        producer = self.make(**options)
        return producer, producer.own(self.group, [self.resource], generation=generation)

    def committed(self) -> list[bytes]:
        """What readers see when every transaction has its marker. None may be open."""
        self.await_markers()
        with fencepost.Reader(self.address, self.topic, stop="latest") as reader:
            return [record.value or b"" for record in reader]

    def await_markers(self) -> None:
        """A write is acknowledged when its transaction's end is decided; readers see it when the marker is there."""
        deadline = time.monotonic() + PATIENCE
        with Admin(self.address) as admin:
            while admin.offsets(self.topic, LATEST, read_committed=True) != admin.offsets(self.topic, LATEST):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def close(self) -> None:
        for producer in self._made:
            with suppress(FencepostError):
                producer.close(timeout=10)


@pytest.fixture
def owners(server: TestedServer, topic: str) -> Iterator[Owners]:
    owners = Owners(server, topic)
    yield owners
    owners.close()


def is_fenced(producer: fencepost.Producer, topic: str) -> bool:
    """By trying: the only way that counts."""
    try:
        producer.send(topic, b"still here?").result(PATIENCE)
    except Fenced:
        return True
    return False


# --- the rule ---


def test_the_first_claim_gives_generation_1_and_claiming_again_changes_nothing(owners: Owners) -> None:
    """OWN-3, OWN-8."""
    producer, claim = owners.owner(generation=7)
    assert claim.generation == 1
    again = producer.own(owners.group, [owners.resource], generation=1)
    assert again.rows == claim.rows
    assert not is_fenced(producer, owners.topic)


def test_a_take_over_raises_generation_and_token_and_fences_the_owner(owners: Owners) -> None:
    """OWN-5, OWN-9."""
    old, first = owners.owner()
    old.send(owners.topic, b"old").result(PATIENCE)
    new, second = owners.owner(generation=5)
    assert second.generation == 5
    assert second.token > first.token
    new.send(owners.topic, b"new").result(PATIENCE)
    ticket = old.send(owners.topic, b"late")
    error = ticket.exception(PATIENCE)
    assert isinstance(error, Fenced)
    assert error.persisted == "no"
    with pytest.raises(Fenced):
        old.send(owners.topic, b"later")
    with pytest.raises(Fenced):
        old.check_owned()
    assert owners.committed() == [b"old", b"new"]


def test_a_lower_generation_is_refused_and_nothing_changes(owners: Owners) -> None:
    """OWN-4: the owner's open transaction is not disturbed either."""
    owner, claim = owners.owner()
    owner, claim = owners.owner(generation=3)
    assert claim.generation == 3
    with owner.transaction():
        owner.send(owners.topic, b"in the middle")
        with pytest.raises(Refused) as refused:
            owners.owner(generation=2)
    assert refused.value.current_generation == 3
    assert refused.value.token == claim.token
    assert owners.committed() == [b"in the middle"]


def test_a_claim_of_several_is_all_or_nothing(owners: Owners) -> None:
    """OWN-7."""
    strong = owners.make()
    strong.own(owners.group, ["b"], generation=1)
    strong.own(owners.group, ["b"], generation=0)
    highest = owners.make().own(owners.group, ["b"], generation=9)
    weak, weaker = owners.make(), owners.make()
    weak.own(owners.group, ["a"], generation=1)
    with pytest.raises(Refused) as refused:
        weaker.own(owners.group, ["a", "b"], generation=4)
    assert [row.name for row in refused.value.rows] == ["b"]
    assert refused.value.rows[0] == highest.rows["b"]
    assert not is_fenced(weak, owners.topic)


def test_every_resource_has_its_own_generation(owners: Owners) -> None:
    """OWN-1, OWN-5, OWN-7: the answer carries each one's, and the one that is refused is the one that is named."""
    first = owners.make().own(owners.group, ["a"], generation=1)
    second = owners.make().own(owners.group, {"a": 5, "b": 1})
    assert second.generations == {"a": 5, "b": 1}
    assert second.tokens["a"] > first.token
    with pytest.raises(Refused) as refused:
        owners.make().own(owners.group, {"a": 4, "b": 1})
    assert [row.name for row in refused.value.rows] == ["a"]
    third = owners.make().own(owners.group, second.generations, after=second.tokens)
    assert third.generations == {"a": 6, "b": 2}


def test_a_claim_without_a_group_is_made_in_the_default_group(owners: Owners) -> None:
    """OWN-1: the group is optional."""
    claim = owners.make().own(resources=[owners.resource], generation=0)
    assert claim.group == "default"
    claim.release()


def test_generation_0_resets(owners: Owners) -> None:
    """OWN-6; the token rises all the same."""
    old, first = owners.owner()
    old, high = owners.owner(generation=100)
    _, reset = owners.owner(generation=0)
    assert reset.generation == 1
    assert first.token < high.token < reset.token
    assert is_fenced(old, owners.topic)


def test_after_a_token_is_granted_only_if_nobody_was_there_since(owners: Owners) -> None:
    producer, claim = owners.owner()
    claim.release()
    second, between = owners.owner()
    between.release()
    with pytest.raises(Refused) as refused:
        owners.make().own(owners.group, [owners.resource], generation=1, after=claim.token)
    assert refused.value.token == between.token
    safe = owners.make().own(owners.group, [owners.resource], generation=1, after=between.token)
    assert (safe.generation, safe.token > between.token) == (1, True)
    assert producer is not second


def test_a_replaced_owner_owns_nothing_any_more(owners: Owners) -> None:
    """OWN-8: what else it had is free, at generation 1."""
    old = owners.make()
    old.own(owners.group, ["a", "b"], generation=1)
    owners.make().own(owners.group, ["a"], generation=1)
    freed = owners.make().own(owners.group, ["b"], generation=1)
    assert freed.generation == 1
    with pytest.raises(Fenced):
        old.own(owners.group, ["c"], generation=1)


def test_closing_gives_back_so_that_any_generation_will_do(owners: Owners) -> None:
    with KafkaOwner(owners.address) as first:
        claim = first.own(owners.group, [owners.resource], generation=1)
        first.send(owners.topic, b"1")
    _, second = owners.owner(generation=1)
    assert second.generation == 1
    assert second.token > claim.token
    assert owners.committed() == [b"1"]


def test_one_resource_can_be_given_back_while_the_others_are_kept(owners: Owners) -> None:
    producer = owners.make()
    kept = producer.own(owners.group, ["kept"], generation=1)
    with producer.own(owners.group, ["lent"], generation=1):
        pass
    other = owners.make().own(owners.group, ["lent"], generation=1)
    assert other.generation == 1
    assert not is_fenced(producer, owners.topic)
    with pytest.raises(Refused):
        owners.make().own(owners.group, ["kept"], generation=1, after=kept.token - 1)


def test_what_kafka_cannot_do_is_refused_and_says_so(owners: Owners) -> None:
    with pytest.raises(ConfigError, match="without a name"):
        owners.make(name="me").own(owners.group, ["a"], generation=1)
    with pytest.raises(ConfigError, match="idempotent"):
        owners.make(idempotent=False, acks="leader").own(owners.group, ["a"], generation=1)
    with pytest.raises(ConfigError, match="topic of its own"):
        owners.make().own("no/topic", ["a"], generation=1)


@pytest.mark.kafka
def test_the_server_says_which_backend_to_use(kafka: Any, name: str) -> None:
    with Admin(kafka.address) as admin:
        admin.create_topic(name, 1)
    with fencepost.Producer(kafka.address) as producer:
        claim = producer.own(f"g-{name}", [f"{name}-0"], generation=1)
        assert producer.send(name, b"1").result(PATIENCE).offset == 0
        assert claim.generation == 1


def test_who_owns_what_can_be_read_without_disturbing_anybody(owners: Owners) -> None:
    """OWN-2: the table, as records of the group's topic."""
    producer = owners.make()
    claim = producer.own(owners.group, ["b", "a"], generation=1)
    producer.own(owners.group, ["given back"], generation=1).release()
    with Routes(ClientSettings.of(owners.address)) as routes:
        found = describe_owners(routes.settings, routes, owners.group)
        assert describe_owners(routes.settings, routes, None).owners
    assert [(row.group, row.resource, row.token) for row in found.owners] == [
        (owners.group, "a", claim.rows["a"].token),
        (owners.group, "b", claim.rows["b"].token),
    ]
    assert found.owners[0].client_id == producer.backend.owner.write_id
    assert found.owners[0].address.endswith(f":{os.getpid()}")
    assert not is_fenced(producer, owners.topic)


@pytest.mark.kafka
def test_the_admin_describes_owners_on_kafka_too(kafka: Any, name: str) -> None:
    with fencepost.Producer(kafka.address) as producer, Admin(kafka.address) as admin:
        claim = producer.own(f"g-{name}", ["a"], generation=1)
        (row,) = admin.owners(f"g-{name}").owners
        assert (row.resource, row.generation, row.token) == ("a", 1, claim.token)


# --- writing ---


def test_an_owner_writes_in_order_to_many_partitions(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 3)
    with KafkaOwner(server.address, batch_size=2_000) as producer:
        producer.own(f"g-{name}", [f"{name}-{index}" for index in range(3)], generation=1)
        tickets = [producer.send(name, b"%d" % number, partition=number % 3) for number in range(3_000)]
        producer.flush()
        offsets = [ticket.result().offset for ticket in tickets[::3]]
        assert offsets == sorted(offsets)
    with fencepost.Reader(server.address, name, stop="latest") as reader:
        seen: dict[int, list[int]] = {}
        for record in reader:
            seen.setdefault(record.partition, []).append(int(record.value or b""))
    assert seen == {index: list(range(index, 3_000, 3)) for index in range(3)}


def test_what_was_acknowledged_and_not_committed_is_not_persisted(owners: Owners) -> None:
    """OWN-9: the successor comes while the old owner is about to commit."""
    old, _ = owners.owner()
    reached, go = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert go.wait(PATIENCE)

    _before_end(old, wait)
    ticket = old.send(owners.topic, b"almost")
    assert reached.wait(PATIENCE)
    assert not ticket.done()
    new, _ = owners.owner()
    go.set()
    error = ticket.exception(PATIENCE)
    assert isinstance(error, Fenced)
    assert error.persisted == "no"
    new.send(owners.topic, b"new").result(PATIENCE)
    assert owners.committed() == [b"new"]


def test_a_commit_whose_answer_was_lost_is_looked_up(owners: Owners) -> None:
    """OWN-9: settled truthfully. It was committed, then came the successor, and only then the second try."""
    old, _ = owners.owner()
    successors: list[fencepost.Claim] = []

    def end_twice(steps: Transactional, who: Any, *, commit: bool) -> None:
        steps.end(who, commit=commit)
        steps.doubts += 1  # its answer never came
        successors.append(owners.owner()[1])
        steps.end(who, commit=commit)

    _replace_end(old, end_twice)
    delivered = old.send(owners.topic, b"in").result(PATIENCE)
    assert successors
    assert owners.committed() == [b"in"]
    assert delivered.offset == 0
    assert is_fenced(old, owners.topic)


def test_a_commit_that_never_arrived_is_known_not_to_be_there(owners: Owners) -> None:
    old, _ = owners.owner()

    def lost_then_late(steps: Transactional, who: Any, *, commit: bool) -> None:
        steps.doubts += 1
        owners.owner()
        steps.end(who, commit=commit)

    _replace_end(old, lost_then_late)
    error = old.send(owners.topic, b"out").exception(PATIENCE)
    assert isinstance(error, Fenced)
    assert error.persisted == "no"
    assert owners.committed() == []


def test_transactions_of_an_owner_are_whole_and_fenced_like_the_rest(owners: Owners) -> None:
    old, _ = owners.owner()
    with old.transaction():
        old.send(owners.topic, b"1")
        old.send(owners.topic, b"2")
    aborted = old.transaction()
    aborted.__enter__()
    old.send(owners.topic, b"aborted")
    aborted.abort()
    old.send(owners.topic, b"3").result(PATIENCE)
    fenced = old.transaction()
    fenced.__enter__()
    old.send(owners.topic, b"fenced").result(PATIENCE)
    owners.owner()
    with pytest.raises(Fenced):
        fenced.commit()
    with pytest.raises(Fenced):
        old.send(owners.topic, b"late")
    assert owners.committed() == [b"1", b"2", b"3"]


def test_nothing_is_given_back_while_a_transaction_is_open(owners: Owners) -> None:
    """OWN-9: committed later, it would stand among the next owner's records."""
    owner, claim = owners.owner()
    with owner.transaction():
        owner.send(owners.topic, b"1")
        with pytest.raises(FencepostError, match="must end its transaction before it releases"):
            claim.release()
    claim.release()
    following, _ = owners.owner()
    following.send(owners.topic, b"2").result(PATIENCE)
    assert owners.committed() == [b"1", b"2"]


def test_a_partition_that_is_added_after_the_abort_fences_nobody(owners: Owners) -> None:
    """The coordinator is often busy with the transaction before when one is begun and aborted at once."""
    owner, _ = owners.owner()
    sender, steps = owner._sender, owner.backend.owner.writing
    asked, aborted = threading.Event(), threading.Event()
    outcomes: list[object] = []

    class Late:
        init, end, doubts = steps.init, steps.end, 0

        @staticmethod
        def add_partitions(who: Any, partitions: Any) -> None:
            asked.set()
            assert aborted.wait(PATIENCE)
            try:
                steps.add_partitions(who, partitions)
            except ServerError as error:
                outcomes.append(error.code)
                raise

    transaction = owner.transaction()
    transaction.__enter__()
    sender.state.steps = Late()  # type: ignore[assignment]
    dropped = owner.send(owners.topic, b"dropped")
    assert asked.wait(PATIENCE)
    late = [thread for thread in threading.enumerate() if thread.name == "fencepost-blocking"]
    transaction.abort()
    assert isinstance(dropped.exception(PATIENCE), SendFailed)
    sender.state.steps = steps
    aborted.set()
    for thread in late:
        thread.join(PATIENCE)
    assert outcomes[0] in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    owner.send(owners.topic, b"kept").result(PATIENCE)
    assert owners.committed() == [b"kept"]


class EndsTwice(Transactional):
    """As after an answer that was lost."""

    is_doubtful = False

    def end(self, who: Any, *, commit: bool) -> None:
        super().end(who, commit=commit)
        if self.is_doubtful:
            super().end(who, commit=commit)
            self.doubts += 1


def test_a_reader_whose_commit_had_to_be_repeated_goes_on_under_the_next_epoch(owners: Owners) -> None:
    """A commit that is still on its way must not be taken for the next one's."""
    place = TopicPartition(owners.topic, 0)
    with fencepost.Producer(owners.address) as producer:
        producer.send(owners.topic, b"v")
    group = f"readers-{owners.topic}"
    with KafkaOwningReader(owners.address, (owners.topic, 0), start="earliest", stop=1, group=group) as reader:
        reader.own(group, [owners.resource], generation=1)
        owner = reader.backend.owner
        writing = owner.writing = EndsTwice(owner.writing.routes, owner.write_id)
        epochs = []
        for writing.is_doubtful in (False, True, False, False):  # the first commit of a group often has to wait for it
            reader.commit({place: 1})
            assert owner.identity is not None
            epochs.append(owner.identity.epoch)
    assert epochs[2:] == [epochs[1] + 1] * 2


def test_a_fenced_owner_does_not_come_back_by_the_epoch_it_knows(owners: Owners) -> None:
    """KIP-360's way to the next epoch is closed to it, whether or not a transaction was open when it was fenced."""
    for is_open in (False, True):
        old, _ = owners.owner(generation=0)
        owner = old.backend.owner
        who = old._sender.state.identity.current
        assert who is not None
        if is_open:
            owner.writing.add_partitions(who, [TopicPartition(owners.topic, 0)])
        owners.owner(generation=0)
        for _ in range(2):
            with pytest.raises(ServerError) as refused:
                owner.writing.init(60_000, who)
            assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_record_that_fails_for_good_fails_alone_and_the_owner_goes_on(server: TestedServer, name: str) -> None:
    """PROD-6: what shares its transaction is sent again, in order; other partitions do not notice."""
    with Admin(server.address) as admin:
        admin.create_topic(name, 2, configs={"max.message.bytes": "2000"})
    owners = Owners(server, name)
    producer = owners.make(linger=0.0)
    producer.own(owners.group, [f"{name}-0", f"{name}-1"], generation=1)
    tickets: list[Any] = []
    for number in range(60):
        tickets.append(producer.send(name, b"%d" % number, partition=number % 2))
        if number % 20 == 10:
            bad = producer.send(name, bytes(5_000), partition=0)
            error = bad.exception(PATIENCE)
            assert isinstance(error, SendFailed)
            assert (error.code, error.persisted) == (ErrorCode.MESSAGE_TOO_LARGE, "no")
    for ticket in tickets:
        ticket.result(PATIENCE)
    owners.await_markers()
    with fencepost.Reader(server.address, name, stop="latest") as reader:
        seen: dict[int, list[int]] = {0: [], 1: []}
        for record in reader:
            seen[record.partition].append(int(record.value or b""))
    assert seen == {0: list(range(0, 60, 2)), 1: list(range(1, 60, 2))}
    owners.close()


def _before_end(producer: KafkaOwner, wait: Callable[[], object]) -> None:
    def later(steps: Transactional, who: Any, *, commit: bool) -> None:
        wait()
        steps.end(who, commit=commit)

    _replace_end(producer, later)


class Replaced:
    """A lane's coordinator that is asked to end a transaction in another way."""

    def __init__(self, steps: Any, end: Callable[..., None]) -> None:
        self._steps = steps
        self._end = end

    def end(self, who: Any, *, commit: bool) -> None:
        self._end(self._steps, who, commit=commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)


def _replace_end(producer: KafkaOwner, end: Callable[..., None]) -> None:
    lanes = producer._sender.state.lanes
    assert lanes is not None
    for lane in lanes.lanes:
        lane.steps = cast("Transactional", Replaced(lane.steps, end))


# --- reading ---


def test_a_reader_is_fenced_when_it_commits(owners: Owners) -> None:
    with fencepost.Producer(owners.address) as producer:
        for number in range(4):
            producer.send(owners.topic, b"%d" % number)
    place = TopicPartition(owners.topic, 0)
    readers = f"readers-{owners.topic}"

    def reader() -> KafkaOwningReader:
        return KafkaOwningReader(owners.address, (owners.topic, 0), start="committed", stop=4, group=readers)

    with reader() as old, reader() as new:
        old.own(owners.group, generation=1)
        records = iter(old)
        assert next(records).value == b"0"
        old.commit()
        assert next(records).value == b"1"
        new.own(owners.group, generation=1)
        assert next(records).value == b"2"  # reading is not fenced on Kafka
        with pytest.raises(Fenced) as fenced:
            old.commit()
        assert fenced.value.persisted == "no"
        with pytest.raises(Fenced):
            old.commit({place: 4})
        assert [record.value for record in new] == [b"1", b"2", b"3"]
        new.commit()
    with Admin(owners.address) as admin:
        await_offsets(admin, readers, [4])


# --- races: a claimant is paused, or killed, between each two of its steps ---

STEPS = 8
"""Of a take-over: its write id, the claim id, look, add to the transaction, write, commit, the fence, and after it."""


class Killed(Exception):
    """The claimant is gone."""


def in_thread(call: Callable[[], T]) -> Callable[[], T | BaseException]:
    outcome: list[T | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> T | BaseException:
        thread.join(PATIENCE)
        assert not thread.is_alive()
        return outcome[0]

    return result


@pytest.mark.parametrize("at", range(STEPS))
def test_a_claimant_is_paused_between_two_of_its_steps_while_another_claims(owners: Owners, at: int) -> None:
    old, _ = owners.owner()
    slow, quick = owners.make(), owners.make()
    reached, go = threading.Event(), threading.Event()
    taken: list[ClaimStep] = []

    def before(step: ClaimStep) -> None:
        if len(taken) == at:
            reached.set()
            assert go.wait(PATIENCE)
        taken.append(step)

    slow.backend.owner.group(owners.group).before = before
    slow_claim = in_thread(lambda: slow.own(owners.group, [owners.resource], generation=9))
    if at < STEPS - 1:
        assert reached.wait(PATIENCE)
    else:
        assert isinstance(slow_claim(), fencepost.Claim)  # paused behind its last step
    quick_claim = quick.own(owners.group, [owners.resource], generation=20)
    assert is_fenced(old, owners.topic), "whoever was told that it owns has no rival"
    quick.send(owners.topic, b"quick").result(PATIENCE)
    go.set()
    outcome = slow_claim()
    if isinstance(outcome, Refused):
        assert outcome.token == quick_claim.token
        assert not is_fenced(quick, owners.topic)
    else:
        assert isinstance(outcome, fencepost.Claim), repr(outcome)
        assert outcome.token < quick_claim.token
        assert is_fenced(slow, owners.topic)
        assert not is_fenced(quick, owners.topic)


@pytest.mark.parametrize("at", range(STEPS - 1))
def test_a_claimant_is_killed_between_two_of_its_steps_and_the_next_claim_succeeds(owners: Owners, at: int) -> None:
    old, first = owners.owner()
    killed = owners.make()
    taken: list[ClaimStep] = []

    def before(step: ClaimStep) -> None:
        if len(taken) == at:
            raise Killed
        taken.append(step)

    killed.backend.owner.group(owners.group).before = before
    with pytest.raises(Killed):
        killed.own(owners.group, [owners.resource], generation=9)
    new, claim = owners.owner(generation=9)
    assert claim.token > first.token
    assert is_fenced(old, owners.topic)
    new.send(owners.topic, b"new").result(PATIENCE)
    assert owners.committed() == [b"new"]


def test_many_that_claim_at_once_get_different_tokens_and_one_can_write(owners: Owners) -> None:
    producers = [owners.make() for _ in range(5)]
    waiting = [in_thread(lambda p=p: p.own(owners.group, [owners.resource], generation=50)) for p in producers]  # type: ignore[misc]
    outcomes = [result() for result in waiting]
    claims = [outcome for outcome in outcomes if isinstance(outcome, fencepost.Claim)]
    assert all(isinstance(outcome, fencepost.Claim | Refused) for outcome in outcomes), outcomes
    assert len({claim.token for claim in claims}) == len(claims)
    newest = max(range(len(outcomes)), key=lambda i: getattr(outcomes[i], "token", 0) if outcomes[i] in claims else 0)
    alive = [
        index
        for index, producer in enumerate(producers)
        if outcomes[index] in claims and not is_fenced(producer, owners.topic)
    ]
    assert alive == [newest]
