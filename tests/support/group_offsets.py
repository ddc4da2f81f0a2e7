"""Committed offsets of a group, awaited: Apache Kafka answers the end of a transaction before it writes the marker that
makes the transaction's offsets visible."""

from __future__ import annotations

import time
from typing import Final

import fencepost

_PATIENCE: Final = 60.0


def await_offsets(admin: fencepost.Admin, group: str, expected: list[int], *, topic: str | None = None) -> None:
    """Wait until the group's committed offsets (of one topic, if it is named) are these."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        stored = [each.committed for each in admin.group_offsets(group) if topic in (None, each.topic)]
        if stored == expected:
            return
        assert time.monotonic() < deadline, f"{group} has {stored}, not {expected}"
        time.sleep(0.05)  # nothing tells when the marker is there
