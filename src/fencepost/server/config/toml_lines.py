"""A TOML file, and the line of each of its names: `tomllib` parses the values but keeps no lines."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fencepost.errors import ConfigError

Names: TypeAlias = tuple[str, ...]
"""A name with the tables around it."""


class TomlFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} must be UTF-8: {error.reason}") from error
        try:
            self.values: dict[str, Any] = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            reason, _, place = str(error).partition(" (at ")
            line = place.removeprefix("line ").partition(",")[0]
            if not line.isdigit():  # "at end of document"
                line = str(len(self._text.splitlines()))
            raise ConfigError(f"{path}:{line}: {reason}") from error
        self._lines: dict[Names, int] | None = None

    def where(self, names: Names) -> str:
        """Return FILE:LINE of a name, or of the innermost table around it that the file has."""
        if self._lines is None:
            self._lines = name_lines(self._text)
        while names and names not in self._lines:
            names = names[:-1]
        return f"{self.path}:{self._lines[names]}" if names else str(self.path)


def name_lines(text: str) -> dict[Names, int]:
    """Return the line of each name of a valid TOML document.

    Only whole statements make a valid document. So after each line the text so far is parsed: if it is valid, the names
    that are new in it belong to the statement that begins after the previous valid text. Parsing so often is slow, but
    only a mistake needs the lines, and configuration files are short.
    """
    lines = text.splitlines(keepends=True)
    found: dict[Names, int] = {}
    begins: int | None = None
    for number, line in enumerate(lines, 1):
        if begins is None:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begins = number
        try:
            values = tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on
        for names in _names(values):
            found.setdefault(names, begins)
        begins = None
    return found


def _names(table: Mapping[str, Any], around: Names = ()) -> Iterator[Names]:
    for name, value in table.items():
        yield (*around, name)
        if isinstance(value, dict):
            yield from _names(value, (*around, name))
