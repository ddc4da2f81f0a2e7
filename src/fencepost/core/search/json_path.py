"""Tests of a field in JSON: `$.order.items[0].sku = "A-1"`.

A path begins with `$`, the whole value. Each step is `.name` or `[number]`, a place in a list from 0. Behind the path
may stand `=` and a JSON value; a text that is no JSON stands for itself, so `$.city = Berlin` works. Without `=` the
field must exist. Numbers are compared as numbers (1 equals 1.0), everything else exactly.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

_STEP: Final = re.compile(r"\.([^\s.\[\]=]+)|\[([0-9]{1,9})\]")
_MOST_STEPS: Final = 50
_LONG_NUMBER: Final = 300
"""Digits from which Python would refuse, or take long, to make an int."""
_EXAMPLE: Final = 'such as $.order.items[0].sku = "A-1"'

Step: TypeAlias = str | int


class BadPath(Exception):
    """The text is no path; the message says where."""


class JsonTest(NamedTuple):
    steps: tuple[Step, ...]
    compares: bool
    """False: the field must only exist."""
    wanted: Any = None

    def matches(self, document: Any) -> bool:
        """Tell if a value that `read_json` has read passes the test."""
        for step in self.steps:
            if isinstance(step, str):
                if not isinstance(document, dict) or step not in document:
                    return False
            elif not isinstance(document, list) or step >= len(document):
                return False
            document = document[step]
        return not self.compares or _equal(document, self.wanted)

    @property
    def text(self) -> str:
        """A text that a value which passes contains, unless it is spelled with escapes; "" if there is none. A number
        can be spelled in several ways."""
        if self.compares and isinstance(self.wanted, str):
            return self.wanted
        return next((step for step in reversed(self.steps) if isinstance(step, str)), "")


def parse_test(text: str) -> JsonTest:
    """Return the test that a text describes, or raise BadPath."""
    text = text.strip()
    if not text.startswith("$"):
        raise BadPath(f"a JSON path begins with $, {_EXAMPLE}")
    at, steps = 1, []
    while at < len(text) and text[at] in ".[":
        found = _STEP.match(text, at)
        if found is None:
            raise BadPath(f"the JSON path is wrong at {text[at : at + 20]!r}: a step is .name or [0], {_EXAMPLE}")
        name, number = found.groups()
        steps.append(name if name is not None else int(number))
        at = found.end()
    if len(steps) > _MOST_STEPS:
        raise BadPath(f"a JSON path must have at most {_MOST_STEPS} steps, not {len(steps)}")
    rest = text[at:].strip()
    if not rest:
        return JsonTest(tuple(steps), compares=False)
    if not rest.startswith("="):
        raise BadPath(f"behind the JSON path must stand = and a value, not {rest[:20]!r}, {_EXAMPLE}")
    rest = rest.removeprefix("=").strip()
    if not rest:
        raise BadPath(f"behind = must stand a value, {_EXAMPLE}")
    try:
        wanted = read_json(rest)
    except ValueError:
        wanted = rest  # a text without quotes
    if isinstance(wanted, dict | list):
        raise BadPath(
            "a JSON path can be compared with a text, a number, true, false or null, not with a list or object"
        )
    return JsonTest(tuple(steps), True, wanted)


def read_json(text: str | bytes) -> Any:
    """Read JSON in UTF-8; raise ValueError if it is none. Numbers stay exact."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(text: str) -> int | Decimal:
    return int(text) if len(text) < _LONG_NUMBER else Decimal(text)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_int=_whole, parse_constant=_refuse)


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | Decimal) and isinstance(wanted, int | Decimal):
        return found == wanted
    return type(found) is type(wanted) and bool(found == wanted)
