"""Batches without some of their records keep Kafka's format, their ids, offsets and timestamps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.kernel import MAX_DECOMPRESSED, Record, check_batch, decode_batch, encode_batch
from fencepost.kernel.codecs import open_batch
from fencepost.kernel.header import BatchHeader, Buffer, stamp_append_time, stamp_offset
from fencepost.kernel.walk_py import shift_time, split_records
from fencepost.log.compaction.survivors import assemble, delete_horizon
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


def split(batch: Buffer) -> list[memoryview]:
    header, payload = open_batch(batch, 0, False, MAX_DECOMPRESSED)
    return split_records(memoryview(payload), header.count)


def rebuild(
    header: BatchHeader,
    kept: Sequence[memoryview],
    latest: int,
    *,
    horizon: int | None = None,
    transactional: bool | None = None,
) -> bytearray:
    shift = 0 if horizon is None else header.base_timestamp - horizon
    shifted = b"".join(shift_time(record, shift) for record in kept)
    return assemble(header, shifted, len(kept), latest, horizon=horizon, transactional=transactional)


@given(records, st.sampled_from(CODECS), st.data())
@settings(max_examples=200, deadline=None)
def test_the_records_that_stay_are_what_they_were(rows: list[tuple], codec: int, data: st.DataObject) -> None:  # type: ignore[type-arg]
    batch = encoded(rows, codec)
    header = check_batch(batch)
    before = decode_batch(batch)
    raw = split(batch)
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
    assert split(rebuild(header, (), NOW)) == []
    assert decode_batch(rebuild(header, (), NOW), check=False) == []


def test_the_transactional_bit_can_be_changed() -> None:
    batch = encode_batch([(b"k", b"v", NOW, ())], pid=1, epoch=0, base_sequence=0, transactional=True)
    header = check_batch(batch)
    assert check_batch(rebuild(header, split(batch), NOW)).is_transactional
    assert not check_batch(rebuild(header, (), NOW, transactional=False)).is_transactional


def test_records_with_the_servers_time_keep_it() -> None:
    batch = encoded([(b"a", b"1", 5, []), (b"b", b"2", 6, [])], codec=0)
    stamp_append_time(batch, check_batch(batch), NOW)
    header = check_batch(batch)
    rebuilt = rebuild(header, split(batch)[:1], NOW)
    assert decode_batch(rebuilt) == [Record(1_000, NOW, b"a", b"1", ())]


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 2**63 - 1])
def test_times_at_the_ends_of_64_bits_stay_what_they_were(timestamp: int) -> None:
    """Their distance to the horizon has more than 64 bits; readers add it with 64."""
    batch = encoded([(b"k", None, timestamp, [])], 0)
    header = check_batch(batch)
    rebuilt = rebuild(header, split(batch), timestamp, horizon=NOW)
    check_batch(rebuilt)
    assert [record.timestamp for record in decode_batch(rebuilt)] == [timestamp]
