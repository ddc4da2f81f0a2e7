"""Ways to spoil the bytes of a message."""

from __future__ import annotations

import random
from collections.abc import Iterator

LENGTHS = [
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff" * 11,
    b"\0\0",
]
"""Lengths, compact and not, that are absurd, null or too long to be one."""


def damaged(written: bytes, rng: random.Random, count: int = 30) -> Iterator[bytes]:
    """Random bytes, cut off messages, and messages with a few bytes replaced."""
    for _ in range(count):
        yield rng.randbytes(rng.randrange(40))
        yield written[: rng.randrange(len(written) + 1)]
        spoiled = bytearray(written)
        at = rng.randrange(len(spoiled) + 1)
        spoiled[at : at + rng.randrange(5)] = rng.choice([*LENGTHS, rng.randbytes(3)])
        yield bytes(spoiled)
