"""Regular expressions over topic names and transactional ids, in RE2's syntax and linear time.

The server matches a client's pattern on its event loop. Python's `re` backtracks: (a+)+b can keep it busy for years.
Kafka uses RE2/J, and google-re2 is the same engine in C++. Two differences: patterns whose program does not fit into
`_MAX_MEMORY` are rejected here only, and two groups with the same name there only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

_MAX_MEMORY: Final = 1 << 20
"""For the program of one pattern and its caches. Matching a topic name takes at most about 20 ms with it."""


class BadPattern(Exception):
    """The pattern is not a valid RE2 expression; the message says why."""


@lru_cache(maxsize=64)
def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether `pattern` matches a whole name. Raise `BadPattern` if it is invalid."""
    try:
        import re2  # here, because few processes need it
    except ImportError:
        raise BadPattern("patterns need the google-re2 package, which is not installed on the server") from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.never_capture = True  # much faster, and nobody asks for the groups
    try:
        compiled = re2.compile(pattern.encode(), options)
    except re2.error as error:
        raise BadPattern(error.args[0].decode(errors="replace") if error.args else "it is too large") from None
    return lambda name: compiled.fullmatch(name.encode()) is not None  # with a str, re2 also translates positions


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that `pattern` matches. An invalid one matches none: an older version may have stored it."""
    try:
        matches = name_matcher(pattern)
    except BadPattern:
        return frozenset()
    return frozenset(name for name in names if matches(name))
