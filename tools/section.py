"""A part of a page that a tool writes, between two comments; everything else on the page is written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Section(NamedTuple):
    page: Path
    begin: str
    end: str

    def within(self, text: str, content: str) -> str:
        """Return the page's text with `content` in this part."""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"{self.page} has no place for it between {self.begin} and {self.end}")
        return f"{before}{begin}\n\n{content}\n\n{end}{after}"

    def write(self, content: str) -> None:
        self.page.write_text(self.within(self.page.read_text(encoding="utf-8"), content), encoding="utf-8")

    def main(self, content: Callable[[], str]) -> None:
        """Print the content, or with `--write` put it into the page."""
        if sys.argv[1:] == ["--write"]:
            self.write(content())
        else:
            print(content())
