"""A tool that writes the tables of docs/configuration.md: the server's settings, from the code.

python -m tools.settings_table            prints the tables
python -m tools.settings_table --write    puts them into docs/configuration.md
"""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.settings import ServerConfig, file_name
from fencepost.setting import is_live, meaning_of
from tools.section import ROOT, Section

PAGE: Final = ROOT / "docs" / "configuration.md"
_SECTION: Final = Section(PAGE, "<!-- tables: written by tools/settings_table.py -->", "<!-- end of the tables -->")


def tables() -> str:
    server = [_row(field, file_name(field.name)) for field in fields(ServerConfig) if field.name != "listeners"]
    listener = [_row(field, field.name) for field in fields(ListenerConfig) if field.name != "name"]
    head = ["| setting | default | meaning |", "|---|---|---|"]
    of_listeners = ["### A listener: `[listeners.NAME]`", "", *head, *listener]
    return "\n".join(["### The server", "", *head, *server, "", *of_listeners])


def _row(field: Field[Any], name: str) -> str:
    notes = " Applied by a reload." if is_live(field) else ""
    meaning = meaning_of(field).replace("|", "\\|").replace(" None:", " Not set:")
    return f"| `{name}` | {_value(field.default)} | {meaning}{notes} |"


def _value(default: object) -> str:
    if default is None:
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return "`[]`"
    return f"`{default}`" if isinstance(default, int | Path) else f'`"{default}"`'


def page(text: str) -> str:
    """Return the page with current tables."""
    return _SECTION.within(text, tables())


if __name__ == "__main__":
    _SECTION.main(tables)
