"""The rule H(P) + 1 = S, case by case (IDEM-2, IDEM-3)."""

from __future__ import annotations

import pytest

from fencepost.core.producers.dedup import (
    ACCEPT,
    FADED_PER_ENTRY,
    REMEMBERED,
    UNKNOWN,
    Conflict,
    Duplicate,
    Forgotten,
    Gap,
    ProducerEntry,
    ProducerTable,
    SequencedBatch,
    StaleEpoch,
)
from fencepost.core.producers.faded import FadedProducers
from fencepost.core.producers.sequence import MAX_SEQUENCE, advance, last_of
from fencepost.types import Epoch, Offset, Pid, Sequence

pytestmark = pytest.mark.unit

PID = Pid(7)


def a_batch(first: int, length: int = 1, *, epoch: int = 0, crc: int | None = 1, pid: int = PID) -> SequencedBatch:
    start = Sequence(first)
    return SequencedBatch(Pid(pid), Epoch(epoch), start, last_of(start, length), length, crc, 1000)


class Partition:
    """A table and the end of the log it belongs to."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.end = 0

    def store(self, batch: SequencedBatch, *, now: int = 0, transactional: bool = False) -> int:
        assert self.table.judge(batch) == ACCEPT
        self.table.apply(batch._replace(transactional=transactional), Offset(self.end), now)
        self.end += batch.length
        return self.end - batch.length


@pytest.fixture
def partition() -> Partition:
    return Partition()


@pytest.mark.parametrize("first", [0, 5, MAX_SEQUENCE])
def test_a_producer_nobody_knows_may_begin_anywhere(partition: Partition, first: int) -> None:
    partition.store(a_batch(first))
    assert partition.table.get(PID) is not None


def test_judging_changes_nothing(partition: Partition) -> None:
    partition.store(a_batch(0, 3))
    before = str(partition.table.get(PID))
    for batch in (a_batch(0, 3), a_batch(3), a_batch(9), a_batch(0, epoch=5), a_batch(4, pid=8)):
        partition.table.judge(batch)
    assert str(partition.table.get(PID)) == before
    assert len(partition.table) == 1


@pytest.mark.parametrize(("first", "length"), [(0, 1), (1, 2), (0, 2), (0, 6), (2, 3)])
def test_other_cuts_of_what_is_there_are_duplicates_without_an_offset(
    partition: Partition, first: int, length: int
) -> None:
    partition.store(a_batch(0, 3))
    partition.store(a_batch(3, 3))
    assert partition.table.judge(a_batch(first, length)) == Forgotten(Sequence(5))


def test_a_repeat_with_other_bytes_is_no_duplicate(partition: Partition) -> None:
    partition.store(a_batch(0, 3, crc=1))
    assert partition.table.judge(a_batch(0, 3, crc=2)) == Conflict(Sequence(3))


def test_a_checksum_that_is_not_known_accuses_nobody(partition: Partition) -> None:
    """A batch stamped with LogAppendTime and read back from the log has lost its sender's checksum."""
    offset = partition.store(a_batch(0, 3, crc=None))
    assert partition.table.judge(a_batch(0, 3, crc=2)) == Duplicate(Offset(offset), 1000)


def test_a_newer_epoch_begins_at_zero_and_forgets_the_older_one(partition: Partition) -> None:
    partition.store(a_batch(0, 3, epoch=0))
    assert partition.table.judge(a_batch(3, epoch=1)) == Gap(Sequence(0))
    offset = partition.store(a_batch(0, 3, epoch=1, crc=9))
    assert partition.table.judge(a_batch(0, 3, epoch=1, crc=9)) == Duplicate(Offset(offset), 1000)
    assert partition.table.judge(a_batch(0, 3, epoch=0)) == StaleEpoch(Epoch(1))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_sequences_go_on_at_zero_behind_the_edge(partition: Partition, length: int) -> None:
    """A batch that straddles 2**31, its repeat, the one behind it, and gaps on both sides of the edge."""
    start = Sequence(MAX_SEQUENCE - 1)
    straddling = a_batch(start, length)
    offset = partition.store(straddling)
    assert partition.table.judge(straddling) == Duplicate(Offset(offset), 1000)
    expected = advance(start, length)
    assert partition.table.judge(a_batch(advance(expected, 1))) == Gap(expected)
    partition.store(a_batch(expected, 2))
    assert isinstance(partition.table.judge(straddling), Duplicate)
    assert partition.table.judge(a_batch(advance(start, -1))) == Gap(advance(expected, 2))
    assert partition.table.judge(a_batch(start, length + 3)) == Gap(advance(expected, 2))


def test_memory_is_bounded_per_producer(partition: Partition) -> None:
    """IDEM-3."""
    for first in range(10 * REMEMBERED):
        partition.store(a_batch(first))
    entry = partition.table.get(PID)
    assert entry is not None
    assert len(entry.batches) == REMEMBERED
    assert len(partition.table) == 1


def test_what_was_never_here_is_no_duplicate(partition: Partition) -> None:
    """IDEM-2: a client takes "already in the log" for success. A partition that took 7 as the first sequence of a
    producer has never had 3."""
    partition.store(a_batch(7, 2))
    partition.store(a_batch(9))
    for first, length in ((3, 1), (6, 1), (6, 2), (5, 5)):
        assert partition.table.judge(a_batch(first, length)) == Gap(Sequence(10))
    assert partition.table.judge(a_batch(7)) == Forgotten(Sequence(9))
    assert partition.table.judge(a_batch(8, 2)) == Forgotten(Sequence(9))


def test_a_new_producer_of_this_server_begins_at_zero(partition: Partition) -> None:
    """IDEM-2: H(P) + 1 = S also for the first batch."""
    issued = Pid(PID + 1)
    assert partition.table.judge(a_batch(1), issued) == UNKNOWN
    assert partition.table.judge(a_batch(1, epoch=4), issued) == UNKNOWN
    assert partition.table.judge(a_batch(0, 3), issued) == ACCEPT
    assert partition.table.judge(a_batch(1, pid=issued), issued) == ACCEPT  # of another server


def test_a_producer_that_was_forgotten_goes_on_where_it_was(partition: Partition) -> None:
    """Expiry takes H(P) away, so the rule must relax, but only for those who may have been here."""
    partition.store(a_batch(0, pid=4), now=100)
    partition.store(a_batch(0, pid=6), now=300)
    partition.table.expire(before=200)
    assert partition.table.judge(a_batch(1, pid=4), Pid(9)) == ACCEPT
    assert partition.table.judge(a_batch(1, pid=3), Pid(9)) == ACCEPT  # may have expired before
    assert partition.table.judge(a_batch(1, pid=5), Pid(9)) == UNKNOWN
    assert partition.table.judge(a_batch(2, pid=6), Pid(9)) == Gap(Sequence(1))


def test_idle_producers_are_forgotten_and_others_not(partition: Partition) -> None:
    partition.store(a_batch(0, pid=1), now=100)
    partition.store(a_batch(0, pid=2), now=200)
    partition.store(a_batch(0, pid=3), now=100, transactional=True)
    assert partition.table.expire(before=200) == [1]
    assert [pid for pid, _ in partition.table] == [2, 3]
    assert partition.table.judge(a_batch(77, pid=1)) == ACCEPT


def test_a_clock_that_goes_back_does_not_make_a_producer_older(partition: Partition) -> None:
    partition.store(a_batch(0), now=500)
    partition.store(a_batch(1), now=100)
    assert partition.table.expire(before=500) == []


class TestTransactions:
    def test_readers_of_committed_records_stop_at_the_oldest_open_one(self, partition: Partition) -> None:
        table = partition.table
        assert table.first_open_transaction() is None
        partition.store(a_batch(0, 5, pid=1))
        partition.store(a_batch(0, 2, pid=2), transactional=True)
        partition.store(a_batch(0, 2, pid=3), transactional=True)
        partition.store(a_batch(2, 2, pid=2), transactional=True)
        assert table.first_open_transaction() == 5
        table.end_transaction(Pid(2), Epoch(0), Offset(9), 0)
        assert table.first_open_transaction() == 7
        table.end_transaction(Pid(3), Epoch(0), Offset(9), 0)
        assert table.first_open_transaction() is None

    def test_a_marker_of_the_same_epoch_leaves_the_sequences(self, partition: Partition) -> None:
        partition.store(a_batch(0, 2), transactional=True)
        partition.table.end_transaction(PID, Epoch(0), Offset(9), 0)
        assert partition.table.judge(a_batch(2)) == ACCEPT

    def test_a_marker_of_a_newer_epoch_starts_the_sequences_again(self, partition: Partition) -> None:
        partition.store(a_batch(0, 2), transactional=True)
        partition.table.end_transaction(PID, Epoch(1), Offset(9), 0)
        assert partition.table.judge(a_batch(2)) == StaleEpoch(Epoch(1))
        assert partition.table.judge(a_batch(2, epoch=1)) == Gap(Sequence(0))
        assert partition.table.judge(a_batch(0, epoch=1)) == ACCEPT

    def test_what_an_earlier_transaction_wrote_is_no_duplicate(self, partition: Partition) -> None:
        """An aborted transaction's batch came through although its producer gave it up: librdkafka then uses the
        sequences again. The very same bytes, too, belong to another transaction."""
        partition.store(a_batch(0, 2, crc=1), transactional=True)
        partition.table.end_transaction(PID, Epoch(0), Offset(2), 0, aborted=True)
        again = a_batch(0, 2, crc=1)._replace(transactional=True)
        for batch in (again, again._replace(crc=2), a_batch(1)._replace(transactional=True)):
            assert partition.table.judge(batch) == Conflict(Sequence(2))
        assert partition.table.judge(a_batch(1, 3)._replace(transactional=True)) == Conflict(Sequence(2))
        partition.store(a_batch(2, 2, crc=3), transactional=True)
        assert partition.table.judge(again) == Conflict(Sequence(4))
        assert isinstance(partition.table.judge(a_batch(2, 2, crc=3)._replace(transactional=True)), Duplicate)
        assert partition.table.judge(a_batch(2)._replace(transactional=True)) == Forgotten(Sequence(3))
        assert partition.table.judge(a_batch(3, 2)._replace(transactional=True)) == Gap(Sequence(4))

    def test_a_marker_of_an_unknown_producer_fences_older_epochs(self, partition: Partition) -> None:
        partition.table.end_transaction(PID, Epoch(2), Offset(9), 0)
        assert partition.table.judge(a_batch(0, epoch=1)) == StaleEpoch(Epoch(2))

    def test_restored_entries_keep_the_order_of_open_transactions(self, partition: Partition) -> None:
        for pid, start in ((1, 30), (2, 10), (3, None), (4, 20)):
            offset = None if start is None else Offset(start)
            partition.table.restore(Pid(pid), ProducerEntry(Epoch(0), transaction_start=offset))
        assert partition.table.first_open_transaction() == 10
        partition.table.end_transaction(Pid(2), Epoch(0), Offset(9), 0)
        assert partition.table.first_open_transaction() == 20

    def test_clearing_forgets_transactions_too(self, partition: Partition) -> None:
        partition.store(a_batch(0), transactional=True)
        partition.table.clear()
        assert partition.table.first_open_transaction() is None
        assert len(partition.table) == 0


def test_recognised_duplicates_are_counted_per_producer_and_epoch(partition: Partition) -> None:
    partition.store(a_batch(0))
    for pid in (PID, PID, Pid(PID + 1)):  # the last one is not known here
        partition.table.note_duplicate(pid)
    assert [(pid, entry.duplicates) for pid, entry in partition.table] == [(PID, 2)]
    partition.store(a_batch(0, epoch=1))
    assert [(pid, entry.duplicates) for pid, entry in partition.table] == [(PID, 0)]


class TestCapture:
    def test_it_copies_nothing(self, partition: Partition) -> None:
        """Hundreds of thousands of producers are captured in one turn of the server's loop."""
        for pid in range(3):
            partition.store(a_batch(0, pid=pid))
        captured = partition.table.capture()
        assert all(captured[Pid(pid)] is partition.table.get(Pid(pid)) for pid in range(3))
        assert partition.table.capture() is captured

    def test_what_changes_later_does_not_show_in_it(self, partition: Partition) -> None:
        partition.store(a_batch(0), transactional=True)
        partition.store(a_batch(0, pid=8))
        captured = partition.table.capture()
        entry = captured[PID]
        partition.store(a_batch(1), transactional=True)
        partition.table.end_transaction(PID, Epoch(0), Offset(9), 0)
        partition.store(a_batch(0, pid=9))
        assert list(captured) == [PID, 8]
        assert captured[PID] is entry
        assert (entry.last_sequence, len(entry.batches), entry.transaction_start) == (0, 1, 0)
        partition.table.expire(before=1)
        partition.table.clear()
        assert list(captured) == [PID, 8]

    def test_an_entry_is_copied_once_for_each_capture(self, partition: Partition) -> None:
        partition.store(a_batch(0))
        partition.table.capture()
        partition.store(a_batch(1))
        copied = partition.table.get(PID)
        partition.store(a_batch(2))
        assert partition.table.get(PID) is copied
        assert copied is not None
        assert copied.last_sequence == 2


def test_a_producer_idle_for_minutes_writes_on_and_its_repeats_are_known() -> None:
    partition = Partition()
    partition.store(a_batch(0, 3), now=100)
    partition.store(a_batch(3, 2), now=200)
    assert partition.table.fade(before=200) == 0
    assert partition.table.fade(before=201) == 1
    assert partition.table.judge(a_batch(3, 2), Pid(9)) == Forgotten(Sequence(4))  # and not accepted once more
    assert partition.table.judge(a_batch(0, 3), Pid(9)) == Forgotten(Sequence(4))
    assert partition.table.judge(a_batch(7), Pid(9)) == Gap(Sequence(5))
    assert partition.table.judge(a_batch(5, epoch=-1), Pid(9)) == StaleEpoch(Epoch(0))
    assert partition.table.judge(a_batch(5), Pid(9)) == ACCEPT
    partition.store(a_batch(5), now=300)
    assert partition.table.judge(a_batch(5), Pid(9)) == Duplicate(Offset(5), 1000)
    assert partition.table.expire(before=301) == [PID]


def test_an_open_transaction_keeps_its_producer_from_fading() -> None:
    partition = Partition()
    partition.store(a_batch(0), now=100, transactional=True)
    assert partition.table.fade(before=500) == 0


def test_faded_producers_count_little_and_expire_as_the_others_do() -> None:
    table = ProducerTable()
    for pid in range(10 * FADED_PER_ENTRY):
        table.apply(a_batch(0, pid=pid), Offset(pid), pid)
    assert table.weight == len(table) == 10 * FADED_PER_ENTRY
    table.fade(before=1000)
    assert (len(table), table.weight) == (10 * FADED_PER_ENTRY, 10)
    assert table.pids() == [pid for pid, _ in table] == list(range(10 * FADED_PER_ENTRY))
    assert table.expire(before=20) == list(range(20))
    assert table.get(Pid(19)) is None
    entry = table.get(Pid(20))
    assert entry is not None
    assert entry.last_offset == 20
    assert table.remembers_from == 20


def test_a_look_at_all_producers_searches_for_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ProducerTable()
    for pid in range(3):
        table.apply(a_batch(0, pid=pid), Offset(pid), pid)
    table.fade(before=2)

    def refuse(self: object, pid: Pid) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(FadedProducers, "get", refuse)
    assert {pid: entry.last_offset for pid, entry in table} == {0: 0, 1: 1, 2: 2}
    assert len(list(table.capture().items())) == 3
