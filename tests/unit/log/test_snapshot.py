"""Snapshots: encoding and decoding, and the detection of damage."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from fencepost.core.producers.dedup import ProducerEntry, RememberedBatch
from fencepost.log import snapshot as snapshots
from fencepost.log.files import checksum_of
from fencepost.log.index import IndexMark
from fencepost.log.snapshot import SegmentMark, Snapshot
from fencepost.types import Epoch, Offset, Pid, Sequence
from tests.support.failing_files import FailingFiles

pytestmark = pytest.mark.unit


def make_snapshot(end: int = 500, *, producers: int = 2) -> Snapshot:
    segments = (
        SegmentMark(Offset(0), 1000, 5, 77, Offset(88), IndexMark(3, 0xFFFFFFFF, 2, 1)),
        SegmentMark(Offset(300), 400, 6, -1, Offset(-1), IndexMark(0, 0, 0, 0)),
    )
    batches = [RememberedBatch(Sequence(2**31 - 1), Sequence(3), Offset(44), 0xFFFFFFFF, 9)]
    batches.append(RememberedBatch(Sequence(4), Sequence(4), Offset(49), None, -1))
    entries = tuple(
        (
            Pid(2**62 + number),
            ProducerEntry(
                Epoch(32767),
                Sequence(4),
                Offset(49),
                123,
                list(batches),
                Offset(44) if number else None,
                2**30,
                Sequence(2**31 - 1) if number else None,
            ),
        )
        for number in range(producers)
    )
    return Snapshot(Offset(7), Offset(end), Offset(300), 400, 99, segments, entries, remembers_from=Pid(2**62))


def test_what_was_encoded_is_decoded() -> None:
    snapshot = make_snapshot()
    assert snapshots.decode(snapshots.encode(snapshot)) == snapshot


def test_an_empty_partition_has_a_snapshot_too() -> None:
    snapshot = Snapshot(Offset(0), Offset(0), Offset(0), 0, 1, (), ())
    assert snapshots.decode(snapshots.encode(snapshot)) == snapshot


def test_damage_to_any_byte_is_noticed() -> None:
    data = snapshots.encode(make_snapshot())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        assert snapshots.decode(bytes(damaged)) is None, at


def test_a_snapshot_cut_anywhere_is_noticed() -> None:
    data = snapshots.encode(make_snapshot())
    assert all(snapshots.decode(data[:size]) is None for size in range(len(data)))
    assert snapshots.decode(data + b"\0") is None


def test_a_right_checksum_over_nonsense_is_no_snapshot() -> None:
    chance = random.Random(4)
    good = snapshots.encode(make_snapshot())
    for _ in range(200):
        body = chance.randbytes(chance.randrange(200))
        data = good[:8] + checksum_of(body) + body
        assert snapshots.decode(data) is None


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    for end in (100, 250, 90, 300):
        snapshots.write(files, str(tmp_path), make_snapshot(end))
    assert snapshots.snapshot_offsets(files.listdir(str(tmp_path))) == [300, 250]


def test_one_whose_name_says_another_offset_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FailingFiles(tmp_path)
    snapshots.write(files, str(tmp_path), make_snapshot(100))
    files.rename(f"{tmp_path}/{100:020d}.snapshot", f"{tmp_path}/{200:020d}.snapshot")
    with caplog.at_level(logging.WARNING):
        assert snapshots.read(files, str(tmp_path), Offset(200)) is None
    assert "damaged" in caplog.text


def test_names_that_only_look_similar_are_no_snapshots() -> None:
    names = ["1.snapshot", f"{5:020d}.snapshot.tmp", f"{6:020d}.log", "x" * 20 + ".snapshot", f"{7:020d}.snapshot"]
    assert snapshots.snapshot_offsets(names) == [7]
