"""A few rows: Spark brings them to the driver as they are, and the driver encodes and publishes them itself.

Mapping a Python function over ten rows costs more than everything else about them: Spark plans the mapping, hands the
function to a Python worker for each task, and waits for all of them; and publishing by tasks is a second job. A plain
`collect` does without.

The driver must not run out of memory if the rows turn out to be many or large. So each task sends a limited number of
rows and the content of short rows only; if that is not everything, tasks freeze the rows after all. `FewRowsGuess`
keeps this from happening often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.spark import tuning

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Few(NamedTuple):
    """The limits of a few rows."""

    rows: int
    """So many rows are no longer a few."""
    row_bytes: int


_LIMITS: Final = ((8, Few(4_096, 2_048)), (256, Few(128, 2_048)), (1_024, Few(128, 512)))
"""Tasks at most → the limits with which all tasks together send up to 64 MiB. Few values, because Spark compiles code
for each."""
_TASKS_IF_UNKNOWN: Final = 256
_FITS: Final = "fits"
_LONGEST_PAUSE: Final = 256
"""Micro-batches."""


def limits_of(tasks: int | None) -> Few | None:
    """Return the limits for so many tasks; None if the rows of so many are never a few."""
    return next((few for most, few in _LIMITS if (tasks or _TASKS_IF_UNKNOWN) <= most), None)


@dataclass(slots=True)
class FewRowsGuess:
    """A guess by the micro-batches before: the next one has a few short rows. After a wrong guess there is none for a
    while, twice as long each time, because some streams have one large row in every micro-batch."""

    were_few: bool | None = None
    """None: there was no micro-batch yet."""
    _pause: int = 1
    _left: int = 0

    @property
    def is_likely(self) -> bool:
        return bool(self.were_few) and not self._left

    def was_right(self) -> None:
        self._pause = 1

    def was_wrong(self) -> None:
        self._left = self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def saw(self, *, few: bool) -> None:
        """Note whether a micro-batch had a few rows."""
        self.were_few = few
        self._left = max(0, self._left - 1)


def collect_few(df: DataFrame, chosen: Mapping[str, str], few: Few) -> pa.RecordBatch | None:
    """Return the columns `chosen` by `columns.used` in the types that the kernel accepts, in order; None if there are
    many rows, or one is large."""
    if "headers" in chosen:
        return None
    sized = {name: f"`{column}`" for name, column in chosen.items() if name in ("key", "value", "topic")}
    fits = " + ".join(["0L", *(f"coalesce(octet_length({column}), 0)" for column in sized.values())])
    fits += f" <= {few.row_bytes}"
    short = [_short(name, column, fits) for name, column in chosen.items()]
    with tuning.settings(df.sparkSession, tuning.WHILE_COLLECTING_A_FEW):
        found = df.selectExpr(*short, f"{fits} {_FITS}").limit(few.rows).collect()
    if len(found) == few.rows or not all(row[-1] for row in found):
        return None
    return _as_arrow(list(chosen), found)


def _short(name: str, column: str, fits: str) -> str:
    match name:
        case "key" | "value":
            return f"if({fits}, cast(`{column}` as binary), null) {name}"
        case "topic":
            return f"if({fits}, `{column}`, null) {name}"
        case "timestamp":  # Python's dates have a smaller range than Spark's, and a time zone
            return f"unix_micros(`{column}`) {name}"
        case _:
            return f"`{column}` {name}"


def _as_arrow(names: list[str], found: list[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"topic": pa.string(), "partition": pa.int32(), "timestamp": pa.int64()}
    cells = [pa.array([row[at] for row in found], kinds.get(name, pa.binary())) for at, name in enumerate(names)]
    times = pa.timestamp("us", tz="UTC")
    columns = [cell.cast(times) if name == "timestamp" else cell for name, cell in zip(names, cells, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)
