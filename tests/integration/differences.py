"""Where fencepost's server answers otherwise than Apache Kafka 4.3.1, on purpose: the whole list.

A test that meets one asks `server.answer_to("…")`, and so is strict on both servers. Anything that is not listed here is
the same on both, or a bug.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fencepost.errors import ErrorCode


class Difference(NamedTuple):
    fencepost: Any
    kafka: Any
    reason: str


DIFFERENCES: Final[dict[str, Difference]] = {
    "batches remembered per producer": Difference(
        16, 5, "fencepost's own client may have more than five batches in flight per partition"
    ),
    "old record format": Difference(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_RECORD,
        "the code that names the cause: the format is the problem, not the record",
    ),
}
