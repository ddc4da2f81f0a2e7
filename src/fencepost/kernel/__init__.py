"""Record batches: encode, decode, compress, checksum. The kernel knows bytes and numbers, no topics and no sockets.

What happens per record exists twice: compiled (`_batch.pyx`) and in plain Python (`batch_py.py`). `IMPLEMENTATION` says
which one runs. Without the compiled one everything still works, many times slower, so that is said aloud; whoever wants
the twin on purpose sets FENCEPOST_KERNEL=python and is not warned.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Literal

from fencepost.kernel import batch_py
from fencepost.kernel.codecs import CODECS, compress, decompress
from fencepost.kernel.control import Marker, MarkerType, encode_marker, read_marker
from fencepost.kernel.header import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    check_batch,
    checksum,
    peek_size,
    read_header,
    stamp_append_time,
    stamp_offset,
    stamp_producer,
)
from fencepost.kernel.record import MAX_DECOMPRESSED, Headers, Payload, Record, Row

IMPLEMENTATION: Literal["cython", "python"]

if TYPE_CHECKING:
    from fencepost.kernel import _batch as _fastest
else:
    _fastest = batch_py
    if os.environ.get("FENCEPOST_KERNEL", "") != "python":
        try:
            from fencepost.kernel import _batch as _fastest
        except ImportError as error:
            warnings.warn(
                f"fencepost's compiled kernel is missing ({error}); its Python twin runs instead, many times slower. "
                "Reinstall fencepost where a C compiler is available.",
                RuntimeWarning,
                stacklevel=2,
            )

IMPLEMENTATION = "python" if _fastest is batch_py else "cython"

BatchBuilder = _fastest.BatchBuilder
encode_batch = _fastest.encode_batch
decode_batch = _fastest.decode_batch
murmur2 = _fastest.murmur2
partition_for_key = _fastest.partition_for_key

__all__ = [
    "CODECS",
    "HEADER_SIZE",
    "IMPLEMENTATION",
    "MAX_DECOMPRESSED",
    "BatchBuilder",
    "BatchHeader",
    "Buffer",
    "Headers",
    "Marker",
    "MarkerType",
    "Payload",
    "Record",
    "Row",
    "check_batch",
    "checksum",
    "compress",
    "decode_batch",
    "decompress",
    "encode_batch",
    "encode_marker",
    "murmur2",
    "partition_for_key",
    "peek_size",
    "read_header",
    "read_marker",
    "stamp_append_time",
    "stamp_offset",
    "stamp_producer",
]
