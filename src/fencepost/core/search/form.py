"""The form of a search: the parameters of its address, so that every search is a link.

partition                        a number; none: all
from, at                         earliest | last N | offset N | time T
until, stop                      now | follow | offset N | time T
key, value, header, header_value texts that records must contain; a header has its whole name
json                             a test of `json_path`
isolation                        committed | all
limit                            matches after which the search stops
go                               PARTITION:OFFSET, where an earlier search has stopped
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from fencepost.core.search.json_path import BadPath, JsonTest, parse_test
from fencepost.types import Milliseconds

StartKind = Literal["earliest", "last", "offset", "time"]
StopKind = Literal["now", "follow", "offset", "time"]
Isolation = Literal["committed", "all"]
Choice = TypeVar("Choice", bound=str)

DEFAULT_LAST: Final = 20
DEFAULT_LIMIT: Final = 100
MOST_MATCHES: Final = 500
_MAX_TEXT_CHARACTERS: Final = 1000
"""Characters of a text."""
_MAX_OFFSET: Final = 2**63 - 1
_MAX_PARTITION: Final = 2**31 - 1
FIELDS: Final = (
    "partition", "from", "at", "until", "stop", "key", "value", "header", "header_value", "json", "isolation", "limit",
    "go",
)  # fmt: skip
_NUMBERS: Final = {"last": "a number of records", "offset": "an offset"}


class BadSearch(Exception):
    """A parameter is wrong; the text says which, and what was expected."""


class SearchStart(NamedTuple):
    kind: StartKind
    number: int = 0
    """Records from the end, an offset, or milliseconds since 1970."""


class SearchStop(NamedTuple):
    kind: StopKind
    number: int = 0


class LogPlace(NamedTuple):
    partition: int
    offset: int


class SearchForm(NamedTuple):
    partition: int | None = None
    start: SearchStart = SearchStart("last", DEFAULT_LAST)
    stop: SearchStop = SearchStop("now")
    key: str = ""
    value: str = ""
    header: str = ""
    """The name of a header that the record must have."""
    header_value: str = ""
    json: JsonTest | None = None
    committed: bool = True
    """Only records of committed transactions, and of none."""
    limit: int = DEFAULT_LIMIT
    go: LogPlace | None = None

    @property
    def has_tests(self) -> bool:
        """Not every record of the range matches."""
        return bool(self.key or self.value or self.header or self.header_value or self.json is not None)

    @property
    def follows(self) -> bool:
        return self.stop.kind == "follow"


def parse_form(query: Mapping[str, str]) -> SearchForm:
    """Return the search that the parameters describe, or raise BadSearch. Parameters of other things are ignored."""
    given = {name: query[name].strip() if name not in ("key", "value", "header_value") else query[name]
             for name in FIELDS if query.get(name)}  # fmt: skip
    for name, text in given.items():
        if len(text) > _MAX_TEXT_CHARACTERS:
            raise BadSearch(f"{name} must have at most {_MAX_TEXT_CHARACTERS} characters, not {len(text)}")
    start = _choice(given, "from", "last", get_args(StartKind))
    stop = _choice(given, "until", "now", get_args(StopKind))
    partition = given.get("partition")
    try:
        json = parse_test(given["json"]) if "json" in given else None
    except BadPath as error:
        raise BadSearch(str(error)) from None
    return SearchForm(
        None if partition is None else _number(partition, "partition", "the number of a partition", _MAX_PARTITION),
        SearchStart(start, _place(given, start, "at", DEFAULT_LAST)),
        SearchStop(stop, _place(given, stop, "stop", None)),
        given.get("key", ""),
        given.get("value", ""),
        given.get("header", ""),
        given.get("header_value", ""),
        json,
        _choice(given, "isolation", "committed", get_args(Isolation)) == "committed",
        _limit(given),
        _go(given),
    )


def parse_time(text: str) -> Milliseconds:
    """Return a time in milliseconds since 1970, or raise BadSearch. A time without a zone is one of the server's."""
    if re.fullmatch("[0-9]{13}", text):
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise BadSearch(f"a time must be one like 2026-11-15T08:00:00+01:00, not {text[:40]!r}") from None


def _choice(given: Mapping[str, str], name: str, default: Choice, known: tuple[Choice, ...]) -> Choice:
    text = given.get(name, default)
    for each in known:
        if each == text:
            return each
    raise BadSearch(f"{name} must be one of {', '.join(known)}, not {text[:20]!r}")


def _place(given: Mapping[str, str], kind: str, name: str, default: int | None) -> int:
    if kind == "time":
        if name not in given:
            raise BadSearch("a time is missing, such as 2026-11-15T08:00:00+01:00")
        return parse_time(given[name])
    if kind not in _NUMBERS:
        return 0
    if name in given:
        return _number(given[name], name, _NUMBERS[kind], _MAX_OFFSET)
    if default is None or kind == "offset":
        raise BadSearch(f"{_NUMBERS[kind]} is missing")
    return default


def _number(text: str, name: str, what: str, most: int) -> int:
    plain = text.replace(",", "").replace("_", "")
    if not re.fullmatch("[0-9]{1,19}", plain) or int(plain) > most:
        raise BadSearch(f"{name} must be {what}, not {text[:30]!r}")
    return int(plain)


def _limit(given: Mapping[str, str]) -> int:
    limit = _number(given.get("limit", str(DEFAULT_LIMIT)), "limit", f"a number from 1 to {MOST_MATCHES}", MOST_MATCHES)
    if not limit:
        raise BadSearch(f"limit must be a number from 1 to {MOST_MATCHES}, not '0'")
    return limit


def _go(given: Mapping[str, str]) -> LogPlace | None:
    if "go" not in given:
        return None
    partition, colon, offset = given["go"].partition(":")
    if not colon:
        raise BadSearch(f"go must be PARTITION:OFFSET, not {given['go'][:30]!r}")
    what = "PARTITION:OFFSET, two numbers"
    return LogPlace(_number(partition, "go", what, _MAX_PARTITION), _number(offset, "go", what, _MAX_OFFSET))
