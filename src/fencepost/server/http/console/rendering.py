"""Templates to HTML. Everything that a template prints is escaped: names of topics and clients come from strangers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fencepost.server.http.console.words import FILTERS

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
    made.filters.update(FILTERS)
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
