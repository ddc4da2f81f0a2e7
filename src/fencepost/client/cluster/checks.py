"""Checks of arguments and settings, at the call that gets them, by the argument's name.

An impossible setting is a ConfigError. A call's argument of the wrong type or value is a TypeError or a ValueError, as
everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from fencepost.core.topic_name import fault_of
from fencepost.errors import ConfigError
from fencepost.types import Milliseconds

# --- arguments of calls ---


def check_topic(name: Any) -> None:
    check_text(name, "topic")
    fault = fault_of(name)
    if fault is not None:
        raise ValueError(fault)


def check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")


def check_names(names: Any, what: str) -> list[str]:
    """Return the names as a list. Reject a single str, which would count as a list of letters."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{what} must be a list of names, not a single name")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"{what} must be a list of names (str), but contains {name!r}")
    return listed


def whole_number(value: Any, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}") from None


def milliseconds(value: Any, what: str) -> Milliseconds:
    """Return a time as Kafka stores it, in 64 bits."""
    time = whole_number(value, what)
    if not -(1 << 63) <= time < 1 << 63:
        raise ValueError(f"{what} must be milliseconds since 1970 that fit into 64 bits, not {time}")
    return time


def header_pairs(headers: Any) -> list[Any]:
    if isinstance(headers, Mapping | str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a list of (name, value), not {type(headers).__name__}")
    return list(headers)


# --- settings ---


def check_seconds(value: Any, name: str, *, or_zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 or (or_zero and value == 0)):
        kind = "a number of seconds, 0 or more" if or_zero else "a positive number of seconds"
        raise ConfigError(f"{name}={value!r}: expected {kind}")


def check_bytes(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 40:
        raise ConfigError(f"{name}={value!r}: expected a positive number of bytes")


def check_callable(value: Any, name: str) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r}: expected a function")


def check_name(value: Any, name: str) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"{name}={value!r}: expected a non-empty str")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` if a known name is close, and otherwise an empty string."""
    import difflib  # loaded only for the hint of an error

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
