"""Walks over records that make no objects: compiled, they say what their twins say, of sound and of broken batches."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch
from fencepost.kernel import batch_py, read_header
from fencepost.kernel.codecs import CODECS, compress
from fencepost.kernel.record import Scan
from tests.fuzz.hostile import batch_of, malformed_batches
from tests.unit.kernel.implementations import COMPILED, NOW, TWIN, Kernel, batches_of_rows

pytestmark = pytest.mark.unit

SECRET = bytes(range(16))
Rows = list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]]
keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"", b"a longer key than eight bytes"])
values = st.none() | st.binary(max_size=20)
logs = st.lists(st.lists(st.tuples(keys, values, st.integers(NOW, NOW + 99), st.just(())), min_size=1, max_size=9))


def rows(*pairs: tuple[bytes | None, bytes | None]) -> Rows:
    return [(key, value, NOW + number, (("h", b"x"),)) for number, (key, value) in enumerate(pairs)]


class TestScan:
    def test_it_tells_sizes_times_and_missing_keys(self, kernel: Kernel) -> None:
        batch = kernel.encode_batch([(None, b"v", -1, ()), (b"k", None, NOW + 5, ()), (b"k", b"v", NOW, ())])
        assert kernel.scan_batch(batch) == Scan(len(batch) - 61, NOW, NOW + 5, 1)

    @pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
    def test_compressed_records_are_inflated_up_to_a_bound(self, kernel: Kernel, codec: int) -> None:
        plain = kernel.encode_batch(rows((b"k", b"v" * 10_000)))
        batch = kernel.encode_batch(rows((b"k", b"v" * 10_000)), codec=codec)
        assert kernel.scan_batch(batch) == kernel.scan_batch(plain)
        if codec:
            with pytest.raises(CorruptBatch):
                kernel.scan_batch(batch, max_bytes=5_000)

    @given(batches_of_rows)
    @example([(None, None, 2**63 - 1, ())])  # the latest time there is, which is also the earliest of this batch
    def test_what_can_be_decoded_is_sound_on_both(self, given_rows: Rows) -> None:
        batch = COMPILED.encode_batch(given_rows)
        expected = TWIN.scan_batch(batch)
        assert COMPILED.scan_batch(batch) == expected
        assert COMPILED.scan_batch(batch, header=read_header(batch)) == expected

    @pytest.mark.parametrize(("what", "batch"), malformed_batches())
    def test_what_cannot_be_decoded_is_not_sound(self, kernel: Kernel, what: str, batch: bytes) -> None:
        try:
            kernel.decode_batch(batch, check=False)
        except Exception as error:
            with pytest.raises(type(error)):
                kernel.scan_batch(batch, check=False)
        else:
            kernel.scan_batch(batch, check=False)

    def test_a_header_that_lies_about_its_batch_is_not_believed(self, kernel: Kernel) -> None:
        batch = kernel.encode_batch(rows((b"k", b"v"), (b"k", b"w")))
        header = read_header(batch)
        for lie in (
            header._replace(batch_length=10**6),
            header._replace(count=3),
            header._replace(count=1),
            header._replace(count=-1),
            header._replace(last_offset_delta=0),
        ):
            with pytest.raises(CorruptBatch):
                kernel.scan_batch(batch_of(bytes(batch[61:]), **as_arguments(lie)), check=False)

    @pytest.mark.parametrize("damage", ["none", "cut", "more", "flipped"])
    def test_records_that_lie_across_blocks_are_scanned_as_if_in_one_piece(self, damage: str) -> None:
        """LZ4 has blocks of 64 KiB, which are inflated one after the other."""
        chance = random.Random(7)
        sizes = [5, 100, 1000, 30_000, 65_536, 200_000]
        many = [
            [(chance.choice([None, b"k"]), chance.randbytes(chance.choice(sizes)) * chance.choice([1, 3]), NOW + n, ())]
            * chance.choice([1, 1, 9])
            for n in range(12)
        ]
        batch = TWIN.encode_batch([row for some in many for row in some])
        header = read_header(batch)
        records = bytearray(batch[61:])
        if damage == "cut":
            del records[-1:]
        elif damage == "more":
            records += b"\0"
        for place in chance.sample(range(len(records)), 5) if damage == "flipped" else [0]:
            if damage == "flipped":
                records[place] ^= 0xFF
            shape = {"count": header.count, "last_offset_delta": header.last_offset_delta, "attributes": CODECS["lz4"]}
            packed = batch_of(bytes(compress(CODECS["lz4"], bytes(records))), **shape)
            expected = outcome_of(TWIN, packed)
            assert outcome_of(COMPILED, packed) == expected
            assert (expected is None) == (damage in ("cut", "more")) or damage == "flipped"
            limit = len(records) - 1
            with pytest.raises(CorruptBatch):
                COMPILED.scan_batch(packed, check=False, max_bytes=limit)

    def test_millions_of_headers_are_no_objects(self) -> None:
        """12 KB that become 33 million headers took 4.8 GiB as objects."""
        number = 4_000_000
        headers = batch_py.varint(number) + b"\x00\x01" * number
        record = b"\x00\x00\x00" + b"\x02k" + b"\x02v" + headers
        encoded = batch_py.varint(len(record)) + record
        payload = compress(CODECS["zstd"], encoded)
        batch = batch_of(bytes(payload), attributes=CODECS["zstd"], count=1)
        assert len(batch) < 12_000
        assert COMPILED.scan_batch(batch, check=False).size == len(encoded)
        assert COMPILED.find_time(batch, check=False, timestamp=0) == (0, NOW)


def outcome_of(kernel: Kernel, batch: bytes) -> Scan | None:
    """The scan of the batch; None if it is damaged."""
    try:
        scan: Scan = kernel.scan_batch(batch, check=False)
    except CorruptBatch:
        return None
    return scan


def as_arguments(header: object) -> dict[str, int]:
    return {name: getattr(header, name) for name in ("count", "last_offset_delta", "batch_length")}


class TestFindTime:
    @given(batches_of_rows, st.integers(NOW, NOW + 1000), st.integers(0, 40))
    def test_the_first_that_is_not_older(self, given_rows: Rows, timestamp: int, start: int) -> None:
        batch = COMPILED.encode_batch(given_rows)
        expected = next(
            (
                (record.offset, record.timestamp)
                for record in TWIN.decode_batch(batch)
                if record.offset >= start and record.timestamp >= timestamp
            ),
            None,
        )
        for kernel in (COMPILED, TWIN):
            assert kernel.find_time(batch, timestamp=timestamp, start=start) == expected


class TestKeyOffsets:
    @given(logs, st.integers(0, 20), st.booleans(), st.none() | st.integers(0, 2**63 - 1))
    def test_both_keep_the_same_of_every_log(
        self, log: list[Rows], start: int, drop: bool, horizon: int | None
    ) -> None:
        batches, offset = [], 0
        for given_rows in log:
            batches.append(COMPILED.encode_batch(given_rows, base_offset=offset))
            offset += len(given_rows)
        last: dict[bytes, int] = {}
        for batch in batches:
            last.update({r.key: r.offset for r in TWIN.decode_batch(batch) if r.key is not None})
        tables = [kernel.KeyOffsets(3) for kernel in (COMPILED, TWIN)]
        for table in tables:
            for batch in batches:
                table.note(batch)
            assert len(table) == len(last)
            assert table.is_full == (len(last) >= 3)
        for batch in batches:
            compiled, twin = (
                table.sift(batch, start_offset=start, drop_tombstones=drop, horizon=horizon) for table in tables
            )
            assert compiled[:3] == twin[:3]
            assert (compiled.records is None) == (twin.records is None)
            if compiled.records is not None:
                assert bytes(compiled.records) == bytes(twin.records)
            expected = [
                record
                for record in TWIN.decode_batch(batch)
                if record.key is not None and record.offset >= start and last[record.key] == record.offset
                and not (drop and record.value is None)
            ]  # fmt: skip
            assert compiled.kept == len(expected)
            assert compiled.tombstones == any(record.value is None for record in expected)

    def test_a_shifted_record_keeps_its_time(self, kernel: Kernel) -> None:
        batch = kernel.encode_batch(rows((b"a", None), (b"b", b"v")))
        table = kernel.KeyOffsets(10)
        table.note(batch)
        sifted = table.sift(batch, start_offset=0, drop_tombstones=False, horizon=2**63 - 1)
        again = bytearray(batch[:61]) + bytes(sifted.records)
        again[27:35] = (2**63 - 1).to_bytes(8, "big")
        again[8:12] = (len(again) - 12).to_bytes(4, "big")
        assert kernel.decode_batch(bytes(again), check=False) == kernel.decode_batch(batch)

    def test_many_keys_find_their_places(self, kernel: Kernel) -> None:
        chance = random.Random(7)
        table = kernel.KeyOffsets(10**6)
        expected: dict[bytes, int] = {}
        for number in range(20):
            chosen = [chance.randbytes(chance.randrange(20)) for _ in range(500)]
            batch = kernel.encode_batch([(key, b"", NOW, ()) for key in chosen], base_offset=500 * number)
            table.note(batch)
            expected.update({key: 500 * number + place for place, key in enumerate(chosen)})
        assert len(table) == len(expected)
        for key, offset in expected.items():
            assert not table.is_replaced(key, offset)
            assert table.is_replaced(key, offset - 1)
        assert not table.is_replaced(b"never written", 0)

    def test_digests_are_those_of_siphash(self) -> None:
        """By the reference vectors of SipHash-2-4 with 128 bits: two keys share a slot only if their digests do."""
        table = COMPILED.KeyOffsets(10, secret=SECRET)
        assert table.digest(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
        assert table.digest(b"\x00").hex() == "da87c1d86b99af44347659119b22fc45"

    def test_a_broken_batch_is_refused(self, kernel: Kernel) -> None:
        table = kernel.KeyOffsets(10)
        broken = batch_of(b"\x10\x00\x00\x00\x02k\x7e\x00", count=1)
        with pytest.raises(CorruptBatch):
            table.note(broken)
        with pytest.raises(CorruptBatch):
            table.sift(broken, start_offset=0, drop_tombstones=False)
