"""Templates to HTML, with numbers, sizes and times as a person reads them: what the command line prints is printed
alike. Everything that a template prints is escaped: names of topics and clients come from strangers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not before the first page

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters.update(number=number, counted=counted, size=size, span=span, moment=moment)
    made.filters["segment"] = lambda text: quote(str(text), safe="")  # a name as one part of a path
    made.filters["without"] = _without
    return made


def render(template: str, **values: Any) -> str:
    """Return a page or a part of one. For a thread: a long table takes milliseconds."""
    return _environment().get_template(template).render(**values)


def _without(parameters: Mapping[str, str], *names: str, **others: str) -> str:
    """Return the query of an address without some parameters and with others."""
    kept = {name: value for name, value in parameters.items() if name not in names and name != "said" and value}
    return urlencode({**kept, **others})


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def number(value: float | None) -> str:
    """Write a count with a comma at each thousand; "-" if it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def counted(count: int, word: str) -> str:
    """Write a count with its noun: 1 group, 2 groups."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float | None) -> str:
    """Write a number of bytes in the largest unit that leaves at least 1."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log2(count)) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.1f} {_UNITS[power]}"


def span(seconds: float | None) -> str:
    """Write a duration in one or two units: 3 min, 2 h 5 min."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    left, words = int(seconds), []
    for length, unit in _SPANS:
        count, left = divmod(left, length)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2])


def moment(timestamp_ms: int | None) -> str:
    """Write a time as the command line does; "-" for none, or for the -1 that means never."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):  # a client may write any timestamp
        return f"{timestamp_ms} ms"
    return when.isoformat(sep=" ", timespec="milliseconds")
