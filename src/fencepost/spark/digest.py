"""A digest of the rows that a sink is given, which does not depend on their order.

A query that keeps state is recomputed when its micro-batch is in the log already, because its state must see the batch
(`core/micro_batch/`). The progress record has the digest of the rows that were written; the recomputed ones must have
the same. It is the sum of a hash of each row, over the columns that the sink uses, as the query computed them. The
partitions, batches and times that the sink adds are not in it: they differ each time.

A hash in Python costs about a microsecond per row, so only queries that keep state pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_MASK: Final = 2**64 - 1
_ALGORITHM: Final = "1"
"""Changes when equal rows get another digest."""

DIGEST_SCHEMA: Final = "count bigint, digest bigint"


class RowDigest:
    """The digest of the rows that were added."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.count += rows.num_rows
        if rows.num_rows:
            self.sum = (self.sum + sum(map(_hash, _joined(rows).to_pylist()))) & _MASK

    @property
    def signed(self) -> int:
        """The sum as Spark's bigint."""
        return self.sum - (1 << 64) if self.sum >> 63 else self.sum


def digest_text(parts: Iterable[tuple[int, int]]) -> str:
    """Return the digest of all tasks, from the count and the sum of each, as a progress record has it."""
    count = total = 0
    for rows, each in parts:
        count, total = count + rows, (total + each) & _MASK
    return f"{_ALGORITHM}-{count}-{total:016x}"


def digest_rows() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the rows' Arrow batches; its result has the columns of DIGEST_SCHEMA."""

    def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = RowDigest()
        for rows in batches:
            found.add(rows)
        cells = [pa.array([cell], pa.int64()) for cell in (found.count, found.signed)]
        yield pa.RecordBatch.from_arrays(cells, names=["count", "digest"])

    return digest


def _hash(row: bytes) -> int:
    return int.from_bytes(blake2b(row, digest_size=8).digest(), "little")


def _joined(rows: pa.RecordBatch) -> Any:
    """Return each row as bytes: the length of each cell, −1 for null, and then the cells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = [_as_binary(rows.column(name)) for name in sorted(rows.schema.names)]
    lengths = [pc.binary_length(cell).fill_null(-1) for cell in cells]
    sizes = [
        pa.Array.from_buffers(pa.binary(4), rows.num_rows, [None, pa.array(length.to_numpy(), pa.int32()).buffers()[1]])
        for length in lengths
    ]
    parts = [*(size.cast(pa.binary()) for size in sizes), *cells]
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _as_binary(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_nested(kind):  # headers
        return pa.array([None if cell is None else repr(cell).encode() for cell in column.to_pylist()], pa.binary())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.binary())  # also from Arrow's large types
