"""The rule for topic names, which is Kafka's."""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def fault_of(name: str) -> str | None:
    """Return what is wrong with `name`, or None if a topic may have it."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > MAX_LENGTH:
        return f"a topic name has at most {MAX_LENGTH} characters, this one has {len(name)}"
    if not _LEGAL.fullmatch(name):
        return f"topic name {name!r} may only have ASCII letters, digits, '.', '_' and '-'"
    return None
