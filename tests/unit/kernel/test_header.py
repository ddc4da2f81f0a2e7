"""The header alone: read, check, stamp, split."""

from __future__ import annotations

import pytest

from fencepost.errors import CorruptBatch
from fencepost.kernel import (
    check_batch,
    decode_batch,
    peek_size,
    read_header,
    split_batches,
    stamp_append_time,
    stamp_offset,
    stamp_producer,
)
from fencepost.kernel.batch_py import encode_batch
from fencepost.kernel.header import write_header
from fencepost.types import Sequence

pytestmark = pytest.mark.unit

NOW = 1_700_000_000_000


def batch() -> bytearray:
    return encode_batch([(b"k", b"a", NOW, None), (b"k", b"b", NOW + 1, None)], pid=9, epoch=2, base_sequence=5)


def test_the_header_says_what_was_encoded() -> None:
    header = check_batch(batch())
    assert (header.pid, header.epoch, header.base_sequence, header.last_sequence) == (9, 2, 5, 6)
    assert (header.count, header.last_offset_delta, header.last_offset, header.next_offset) == (2, 1, 1, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 1)
    assert header.size == len(batch())
    assert header.is_idempotent
    assert not (header.is_control or header.is_transactional or header.is_log_append_time)
    assert header.codec == 0


def test_the_last_sequence_of_a_batch_that_straddles_the_wrap_is_small() -> None:
    """IDEM-2: after 2147483647 comes 0."""
    straddling = encode_batch([(None, b"", NOW, None)] * 3, pid=1, epoch=0, base_sequence=2**31 - 2)
    assert check_batch(straddling).last_sequence == Sequence(0)


def test_offset_and_leader_epoch_are_stamped_without_touching_the_checksum() -> None:
    stamped = batch()
    stamp_offset(stamped, 2**40, 7)
    header = check_batch(stamped)
    assert (header.base_offset, header.leader_epoch, header.crc) == (2**40, 7, check_batch(batch()).crc)
    assert [record.offset for record in decode_batch(stamped)] == [2**40, 2**40 + 1]


def test_a_batch_is_restamped_for_another_producer() -> None:
    stamped = batch()
    stamp_producer(stamped, read_header(stamped), 77, 3, 100, transactional=True)
    header = check_batch(stamped)
    assert (header.pid, header.epoch, header.base_sequence, header.is_transactional) == (77, 3, 100, True)
    stamp_producer(stamped, header, 77, 3, 100)
    assert not check_batch(stamped).is_transactional
    assert decode_batch(stamped) == decode_batch(batch())


def test_append_time_is_stamped_in_the_middle_of_a_buffer() -> None:
    buffer = batch() + batch()
    at = len(batch())
    stamp_append_time(buffer, read_header(buffer, at), NOW + 50, at)
    header = check_batch(buffer, at)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW + 50
    assert buffer[:at] == batch()


def test_a_header_that_is_read_and_written_gives_the_same_bytes() -> None:
    whole = batch()
    copy = bytearray(61) + whole[61:]
    write_header(copy, check_batch(whole))
    assert copy == whole


def test_a_fetched_buffer_is_split_into_whole_batches_without_a_cut_off_tail() -> None:
    one, two = bytes(batch()), bytes(encode_batch([(None, b"x", NOW, None)]))
    for tail in (b"", one[:5], one[:12], one[:-1]):
        assert [bytes(part) for part in split_batches(one + two + tail)] == [one, two]
    assert peek_size(one + two, len(one)) == len(two)


def test_a_length_that_leads_nowhere_is_corrupt() -> None:
    """A length of −12 would be a batch of no bytes, for ever."""
    for length in (-12, -1, 0, 48):
        broken = batch()
        broken[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptBatch):
            list(split_batches(broken))
