"""How far a log was compacted.

Before that offset there may be gaps between batches; behind it there are none, so that a gap there means damage.
Written before the first compacted segment takes the place of its original.

    cleaned     8 bytes  first offset that was not compacted     4 bytes  CRC-32C of the offset
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from fencepost.log.files import Files, read_file, write_file_atomically
from fencepost.types import Offset

NAME: Final = "cleaned"
_OFFSET: Final = Struct(">q")
_CHECKSUM: Final = Struct(">I")
_ANYWHERE: Final = Offset(2**63 - 1)


def read(files: Files, directory: str) -> Offset:
    """The first offset behind which there are no gaps. If the file is damaged, gaps may be anywhere."""
    try:
        data = read_file(files, f"{directory}/{NAME}")
    except FileNotFoundError:
        return Offset(0)
    if len(data) != _OFFSET.size + _CHECKSUM.size or data[_OFFSET.size :] != _CHECKSUM.pack(crc32c(data[:8])):
        return _ANYWHERE
    return Offset(_OFFSET.unpack_from(data)[0])


def write(files: Files, directory: str, offset: Offset) -> None:
    """Durable when this returns."""
    data = _OFFSET.pack(offset)
    write_file_atomically(files, directory, NAME, data + _CHECKSUM.pack(crc32c(data)))
