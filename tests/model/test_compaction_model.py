"""A compacted log's life at random, against a dictionary.

The model is the list of all records ever written. After any number of compactions, crashes and restarts, a reader of
the log who keeps the last value of each key must see what a reader of the whole list sees; every record found must be
one of the list, at its offset; and keys that a compaction has been over stand once.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.kernel import check_batch, decode_batch, encode_batch, encode_marker, read_header
from fencepost.kernel.control import MarkerType
from fencepost.log.compaction.job import CompactionJob
from fencepost.log.config import LogConfig
from fencepost.types import Offset, Pid
from tests.support.examples import examples
from tests.support.log_bed import NOW, LogBed, append, headers_in

pytestmark = pytest.mark.model

DAY = 86_400_000
CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=100,
    cleanup_policy="compact",
    retention_ms=-1,
    delete_retention_ms=DAY,
)
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
rows = st.lists(st.tuples(keys, st.none() | st.binary(min_size=1, max_size=60)), min_size=1, max_size=4)


@dataclasses.dataclass(frozen=True)
class Entry:
    offset: int
    key: bytes
    value: bytes | None
    transaction: int | None


class CompactedLogAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="fencepost-model-"))
        self.bed = LogBed(self.root / "data", CONFIG, handles=3)
        self.entries: list[Entry] = []
        self.end = 0
        self.sequences = {1: 0, 2: 0}
        self.transaction: int | None = None
        """Number of the open transaction of pid 2."""
        self.aborted: set[int] = set()
        self.transactions = 0
        self.now = NOW
        self.job: CompactionJob | None = None
        self.step = 0

    def teardown(self) -> None:
        self.bed.log.abandon()
        shutil.rmtree(self.root)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, batch: bytearray, pairs: list[tuple[bytes, bytes | None]], transaction: int | None) -> None:
        assert append(self.bed.log, batch, now_ms=self.now) == self.end
        self.entries += [Entry(self.end + n, key, value, transaction) for n, (key, value) in enumerate(pairs)]
        self.end += len(pairs)
        self.bed.log.advance_high_watermark(self.bed.log.sync())

    @rule(pairs=rows, codec=st.integers(0, 4))
    def write(self, pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
        self._write(encode_batch([(key, value, self.now, ()) for key, value in pairs], codec=codec), pairs, None)

    @rule(pairs=rows)
    def write_idempotently(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        batch = encode_batch(
            [(key, value, self.now, ()) for key, value in pairs], pid=1, epoch=0, base_sequence=self.sequences[1]
        )
        self._write(batch, pairs, None)
        self.sequences[1] += len(pairs)

    @rule(pairs=rows)
    def write_in_a_transaction(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        if self.transaction is None:
            self.transactions += 1
            self.transaction = self.transactions
        batch = encode_batch(
            [(key, value, self.now, ()) for key, value in pairs],
            pid=2,
            epoch=0,
            base_sequence=self.sequences[2],
            transactional=True,
        )
        self._write(batch, pairs, self.transaction)
        self.sequences[2] += len(pairs)

    @rule(commit=st.booleans())
    @precondition(lambda self: self.transaction is not None)
    def end_the_transaction(self, commit: bool) -> None:
        marker = encode_marker(MarkerType.COMMIT if commit else MarkerType.ABORT, 2, 0, self.now)
        self.bed.log.append(memoryview(marker), check_batch(marker), self.now)
        self.bed.log.advance_high_watermark(self.bed.log.sync())
        self.end += 1
        assert self.transaction is not None
        if not commit:
            self.aborted.add(self.transaction)
        self.transaction = None

    @rule(days=st.integers(1, 3))
    def time_passes(self, days: int) -> None:
        self.now += days * DAY

    # --- compaction, step by step -----------------------------------------------------------------------------------

    @rule(max_keys=st.sampled_from([1, 3, 100]))
    @precondition(lambda self: self.job is None)
    def begin(self, max_keys: int) -> None:
        self.job = self.bed.log.compaction(self.now, max_keys=max_keys)
        self.step = 0

    @rule()
    @precondition(lambda self: self.job is not None)
    def go_on(self) -> None:
        assert self.job is not None
        (self.job.write, self.job.install, self.job.finish)[self.step]()
        self.step += 1
        if self.step == 3:
            self._check_compacted(self.job)
            self.job = None

    def _check_compacted(self, job: CompactionJob) -> None:
        """Before `upto` every key stands once, and nothing of an aborted transaction is left."""
        assert self.bed.log.cleaned_offset == job.upto
        before = [entry for entry in self._found() if entry.offset < job.upto]
        assert len({entry.key for entry in before}) == len(before)
        assert not any(entry.transaction in self.aborted for entry in before)

    # --- ends -------------------------------------------------------------------------------------------------------

    @rule()
    def take_a_snapshot(self) -> None:
        self.bed.log.snapshot(self.now).write()

    @rule()
    def kill(self) -> None:
        self.job = None
        self.bed.reopen()

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.job = None
        self.bed.files.lose_power(random.Random(seed) if seed % 3 else None)
        self.bed.reopen()

    @rule()
    @precondition(lambda self: self.job is None)
    def close(self) -> None:
        self.bed.log.close(self.now)
        self.bed.open()

    @rule()
    def lose_all_snapshots(self) -> None:
        self.job = None
        self.bed.log.abandon()
        for path in self.root.glob("data/*/*.snapshot"):
            path.write_bytes(b"")
        self.bed.reopen()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _found(self) -> list[Entry]:
        log = self.bed.log
        known = {entry.offset: entry for entry in self.entries}
        found: list[Entry] = []
        offset = log.start_offset
        while parts := log.read(offset, 300, upto=log.high_watermark, block=True):
            at = 0
            for header in headers_in(parts[0]):
                assert header.last_offset >= offset
                offset = header.next_offset
            while at < len(parts[0]):
                header = read_header(parts[0], at)
                for record in () if header.is_control else decode_batch(parts[0], at):
                    entry = known[record.offset]
                    assert (record.key, record.value) == (entry.key, entry.value)
                    found.append(entry)
                at += header.size
        assert [entry.offset for entry in found] == sorted({entry.offset for entry in found})
        return found

    def _state(self, entries: list[Entry]) -> dict[bytes, bytes]:
        """What a reader of committed records makes of them."""
        state: dict[bytes, bytes | None] = {}
        for entry in entries:
            if entry.transaction is None or entry.transaction not in self.aborted | {self.transaction}:
                state[entry.key] = entry.value
        return {key: value for key, value in state.items() if value is not None}

    @invariant()
    def a_reader_sees_the_same_as_without_compaction(self) -> None:
        assert self._state(self._found()) == self._state(self.entries)

    @invariant()
    def offsets_producers_and_transactions_are_unharmed(self) -> None:
        log = self.bed.log
        assert log.end_offset == log.high_watermark == self.end
        for pid, following in self.sequences.items():
            entry = log.producers.get(Pid(pid))
            assert (entry.last_sequence + 1 if entry else 0) == following
        first = min((entry.offset for entry in self.entries if entry.transaction == self.transaction), default=self.end)
        assert log.last_stable_offset == (self.end if self.transaction is None else Offset(first))


TestCompactedLogAgainstDictionary = CompactedLogAgainstDictionary.TestCase
TestCompactedLogAgainstDictionary.settings = settings(max_examples=examples(35), stateful_step_count=50, deadline=None)
