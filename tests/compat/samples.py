"""Records that every client has to bring there and back unchanged."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.support.batches import NOW

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Names as clients' settings have them, and the number in a batch's attributes."""

START: Final = NOW
"""The time of the first record."""
COUNT: Final = 500


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]]


def samples(count: int = COUNT, *, both_null: bool = True) -> list[Sample]:
    """Keys and values of all sorts: present, empty, null, large; with and without headers; times that rise.

    `both_null=False` for clients that refuse a record whose key and value are both null.
    """
    return [
        Sample(_key(number), _value(number, both_null=both_null), START + 10 * number, _headers(number))
        for number in range(count)
    ]


def _key(number: int) -> bytes | None:
    if number % 5 == 0:
        return None
    return b"" if number % 7 == 0 else b"key-%d" % number


def _value(number: int, *, both_null: bool) -> bytes | None:
    if number % 11 == 3 and (both_null or _key(number) is not None):
        return None
    return b"" if number % 13 == 0 else b"value-%d " % number * (number % 40 + 1)


def _headers(number: int) -> list[tuple[str, bytes | None]]:
    return [] if number % 3 else [("number", b"%d" % number), ("empty", b""), ("null", None), ("ü", b"\xff")]
