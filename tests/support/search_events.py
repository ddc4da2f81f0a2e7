"""The record browser as a program sees it: the events of a search."""

from __future__ import annotations

import html
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlencode


class Event(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> str:
        """The text without tags, on one line."""
        return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", self.text))).strip()

    @property
    def rows(self) -> list[str]:
        """The ids of the records, as PARTITION-OFFSET."""
        return re.findall(r'<tr id="r(\d+-\d+)"', self.text)


def events(url: str, topic: str, headers: Any = None, **query: object) -> Iterator[Event]:
    """Yield the events of a search; closing the iterator closes the stream."""
    address = f"{url}/live/topics/{topic}/records?{urlencode({key.rstrip('_'): value for key, value in query.items()})}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(address, headers=dict(headers or {})), timeout=60) as answer:
        name, lines = "", []
        for line in answer:
            text = line.decode().removesuffix("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                lines.append(text.removeprefix("data: "))
            elif not text and name:
                yield Event(name, "\n".join(lines))
                name, lines = "", []


class Found(NamedTuple):
    rows: list[str]
    end: str
    """What the search says at its end."""
    go: str | None
    """Where it can go on, if it has not searched everything."""


def search(url: str, topic: str, headers: Any = None, **query: object) -> Found:
    """Search to the end."""
    rows: list[str] = []
    with closing(events(url, topic, headers, **query)) as heard:  # type: ignore[type-var]
        for event in heard:
            rows += event.rows
            if event.name == "end":
                found = re.search(r"go=([\d%A-F]+)", event.text)
                return Found(rows, event.words, found[1].replace("%3A", ":") if found else None)
    raise AssertionError("the stream ended before the search")


def lines_of(text: str) -> tuple[list[Any], Any]:
    """Return the records of a file with JSON lines, and what its last line says about the search."""
    *records, last = [json.loads(line) for line in text.splitlines()]
    return records, last["search"]
