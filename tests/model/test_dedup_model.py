"""The producer table against a model that keeps everything it ever accepted (IDEM-2, IDEM-3).

The model does not know wrap-around, distances or a limited memory: it numbers the records of an epoch 0, 1, 2, …
without end, beginning at a chosen place of the circle of sequences, and remembers each batch with the transaction that
it belongs to. The table has to answer the same, except where the model knows an offset that the table may have
forgotten. Now and then the table is written to a snapshot and read back, and must not notice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.core.producers.dedup import (
    ACCEPT,
    REMEMBERED,
    UNKNOWN,
    BatchVerdict,
    Conflict,
    Duplicate,
    Forgotten,
    Gap,
    ProducerEntry,
    ProducerTable,
    SequencedBatch,
    StaleEpoch,
)
from fencepost.core.producers.sequence import MAX_SEQUENCE
from fencepost.log.snapshot import Snapshot, decode, encode
from fencepost.types import Epoch, Offset, Pid, Sequence
from tests.support.examples import examples

pytestmark = pytest.mark.model

CIRCLE = MAX_SEQUENCE + 1
ISSUED = Pid(3)
"""The server has issued 1 and 2; 3 is another server's."""
pids = st.sampled_from([Pid(1), Pid(2), ISSUED])
lengths = st.integers(1, 6)


@dataclass
class Accepted:
    first: int
    """Number of its first record within the epoch, counted without end."""
    length: int
    offset: int
    crc: int
    transaction: int | None
    """Number of its transaction; None: in none."""


@dataclass
class Producer:
    epoch: int
    origin: int
    """The sequence that record number 0 of this epoch has."""
    accepted: list[Accepted] = field(default_factory=list)
    transaction: int | None = None
    """Number of the open one."""
    faded: int = 0
    """Accepted batches that the table no longer remembers, because the producer was idle."""

    @property
    def remembered(self) -> int:
        return min(REMEMBERED, len(self.accepted) - self.faded)

    @property
    def following(self) -> int:
        return self.accepted[-1].first + self.accepted[-1].length if self.accepted else 0


class TableAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable()
        self.model: dict[Pid, Producer] = {}
        self.end = 0
        self.origin = 0
        self.transactions = 0
        self.captures: list[tuple[Mapping[Pid, ProducerEntry], dict[Pid, ProducerEntry]]] = []
        """Captured tables, each with what it was then."""
        self.forgotten: set[Pid] = set()
        """Who has written here, and expired."""

    @initialize(before_edge=st.integers(0, 40))
    def choose_origin(self, before_edge: int) -> None:
        """Near the edge, so that runs of a few batches go over it."""
        self.origin = CIRCLE - before_edge if before_edge else 0

    def _batch(self, pid: Pid, epoch: int, number: int, length: int, crc: int, origin: int) -> SequencedBatch:
        first = Sequence((origin + number) % CIRCLE)
        last = Sequence((origin + number + length - 1) % CIRCLE)
        known = self.model.get(pid)
        transactional = known is not None and known.transaction is not None
        return SequencedBatch(pid, Epoch(epoch), first, last, length, crc, 0, transactional)

    def _submit(self, pid: Pid, epoch: int, number: int, length: int, crc: int) -> None:
        """Sends the batch that is record `number` and following of this epoch, and compares verdict and state."""
        known = self.model.get(pid)
        origin = self._origin_of(pid, epoch)
        batch = self._batch(pid, epoch, number, length, crc, origin)
        verdict = self.table.judge(batch, ISSUED)
        if known is None:
            is_new = pid < ISSUED and all(pid > other for other in self.forgotten)
            assert verdict == (UNKNOWN if is_new and batch.first_sequence else ACCEPT)
            if verdict == ACCEPT:
                self._begin(batch, number, origin)
            return
        if epoch > known.epoch:
            assert verdict == (ACCEPT if batch.first_sequence == 0 else Gap(Sequence(0)))
            if verdict == ACCEPT:
                self._begin(batch, number, origin)
            return
        if epoch < known.epoch:
            assert verdict == StaleEpoch(Epoch(known.epoch))
            return
        self._compare(known, batch, number, verdict)

    def _begin(self, batch: SequencedBatch, number: int, origin: int) -> None:
        known = self.model.get(batch.pid)
        begun = self.model[batch.pid] = Producer(batch.epoch, origin)
        begun.transaction = known.transaction if known else None
        begun.accepted.append(Accepted(number, batch.length, self.end, batch.crc or 0, begun.transaction))
        self._apply(batch)

    def _origin_of(self, pid: Pid, epoch: int) -> int:
        known = self.model.get(pid)
        if known is None:
            return self.origin
        return known.origin if epoch == known.epoch else 0

    def _compare(self, known: Producer, batch: SequencedBatch, number: int, verdict: BatchVerdict) -> None:
        if number == known.following:
            assert verdict == ACCEPT
            known.accepted.append(Accepted(number, batch.length, self.end, batch.crc or 0, known.transaction))
            self._apply(batch)
        elif number > known.following:
            assert verdict == Gap(self._expected(known))
        else:
            whole = [
                (age, accepted)
                for age, accepted in enumerate(reversed(known.accepted))
                if (accepted.first, accepted.length) == (number, batch.length)
            ]
            if whole and whole[0][0] < known.remembered:
                accepted = whole[0][1]
                same = accepted.crc == batch.crc and (
                    not batch.transactional or accepted.transaction == known.transaction
                )
                assert verdict == (Duplicate(Offset(accepted.offset), 0) if same else Conflict(self._expected(known)))
            else:
                self._compare_other_cut(known, batch, number, verdict)

    def _compare_other_cut(self, known: Producer, batch: SequencedBatch, number: int, verdict: BatchVerdict) -> None:
        """What overlaps the log, but is no remembered batch of it."""
        if batch.transactional:
            open_from = [accepted.first for accepted in known.accepted if accepted.transaction == known.transaction]
            if not open_from or number < open_from[0]:
                assert verdict == Conflict(self._expected(known))
                return
        if known.accepted[0].first <= number and number + batch.length <= known.following:
            assert isinstance(verdict, Forgotten)
        else:
            assert verdict == Gap(self._expected(known))

    def _expected(self, known: Producer) -> Sequence:
        return Sequence((known.origin + known.following) % CIRCLE)

    def _apply(self, batch: SequencedBatch) -> None:
        self.table.apply(batch, Offset(self.end), 0)
        self.end += batch.length

    @rule(pid=pids, length=lengths, crc=st.integers(0, 3))
    def send_the_next(self, pid: Pid, length: int, crc: int) -> None:
        known = self.model.get(pid)
        self._submit(pid, known.epoch if known else 0, known.following if known else 0, length, crc)

    @rule(pid=pids, back=st.integers(1, 60), length=lengths, crc=st.integers(0, 3))
    def send_something_older(self, pid: Pid, back: int, length: int, crc: int) -> None:
        known = self.model.get(pid)
        if known is not None:
            self._submit(pid, known.epoch, known.following - back, length, crc)

    @rule(pid=pids, which=st.integers(0, 2 * REMEMBERED), other_crc=st.booleans())
    def repeat(self, pid: Pid, which: int, other_crc: bool) -> None:
        known = self.model.get(pid)
        if known is not None and which < len(known.accepted):
            accepted = known.accepted[-1 - which]
            self._submit(pid, known.epoch, accepted.first, accepted.length, accepted.crc + other_crc)

    @rule(pid=pids, ahead=st.integers(1, 60), length=lengths)
    def leave_something_out(self, pid: Pid, ahead: int, length: int) -> None:
        known = self.model.get(pid)
        if known is not None:
            self._submit(pid, known.epoch, known.following + ahead, length, 0)

    @rule(pid=pids, step=st.integers(-2, 2), number=st.integers(0, 2), length=lengths)
    def send_from_another_epoch(self, pid: Pid, step: int, number: int, length: int) -> None:
        known = self.model.get(pid)
        if known is not None and step:
            self._submit(pid, known.epoch + step, number, length, 0)

    @rule(pid=pids)
    def begin_a_transaction(self, pid: Pid) -> None:
        known = self.model.get(pid)
        if known is not None and known.transaction is None:
            self.transactions += 1
            known.transaction = self.transactions

    @rule(pid=pids, aborted=st.booleans())
    def end_a_transaction(self, pid: Pid, aborted: bool) -> None:
        known = self.model.get(pid)
        if known is not None and known.transaction is not None:
            known.transaction = None
            self.table.end_transaction(pid, Epoch(known.epoch), Offset(self.end), 0, aborted=aborted)
            self.end += 1

    @rule()
    def forget(self) -> None:
        """Expiry: afterwards a producer may begin anywhere."""
        open_in_the_log = {pid for pid, entry in self.table if entry.transaction_start is not None}
        forgotten = [pid for pid in self.model if pid not in open_in_the_log]
        assert sorted(self.table.expire(before=1)) == sorted(forgotten)
        for pid in forgotten:
            del self.model[pid]
            self.forgotten.add(pid)

    @rule()
    def fade(self) -> None:
        """After some minutes: only the batches are forgotten, nobody may begin elsewhere."""
        idle = [pid for pid, entry in self.table if entry.transaction_start is None]
        self.table.fade(before=1)
        assert self.table.weight <= len(self.table)
        for pid in idle:
            self.model[pid].faded = len(self.model[pid].accepted)

    @rule()
    def write_and_read_a_snapshot(self) -> None:
        entries = tuple(self.table.capture().items())
        written = Snapshot(Offset(0), Offset(self.end), Offset(0), 0, 0, (), entries, (), self.table.remembers_from)
        read = decode(encode(written))
        assert read == written
        self.table = ProducerTable()
        for pid, entry in read.producers:
            self.table.restore(pid, entry)
        assert read.remembers_from is not None
        self.table.remembers_from = read.remembers_from

    @rule()
    def capture(self) -> None:
        captured = self.table.capture()
        self.captures = [*self.captures[-2:], (captured, copy.deepcopy(dict(captured)))]

    @invariant()
    def captures_stay_as_they_were(self) -> None:
        for captured, before in self.captures:
            assert captured == before

    @invariant()
    def the_table_knows_h_of_p(self) -> None:
        assert len(self.table) == len(self.model)
        for pid, known in self.model.items():
            entry = self.table.get(pid)
            assert entry is not None
            assert entry.epoch == known.epoch
            assert entry.last_sequence == (known.origin + known.following - 1) % CIRCLE
            assert len(entry.batches) == known.remembered


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(max_examples=examples(50), stateful_step_count=60, deadline=None)
