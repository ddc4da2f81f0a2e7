"""Spark's own settings while our jobs are planned, and the user's again afterwards.

Inside foreachBatch the session is the query's own copy, and the rows come from a plan that is made already: what is set
here reaches our operators alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"

WHILE_COLLECTING: Final = {
    # Of a cached DataFrame: filling the cache would be a job of its own.
    _ADAPTIVE: "false",
}
WHILE_PUBLISHING: Final = {
    # Nothing to adapt in a scan, an exchange and a sort, and each stage would be a job of its own.
    _ADAPTIVE: "false",
    # A hash over every byte, to notice rows that came out otherwise: each batch is held against the manifest anyway.
    # Any of the three turns it on.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "false",
    # Rows are whole record batches: a task begins to send when the first few are there.
    _ARROW_ROWS: "4",
}

_UNLIMITED: Final = str(2**31 - 1)
_BATCH_BYTES: Final = 4 << 20
_FEWEST_ROWS, _MOST_ROWS = 16, 10_000
_ROWS_OF_ANY_SIZE: Final = 1_000
"""A tenth of what Spark itself took before it had a limit in bytes."""
_BYTES_OF_ANY_SIZE: Final = 16 << 20
_ROWS_WITHOUT_A_LIMIT: Final = 50
"""For a Spark that cannot limit the bytes: a target takes records of a megabyte at most, unless told otherwise."""


def arrow_batches_of(row_bytes: float | None, *, limits_bytes: bool = True) -> dict[str, str]:
    """Return Spark's settings for the size of Arrow batches. `row_bytes`: how large rows are, if that is known.

    While it is not known, Spark limits the bytes: a thousand rows of a megabyte each would not fit into a worker. It
    then adds up the size of the Arrow batch after every row, which takes longer than writing the row; so once the size
    of rows is known, batches end by their number of rows alone. `limits_bytes`: whether this Spark can.
    """
    if row_bytes is None and not limits_bytes:
        return {_ARROW_ROWS: str(_ROWS_WITHOUT_A_LIMIT)}
    if row_bytes is None:
        return {_ARROW_BYTES: str(_BYTES_OF_ANY_SIZE), _ARROW_ROWS: str(_ROWS_OF_ANY_SIZE)}
    rows = max(_FEWEST_ROWS, min(_MOST_ROWS, int(_BATCH_BYTES / max(row_bytes, 1.0))))
    return {_ARROW_BYTES: _UNLIMITED, _ARROW_ROWS: str(rows)}


def limits_bytes(spark: SparkSession) -> bool:
    """Return whether this Spark can end an Arrow batch by its bytes."""
    return bool(spark.conf.isModifiable(_ARROW_BYTES))


_lock: Final = threading.Lock()
_changed: Final[WeakKeyDictionary[Any, dict[str, tuple[int, str | None]]]] = WeakKeyDictionary()
"""Session → setting → how many blocks have changed it at the moment, and what it was before the first of them."""


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Those that this Spark does not know are left out. Blocks of several threads may overlap: the last one that ends
    gives the user's settings back."""
    names = [name for name in wanted if spark.conf.isModifiable(name)]
    with _lock:
        changed = _changed.setdefault(spark, {})
        for name in names:
            depth, before = changed.get(name) or (0, spark.conf.get(name, None))
            changed[name] = depth + 1, before
            spark.conf.set(name, wanted[name])
    try:
        yield
    finally:
        with _lock:
            for name in names:
                depth, before = changed.pop(name)
                if depth > 1:
                    changed[name] = depth - 1, before
                elif before is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, before)
