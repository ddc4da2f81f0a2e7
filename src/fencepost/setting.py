"""Self-documenting settings: dataclass fields with a one-line meaning, and the list of them that `help` shows."""

from __future__ import annotations

import textwrap
from dataclasses import Field, field, fields
from typing import Any, TypeVar

T = TypeVar("T")

_MEANING = "meaning"
_LIVE = "live"


def setting(default: T, meaning: str, *, live: bool = False) -> T:
    """Return a dataclass field with a default and a meaning that `settings_help` prints.

    `live`: a running server can apply a change.
    """
    return field(default=default, metadata={_MEANING: meaning, _LIVE: live})


def is_live(option: Field[Any]) -> bool:
    return bool(option.metadata.get(_LIVE))


def meaning_of(option: Field[Any]) -> str:
    return str(option.metadata.get(_MEANING, ""))


def settings_help(options: type[Any]) -> str:
    """Return one entry per setting of the dataclass `options`: its name, type, default and meaning."""
    entries = []
    for each in fields(options):
        entries.append(f"{each.name}: {each.type} = {each.default!r}")
        entries.append(textwrap.fill(meaning_of(each), 100, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(entries)


def settings_doc(options: type[Any], text: str | None) -> str:
    """Return the docstring `text` with the list of settings behind it."""
    return f"{textwrap.dedent(text or '').strip()}\n\nSettings:\n\n{settings_help(options)}\n"
