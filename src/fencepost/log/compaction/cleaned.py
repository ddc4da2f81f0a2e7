"""The offsets up to which a log is compacted.

Before the first offset every key occurs once: the next compaction starts to read there. Before the second offset there
may be gaps between batches; after it, a gap means damage. They differ only during a compaction, which moves the second
before it replaces segments, and the first afterwards.

    cleaned     8 bytes  compacted up to here     8 bytes  gaps up to here     4 bytes  CRC-32C of both
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from fencepost.log.files import Files, checksum_of, read_file, write_file_atomically
from fencepost.types import Offset

NAME: Final = "cleaned"
_OFFSETS: Final = Struct(">qq")


class Cleaned(NamedTuple):
    upto: Offset
    gaps_upto: Offset


NOT_CLEANED: Final = Cleaned(Offset(0), Offset(0))
_UNKNOWN: Final = Cleaned(Offset(0), Offset(2**63 - 1))


def read(files: Files, directory: str) -> Cleaned:
    """Read the file. If it is damaged, assume that nothing is compacted and that gaps may be anywhere."""
    try:
        data = read_file(files, f"{directory}/{NAME}")
    except FileNotFoundError:
        return NOT_CLEANED
    offsets, checksum = data[: _OFFSETS.size], data[_OFFSETS.size :]
    if len(offsets) != _OFFSETS.size or checksum != checksum_of(offsets):
        return _UNKNOWN
    return Cleaned._make(_OFFSETS.unpack(offsets))


def write(files: Files, directory: str, state: Cleaned) -> None:
    """Write the file durably."""
    write_file_atomically(files, directory, NAME, encode(state))


def encode(state: Cleaned) -> bytes:
    data = _OFFSETS.pack(*state)
    return data + checksum_of(data)
