"""Fetched batches as a producer would send them: the same records at the same offsets, whole where possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.read.ranges import Range
from fencepost.client.read.resending import OutgoingBatch, outgoing
from fencepost.client.read.scan import FetchedBatch
from fencepost.errors import RecordTooLarge
from fencepost.kernel import HEADER_SIZE, KeyOffsets, decode_batch, encode_batch, read_header
from fencepost.kernel.header import LENGTH_PREFIX, stamp_append_time, write_header

pytestmark = pytest.mark.unit

LARGE = 20_000
"""Bytes of a value that makes its batch one that is not put together with others."""


def fetched(base: int, values: list[bytes], *, codec: int = 0, times: int = 1000) -> FetchedBatch:
    rows = [(b"key", value, times + index, [("h", b"1")]) for index, value in enumerate(values)]
    batch = encode_batch(rows, codec=codec, base_offset=base, pid=7, epoch=1, base_sequence=base)
    return FetchedBatch(read_header(batch), memoryview(batch))


def records(batches: list[OutgoingBatch]) -> list[tuple[int, int, bytes | None]]:
    found = []
    for each in batches:
        decoded = decode_batch(each.data)
        assert len(decoded) == each.stop - each.start
        found += [(each.start + index, record.timestamp, record.value) for index, record in enumerate(decoded)]
    return found


def send_on(batches: list[FetchedBatch], start: int, stop: int, max_bytes: int = 1 << 20) -> list[OutgoingBatch]:
    return list(outgoing(batches, Range("t", 0, start, stop), max_bytes))


@st.composite
def logs(draw: st.DrawFn) -> list[FetchedBatch]:
    """Draw batches of both sizes and two codecs, with gaps between some."""
    found, at = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 12))):
        size = draw(st.sampled_from([1, 10, 10, 10, LARGE]))
        values = [bytes([draw(st.integers(0, 255))]) * size for _ in range(draw(st.integers(1, 4)))]
        found.append(fetched(at, values, codec=draw(st.sampled_from([0, 0, 3]))))
        at = found[-1].header.next_offset + draw(st.sampled_from([0, 0, 0, 1, 5]))
    return found


@given(logs(), st.integers(0, 5), st.integers(0, 5))
def test_every_record_of_the_range_is_sent_once_at_its_offset(log: list[FetchedBatch], skip: int, cut: int) -> None:
    end = log[-1].header.next_offset if log else 0
    start, stop = min(skip, end), max(end - cut, min(skip, end))
    expected = [
        (record.offset, record.timestamp, record.value)
        for batch in log
        for record in decode_batch(batch.data)
        if start <= record.offset < stop
    ]
    assert records(send_on(log, start, stop)) == expected


def test_a_large_batch_is_sent_as_it_is() -> None:
    log = [fetched(0, [bytes(range(256)) * 100]), fetched(1, [b"y" * LARGE])]
    before = [bytes(each.data[HEADER_SIZE:]) for each in log]
    sent = send_on(log, 0, 2)
    assert [bytes(each.data[HEADER_SIZE:]) for each in sent] == before
    assert all(each.data.obj is batch.data.obj for each, batch in zip(sent, log, strict=True))  # type: ignore[union-attr]


def test_small_neighbours_are_put_together() -> None:
    sent = send_on([fetched(at, [b"small"]) for at in range(1000)], 0, 1000)
    assert [(each.start, each.stop) for each in sent] == [(0, 1000)]


def test_small_batches_with_gaps_between_them_stay_whole() -> None:
    log = [fetched(at, [b"small"]) for at in range(0, 10, 2)]
    sent = send_on(log, 0, 10)
    assert [(each.start, each.stop) for each in sent] == [(at, at + 1) for at in range(0, 10, 2)]
    assert all(each.data.obj is batch.data.obj for each, batch in zip(sent, log, strict=True))  # type: ignore[union-attr]


def test_what_is_put_together_is_no_larger_than_the_target_takes() -> None:
    sent = send_on([fetched(at, [b"x" * 1000]) for at in range(50)], 0, 50, max_bytes=10_000)
    assert len(sent) > 4
    assert max(len(each.data) for each in sent) <= 10_000
    with pytest.raises(RecordTooLarge, match=r"the target accepts 10000: raise its max\.message\.bytes"):
        send_on([fetched(0, [b"x" * 20_000])], 0, 1, max_bytes=10_000)


def test_the_time_that_the_server_gave_becomes_the_records_own() -> None:
    batch = bytearray(encode_batch([(None, b"value", 1000, None)]))
    stamp_append_time(batch, read_header(batch), 5000)
    sent = send_on([FetchedBatch(read_header(batch), memoryview(batch))], 0, 1)
    assert records(sent) == [(0, 5000, b"value")]
    assert not read_header(sent[0].data).is_log_append_time


def test_a_compacted_batch_is_cut_at_its_gaps() -> None:
    offsets = KeyOffsets(100)
    whole = encode_batch([(key, b"v", 1000, None) for key in (b"x", b"a", b"y", b"a", b"z")])
    offsets.note(whole)
    sifted = offsets.sift(whole, start_offset=0, drop_tombstones=False)
    assert sifted.records is not None
    batch = bytearray(HEADER_SIZE) + sifted.records
    header = read_header(whole)._replace(count=sifted.kept, batch_length=len(batch) - LENGTH_PREFIX)
    write_header(batch, header)
    sent = send_on([FetchedBatch(header, memoryview(batch)), fetched(5, [b"next"])], 0, 6)
    assert [(each.start, each.stop) for each in sent] == [(0, 1), (2, 6)]
