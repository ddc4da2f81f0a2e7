"""H(P) + 1 = S over a socket: which batches are stored, which are known already, which are refused (IDEM-1, IDEM-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from fencepost.core.producers.sequence import MAX_SEQUENCE
from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.raw import API_VERSIONS, Produced, RawClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


class Writer(NamedTuple):
    """A producer that is told its sequences."""

    client: RawClient
    topic: str
    pid: int

    def write(self, first: int, count: int = 1, *, epoch: int = 0, partition: int = 0, mark: str = "") -> Produced:
        values = [f"{mark}{first + number}".encode() for number in range(count)]
        whole = batch(values, pid=self.pid, epoch=epoch, sequence=first)
        return self.client.produce(self.topic, whole, partition=partition)

    def end_offset(self) -> int:
        return self.client.end_offset(self.topic)


@pytest.fixture
def writer(client: RawClient, topic: str) -> Writer:
    return Writer(client, topic, client.new_pid())


def test_batches_without_a_pid_are_stored_as_often_as_they_are_sent(client: RawClient, topic: str) -> None:
    """IDEM-1."""
    whole = batch([b"a", b"b"])
    assert [client.produce(topic, whole)[:2] for _ in range(3)] == [(NONE, 0), (NONE, 2), (NONE, 4)]
    assert client.fetch(topic, 0).values == [b"a", b"b"] * 3


def test_consecutive_batches_are_accepted(writer: Writer) -> None:
    """IDEM-2."""
    assert [writer.write(first, 3)[:2] for first in (0, 3, 6)] == [(NONE, 0), (NONE, 3), (NONE, 6)]
    assert writer.end_offset() == 9


def test_a_duplicate_is_answered_with_its_first_offset_and_not_stored_again(writer: Writer) -> None:
    """IDEM-2."""
    writer.write(0, 2)
    first = writer.write(2, 3)
    assert writer.write(2, 3)[:2] == first[:2] == (NONE, 2)
    assert writer.end_offset() == 5
    assert writer.client.fetch(writer.topic, 0).values == [b"0", b"1", b"2", b"3", b"4"]


def test_the_last_five_batches_are_known_as_duplicates_in_any_order(writer: Writer) -> None:
    """IDEM-2: as many as a client may have in flight."""
    for first in range(0, 14, 2):
        writer.write(first, 2)
    for first in (4, 12, 8, 6, 10):
        assert writer.write(first, 2)[:2] == (NONE, first)
    assert writer.end_offset() == 14


def test_a_duplicate_does_not_push_a_remembered_batch_out(writer: Writer) -> None:
    for first in range(5):
        writer.write(first)
    for _ in range(20):
        assert writer.write(4)[:2] == (NONE, 4)
    assert writer.write(0)[:2] == (NONE, 0)


def test_exactly_the_declared_number_of_batches_is_remembered(server: TestedServer, writer: Writer) -> None:
    remembered = server.answer_to("batches remembered per producer")
    for first in range(remembered + 1):
        writer.write(first)
    assert writer.write(1)[:2] == (NONE, 1)
    assert writer.write(0).error is OUT_OF_ORDER
    assert writer.end_offset() == remembered + 1


def test_a_duplicate_older_than_the_remembered_ones_is_out_of_order_to_strangers(writer: Writer) -> None:
    """IDEM-2: they would take DUPLICATE_SEQUENCE_NUMBER for success."""
    for first in range(40):
        writer.write(first)
    assert writer.write(0).error is OUT_OF_ORDER
    assert writer.write(40)[:2] == (NONE, 40)


def test_other_records_with_the_sequences_of_a_batch_are_no_duplicate(server: TestedServer, writer: Writer) -> None:
    """IDEM-2: acknowledged, they would be lost. Kafka compares sequences only."""
    writer.write(0, 2)
    refused = writer.write(0, 2, mark="other")
    assert refused.error is server.answer_to("other records with the sequences of a batch")
    assert writer.write(0, 2)[:2] == (NONE, 0)
    assert writer.client.fetch(writer.topic, 0).values == [b"0", b"1"]


def test_a_gap_is_refused_and_nothing_is_stored(writer: Writer) -> None:
    """IDEM-2."""
    writer.write(0, 2)
    assert writer.write(3, 2).error is OUT_OF_ORDER
    assert writer.end_offset() == 2
    assert writer.write(2)[:2] == (NONE, 2)


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 5, id="from-the-start-past-the-end"),
        pytest.param(2, 3, id="from-the-middle-past-the-end"),
        pytest.param(3, 2, id="the-last-one-and-a-new-one"),
        pytest.param(0, 3, id="the-first-part-of-a-batch"),
        pytest.param(1, 3, id="the-last-part-of-a-batch"),
        pytest.param(1, 2, id="inside-a-batch"),
    ],
)
def test_a_batch_that_overlaps_in_part_is_refused(writer: Writer, first: int, count: int) -> None:
    """IDEM-2: neither a duplicate nor next in line."""
    writer.write(0, 4)
    assert writer.write(first, count).error is OUT_OF_ORDER
    assert writer.end_offset() == 4
    assert writer.write(4)[:2] == (NONE, 4)


def test_two_remembered_batches_sent_again_as_one_are_refused(writer: Writer) -> None:
    writer.write(0, 2)
    writer.write(2, 2)
    assert writer.write(0, 4).error is OUT_OF_ORDER
    assert writer.end_offset() == 4


def test_a_lower_epoch_is_fenced(writer: Writer) -> None:
    """IDEM-5."""
    writer.write(0, epoch=3)
    assert writer.write(1, epoch=2).error is FENCED
    assert writer.write(0, epoch=2).error is FENCED
    assert writer.end_offset() == 1
    assert writer.write(1, epoch=3)[:2] == (NONE, 1)


def test_a_higher_epoch_must_start_at_sequence_0(writer: Writer) -> None:
    writer.write(0, 3)
    assert writer.write(3, epoch=1).error is OUT_OF_ORDER
    assert writer.write(1, epoch=1).error is OUT_OF_ORDER
    assert writer.end_offset() == 3
    assert writer.write(0, epoch=1)[:2] == (NONE, 3)


def test_a_higher_epoch_may_skip_epochs(writer: Writer) -> None:
    writer.write(0)
    assert writer.write(0, epoch=7)[:2] == (NONE, 1)
    assert writer.write(0, epoch=6).error is FENCED


def test_a_refused_batch_of_a_higher_epoch_does_not_fence_the_current_one(writer: Writer) -> None:
    """Check first, apply after: a refused batch leaves no trace."""
    writer.write(0)
    assert writer.write(5, epoch=1).error is OUT_OF_ORDER
    assert writer.write(1, epoch=0)[:2] == (NONE, 1)


def test_a_higher_epoch_forgets_the_batches_of_the_old_one(writer: Writer) -> None:
    writer.write(0, 2)
    writer.write(0, 1, epoch=1)
    assert writer.write(0, 2, epoch=1).error is OUT_OF_ORDER
    assert writer.end_offset() == 3


@pytest.mark.parametrize("first", [1, 17, 1_000_000_007, MAX_SEQUENCE])
def test_a_new_pid_begins_at_sequence_0(server: TestedServer, writer: Writer, first: int) -> None:
    """IDEM-2: a partition that has never seen a pid expects 0. Kafka takes what comes, and would take 0 for a duplicate
    afterwards."""
    assert writer.write(first).error is server.answer_to("a new pid whose first sequence is not 0")


def test_a_new_pid_begins_at_sequence_0_of_any_epoch(writer: Writer) -> None:
    assert writer.write(0, epoch=12)[:2] == (NONE, 0)
    assert writer.write(1, epoch=12)[:2] == (NONE, 1)


@pytest.mark.parametrize("first", [0, 1, 17, 1_000_000_007, MAX_SEQUENCE])
def test_a_pid_that_another_server_issued_may_start_at_any_sequence(writer: Writer, first: int) -> None:
    """Its producer may have written to this log when another server had it."""
    foreign = foreign_of(writer)
    assert foreign.write(first)[:2] == (NONE, 0)
    assert foreign.write(first)[:2] == (NONE, 0)
    assert foreign.end_offset() == 1


def test_a_sequence_below_the_first_that_came_is_no_duplicate(server: TestedServer, writer: Writer) -> None:
    """IDEM-2: it was never here, and our client takes "already in the log" for success."""
    foreign = foreign_of(writer)
    assert foreign.write(7)[:2] == (NONE, 0)
    assert foreign.write(3).error is OUT_OF_ORDER
    assert foreign.write(6, 2).error is OUT_OF_ORDER
    assert foreign.write(8)[:2] == (NONE, 1)


def foreign_of(writer: Writer) -> Writer:
    return writer._replace(pid=(1 << 40) + writer.pid)


def test_a_pid_need_not_have_been_given_out(writer: Writer) -> None:
    """Anyone may resume a bare pid, on Kafka too."""
    assert foreign_of(writer).write(4)[:2] == (NONE, 0)


def test_after_the_largest_sequence_comes_0(writer: Writer) -> None:
    writer = foreign_of(writer)
    assert writer.write(MAX_SEQUENCE)[:2] == (NONE, 0)
    assert writer.write(1).error is OUT_OF_ORDER
    assert writer.write(0)[:2] == (NONE, 1)
    assert writer.write(MAX_SEQUENCE)[:2] == (NONE, 0)
    assert writer.write(1)[:2] == (NONE, 2)


def test_a_batch_may_straddle_the_wrap(writer: Writer) -> None:
    writer = foreign_of(writer)
    assert writer.write(MAX_SEQUENCE - 1, 4)[:2] == (NONE, 0)
    assert writer.write(1).error is OUT_OF_ORDER
    assert writer.write(3).error is OUT_OF_ORDER
    assert writer.write(MAX_SEQUENCE - 1, 4)[:2] == (NONE, 0)
    assert writer.write(2, 2)[:2] == (NONE, 4)
    assert writer.end_offset() == 6


def test_producers_of_one_partition_do_not_know_each_other(writer: Writer) -> None:
    other = writer._replace(pid=writer.client.new_pid())
    for first in range(4):
        assert writer.write(first)[:2] == (NONE, 2 * first)
        assert other.write(first)[:2] == (NONE, 2 * first + 1)
    assert writer.write(1)[:2] == (NONE, 2)
    assert other.write(1)[:2] == (NONE, 3)


def test_a_producer_counts_each_partition_by_itself(client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=2)
    writer = Writer(client, name, client.new_pid())
    assert writer.write(0, 5, partition=0)[:2] == (NONE, 0)
    assert writer.write(0, 2, partition=1)[:2] == (NONE, 0)
    assert writer.write(5, partition=1).error is OUT_OF_ORDER
    assert writer.write(5, partition=0)[:2] == (NONE, 5)
    assert writer.write(2, partition=1)[:2] == (NONE, 2)


def test_a_producer_is_known_on_every_connection(server: TestedServer, writer: Writer) -> None:
    """IDEM-7, the small case: the answer was lost with its connection, and the batch is sent again on the next."""
    writer.write(0, 2)
    with server.connect() as second:
        again = writer._replace(client=second)
        assert again.write(0, 2)[:2] == (NONE, 0)
        assert again.write(2)[:2] == (NONE, 2)


def test_pipelined_batches_behind_a_gap_all_fail(writer: Writer) -> None:
    """IDEM-6: M1 M2 M3 never becomes M1 M3 M2."""
    writer.write(0)
    for first in (2, 3, 4):
        whole = batch([b"%d" % first], pid=writer.pid, epoch=0, sequence=first)
        writer.client.send_produce(writer.topic, whole)
    assert [writer.client.receive_produced().error for _ in range(3)] == [OUT_OF_ORDER] * 3
    assert writer.end_offset() == 1
    for first in (1, 2, 3, 4):
        assert writer.write(first)[:2] == (NONE, first)


def test_a_duplicate_is_known_with_acks_1_too(writer: Writer) -> None:
    whole = batch([b"x"], pid=writer.pid, epoch=0, sequence=0)
    assert writer.client.produce(writer.topic, whole, acks=1)[:2] == (NONE, 0)
    assert writer.client.produce(writer.topic, whole, acks=1)[:2] == (NONE, 0)
    assert writer.end_offset() == 1


def test_a_pid_without_a_sequence_is_an_invalid_record(writer: Writer) -> None:
    assert writer.write(-1).error is ErrorCode.INVALID_RECORD
    assert writer.end_offset() == 0


def test_a_pid_with_a_negative_epoch_is_refused(server: TestedServer, writer: Writer) -> None:
    assert writer.write(0, epoch=-1).error is server.answer_to("pid with a negative epoch")


# --- what only fencepost's own client is told ---


@pytest.fixture
def our_writer(ours: TestedServer, name: str) -> Iterator[Writer]:
    """A producer that has said, in ApiVersions, that it is fencepost's own client."""
    with ours.connect() as connection:
        connection.call(API_VERSIONS, 3, client_software_name="fencepost", client_software_version="1")
        connection.create_topic(name)
        yield Writer(connection, name, connection.new_pid())


def test_our_client_is_told_of_a_duplicate_too_old_to_have_an_offset(our_writer: Writer) -> None:
    """IDEM-2: it does not take the code for success, but for what it says."""
    for first in range(40):
        our_writer.write(first)
    assert our_writer.write(0).error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert our_writer.write(3, 2).error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert our_writer.write(39, 2).error is OUT_OF_ORDER
    assert our_writer.write(40)[:2] == (NONE, 40)


def test_our_client_is_not_told_that_a_record_is_in_the_log_that_never_was(our_writer: Writer) -> None:
    """IDEM-2: the partition saw 7 first, so that 3 was never sent to it, or never came."""
    foreign = foreign_of(our_writer)
    assert foreign.write(7)[:2] == (NONE, 0)
    assert foreign.write(3).error is OUT_OF_ORDER
    for first in range(8, 50):
        foreign.write(first)
    assert foreign.write(3).error is OUT_OF_ORDER
    assert foreign.write(7).error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_our_client_is_refused_a_repeat_with_other_bytes(our_writer: Writer) -> None:
    """IDEM-2: its repeats are byte-equal, so another checksum means that something is very wrong."""
    our_writer.write(0, 2)
    refused = our_writer.write(0, 2, mark="other")
    assert refused.error is ErrorCode.INVALID_RECORD
    assert "other bytes" in (refused.message or "")
    assert our_writer.write(0, 2)[:2] == (NONE, 0)
    assert our_writer.client.fetch(our_writer.topic, 0).values == [b"0", b"1"]


def test_a_stranger_on_the_next_connection_is_not_taken_for_our_client(ours: TestedServer, our_writer: Writer) -> None:
    """The name belongs to the connection that gave it."""
    for first in range(40):
        our_writer.write(first)
    with ours.connect() as stranger:
        assert our_writer._replace(client=stranger).write(0).error is OUT_OF_ORDER
