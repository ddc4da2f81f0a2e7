"""A search finds exactly what a loop over all records finds: all codecs, transactions and compacted gaps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.core.search.form import SearchForm
from fencepost.core.search.json_path import parse_test
from fencepost.core.search.matching import RecordTests
from fencepost.kernel import check_batch, decode_batch, encode_batch, encode_marker, read_header
from fencepost.kernel.control import MarkerType
from fencepost.log.partition import PartitionLog
from fencepost.server.search.scanning import FoundRecord, ScannedPiece, Scanner, ScanOrder
from fencepost.types import Offset, Pid
from tests.support.log_bed import NOW, SMALL, LogBed

pytestmark = pytest.mark.unit

COMPACTED = replace(SMALL, segment_bytes=300, cleanup_policy="compact", min_dirty_ratio=0.0)
VALUES = [None, b"", b"needle", b"a needle here", b"hay", b'{"a": {"b": [1, "x"]}}', b'{"a": 1}', b"\xff\x00needle"]
KEYS = [b"k1", b"k2", b"needle", b""]

record = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(VALUES),
    st.integers(0, 50),
    st.lists(st.tuples(st.sampled_from(["h", "needle"]), st.sampled_from([None, b"needle", b"w"])), max_size=2),
)
plain = st.tuples(st.just("plain"), st.integers(0, 4), st.lists(record, min_size=1, max_size=6))
transactional = st.tuples(st.integers(1, 2), st.integers(0, 4), st.lists(record, min_size=1, max_size=4))
marker = st.tuples(st.sampled_from([MarkerType.COMMIT, MarkerType.ABORT]), st.integers(1, 2), st.none())
logs = st.lists(plain | transactional | marker, max_size=14)
forms = st.sampled_from(
    [
        SearchForm(),
        SearchForm(value="needle"),
        SearchForm(key="needle"),
        SearchForm(key="k", value="needle"),
        SearchForm(header="needle"),
        SearchForm(header="h", header_value="needle"),
        SearchForm(json=parse_test("$.a.b[1] = x")),
        SearchForm(json=parse_test("$.a = 1")),
        SearchForm(value="nowhere"),
    ]
)


class Expected(NamedTuple):
    found: list[tuple[int, bytes | None, str]]
    records: int
    hidden: int


@given(logs, forms, st.booleans(), st.booleans(), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_search_finds_what_a_loop_finds(
    entries: list[tuple[object, int, list[Any] | None]],
    form: SearchForm,
    committed: bool,
    compacts: bool,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bed = LogBed(Path(folder) / "log", COMPACTED if compacts else SMALL)
        log = bed.log
        _fill(log, entries)
        if compacts and (job := log.compaction(NOW + 1_000_000)) is not None:
            job.write()
            job.install()
            job.finish()
        visible = log.last_stable_offset if committed else log.high_watermark
        start = data.draw(st.integers(log.start_offset, visible), "start")
        stop = data.draw(st.integers(start, visible), "stop")
        room = data.draw(st.integers(1, 5), "room")
        times = data.draw(st.none() | st.tuples(st.integers(0, 50), st.integers(0, 50)), "times")
        scanner = Scanner(
            RecordTests(form),
            committed=committed,
            earliest=NOW + times[0] if times else None,
            latest=NOW + times[1] if times else None,
        )
        order = ScanOrder(log, 0, Offset(start), Offset(stop), visible, dict(log.producers.open_transactions()), room)
        pieces = list(_pieces(scanner, order))
        found = [record for piece in pieces for record in piece.found]
        expected = _naive(log, order, form, committed=committed, times=times)
        assert [(each.offset, each.value, each.state) for each in found] == expected.found
        assert sum(piece.records for piece in pieces) == expected.records
        assert sum(piece.hidden for piece in pieces) == expected.hidden
        assert not any(piece.notes for piece in pieces)
        if (start, stop) == (0, log.end_offset):
            assert sum(piece.bytes for piece in pieces) == log.size
        assert all(len(piece.found) <= room for piece in pieces)
        counted = scanner.scan(order._replace(counts_on=True))
        assert len(counted.found) + counted.left_out == len(expected.found)
        log.abandon()


def _pieces(scanner: Scanner, order: ScanOrder) -> Iterator[ScannedPiece]:
    """Search to the end, going on where each piece has stopped."""
    while order.start < order.stop:
        piece = scanner.scan(order)
        assert piece.reached > order.start or piece.found
        yield piece
        order = order._replace(start=piece.reached)


def _fill(log: PartitionLog, entries: list[tuple[object, int, list[Any] | None]]) -> None:
    sequences: dict[int, int] = {}
    opened: set[int] = set()
    for kind, number, records in entries:
        if isinstance(kind, MarkerType):
            if number not in opened:
                continue
            opened.discard(number)
            batch = encode_marker(kind, number, 0, NOW)
        else:
            pid = kind if isinstance(kind, int) else -1
            rows = [(key, value, NOW + time, headers) for key, value, time, headers in records or ()]
            batch = encode_batch(
                rows, codec=number, pid=pid, epoch=0 if pid > 0 else -1,
                base_sequence=sequences.get(pid, 0) if pid > 0 else -1, transactional=pid > 0,
            )  # fmt: skip
            if pid > 0:
                opened.add(pid)
                sequences[pid] = sequences.get(pid, 0) + len(rows)
        header = check_batch(batch)
        log.judge(header)
        log.append(memoryview(batch), header, NOW)
    log.advance_high_watermark(log.end_offset)


def _naive(
    log: PartitionLog,
    order: ScanOrder,
    form: SearchForm,
    *,
    committed: bool,
    times: tuple[int, int] | None,
) -> Expected:
    found, records, hidden = [], 0, 0
    offset = order.start
    aborted = list(log.producers.aborted)
    while offset < order.stop and (chunks := log.read(offset, 100, upto=order.visible, block=True)):
        for data in chunks:
            header = read_header(data)
            offset = header.next_offset
            for each in decode_batch(data):
                if not order.start <= each.offset < order.stop:
                    continue
                in_time = times is None or NOW + times[0] <= each.timestamp <= NOW + times[1]
                if header.is_control:
                    continue
                state = ""
                if header.is_transactional:
                    state = "committed"
                    if order.open_transactions.get(Pid(header.pid), 1 << 60) <= each.offset:
                        state = "open"
                    for entry in aborted:
                        if entry.pid == header.pid and entry.first_offset <= each.offset < entry.marker_offset:
                            state = "aborted"
                if committed and state == "aborted":
                    hidden += 1
                    continue
                records += 1
                if in_time and _passes(form, each.key, each.value, each.headers):
                    found.append((each.offset, each.value, state))
            break
    return Expected(found, records, hidden)


def _passes(
    form: SearchForm, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> bool:
    def has(text: str, data: bytes | None) -> bool:
        if not text:
            return True
        return data is not None and text.encode() in data

    if not has(form.key, key) or not has(form.value, value):
        return False
    if form.json is not None and value not in (VALUES[5:6] if form.json.wanted == "x" else VALUES[6:7]):
        return False
    if not form.header and not form.header_value:
        return True
    return any((not form.header or name == form.header) and has(form.header_value, data) for name, data in headers)


def test_a_damaged_batch_is_said_and_the_rest_is_searched(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log", replace(SMALL, segment_bytes=1 << 20))
    for number in range(3):
        bed.append(b"needle %d" % number, b"hay")
    bed.log.advance_high_watermark(bed.log.end_offset)
    path = next(bed.directory.glob("*.log"))
    content = bytearray(path.read_bytes())
    at = content.index(b"needle 1")
    content[at : at + 6] = b"NEEDLE"
    path.write_bytes(content)
    piece = Scanner(RecordTests(SearchForm(value="needle")), committed=True).scan(_whole(bed.log))
    assert [each.value for each in piece.found] == [b"needle 0", b"needle 2"]
    assert piece.records == 4
    assert len(piece.notes) == 1
    assert "the batch with offsets 2 to 3 could not be searched: checksum" in piece.notes[0]


def test_the_gaps_of_compaction_are_not_counted(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log", COMPACTED)
    rows = [(key, b"v" * 50, NOW, None) for key in (b"a", b"b", b"a", b"c", b"a", b"d")]
    for _ in range(3):
        batch = encode_batch(rows)
        bed.log.append(memoryview(batch), check_batch(batch), NOW)
    bed.log.advance_high_watermark(bed.log.end_offset)
    job = bed.log.compaction(NOW + 1_000_000)
    assert job is not None
    job.write()
    job.install()
    job.finish()
    left = [record.offset for record in Scanner(RecordTests(SearchForm()), committed=True).scan(_whole(bed.log)).found]
    assert 0 < len(left) < 18
    for start in range(18):
        order = _whole(bed.log)._replace(start=Offset(start))
        piece = Scanner(RecordTests(SearchForm(value="nowhere")), committed=True).scan(order)
        assert piece.records == sum(offset >= start for offset in left)


def test_bytes_are_counted_once_however_many_pieces_there_are(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log")
    bed.fill(60)
    order = _whole(bed.log)._replace(room=1)
    pieces = list(_pieces(Scanner(RecordTests(SearchForm()), committed=True), order))
    assert len(pieces) == 60
    assert sum(piece.bytes for piece in pieces) == bed.log.size


def test_deleted_records_are_said(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log")
    bed.fill(30)
    order = _whole(bed.log)
    bed.log.delete_records(Offset(10))
    piece = Scanner(RecordTests(SearchForm()), committed=True).scan(order._replace(room=100))
    assert [each.offset for each in piece.found] == list(range(10, 30))
    assert piece.notes == ["partition 0: offsets 0 to 9 were deleted before they could be searched"]


def test_a_stopped_scanner_does_nothing_more(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log")
    bed.fill(30)
    scanner = Scanner(RecordTests(SearchForm()), committed=True)
    scanner.stop()
    assert scanner.scan(_whole(bed.log)).reached == 0


def test_what_a_record_shows(tmp_path: Path) -> None:
    bed = LogBed(tmp_path / "log")
    batch = encode_batch(
        [(b"k", b"v", NOW, None), (None, None, NOW + 1, [("h", b"w"), ("n", None)])],
        codec=3, pid=7, epoch=2, base_sequence=0,
    )  # fmt: skip
    bed.log.append(memoryview(batch), check_batch(batch), NOW)
    bed.log.advance_high_watermark(bed.log.end_offset)
    piece = Scanner(RecordTests(SearchForm()), committed=True).scan(_whole(bed.log))
    assert piece.found == [
        FoundRecord(0, Offset(0), NOW, b"k", b"v", (), "lz4", 7, 2, 0, ""),
        FoundRecord(0, Offset(1), NOW + 1, None, None, (("h", b"w"), ("n", None)), "lz4", 7, 2, 1, ""),
    ]
    assert [each.size for each in piece.found] == [2, 3]


def _whole(log: PartitionLog) -> ScanOrder:
    return ScanOrder(log, 0, log.start_offset, log.high_watermark, log.high_watermark, {}, 100)
