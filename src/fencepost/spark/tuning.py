"""Spark settings for our jobs, restored to the user's afterwards.

Inside foreachBatch the session is the query's own copy, and the rows come from a finished plan: these settings affect
only our operators.
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
    # Adaptive execution would fill the cache of the DataFrame in a separate job.
    _ADAPTIVE: "false",
}
WHILE_COLLECTING_A_FEW: Final = {
    # Otherwise a limit reads one partition in a first job, and the others in further ones.
    "spark.sql.limit.initialNumPartitions": "1000000",
}
WHILE_PUBLISHING: Final = {
    # There is nothing to adapt in a scan, an exchange and a sort, and each stage would be a separate job.
    _ADAPTIVE: "false",
    # A hash over every byte, to detect recomputed rows: we compare each batch with the manifest anyway. Any of the
    # three settings turns it on.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "false",
    # Rows are whole record batches: a task starts to send with the first few.
    _ARROW_ROWS: "4",
}

_UNLIMITED: Final = str(2**31 - 1)
LONGEST_SHORT_ROW: Final = 16 << 10
_SHORT_ROWS: Final = 4_000
"""Of at most `LONGEST_SHORT_ROW` bytes each: 64 MiB."""
_ROWS_OF_ANY_SIZE: Final = 1_000
"""A tenth of Spark's default before it had a limit in bytes."""
_BYTES_OF_ANY_SIZE: Final = 16 << 20
_ROWS_WITHOUT_A_LIMIT: Final = 50
"""For a Spark that cannot limit the bytes: by default a topic accepts records up to a megabyte."""


def arrow_batches(*, are_short: bool, limits_bytes: bool = True) -> dict[str, str]:
    """Return Spark's settings for the size of Arrow batches. `limits_bytes`: whether this Spark can limit bytes.

    A thousand rows of a megabyte each would not fit into a worker. But a Spark that limits the bytes computes the size
    of the Arrow batch after every row, which takes longer than writing the row. So where all rows `are_short`
    (`columns.short_only`), only the number of rows limits batches.
    """
    if are_short:
        return {_ARROW_BYTES: _UNLIMITED, _ARROW_ROWS: str(_SHORT_ROWS)}
    if not limits_bytes:
        return {_ARROW_ROWS: str(_ROWS_WITHOUT_A_LIMIT)}
    return {_ARROW_BYTES: str(_BYTES_OF_ANY_SIZE), _ARROW_ROWS: str(_ROWS_OF_ANY_SIZE)}


def limits_bytes(spark: SparkSession) -> bool:
    """Return whether this Spark can limit the bytes of an Arrow batch."""
    return bool(spark.conf.isModifiable(_ARROW_BYTES))


_lock: Final = threading.Lock()
_changed: Final[WeakKeyDictionary[Any, dict[str, tuple[int, str | None]]]] = WeakKeyDictionary()
"""Session → setting → the number of open blocks that changed it, and its value before the first of them."""


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Apply the settings that this Spark knows. Blocks of several threads may overlap: the last one to end restores the
    user's settings."""
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
