"""Record batches: encode, decode, compress, checksum; and the producer's fast path into its open batches.

The code per record exists twice: compiled (`_batch.pyx`) and in plain Python (`batch_py.py`, `columns_py.py`,
`intake_py.py`, `walk_py.py`). `IMPLEMENTATION` names the one that runs. Without the compiled one everything works, but
many times slower, so a warning says so. FENCEPOST_KERNEL=python chooses the Python twin without a warning.

The kernel turns bytes into things and back. It knows no sockets, starts no Python thread and asks no Python clock. Two
exceptions are in the compiled code, and each has its figure:

    _ahead.pxi     A thread without Python compresses full batches with LZ4 while their sender goes on: 5.2 instead of
                   4.7 million records per second without keys, 4.1 instead of 3.6 with.
    _intake.pxi    Records without a timestamp get the time of their `send` from the clock of the system, by the
                   processor's ticks: 10 ns instead of 26, of the 80 to 120 that a record takes.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Literal

from fencepost.kernel import batch_py, columns_py, intake_py, walk_py
from fencepost.kernel.codecs import CODECS, compress
from fencepost.kernel.control import MarkerType, encode_marker, read_marker
from fencepost.kernel.header import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    check_batch,
    peek_size,
    read_header,
    split_batches,
    stamp_append_time,
    stamp_offset,
    stamp_producer,
)
from fencepost.kernel.record import (
    MAX_DECOMPRESSED,
    Headers,
    Payload,
    Record,
    Row,
    Scan,
)

IMPLEMENTATION: Literal["cython", "python"]

if TYPE_CHECKING:
    from fencepost.kernel import _batch

    _batches = _columns = _intake = _walk = _batch
else:
    _batches, _columns, _intake, _walk = batch_py, columns_py, intake_py, walk_py
    if os.environ.get("FENCEPOST_KERNEL", "") != "python":
        try:
            from fencepost.kernel import _batch
        except ImportError as error:
            warnings.warn(
                f"fencepost's compiled kernel is missing ({error}); its Python twin runs instead, many times slower. "
                "Reinstall fencepost where a C compiler is available.",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            _batches = _columns = _intake = _walk = _batch

IMPLEMENTATION = "python" if _batches is batch_py else "cython"

BatchBuilder = _batches.BatchBuilder
encode_batch = _batches.encode_batch
decode_batch = _batches.decode_batch
decode_rows = _batches.decode_rows
room = _batches.room
unpack = _batches.unpack
partition_for_key = _batches.partition_for_key
ColumnDecoder = _columns.ColumnDecoder
ColumnSource = _columns.ColumnSource
partition_rows = _columns.partition_rows
group_rows = _columns.group_rows
Place = _intake.Place
Budget = _intake.Budget
Gate = _intake.Gate
Slot = _intake.Slot
TopicSlots = _intake.TopicSlots
Intake = _intake.Intake
KeyOffsets = _walk.KeyOffsets
scan_batch = _walk.scan_batch
find_time = _walk.find_time

__all__ = [
    "CODECS",
    "HEADER_SIZE",
    "IMPLEMENTATION",
    "MAX_DECOMPRESSED",
    "BatchBuilder",
    "BatchHeader",
    "Budget",
    "Buffer",
    "ColumnDecoder",
    "ColumnSource",
    "Gate",
    "Headers",
    "Intake",
    "KeyOffsets",
    "MarkerType",
    "Payload",
    "Place",
    "Record",
    "Row",
    "Scan",
    "Slot",
    "TopicSlots",
    "check_batch",
    "compress",
    "decode_batch",
    "decode_rows",
    "encode_batch",
    "encode_marker",
    "find_time",
    "group_rows",
    "partition_for_key",
    "partition_rows",
    "peek_size",
    "read_header",
    "read_marker",
    "room",
    "scan_batch",
    "split_batches",
    "stamp_append_time",
    "stamp_offset",
    "stamp_producer",
    "unpack",
]
