"""`Validation` of batches that cannot be decoded."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Coroutine

import pytest

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import CODECS, compress
from fencepost.server.storage import validation
from tests.support.batches import batch

pytestmark = pytest.mark.unit

MIB = 1 << 20
ZSTD = CODECS["zstd"]


def test_a_refused_batch_does_not_keep_its_inflated_bytes() -> None:
    """An error's traceback keeps the frames with these bytes alive: thirty batches of 12 KB once held 1.3 GiB."""
    bomb = batch([b""], records=bytes(compress(ZSTD, bytes(9 * MIB))), attributes=ZSTD)
    gc.disable()
    tracemalloc.start()
    try:
        errors = [validation._scan(memoryview(bomb), 8 * MIB) for _ in range(3)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert all(isinstance(error, CorruptBatch) for error in errors)
    assert held < 4 * MIB


def packed(size: int) -> memoryview:
    records = bytes(batch([bytes(100)] * (size // 110))[61:])
    return memoryview(
        batch([b""] * (size // 110), records=bytes(compress(CODECS["lz4"], records)), attributes=CODECS["lz4"])
    )


def test_a_batch_of_a_megabyte_is_not_worth_a_thread() -> None:
    validator = validation.Validation(128 * MIB)
    one = packed(MIB)
    assert isinstance(validator.prepare([one]), dict)
    two = validator.prepare([one, packed(MIB)])
    assert isinstance(two, Coroutine)
    two.close()
    validator.close()


def test_batches_that_prove_too_large_for_the_loop_take_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    scan = validation._scan

    def counting(records: memoryview, max_bytes: int) -> object:
        tried.append(max_bytes)
        return scan(records, max_bytes)

    monkeypatch.setattr(validation, "_scan", counting)
    validator = validation.Validation(128 * MIB)
    work = validator.prepare([packed(2 * MIB)] * 50)
    assert isinstance(work, Coroutine)
    work.close()
    assert len(tried) == 1
    validator.close()
