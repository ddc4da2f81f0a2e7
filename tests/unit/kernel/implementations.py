"""The two implementations of the kernel under one type, and random records for both."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from fencepost.kernel import _batch, batch_py, columns_py, intake_py, walk_py
from fencepost.kernel.record import Row

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


class Kernel(NamedTuple):
    BatchBuilder: type[Any]
    ColumnDecoder: type[Any]
    ColumnSource: type[Any]
    encode_batch: Any
    decode_batch: Any
    decode_rows: Any
    room: Any
    murmur2: Any
    partition_for_key: Any
    partition_rows: Any
    group_rows: Any
    Place: type[Any]
    Budget: type[Any]
    Slot: type[Any]
    TopicSlots: type[Any]
    Intake: type[Any]
    KeyOffsets: type[Any]
    scan_batch: Any
    find_time: Any


COMPILED = Kernel(*(getattr(_batch, name) for name in Kernel._fields))
TWIN = Kernel(
    *(
        getattr(next(part for part in (batch_py, columns_py, intake_py, walk_py) if hasattr(part, name)), name)
        for name in Kernel._fields
    )
)

NOW = 1_700_000_000_000

payloads = st.none() | st.binary(max_size=200) | st.text(max_size=40)
timestamps = st.integers(NOW, NOW + 1000) | st.integers(MIN_INT64, MAX_INT64)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=20), payloads), max_size=4)
rows: st.SearchStrategy[Row] = st.tuples(payloads, payloads, timestamps, header_lists)
batches_of_rows = st.lists(rows, min_size=1, max_size=40)
"""Random records to encode."""


def as_bytes(payload: object) -> bytes | None:
    """What a payload comes back as."""
    if payload is None:
        return None
    return payload.encode() if isinstance(payload, str) else bytes(payload)  # type: ignore[call-overload]


def as_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, as_bytes(value)) for name, value in headers or ())  # type: ignore[attr-defined]
