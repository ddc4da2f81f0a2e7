"""Batches without some of their records keep Kafka's format, their ids, offsets and timestamps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch
from fencepost.kernel import Record, check_batch, decode_batch, encode_batch
from fencepost.kernel.header import BatchHeader, stamp_append_time, stamp_offset
from fencepost.log.compaction.rewriting import delete_horizon, rebuild, split
from tests.support.log_bed import NOW

pytestmark = pytest.mark.unit

CODECS = range(5)
records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.integers(NOW - 10**9, NOW + 10**9),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


def encoded(
    rows: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]], codec: int
) -> bytearray:
    batch = encode_batch(rows, codec=codec, pid=11, epoch=3, base_sequence=2**31 - 2)
    stamp_offset(batch, 1_000, 6)
    return batch


def ids(header: BatchHeader) -> tuple[int, ...]:
    return (header.base_offset, header.last_offset, header.pid, header.epoch, header.base_sequence, header.leader_epoch)


@given(records, st.sampled_from(CODECS), st.data())
@settings(max_examples=200, deadline=None)
def test_the_records_that_stay_are_what_they_were(rows: list[tuple], codec: int, data: st.DataObject) -> None:  # type: ignore[type-arg]
    batch = encoded(rows, codec)
    header = check_batch(batch)
    before = decode_batch(batch)
    raw = split(batch, 0, header)
    assert len(raw) == len(before)
    assert decode_batch(batch, check=False) == before

    chosen = data.draw(st.lists(st.booleans(), min_size=len(raw), max_size=len(raw)))
    horizon = data.draw(st.none() | st.integers(NOW, NOW + 10**10))
    kept = [record for record, stays in zip(raw, chosen, strict=True) if stays]
    expected = [record for record, stays in zip(before, chosen, strict=True) if stays]
    highest = max((record.timestamp for record in expected), default=header.max_timestamp)
    rebuilt = rebuild(header, kept, highest, horizon=horizon)

    after = check_batch(rebuilt)
    assert ids(after) == ids(header)
    assert after.count == len(kept)
    assert delete_horizon(after) == horizon
    assert decode_batch(rebuilt) == expected
    assert after.max_timestamp == highest
    assert after.codec == (codec if kept else 0)


def test_an_empty_batch_keeps_its_ids_and_claims_no_codec() -> None:
    batch = encoded([(b"k", b"v", NOW, [])] * 3, codec=3)
    header = check_batch(batch)
    after = check_batch(rebuild(header, (), NOW, transactional=False))
    assert ids(after) == ids(header)
    assert (after.count, after.codec, after.size) == (0, 0, 61)
    assert decode_batch(rebuild(header, (), NOW)) == []
    assert split(rebuild(header, (), NOW), 0, after) == []
    assert decode_batch(rebuild(header, (), NOW), check=False) == []


def test_the_transactional_bit_can_be_changed() -> None:
    batch = encode_batch([(b"k", b"v", NOW, ())], pid=1, epoch=0, base_sequence=0, transactional=True)
    header = check_batch(batch)
    assert check_batch(rebuild(header, split(batch, 0, header), NOW)).is_transactional
    assert not check_batch(rebuild(header, (), NOW, transactional=False)).is_transactional


def test_records_with_the_servers_time_keep_it() -> None:
    batch = encoded([(b"a", b"1", 5, []), (b"b", b"2", 6, [])], codec=0)
    stamp_append_time(batch, check_batch(batch), NOW)
    header = check_batch(batch)
    rebuilt = rebuild(header, split(batch, 0, header)[:1], NOW)
    assert decode_batch(rebuilt) == [Record(1_000, NOW, b"a", b"1", ())]


@given(st.binary(max_size=60), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_nonsense_is_refused(payload: bytes, count: int) -> None:
    """Random bytes after a header are either records that fill them exactly, or CorruptBatch."""
    header = check_batch(encoded([(b"k", b"v", NOW, [])], codec=0))
    header = header._replace(count=count, batch_length=49 + len(payload))
    buffer = bytes(61) + payload
    try:
        raw = split(buffer, 0, header)
    except CorruptBatch:
        return
    assert b"".join(raw) == (payload if count else b"")


def test_records_cut_off_are_refused() -> None:
    batch = encoded([(b"key", b"value", NOW, [])] * 2, codec=0)
    header = check_batch(batch)
    for cut in range(1, 20):
        with pytest.raises(CorruptBatch):
            split(batch[:-cut], 0, header._replace(batch_length=header.batch_length - cut))


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 2**63 - 1])
def test_times_at_the_ends_of_64_bits_stay_what_they_were(timestamp: int) -> None:
    """Their distance to the horizon has more than 64 bits; readers add it with 64."""
    batch = encoded([(b"k", None, timestamp, [])], 0)
    header = check_batch(batch)
    rebuilt = rebuild(header, split(batch, 0, header), timestamp, horizon=NOW)
    check_batch(rebuilt)
    assert [record.timestamp for record in decode_batch(rebuilt)] == [timestamp]
