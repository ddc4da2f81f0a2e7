"""Checks of arguments and settings, at the call that gets them, by the argument's name.

An impossible setting is a ConfigError. A call's argument of the wrong type or value is a TypeError or a ValueError, as
everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from operator import index
from typing import Any, Final, ParamSpec, TypeVar

from fencepost.errors import ConfigError
from fencepost.types import NO_TIMESTAMP, Milliseconds, fault_of_topic_name

LIKE_SECONDS: Final = (10**9, 10**10)
"""Timestamps from the first to before the second were meant in seconds: as seconds they are from 2001 to 2286, as
milliseconds from January to April 1970."""

P = ParamSpec("P")
T = TypeVar("T")

# --- arguments of calls ---


def check_topic(name: Any) -> None:
    check_text(name, "topic")
    fault = fault_of_topic_name(name)
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
    if time >= 1 << 63:
        raise ValueError(f"{what} must be milliseconds since 1970 that fit into 64 bits, not {time}")
    if time < NO_TIMESTAMP:
        raise before_1970(what, time)
    if LIKE_SECONDS[0] <= time < LIKE_SECONDS[1]:
        raise in_seconds(what, time)
    return time


def accepted_time(time: Milliseconds) -> Milliseconds | None:
    """Return the time of a record that was read, if it may be sent with it, or None: it gets the present time."""
    try:
        return milliseconds(time, "timestamp")
    except ValueError:
        return None


def before_1970(what: str, time: int) -> ValueError:
    """Return the error for a time that Kafka's producer rejects, too. Only -1 is left, of a record without a time."""
    return ValueError(
        f"{what} must be milliseconds since 1970, and {time} is before: leave it out for the present time"
    )


def in_seconds(what: str, time: int) -> ValueError:
    """Return the error for a time that was surely meant in seconds. As milliseconds it would be in early 1970, and
    retention would delete the record at once."""
    return ValueError(f"{what} must be milliseconds since 1970, and {time} looks like seconds: multiply it by 1000")


def header_pairs(headers: Any) -> list[Any]:
    if isinstance(headers, Mapping | str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a list of (name, value), not {type(headers).__name__}")
    return list(headers)


# --- settings ---


MOST_SECONDS: Final = (2**31 - 1) // 1000
"""Of a time that a request carries: Kafka's protocol has milliseconds in 32 bits there."""


def check_seconds(value: Any, name: str, *, or_zero: bool = False, most: float = float("inf")) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 < value <= most or (or_zero and value == 0)):
        kind = "a number of seconds, 0 or more" if or_zero else "a positive number of seconds"
        limit = f", at most {most} (24 days)" if most == MOST_SECONDS else ""
        raise ConfigError(f"{name}={value!r}: expected {kind}{limit}")


def check_bytes(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 40:
        raise ConfigError(f"{name}={value!r}: expected a positive number of bytes")


def check_callable(value: Any, name: str) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r}: expected a function")


def check_name(value: Any, name: str) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"{name}={value!r}: expected a non-empty str")


def check_known(client: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Reject keywords that `client` does not have, and suggest what the caller may have meant."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{client} has no setting {name!r}{_hint(client, name, known)}")


def _hint(client: str, name: str, known: Iterable[str]) -> str:
    if "servers" in name:
        return f"; the servers are the first argument: {client}('127.0.0.1:9092', …)"
    if "." in name:
        return f"; {client}.from_config takes a dict with Kafka's names"
    return nearest(name, known)


def only_known(client: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that it calls `check_known` first. Type checkers see the function's own signature."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = [name for name in arguments if name != "self"]

        complete = all_given(client)(function)

        @wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
            check_known(client, keywords, known)
            return complete(*arguments, **keywords)

        return checked

    return decorate


def all_given(client: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that a missing argument is an error that shows the call."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        count, by_name = code.co_argcount, code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        first = code.co_varnames[: count - len(function.__defaults__ or ())]
        later = [name for name in by_name if name not in (function.__kwdefaults__ or {})]

        @wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
            missing = [name for name in (*first[len(arguments) :], *later) if name not in keywords]
            if missing:
                call = ", ".join([*(name for name in first if name != "self"), *(f"{name}=…" for name in later)])
                raise ConfigError(f"{client} needs {' and '.join(missing)}: {client}({call})")
            return function(*arguments, **keywords)

        return checked

    return decorate


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` if a known name is close, and otherwise an empty string."""
    import difflib  # loaded only for the hint of an error

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
