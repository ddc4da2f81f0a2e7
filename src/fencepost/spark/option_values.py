"""The values of Spark's options, which arrive as text: each parser takes the text and the option's name."""

from __future__ import annotations

from typing import Final

from fencepost.errors import ConfigError

_LONGEST: Final = 7 * 24 * 3600.0


def whole(value: str, name: str) -> int:
    """Parse a whole number."""
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: expected a whole number") from None


def count(value: str, name: str) -> int:
    """Parse a number of things, of which there is at least one."""
    number = whole(value, name)
    if number < 1:
        raise ConfigError(f"{name}={number}: expected 1 or more")
    return number


def size(value: str, name: str) -> int:
    """Parse a number of bytes."""
    number = whole(value, name)
    if number < 0:
        raise ConfigError(f"{name}={number}: expected 0 or more bytes")
    return number


def seconds(value: str, name: str) -> float:
    """Parse a time in seconds."""
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _LONGEST:
        raise ConfigError(f"{name}={value!r}: expected a number of seconds, from 0 to a week")
    return found


def truth(value: str, name: str) -> bool:
    """Parse `true` or `false`."""
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={value!r}: expected true or false")
    return value.lower() == "true"
