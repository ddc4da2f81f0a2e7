"""Batches that somebody broke: a catalogue of single flaws, and random damage without end.

Flaws sit in the raw bytes of a field, so a batch is put together here from pieces that each can be replaced; the kernel
itself cannot be asked for a wrong one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from fencepost.kernel import batch_py
from fencepost.kernel.codecs import CODECS, compress

_HEADER: Final = Struct(">qiibIhiqqqhii")
_NOW: Final = 1_700_000_000_000


class Record(NamedTuple):
    """The encoded fields of a record; `length` None means the right one."""

    length: bytes | None = None
    attributes: bytes = b"\x00"
    timestamp_delta: bytes = b"\x00"
    offset_delta: bytes = b"\x00"
    key: bytes = b"\x06key"
    value: bytes = b"\x0avalue"
    headers: bytes = b"\x02\x02h\x02x"

    def encoded(self) -> bytes:
        body = b"".join(self[1:])
        return (batch_py.varint(len(body)) if self.length is None else self.length) + body


def batch_of(
    records: list[Record] | bytes,
    *,
    count: int | None = None,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    magic: int = 2,
    batch_length: int | None = None,
) -> bytes:
    """A batch with a checksum of 0: what is behind the checksum is the point."""
    payload = records if isinstance(records, bytes) else b"".join(record.encoded() for record in records)
    number = count if count is not None else len(records) if isinstance(records, list) else 1
    last = number - 1 if last_offset_delta is None else last_offset_delta
    length = 49 + len(payload) if batch_length is None else batch_length
    header = (base_offset, length, -1, magic, 0, attributes, last, _NOW, _NOW, -1, -1, -1, number)
    return _HEADER.pack(*header) + payload


FLAWED_RECORDS: Final = {
    "a record of negative length": Record(length=b"\x01"),
    "a record without a byte": Record(length=b"\x00"),
    "a record longer than the batch": Record(length=b"\x7e"),
    "a record one byte too long": Record(length=batch_py.varint(19)),
    "a record one byte too short": Record(length=batch_py.varint(17)),
    "a record length of six bytes": Record(length=b"\xa4\x80\x80\x80\x80\x00"),
    "a record length of 33 bits": Record(length=b"\xa4\x80\x80\x80\x10"),
    "the largest record length": Record(length=b"\xfe\xff\xff\xff\x0f"),
    "the smallest record length": Record(length=b"\xff\xff\xff\xff\x0f"),
    "a timestamp of eleven bytes": Record(timestamp_delta=b"\x80" * 10 + b"\x00"),
    "a timestamp of 65 bits": Record(timestamp_delta=b"\x80" * 9 + b"\x02"),
    "a negative offset delta": Record(offset_delta=b"\x01"),
    "an offset delta behind the last": Record(offset_delta=b"\x04"),
    "an offset delta of 33 bits": Record(offset_delta=b"\x80\x80\x80\x80\x10"),
    "a key of length −2": Record(key=b"\x03key"),
    "a key longer than the record": Record(key=b"\x7ekey"),
    "a key as long as an int can say": Record(key=b"\xfe\xff\xff\xff\x0fkey"),
    "a value of length −2": Record(value=b"\x03value"),
    "a value one byte longer than the record": Record(value=b"\x14value"),
    "a value as long as an int can say": Record(value=b"\xfe\xff\xff\xff\x0fvalue"),
    "a negative number of headers": Record(headers=b"\x01\x02h\x02x"),
    "a header that is not there": Record(headers=b"\x04\x02h\x02x"),
    "a header too few": Record(headers=b"\x00\x02h\x02x"),
    "as many headers as an int can say": Record(headers=b"\xfe\xff\xff\xff\x0f\x02h\x02x"),
    "a header without a name": Record(headers=b"\x02\x01\x02x"),
    "a header name longer than the record": Record(headers=b"\x02\x7eh\x02x"),
    "a header value of length −2": Record(headers=b"\x02\x02h\x03x"),
    "a header value longer than the record": Record(headers=b"\x02\x02h\x7ex"),
    "nothing behind the attributes": Record(b"\x02", b"\x00", b"", b"", b"", b"", b""),
    "a timestamp that is cut off": Record(b"\x04", b"\x00", b"\x80", b"", b"", b"", b""),
    "no key": Record(b"\x06", b"\x00", b"\x00", b"\x00", b"", b"", b""),
    "no value": Record(key=b"\x01", value=b"", headers=b""),
    "no number of headers": Record(key=b"\x01", value=b"\x01", headers=b""),
}


def malformed_batches() -> list[tuple[str, bytes]]:
    """(what is wrong, batch) for every flaw in the catalogue."""
    good = Record()
    second = Record(offset_delta=b"\x02")
    int32 = 2**31 - 1
    flawed = [(flaw, batch_of([record])) for flaw, record in FLAWED_RECORDS.items()]
    for flaw, record in FLAWED_RECORDS.items():
        behind = record._replace(offset_delta=b"\x02") if record.offset_delta == good.offset_delta else record
        flawed.append((f"{flaw}, second", batch_of([good, behind])))
    flawed += [
        ("a record more than there is", batch_of([good], count=2)),
        ("a record fewer than there is", batch_of([good, second], count=1, last_offset_delta=1)),
        ("no record where there is one", batch_of([good], count=0, last_offset_delta=0)),
        ("a negative number of records", batch_of([good], count=-1)),
        ("as many records as an int can say", batch_of([good], count=int32)),
        ("fewer offsets than records", batch_of([good, second], last_offset_delta=0)),
        ("the same offset twice", batch_of([good, good])),
        ("offsets that fall", batch_of([second, good])),
        ("offsets beyond 64 bits", batch_of([good], base_offset=2**63 - 1, last_offset_delta=1)),
        ("a byte behind the last record", batch_of(good.encoded() + b"\x00")),
        ("a length shorter than the header", batch_of([good], batch_length=48)),
        ("a negative length", batch_of([good], batch_length=-1)),
        ("a length beyond the buffer", batch_of([good], batch_length=int32)),
        ("unsupported: an older format", batch_of([good], magic=1)),
        ("unsupported: a newer format", batch_of([good], magic=3)),
        *((f"unsupported: codec {codec}", batch_of([good], attributes=codec)) for codec in (5, 6, 7)),
        *((f"{name} that is none", batch_of([good], attributes=codec)) for name, codec in CODECS.items() if codec),
        *(
            (f"{name} of a flawed record", batch_of(bytes(compress(codec, b"\x01" + good.encoded())), attributes=codec))
            for name, codec in CODECS.items()
        ),
    ]
    return flawed


class Hostile:
    """Random damage: every call of `batch` is another broken, or by chance still sound, batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._seeds = list(self._sound_records())
        self._flawed = [batch for _, batch in malformed_batches()]

    def _sound_records(self) -> Iterator[tuple[bytes, int]]:
        for size in (1, 2, 5, 40):
            builder = batch_py.BatchBuilder()
            for i in range(size):
                key = None if i % 3 == 0 else b"key-%d" % i
                value = None if i % 5 == 1 else bytes(self.random.randrange(256) for _ in range(i % 60))
                headers = [("name", b"value"), ("ü", None), ("", b"")] if i % 2 else None
                builder.append(key, value, _NOW + i * self.random.randrange(-(2**40), 2**40), headers)
            yield builder.records(), size

    def batch(self) -> bytes:
        choice = self.random.random()
        if choice < 0.05:
            return self.damaged(self.random.choice(self._flawed))
        records, count = self.random.choice(self._seeds)
        codec = self.random.choice(list(CODECS.values())) if choice < 0.5 else 0
        if choice < 0.3:  # compressed bytes that are broken
            payload = self.damaged(bytes(compress(codec, records)))
        else:  # broken records, properly compressed
            payload = bytes(compress(codec, self.damaged(records)))
        batch = batch_of(payload, count=count, attributes=codec)
        return self.damaged(batch) if self.random.random() < 0.1 else batch

    def damaged(self, data: bytes) -> bytes:
        """`data` after one to four random changes: bits, bytes, telling numbers, cuts, repeats."""
        out = bytearray(data)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            at = self.random.randrange(len(out) + 1)
            match self.random.randrange(7):
                case 0 if at < len(out):
                    out[at] ^= 1 << self.random.randrange(8)
                case 1 if at < len(out):
                    out[at] = self.random.choice((0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0xFE, 0xFF))
                case 2:
                    out[at:at] = self.random.choice((b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 10))
                case 3:
                    del out[at : at + self.random.choice((1, 2, 8, 1000))]
                case 4:
                    out[at:at] = self.random.randbytes(self.random.choice((1, 2, 8)))
                case 5:
                    end = min(len(out), at + self.random.randrange(64))
                    out[at:at] = out[at:end]
                case _:
                    width = self.random.choice((2, 4, 8))
                    extreme = self.random.choice((0, 1, 2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
                    out[at : at + width] = (extreme % 2 ** (8 * width)).to_bytes(
                        width, self.random.choice(("big", "little"))
                    )
        return bytes(out)
