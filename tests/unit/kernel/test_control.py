"""Markers that end a transaction."""

from __future__ import annotations

import pytest

from fencepost.errors import CorruptBatch
from fencepost.kernel import MarkerType, Record, check_batch, encode_marker, read_marker
from tests.unit.kernel.implementations import NOW, Kernel

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", MarkerType)
def test_a_marker_comes_back_as_it_was_written(kernel: Kernel, kind: MarkerType) -> None:
    batch = encode_marker(kind, 77, 3, NOW, coordinator_epoch=12, base_offset=40)
    header = check_batch(batch)
    assert header.is_control and header.is_transactional
    assert (header.pid, header.epoch, header.base_sequence, header.count) == (77, 3, -1, 1)
    (record,) = kernel.decode_batch(batch)
    assert record.offset == 40
    marker = read_marker(record)
    assert marker is not None
    assert (marker.type, marker.coordinator_epoch) == (kind, 12)
    assert marker.is_commit == (kind is MarkerType.COMMIT)


def test_a_commit_marker_has_exactly_these_bytes(kernel: Kernel) -> None:
    (record,) = kernel.decode_batch(encode_marker(MarkerType.COMMIT, 77, 3, NOW, coordinator_epoch=12))
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x0c"


def test_control_records_of_kafkas_own_are_no_markers() -> None:
    leader_change = Record(0, NOW, b"\x00\x00\x00\x02", b"whatever")
    assert read_marker(leader_change) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00"),
        (b"\xff\xff\x00\x00", b"\x00\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00"),
    ],
)
def test_a_damaged_marker_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        read_marker(Record(0, NOW, key, value))


def test_a_newer_marker_version_is_read_as_far_as_it_is_known() -> None:
    marker = read_marker(Record(0, NOW, b"\x00\x01\x00\x00more", b"\x00\x01\x00\x00\x00\x05more"))
    assert marker is not None
    assert (marker.type, marker.coordinator_epoch) == (MarkerType.ABORT, 5)
