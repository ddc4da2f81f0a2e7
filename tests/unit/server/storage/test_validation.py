"""`Validation` of batches that cannot be decoded."""

from __future__ import annotations

import gc
import tracemalloc

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
