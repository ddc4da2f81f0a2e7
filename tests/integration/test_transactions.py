"""Transactions over the wire, the same on both servers: who may do what when, and what readers see of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from fencepost.kernel import decode_batch
from fencepost.kernel.control import read_marker
from fencepost.kernel.header import split_batches
from tests.integration.conftest import TestedServer
from tests.support.group_client import GroupMember, await_coordinator
from tests.support.group_client import commit as plain_commit
from tests.support.raw import DELETE_TOPICS
from tests.support.transactions import LIST, TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
NOT_NOW = ErrorCode.INVALID_TXN_STATE
NOT_MINE = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.fixture
def client(server: TestedServer) -> Iterator[TransactionClient]:
    with TransactionClient(server.address) as connection:
        yield connection


@pytest.fixture
def second(server: TestedServer) -> Iterator[TransactionClient]:
    """Another connection, opened later."""
    with TransactionClient(server.address) as connection:
        yield connection


@pytest.fixture
def topic(client: TransactionClient, name: str) -> str:
    """A fresh topic with two partitions."""
    client.create_topic(name, partitions=2)
    return name


@pytest.fixture
def group(client: TransactionClient, name: str) -> str:
    """The name of a group that has a coordinator."""
    await_coordinator(client, name)
    return name


@pytest.fixture
def producer(client: TransactionClient, name: str) -> TransactionalProducer:
    return TransactionalProducer.start(client, f"{name}-id")


def run(
    client: TransactionClient, producer: TransactionalProducer, topic: str, *values: bytes, commit: bool = True
) -> None:
    """A whole transaction in partition 0."""
    assert client.add(producer, {topic: [0]}) == [NONE]
    assert client.write(producer, topic, values).error is NONE
    assert client.end(producer, commit=commit) is NONE
    client.await_state(producer.name, "CompleteCommit", "CompleteAbort")


# --- all or nothing ---------------------------------------------------------------------------------------------------


def test_a_committed_transaction_is_seen_whole_and_an_aborted_one_not_at_all(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    run(client, producer, topic, b"kept", b"too")
    run(client, producer, topic, b"dropped", commit=False)
    run(client, producer, topic, b"last")
    seen = client.fetch_committed(topic)
    assert seen.values == [b"kept", b"too", b"last"]
    assert seen.aborted == [(producer.pid, 3)]
    assert seen.last_stable_offset == client.stable_offset(topic) == 7


def test_a_transaction_spans_partitions(client: TransactionClient, producer: TransactionalProducer, topic: str) -> None:
    assert client.add(producer, {topic: [0, 1]}) == [NONE, NONE]
    client.write(producer, topic, [b"a"])
    client.write(producer, topic, [b"b"], partition=1)
    assert client.fetch_committed(topic).values == []
    assert client.end(producer, commit=True) is NONE
    client.await_state(producer.name, "CompleteCommit")
    assert client.fetch_committed(topic).values == [b"a"]
    assert client.fetch_committed(topic, partition=1).values == [b"b"]


def test_readers_of_committed_records_stop_where_the_oldest_open_transaction_starts(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    other = TransactionalProducer.start(client, f"{topic}-other")
    run(client, producer, topic, b"0")
    client.add(producer, {topic: [0]})
    client.add(other, {topic: [0]})
    client.write(producer, topic, [b"2"])
    client.write(other, topic, [b"3"])
    assert client.stable_offset(topic) == 2
    client.end(other, commit=True)
    client.await_state(other.name, "CompleteCommit")
    assert client.stable_offset(topic) == 2
    assert client.fetch_committed(topic).values == [b"0"]
    assert client.end_offset(topic) == 5
    client.end(producer, commit=False)
    client.await_state(producer.name, "CompleteAbort")
    assert client.stable_offset(topic) == 6
    assert client.fetch_committed(topic).values == [b"0", b"3"]


def test_a_fetch_is_told_only_of_aborted_transactions_that_it_may_meet(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    run(client, producer, topic, b"0", commit=False)
    run(client, producer, topic, b"2")
    run(client, producer, topic, b"4", commit=False)
    assert client.fetch_committed(topic, 2).aborted == [(producer.pid, 4)]
    assert client.fetch_committed(topic, 1).aborted == [(producer.pid, 0), (producer.pid, 4)]
    assert client.fetch_committed(topic, 6).aborted == []


def test_a_long_transaction_that_ends_last_is_told_to_who_reads_its_beginning(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    long = TransactionalProducer.start(client, f"{topic}-long")
    client.add(long, {topic: [0]})
    client.write(long, topic, [b"long"])
    for number in range(3):
        run(client, producer, topic, b"%d" % number, commit=number != 1)
    client.end(long, commit=False)
    client.await_state(long.name, "CompleteAbort")
    seen = client.fetch_committed(topic)
    assert seen.values == [b"0", b"2"]
    assert seen.aborted == [(long.pid, 0), (producer.pid, 3)]


def test_a_marker_goes_to_every_added_partition_even_if_nothing_was_written_there(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    for _ in range(2):
        assert client.add(producer, {topic: [0, 1]}) == [NONE, NONE]
        client.write(producer, topic, [b"x"])
        client.end(producer, commit=True)
        client.await_state(producer.name, "CompleteCommit")
    [first, *_] = [*split_batches(client.fetch(topic, 0, partition=1).data)]
    [record] = decode_batch(first)
    marker = read_marker(record)
    assert marker is not None and marker.is_commit
    assert (client.end_offset(topic), client.end_offset(topic, 1)) == (4, 2)


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def test_every_init_of_a_name_gives_the_next_epoch_of_the_same_pid(
    client: TransactionClient, producer: TransactionalProducer
) -> None:
    assert producer.epoch == 0
    assert client.init(producer.name) == (NONE, producer.pid, 1)
    assert client.init(producer.name) == (NONE, producer.pid, 2)


@pytest.mark.parametrize(
    ("timeout_ms", "fits"), [(0, False), (-1, False), (900_001, False), (900_000, True), (1, True)]
)
def test_a_timeout_above_the_servers_limit_is_refused(
    client: TransactionClient, name: str, timeout_ms: int, fits: bool
) -> None:
    client.find_coordinator(name)
    error, _, _ = client.init(name, timeout_ms=timeout_ms)
    assert error is (NONE if fits else ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def test_an_empty_name_is_refused(client: TransactionClient) -> None:
    assert client.init("")[0] is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("expected", [(5, -1), (-1, 5)])
def test_half_an_expectation_is_refused(client: TransactionClient, name: str, expected: tuple[int, int]) -> None:
    client.find_coordinator(name)
    assert client.init(name, expected=expected)[0] is ErrorCode.INVALID_REQUEST


def test_an_unknown_name_gets_a_pid_whatever_it_expects(client: TransactionClient, name: str) -> None:
    client.find_coordinator(name)
    error, pid, epoch = client.init(name, expected=(123_456_789, 7))
    assert (error, epoch) == (NONE, 0)
    assert pid != 123_456_789


@pytest.mark.parametrize(("version", "code"), [(3, OLD_EPOCH), (4, FENCED), (5, FENCED)])
def test_who_expects_another_epoch_is_fenced(
    client: TransactionClient, producer: TransactionalProducer, version: int, code: ErrorCode
) -> None:
    """KIP-360."""
    client.init(producer.name)
    client.init(producer.name)
    for expected in (0, 1, 3):
        error, pid, epoch = client.init(producer.name, expected=(producer.pid, expected), version=version)
        assert (error, pid, epoch) == (code, -1, -1)
    assert client.init(producer.name, expected=(producer.pid + 1000, 2), version=version)[0] is code
    assert client.init(producer.name, expected=(producer.pid, 2)) == (NONE, producer.pid, 3)


def test_a_producer_that_names_its_epoch_gets_the_next_and_a_retry_gets_the_same(
    client: TransactionClient, second: TransactionClient, producer: TransactionalProducer
) -> None:
    """KIP-360."""
    assert client.init(producer.name, expected=(producer.pid, 0)) == (NONE, producer.pid, 1)
    assert second.init(producer.name, expected=(producer.pid, 0)) == (NONE, producer.pid, 1)
    assert client.init(producer.name, expected=(producer.pid, 1)) == (NONE, producer.pid, 2)
    assert client.init(producer.name, expected=(producer.pid, 0))[0] is FENCED


def test_who_was_replaced_by_another_is_not_taken_for_one_that_repeats_its_request(
    client: TransactionClient, second: TransactionClient, producer: TransactionalProducer
) -> None:
    """IDEM-5: or the zombie would be handed the epoch of its successor."""
    assert second.init(producer.name) == (NONE, producer.pid, 1)
    assert client.init(producer.name, expected=(producer.pid, 0))[0] is FENCED


def test_a_repeated_init_after_its_epoch_was_used(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    _, _, producer.epoch = client.init(producer.name, expected=(producer.pid, 0))
    run(client, producer, topic, b"used")
    answer = client.init(producer.name, expected=(producer.pid, 0))
    assert answer[0] is server.answer_to("a repeated InitProducerId after its epoch was used")


def test_init_aborts_what_is_open_and_fences_its_producer(
    client: TransactionClient, second: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"zombie"])
    error, pid, epoch = second.init(producer.name)
    assert (error, pid) == (NONE, producer.pid)
    assert epoch == 2  # one for the fence, which nobody is told, and one for the successor
    successor = TransactionalProducer(producer.name, pid, epoch)
    assert client.write(producer, topic, [b"late"]).error is OLD_EPOCH
    assert client.add(producer, {topic: [1]}) == [FENCED]
    assert client.end(producer, commit=True) is FENCED
    run(second, successor, topic, b"successor")
    assert second.fetch_committed(topic).values == [b"successor"]


def test_an_init_with_an_old_epoch_leaves_an_open_transaction_alone(
    server: TestedServer, client: TransactionClient, second: TransactionClient, topic: str, name: str
) -> None:
    producer = TransactionalProducer.start(client, name)
    _, _, producer.epoch = client.init(name)
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"mine"])
    assert second.init(name, expected=(producer.pid, 0))[0] is FENCED
    assert client.end(producer, commit=True) is server.answer_to("EndTxn after somebody else's InitProducerId failed")


def test_an_init_with_the_present_epoch_aborts_ones_own_open_transaction(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"dropped"])
    assert client.init(producer.name, expected=(producer.pid, 0)) == (NONE, producer.pid, 1)
    assert client.fetch_committed(topic).values == []
    assert client.stable_offset(topic) == 2


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(9, NOT_NOW), (10, NOT_NOW), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_a_write_outside_the_transactions_partitions_is_refused(
    server: TestedServer,
    client: TransactionClient,
    producer: TransactionalProducer,
    topic: str,
    version: int,
    code: ErrorCode,
) -> None:
    # Kafka asks the coordinator about the producers of several requests at once, and answers all of them as the first
    # one's version demands. Other tests use the broker at the same time.
    refusals = {code} if server.name == "fencepost" else {NOT_NOW, ErrorCode.TRANSACTION_ABORTABLE}
    assert client.write(producer, topic, [b"none open"], version=version).error in refusals
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"not added"], partition=1, version=version).error in refusals
    assert client.end_offset(topic, 1) == 0


def test_a_write_of_the_newer_protocol_to_a_partition_that_was_not_added(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    answer = client.write(producer, topic, [b"not added"], version=12)
    assert answer.error is server.answer_to("Produce v12 of a partition that was not added")


@pytest.mark.parametrize("commit", [True, False])
def test_a_write_after_the_end_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str, commit: bool
) -> None:
    run(client, producer, topic, b"in time", commit=commit)
    assert client.write(producer, topic, [b"late"]).error is NOT_NOW
    assert client.end_offset(topic) == 2
    client.add(producer, {topic: [1]})
    assert client.write(producer, topic, [b"late, and the next one is open"]).error is NOT_NOW
    assert client.end_offset(topic) == 2


def test_a_write_with_an_older_epoch_is_refused_in_every_partition(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    old = producer.older()
    old.epoch = producer.epoch
    _, _, producer.epoch = client.init(producer.name)
    client.add(producer, {topic: [0, 1]})
    assert client.write(producer, topic, [b"mine"]).error is NONE
    for partition in (0, 1):
        assert client.write(old, topic, [b"zombie"], partition=partition).error is OLD_EPOCH
    assert client.end_offset(topic, 1) == 0


def test_a_write_with_an_epoch_that_was_not_given_out_is_refused(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    """Before the answer to InitProducerId nobody has the epoch: whoever writes with it is early, or made it up."""
    early = TransactionalProducer(producer.name, producer.pid, producer.epoch + 1)
    client.add(producer, {topic: [0]})
    assert client.write(early, topic, [b"early"]).error is OLD_EPOCH
    assert client.add(early, {topic: [1]}) == [FENCED]
    assert client.end(early, commit=True) is FENCED
    assert client.end_offset(topic) == 0


def test_a_write_of_another_pid_under_the_name_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    stranger = TransactionalProducer(producer.name, producer.pid + 1000, producer.epoch)
    assert client.write(stranger, topic, [b"who?"]).error is NOT_MINE
    assert client.add(stranger, {topic: [0]}) == [NOT_MINE]
    assert client.end(stranger, commit=True) is NOT_MINE


def test_a_write_under_a_name_that_nobody_has_is_refused(client: TransactionClient, topic: str) -> None:
    nobody = TransactionalProducer(f"{topic}-nobody", 4711, 0)
    client.find_coordinator(nobody.name)
    assert client.write(nobody, topic, [b"who?"]).error is NOT_MINE
    assert client.add(nobody, {topic: [0]}) == [NOT_MINE]
    assert client.add_offsets(nobody, "group") is NOT_MINE
    assert client.end(nobody, commit=True) is NOT_MINE


def test_a_transactional_batch_without_a_name_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    answer = client.write(producer, topic, [b"nameless"], name=None)
    assert answer.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_batch_outside_transactions_is_refused_inside_one(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"in"]).error is NONE
    assert client.write(producer, topic, [b"plain"], transactional=False).error is NOT_NOW
    assert client.write(producer, topic, [b"in too"]).error is NONE
    assert client.end(producer, commit=True) is NONE
    client.await_state(producer.name, "CompleteCommit")
    assert client.fetch_committed(topic).values == [b"in", b"in too"]


def test_a_plain_batch_of_a_replaced_epoch(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    """IDEM-5: the name fences in partitions, too, that have not heard of the new epoch."""
    client.init(producer.name)
    answer = client.write(producer, topic, [b"zombie"], transactional=False)
    assert answer.error is server.answer_to("a plain batch of a replaced epoch in a partition without its state")


def test_duplicates_and_gaps_are_judged_inside_transactions_as_everywhere(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"a", b"b"], sequence=0)[:2] == (NONE, 0)
    assert client.write(producer, topic, [b"a", b"b"], sequence=0)[:2] == (NONE, 0)
    assert client.write(producer, topic, [b"d"], sequence=3).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.write(producer, topic, [b"c"], sequence=2)[:2] == (NONE, 2)
    client.end(producer, commit=True)
    client.await_state(producer.name, "CompleteCommit")
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"d"], sequence=3)[:2] == (NONE, 4)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("values", [[b"a"], [b"x"]], ids=["the same bytes", "other bytes"])
def test_what_an_earlier_transaction_holds_is_no_duplicate(
    server: TestedServer,
    client: TransactionClient,
    producer: TransactionalProducer,
    topic: str,
    commit: bool,
    values: list[bytes],
) -> None:
    """librdkafka uses sequences again after an abort with a batch in flight. Acknowledged, the record would be in no
    transaction that is committed."""
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"a"], sequence=0)[:2] == (NONE, 0)
    client.end(producer, commit=commit)
    client.await_state(producer.name, "CompleteCommit" if commit else "CompleteAbort")
    client.add(producer, {topic: [0]})
    answer = client.write(producer, topic, values, sequence=0)
    assert answer.error is server.answer_to("sequences of an earlier transaction")
    assert client.fetch(topic, 0).values[:1] == [b"a"]
    assert client.end_offset(topic) == 2  # and the marker


@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 1), (0, 3), (1, 2)])
def test_a_cut_of_an_earlier_transaction_is_refused_in_a_way_that_clients_survive(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str, first: int, count: int
) -> None:
    """With OUT_OF_ORDER, Kafka's answer, librdkafka's producer is at its end."""
    client.add(producer, {topic: [0]})
    assert client.write(producer, topic, [b"a", b"b"], sequence=0)[:2] == (NONE, 0)
    client.end(producer, commit=False)
    client.await_state(producer.name, "CompleteAbort")
    client.add(producer, {topic: [0]})
    answer = client.write(producer, topic, [b"x"] * count, sequence=first)
    assert answer.error is server.answer_to("a cut of an earlier transaction")


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    codes = client.add(producer, {topic: [0, 7]})
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.write(producer, topic, [b"x"]).error is NOT_NOW
    assert client.describe(producer.name).transaction_state == "Empty"


@pytest.mark.parametrize(("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (3, FENCED)])
def test_old_versions_do_not_know_the_code_of_the_fenced(
    client: TransactionClient, producer: TransactionalProducer, topic: str, version: int, code: ErrorCode
) -> None:
    client.init(producer.name)
    assert client.add(producer, {topic: [0]}, version=version) == [code]
    assert client.add_offsets(producer, "group", version=version) is code
    assert client.end(producer, commit=True, version=version) is code


def test_adding_a_partition_twice_is_fine(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    assert client.add(producer, {topic: [0]}) == [NONE]
    assert client.add(producer, {topic: [0, 1]}) == [NONE, NONE]
    assert client.add(producer, {topic: [1]}) == [NONE]


def test_a_transaction_survives_the_deletion_of_a_topic_it_wrote_to(
    client: TransactionClient, producer: TransactionalProducer, topic: str, name: str
) -> None:
    client.create_topic(f"{name}-gone")
    client.add(producer, {topic: [0], f"{name}-gone": [0]})
    client.write(producer, topic, [b"stays"])
    client.write(producer, f"{name}-gone", [b"goes"])
    client.call(DELETE_TOPICS, 5, topic_names=[f"{name}-gone"], timeout=30_000)
    assert client.end(producer, commit=True) is NONE
    client.await_state(producer.name, "CompleteCommit")
    assert client.fetch_committed(topic).values == [b"stays"]


# --- EndTxn -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_again_gets_the_same_answer_and_the_opposite_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str, commit: bool
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"x"])
    for _ in range(3):
        assert client.end(producer, commit=commit) is NONE
    client.await_state(producer.name, "CompleteCommit", "CompleteAbort")
    assert client.end(producer, commit=not commit) is NOT_NOW
    assert client.fetch_committed(topic).values == ([b"x"] if commit else [])
    assert client.end_offset(topic) == 2


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_an_empty_transaction_is_refused(
    client: TransactionClient, producer: TransactionalProducer, commit: bool
) -> None:
    assert client.end(producer, commit=commit) is NOT_NOW


def test_an_end_without_any_record_is_fine(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    assert client.end(producer, commit=True) is NONE


def test_an_end_that_is_pipelined_behind_a_write_comes_after_it(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"first"])
    from tests.support.batches import batch

    data = batch([b"second"], pid=producer.pid, epoch=producer.epoch, sequence=1, attributes=0x10)
    client.send_transactional(topic, data, name=producer.name)
    client.send_end(producer, commit=True)
    assert client.receive_produced().error is NONE
    assert client.receive()[1].error_code == NONE
    client.await_state(producer.name, "CompleteCommit")
    assert client.fetch_committed(topic).values == [b"first", b"second"]


# --- offsets of groups ------------------------------------------------------------------------------------------------


def test_offsets_count_when_the_transaction_commits_and_not_when_it_aborts(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    for commit, offset in ((True, 5), (False, 9)):
        assert client.add_offsets(producer, group) is NONE
        assert client.commit_offsets(producer, group, {topic: {0: offset}}) == [NONE]
        assert client.group_offset(group, topic)[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert client.group_offset(group, topic, stable=False) == (NONE, -1 if commit else 5)
        assert client.end(producer, commit=commit) is NONE
        client.await_state(producer.name, "CompleteCommit", "CompleteAbort")
        assert client.stable_group_offset(group, topic) == 5


def test_the_last_offset_of_a_partition_within_a_transaction_counts(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    client.add_offsets(producer, group)
    client.commit_offsets(producer, group, {topic: {0: 1, 1: 1}})
    client.commit_offsets(producer, group, {topic: {0: 2}})
    client.end(producer, commit=True)
    client.await_state(producer.name, "CompleteCommit")
    assert [client.stable_group_offset(group, topic, partition=index) for index in (0, 1)] == [2, 1]


@pytest.mark.parametrize("ended", [True, False], ids=["committed", "aborted"])
def test_a_plain_offset_commit_outlasts_an_earlier_open_transactions_outcome(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str, ended: bool
) -> None:
    """The later one counts, not the one that was decided later; until then it is not stable all the same."""
    client.add_offsets(producer, group)
    client.commit_offsets(producer, group, {topic: {0: 5, 1: 6}})
    assert plain_commit(client, group, topic, 3) is NONE
    assert client.group_offset(group, topic, stable=False) == (NONE, 3)
    assert client.group_offset(group, topic)[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    client.end(producer, commit=ended)
    client.await_state(producer.name, "CompleteCommit", "CompleteAbort")
    assert client.stable_group_offset(group, topic) == 3
    assert client.stable_group_offset(group, topic, partition=1) == (6 if ended else -1)


def test_offsets_that_a_transaction_sends_again_after_a_plain_commit_count(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    client.add_offsets(producer, group)
    client.commit_offsets(producer, group, {topic: {0: 5}})
    assert plain_commit(client, group, topic, 3) is NONE
    client.commit_offsets(producer, group, {topic: {0: 7}})
    client.end(producer, commit=True)
    client.await_state(producer.name, "CompleteCommit")
    assert client.stable_group_offset(group, topic) == 7


@pytest.mark.parametrize(("version", "code"), [(3, NOT_NOW), (4, ErrorCode.TRANSACTION_ABORTABLE)])
def test_offsets_of_a_group_that_was_not_added_are_refused(
    server: TestedServer,
    client: TransactionClient,
    producer: TransactionalProducer,
    topic: str,
    group: str,
    version: int,
    code: ErrorCode,
) -> None:
    def answer() -> ErrorCode:
        """Kafka asks its coordinator about several clients' transactions at once, and answers all of them as the first
        of them understands it: now and then somebody else's version decides. Alone it answers as ours always does."""
        for _ in range(50):
            (found,) = client.commit_offsets(producer, group, {topic: {0: 1}}, version=version)
            if server.name == "fencepost" or found is code or found not in (NOT_NOW, ErrorCode.TRANSACTION_ABORTABLE):
                break
        return found

    assert answer() is code
    client.add(producer, {topic: [0]})
    assert answer() is code


def test_offsets_of_a_fenced_producer_are_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    client.add_offsets(producer, group)
    client.init(producer.name)
    assert client.commit_offsets(producer, group, {topic: {0: 1}}) == [OLD_EPOCH]


def test_a_group_without_a_name_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    assert client.add_offsets(producer, "") is NONE
    assert client.commit_offsets(producer, "", {topic: {0: 1}}) == [ErrorCode.INVALID_GROUP_ID]


def test_an_unknown_partition_is_refused_and_the_others_count(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    client.add_offsets(producer, group)
    codes = client.commit_offsets(producer, group, {topic: {0: 4, 9: 1}})
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    client.end(producer, commit=True)
    client.await_state(producer.name, "CompleteCommit")
    assert client.stable_group_offset(group, topic) == 4


def test_offsets_with_long_metadata_are_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    client.add_offsets(producer, group)
    codes = client.commit_offsets(producer, group, {topic: {0: 4}}, metadata="x" * 4097)
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_a_member_that_its_group_does_not_know_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    """KIP-447."""
    client.add_offsets(producer, group)

    def commit(**who: Any) -> ErrorCode:
        [code] = client.commit_offsets(producer, group, {topic: {0: 1}}, **who)
        return code

    assert commit(member="nobody", generation=1) is ErrorCode.ILLEGAL_GENERATION  # there is no such group
    with TransactionClient(client.address) as other:
        member = GroupMember(other, group, topic)
        member.enter()
        assert commit(member="nobody", generation=member.generation) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(member=member.member_id, generation=member.generation + 1) is ErrorCode.ILLEGAL_GENERATION
        assert commit(member=member.member_id, generation=member.generation - 1) is ErrorCode.ILLEGAL_GENERATION
        assert commit(member=member.member_id, generation=member.generation) is NONE
        assert commit() is NONE  # who does not say who it is may commit, as ever
        member.leave()
        assert commit(member=member.member_id, generation=member.generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_replaced_static_member_is_fenced(
    client: TransactionClient, producer: TransactionalProducer, topic: str, group: str
) -> None:
    """KIP-447 with KIP-345."""
    client.add_offsets(producer, group)
    with TransactionClient(client.address) as one, TransactionClient(client.address) as two:
        first = GroupMember(one, group, topic, instance_id="static")
        first.enter()
        second = GroupMember(two, group, topic, instance_id="static")
        second.enter()
        [code] = client.commit_offsets(
            producer,
            group,
            {topic: {0: 1}},
            member=first.member_id,
            generation=second.generation,
            instance="static",
        )
        assert code is ErrorCode.FENCED_INSTANCE_ID


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_transaction_is_described_in_every_state(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    empty = client.describe(producer.name)
    assert (empty.transaction_state, empty.producer_id, empty.producer_epoch) == ("Empty", producer.pid, 0)
    assert list(empty.topics) == []
    client.add(producer, {topic: [1, 0]})
    ongoing = client.describe(producer.name)
    assert ongoing.transaction_state == "Ongoing"
    assert [(row.topic, sorted(row.partitions)) for row in ongoing.topics] == [(topic, [0, 1])]
    client.end(producer, commit=True)
    complete = client.await_state(producer.name, "CompleteCommit")
    assert list(complete.topics) == []


def test_an_unknown_name_is_not_found(client: TransactionClient, name: str) -> None:
    client.find_coordinator(name)
    assert client.describe(name).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_transactions_are_listed_and_filtered(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    def listed(version: int = 1, **filters: object) -> dict[str, str]:
        wanted = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = client.call(LIST, version, **wanted)
        assert answer.error_code == NONE
        return {row.transactional_id: row.transaction_state for row in answer.transaction_states}

    assert listed()[producer.name] == "Empty"
    client.add(producer, {topic: [0]})
    assert listed(state_filters=["Ongoing"])[producer.name] == "Ongoing"
    assert producer.name not in listed(state_filters=["Empty"])
    assert listed(producer_id_filters=[producer.pid]) == {producer.name: "Ongoing"}
    assert producer.name not in listed(duration_filter=1_000_000)
    while producer.name not in listed(duration_filter=0, producer_id_filters=[producer.pid]):
        pass  # until a millisecond has passed
    assert listed(2, transactional_id_pattern=f"{topic}.*") == {producer.name: "Ongoing"}
    answer = client.call(LIST, 0, state_filters=["Ongoing", "Nonsense", "Dead"], producer_id_filters=[])
    assert list(answer.unknown_state_filters) == ["Nonsense"]
    answer = client.call(LIST, 2, state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_producers_are_described_with_the_start_of_their_open_transaction(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    run(client, producer, topic, b"a", b"b")
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"c"])
    [found] = client.producers_of(topic)
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer.pid, 0, 2)
    assert found.current_txn_start_offset == 3
    client.end(producer, commit=False)
    client.await_state(producer.name, "CompleteAbort")
    [found] = client.producers_of(topic)
    assert (found.last_sequence, found.current_txn_start_offset) == (2, -1)


def test_the_fence_of_a_successor_leaves_no_sequence_behind(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"c"])
    client.init(producer.name)
    [found] = client.producers_of(topic)
    assert (found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (1, -1, -1)


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    client: TransactionClient, topic: str, name: str
) -> None:
    producer = TransactionalProducer.start(client, name, timeout_ms=100)
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"too slow"])
    client.await_state(name, "CompleteAbort")
    assert client.end(producer, commit=True) is FENCED
    assert client.write(producer, topic, [b"later"]).error is OLD_EPOCH
    assert client.fetch_committed(topic) == (2, [], [(producer.pid, 0)])


@pytest.mark.every_run("fencepost")
def test_who_was_too_slow_may_go_on_with_the_next_epoch(client: TransactionClient, topic: str, name: str) -> None:
    """KIP-588."""
    producer = TransactionalProducer.start(client, name, timeout_ms=100)
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"too slow"])
    client.await_state(name, "CompleteAbort")
    assert client.init(name, expected=(producer.pid, 0)) == (NONE, producer.pid, 1)
    run(client, TransactionalProducer(name, producer.pid, 1), topic, b"again")
    assert client.fetch_committed(topic).values == [b"again"]


@pytest.mark.every_run("fencepost")
def test_who_was_too_slow_is_fenced_if_somebody_else_has_come(
    client: TransactionClient, second: TransactionClient, topic: str, name: str
) -> None:
    producer = TransactionalProducer.start(client, name, timeout_ms=100)
    client.add(producer, {topic: [0]})
    client.await_state(name, "CompleteAbort")
    assert second.init(name) == (NONE, producer.pid, 2)
    assert client.init(name, expected=(producer.pid, 0))[0] is FENCED


# --- an administrator's marker ----------------------------------------------------------------------------------------


def test_an_administrators_marker_in_an_open_transaction(
    server: TestedServer, client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    client.add(producer, {topic: [0]})
    client.write(producer, topic, [b"x"])
    answer = client.write_marker(topic, 0, producer.pid, producer.epoch, commit=False)
    assert answer is server.answer_to("WriteTxnMarkers where the coordinator has the transaction open")


def test_an_administrators_marker_of_an_older_epoch_is_refused(
    client: TransactionClient, producer: TransactionalProducer, topic: str
) -> None:
    _, _, producer.epoch = client.init(producer.name)
    run(client, producer, topic, b"x")
    assert client.write_marker(topic, 0, producer.pid, 0, commit=False) is OLD_EPOCH
