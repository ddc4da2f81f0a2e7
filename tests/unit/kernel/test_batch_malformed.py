"""Damaged and hostile batches: an error each, in both implementations, and never more memory than the bytes justify."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.errors import CorruptBatch, FencepostError, UnsupportedFormat
from fencepost.kernel import CODECS
from tests.fuzz.hostile import Record, batch_of, malformed_batches
from tests.unit.kernel.implementations import NOW, Kernel

pytestmark = pytest.mark.unit


def decode(kernel: Kernel, batch: bytes) -> object:
    return kernel.decode_batch(batch, check=False)


def decode_columns(kernel: Kernel, batch: bytes) -> object:
    return kernel.ColumnDecoder(headers=True).add(batch, check=False)


@pytest.mark.parametrize("road", [decode, decode_columns])
@pytest.mark.parametrize(("flaw", "batch"), malformed_batches(), ids=[flaw for flaw, _ in malformed_batches()])
def test_a_malformed_batch_is_refused(
    kernel: Kernel, road: Callable[[Kernel, bytes], object], flaw: str, batch: bytes
) -> None:
    with pytest.raises(UnsupportedFormat if flaw.startswith("unsupported") else CorruptBatch):
        road(kernel, batch)


@pytest.mark.parametrize("road", [decode, decode_columns])
def test_the_batch_that_the_flaws_are_made_of_is_sound(kernel: Kernel, road: Callable[[Kernel, bytes], object]) -> None:
    assert road(kernel, batch_of([Record(), Record(offset_delta=b"\x02")]))


@pytest.mark.parametrize("road", [decode, decode_columns])
@pytest.mark.parametrize("codec", CODECS.values())
def test_a_batch_cut_off_anywhere_is_refused(
    kernel: Kernel, road: Callable[[Kernel, bytes], object], codec: int
) -> None:
    whole = bytes(kernel.encode_batch([(b"k", b"v" * 9, NOW, [("h", b"x")])] * 3, codec=codec))
    for end in range(len(whole)):
        with pytest.raises(CorruptBatch):
            road(kernel, whole[:end])
        # … and with a length field that agrees with the cut, so that only the content can tell.
        if end >= 61:
            with pytest.raises(CorruptBatch):
                road(kernel, whole[:8] + (end - 12).to_bytes(4, "big") + whole[12:end])


def test_columns_are_as_before_when_a_batch_was_refused_halfway(kernel: Kernel) -> None:
    good = kernel.encode_batch([(None, b"a", NOW, [("h", None)]), (b"k", None, NOW, None), (b"l", b"b", NOW, None)])
    bad = bytearray(kernel.encode_batch([(b"key", b"value", NOW, [("name", b"x")])] * 20))
    bad[-2] = 0x7E  # the length of the last header
    alone, interrupted = kernel.ColumnDecoder(headers=True), kernel.ColumnDecoder(headers=True)
    for decoder in (alone, interrupted):
        decoder.add(good)
        if decoder is interrupted:
            with pytest.raises(CorruptBatch):
                decoder.add(bad, check=False)
        decoder.add(good)
    assert flattened(alone.take()) == flattened(interrupted.take())


def flattened(columns: object) -> object:
    """Nested tuples of plain bytes, for comparison."""
    if isinstance(columns, tuple):
        return [flattened(part) for part in columns]
    return columns if columns is None or isinstance(columns, int) else bytes(columns)  # type: ignore[call-overload]


def test_every_error_says_what_kafka_would_answer() -> None:
    assert issubclass(CorruptBatch, FencepostError)
    assert CorruptBatch.code.name == "CORRUPT_MESSAGE"
    assert UnsupportedFormat.code.name == "UNSUPPORTED_FOR_MESSAGE_FORMAT"
