"""What readers of committed records see while transactions run, end and are cleaned away, against a list.

Several producers have transactions in one compacted partition at the same time; segments are compacted step by step,
deleted from the front, and the log is killed in between. The reader does what every client does: it gets batches in
small answers, each with the aborted transactions that the server names for it, begins anywhere, and leaves out what
those cover up to their markers. The model is the list of what was written and how it ended. Unlike the dictionary of
`test_compaction_model`, which knows by itself what was aborted, this reader knows only what the log tells it: an
aborted range without its marker would hide what the same producer committed later.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.core.producers.aborted import CommittedOnly
from fencepost.kernel import check_batch, decode_batch, encode_batch, encode_marker
from fencepost.kernel.control import MarkerType, is_abort
from fencepost.kernel.header import read_header, split_batches
from fencepost.log.config import LogConfig
from fencepost.types import Offset, Pid
from tests.support.examples import examples
from tests.support.log_bed import NOW, LogBed, append

pytestmark = pytest.mark.model

DAY: Final = 86_400_000
CONFIG: Final = LogConfig(
    segment_bytes=250,
    index_interval_bytes=100,
    cleanup_policy="compact",
    retention_ms=-1,
    delete_retention_ms=DAY,
)
PIDS: Final = (1, 2)
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclasses.dataclass
class Transaction:
    fate: str = OPEN


@dataclasses.dataclass
class Entry:
    offset: int
    key: bytes
    value: bytes
    transaction: Transaction | None

    @property
    def is_committed(self) -> bool:
        return self.transaction is None or self.transaction.fate == COMMITTED


class CommittedReadsAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="fencepost-model-"))
        self.bed = LogBed(self.root / "data", CONFIG, handles=4)
        self.entries: list[Entry] = []
        self.sequences = dict.fromkeys(PIDS, 0)
        self.running: dict[int, Transaction] = {}
        self.now = NOW
        self.written = 0

    def teardown(self) -> None:
        self.bed.log.abandon()
        shutil.rmtree(self.root)

    # --- writing ----------------------------------------------------------------------------------------------------

    @rule(pid=st.sampled_from(PIDS), key=st.sampled_from(b"abc"), count=st.integers(1, 3))
    def write_in_a_transaction(self, pid: int, key: int, count: int) -> None:
        transaction = self.running.setdefault(pid, Transaction())
        rows = self._rows(key, count)
        batch = encode_batch(rows, pid=pid, epoch=0, base_sequence=self.sequences[pid], transactional=True)
        self._append(batch, rows, transaction)
        self.sequences[pid] += count

    @rule(key=st.sampled_from(b"abc"), count=st.integers(1, 3))
    def write_plainly(self, key: int, count: int) -> None:
        rows = self._rows(key, count)
        self._append(encode_batch(rows), rows, None)

    @rule(pid=st.sampled_from(PIDS), commit=st.booleans())
    def end_the_transaction(self, pid: int, commit: bool) -> None:
        transaction = self.running.pop(pid, None)
        if transaction is None:
            return
        marker = encode_marker(MarkerType.COMMIT if commit else MarkerType.ABORT, pid, 0, self.now)
        self.bed.log.append(memoryview(marker), check_batch(marker), self.now)
        self.bed.log.advance_high_watermark(self.bed.log.sync())
        transaction.fate = COMMITTED if commit else ABORTED

    def _rows(self, key: int, count: int) -> list[tuple[bytes, bytes, int, tuple[()]]]:
        self.written += count
        return [(bytes([key]), b"%d" % (self.written - number), self.now, ()) for number in range(count)]

    def _append(
        self, batch: bytearray, rows: list[tuple[bytes, bytes, int, tuple[()]]], transaction: Transaction | None
    ) -> None:
        offset = append(self.bed.log, batch, now_ms=self.now)
        self.entries += [Entry(offset + n, key, value, transaction) for n, (key, value, _, _) in enumerate(rows)]
        self.bed.log.advance_high_watermark(self.bed.log.sync())

    # --- cleaning ---------------------------------------------------------------------------------------------------

    @rule(days=st.integers(0, 2), max_keys=st.sampled_from([2, 100]), steps=st.sampled_from([1, 2, 3, 3, 3]))
    def compact(self, days: int, max_keys: int, steps: int) -> None:
        """Killed in the midst of it if it does not come to its last step."""
        self.now += days * DAY
        job = self.bed.log.compaction(self.now, max_keys=max_keys)
        if job is None:
            return
        for step in (job.write, job.install, job.finish)[:steps]:
            step()
        if steps < 3:
            self.bed.reopen()

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        """As far as readers may read, and with it the segments that lie before."""
        log = self.bed.log
        before = log.start_offset + int(part * (log.last_stable_offset - log.start_offset))
        log.delete_records(Offset(before))
        log.apply_retention(self.now)
        log.snapshot(self.now).write()  # as the server does before it answers
        self.entries = [entry for entry in self.entries if entry.offset >= before]

    @rule()
    def take_a_snapshot(self) -> None:
        self.bed.log.snapshot(self.now).write()

    @rule()
    def kill(self) -> None:
        self.bed.reopen()

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.bed.files.lose_power(random.Random(seed))
        self.bed.reopen()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _read(self, offset: int, max_bytes: int, *, committed: bool) -> list[tuple[int, bytes, bytes]]:
        log = self.bed.log
        end = log.last_stable_offset if committed else log.high_watermark
        found: list[tuple[int, bytes, bytes]] = []
        position = Offset(offset)
        while parts := log.read(position, max_bytes, upto=end, block=True):
            batches = [batch for part in parts for batch in split_batches(part)]
            upto = read_header(batches[-1]).next_offset
            named = log.producers.aborted.between(position, upto) if committed else []
            hidden = CommittedOnly([(entry.pid, entry.first_offset) for entry in named])
            for batch in batches:
                header = read_header(batch)
                if header.is_control:
                    if is_abort(batch):
                        hidden.ends(header.pid, header.base_offset)
                elif not hidden.hides(header.pid, header.last_offset, transactional=header.is_transactional):
                    found += [
                        (record.offset, record.key or b"", record.value or b"")
                        for record in decode_batch(batch)
                        if record.offset >= offset
                    ]
            position = upto
        return found

    @invariant()
    def what_is_read_was_committed_and_the_newest_of_each_key_is_there(self) -> None:
        log = self.bed.log
        known = {entry.offset: (entry.offset, entry.key, entry.value) for entry in self.entries if entry.is_committed}
        for start in {log.start_offset, Offset((log.start_offset + log.last_stable_offset) // 2)}:
            for max_bytes in (1, 250, 1 << 20):
                found = self._read(start, max_bytes, committed=True)
                assert [row[0] for row in found] == sorted({row[0] for row in found})
                assert all(known.get(row[0]) == row for row in found)
                newest = {
                    entry.key: entry.offset
                    for entry in self.entries
                    if entry.is_committed and start <= entry.offset < log.last_stable_offset
                }
                assert {row[1]: row[0] for row in found} == newest

    @invariant()
    def nothing_of_an_open_transaction_is_cleaned_away(self) -> None:
        log = self.bed.log
        unfinished = [entry for entry in self.entries if entry.transaction and entry.transaction.fate == OPEN]
        there = {row[0] for row in self._read(log.start_offset, 1 << 20, committed=False)}
        assert {entry.offset for entry in unfinished} <= there
        stable = min((entry.offset for entry in unfinished), default=log.end_offset)
        assert log.last_stable_offset == stable
        for pid in PIDS:
            state = log.producers.get(Pid(pid))
            assert (state is not None and state.transaction_start is not None) == (pid in self.running)
            assert (state.last_sequence + 1 if state else 0) == self.sequences[pid]

    @invariant()
    @precondition(lambda self: len(self.entries) % 5 == 0)
    def a_log_read_from_its_files_alone_says_the_same(self) -> None:
        """Sometimes, because it is slow: killed, and what follows is checked on the log that was opened anew."""
        self.bed.reopen()


TestCommittedReadsAgainstAList = CommittedReadsAgainstAList.TestCase
TestCommittedReadsAgainstAList.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
