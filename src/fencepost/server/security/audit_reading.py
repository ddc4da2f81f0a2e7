"""The newest lines of the audit log, from its topic or its file. Everything here blocks: call it in a thread."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from fencepost.kernel import decode_batch
from fencepost.kernel.header import read_header
from fencepost.log.partition import PartitionLog
from fencepost.types import Offset

_FILE_BYTES: Final = 128 * 1024
_RECORDS: Final = 400
_BYTES: Final = 256 * 1024
"""Bytes per read of the log."""


class AuditLines(NamedTuple):
    lines: list[bytes]
    """The newest first."""
    is_whole: bool
    """There are no older ones in this file or topic."""


def last_of_file(path: Path) -> AuditLines:
    """Return the last lines of the file that is being written. Raise OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _FILE_BYTES)
        file.seek(start)
        data = file.read(_FILE_BYTES)
    lines = data.split(b"\n")
    if start:
        del lines[0]  # its beginning is missing
    return AuditLines([line for line in reversed(lines) if line], start == 0)


def last_of_topic(log: PartitionLog) -> AuditLines:
    """Return the last records. Raise FencepostError."""
    stop = log.high_watermark
    begin = start = max(log.start_offset, Offset(stop - _RECORDS))
    lines: list[bytes] = []
    while start < stop:
        chunks = log.read(start, _BYTES, upto=stop, block=True)
        if not chunks:
            break
        for data in chunks:
            at = 0
            while at < len(data):
                header = read_header(data, at)
                lines += [bytes(record.value) for record in decode_batch(data, at) if record.value is not None]
                at += header.size
                start = header.next_offset
    return AuditLines(lines[::-1][:_RECORDS], begin <= log.start_offset)
