"""Sections and targets of the Spark run; goals and tables know them by these."""

from __future__ import annotations

from typing import Final

READ: Final = "spark read"
WRITE: Final = "spark write"
THROUGH: Final = "spark topic to topic, row by row"
COPY: Final = "spark copy of whole batches"
FORMAT: Final = "spark topic to topic in micro-batches of 55 MB, by format"
SMALL_FORMAT: Final = "spark micro-batch of 10 rows by format, beyond one that Spark drops"
SMALL: Final = "spark micro-batch of 10 rows, beyond an empty foreachBatch"
CPU: Final = "spark: where the time goes, CPU s per million rows"
STEPS: Final = "spark: the sink's steps, ms"
ALONE: Final = "spark: our code alone, CPU s per million rows"

CONNECTOR: Final = "Spark's connector on kafka"
OURS_ON_KAFKA: Final = "fencepost on kafka"
OURS: Final = "fencepost on fencepost"

BY_FOREACHBATCH: Final = "foreachBatch"
INLINE: Final = "format, inline"
STAGED: Final = "format, staged"


def way_on(way: str, broker: str) -> str:
    """Return the target of a way to write, on a broker."""
    return f"{way}, on {broker}"
