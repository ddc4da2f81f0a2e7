"""Log lines that an impatient producer would repeat many times a second: about new epochs and batches in doubt.

The first line of a kind is logged, and then one per half minute with the number of those that were left out. The others
are for debugging. The kind is the message without its arguments.
"""

from __future__ import annotations

import logging
from typing import Final

from fencepost.core.repeats import Repeats

log = logging.getLogger("fencepost.producer")

PERIOD_SECONDS: Final = 30.0


class RareLines:
    def __init__(self) -> None:
        self._repeats = Repeats[str](1, PERIOD_SECONDS)
        self._left_out: dict[str, int] = {}

    def info(self, now: float, message: str, *args: object) -> None:
        self._left_out.update(self._repeats.end_periods(now))
        level = logging.INFO if self._repeats.admit(message, now) else logging.DEBUG
        if level == logging.INFO and (left_out := self._left_out.pop(message, 0)):
            message += " (and %d more such lines since the last one)"
            args = (*args, left_out)
        log.log(level, message, *args)
