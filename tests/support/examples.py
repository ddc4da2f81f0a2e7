"""The number of examples and rounds of tests: few in `make test`, three times as many in `make soak`."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Return how many examples or rounds to try, where `make test` tries `count`."""
    return count * int(os.environ.get("FENCEPOST_EXAMPLES", "1"))
