"""What the records hold: rows of JSON of one exact size, the same for every client and broker."""

from __future__ import annotations

import json
import random
import string
from typing import Final

POOL: Final = 4096
"""Distinct values; enough that no codec finds them all within its window."""
_POOL_BYTES: Final = 16 << 20
_LEAST: Final = 100
"""Smaller records are no rows."""


def values(size: int, count: int | None = None) -> list[bytes]:
    """`count` rows of `size` bytes each, about as compressible as real rows are. The same in every run. Their number is
    a power of two unless it is given."""
    source = random.Random(size)
    if count is None:
        count = min(POOL, 1 << max(4, (_POOL_BYTES // size).bit_length() - 1))
    if size < _LEAST:
        return ["".join(source.choices(string.ascii_letters, k=size)).encode() for _ in range(count)]
    return [_row(source, size) for _ in range(count)]


def keys(count: int = 10_000) -> list[bytes]:
    """Distinct keys of twelve bytes."""
    return [b"key-%08d" % number for number in range(count)]


def _row(source: random.Random, size: int) -> bytes:
    row = {
        "id": source.randrange(10**9),
        "user": f"u{source.randrange(10**5):05d}",
        "amount": round(source.random() * 1000, 2),
        "country": source.choice(("DE", "US", "IN", "BR")),
        "note": "",
    }
    missing = size - len(json.dumps(row, separators=(",", ":")))
    if missing < 0:
        raise ValueError(f"a row does not fit into {size} bytes")
    row["note"] = "".join(source.choices(string.ascii_letters, k=missing // 4)) * 4 + "." * (missing % 4)
    return json.dumps(row, separators=(",", ":")).encode()
