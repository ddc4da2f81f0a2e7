"""How far a log was compacted.

Two offsets. Before the first one every key stands once: the next compaction begins to look there. Before the second one
there may be gaps between batches; behind it there are none, so that a gap there means damage. They differ only while a
compaction is under way: the second is moved before segments are exchanged, the first afterwards.

    cleaned     8 bytes  compacted up to here     8 bytes  gaps up to here     4 bytes  CRC-32C of both
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.log.files import Files, read_file, write_file_atomically
from fencepost.types import Offset

NAME: Final = "cleaned"
_OFFSETS: Final = Struct(">qq")
_CHECKSUM: Final = Struct(">I")


class Cleaned(NamedTuple):
    upto: Offset
    gaps_upto: Offset


NOT_CLEANED: Final = Cleaned(Offset(0), Offset(0))
_UNKNOWN: Final = Cleaned(Offset(0), Offset(2**63 - 1))


def read(files: Files, directory: str) -> Cleaned:
    """What the file says. If it is damaged, nothing counts as compacted, and gaps may be anywhere."""
    try:
        data = read_file(files, f"{directory}/{NAME}")
    except FileNotFoundError:
        return NOT_CLEANED
    offsets, checksum = data[: _OFFSETS.size], data[_OFFSETS.size :]
    if len(offsets) != _OFFSETS.size or checksum != _CHECKSUM.pack(crc32c(offsets)):
        return _UNKNOWN
    return Cleaned._make(_OFFSETS.unpack(offsets))


def write(files: Files, directory: str, state: Cleaned) -> None:
    """Durable when this returns."""
    data = _OFFSETS.pack(*state)
    write_file_atomically(files, directory, NAME, data + _CHECKSUM.pack(crc32c(data)))
