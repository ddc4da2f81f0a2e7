"""Regular expressions in RE2's syntax, which match in linear time whatever a client sends."""

from __future__ import annotations

from typing import Any


class BadExpression(Exception):
    """The expression is not valid, or needs too much memory; the message says why."""


class NoRegexEngine(Exception):
    """The google-re2 package is not installed."""


def compile_bytes(expression: bytes, max_memory: int) -> Any:
    """Return a compiled expression for bytes, which works without the GIL. `max_memory`: of its program and caches.
    Raise BadExpression or NoRegexEngine."""
    try:
        import re2  # here, because few processes need it
    except ImportError as error:
        raise NoRegexEngine from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_memory
    options.never_capture = True  # much faster, and nobody asks for the groups
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        raise BadExpression(error.args[0].decode(errors="replace") if error.args else "it is too large") from None
