"""The page cache that a benchmark fills, so that brokers do not wait for memory from the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import page_cache

pytestmark = pytest.mark.unit

_STEP = 4 << 20


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions that were read, on a machine whose free memory shrinks by what was read."""
    positions: list[int] = []

    def read(file: int, buffers: list[bytearray], position: int) -> int:
        positions.append(position)
        return len(buffers[0])

    def memory(name: str) -> int:
        return 1_000 if name == "MemTotal" else 1_000 - len(positions) * _STEP // (1 << 20)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(page_cache, "_mebibytes", memory)
    return positions


def test_fills_memory_until_little_is_free_and_never_reads_a_page_twice(reads: list[int]) -> None:
    filler = page_cache.Filler()
    filler.fill()
    assert page_cache._mebibytes("MemFree") <= 200
    seen = set(reads)
    reads.clear()  # memory is free again
    filler.fill()
    assert page_cache._mebibytes("MemFree") <= 200
    assert seen.isdisjoint(reads)
    assert len(reads) == len(set(reads))


def test_leaves_a_machine_alone_that_keeps_its_free_memory(
    reads: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page_cache, "_REPORTING", tmp_path / "no such module")
    page_cache.fill()
    assert not reads
