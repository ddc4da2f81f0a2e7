"""Java's regular expressions as Python's: `subscribePattern` is written for Java's `Pattern`.

The two agree on most of the syntax. `translate` rewrites what only Java has and rejects what it cannot rewrite, because
Python would read some of it as something else: `[a-z&&[^x]]` is valid in both, and matches other names. Topic names are
ASCII, so the classes of letters (`\\p{Lower}`, `\\p{L}`, `\\p{IsAlphabetic}` …) are those of ASCII.
"""

from __future__ import annotations

import re
from typing import Final

from fencepost.errors import ConfigError

_LOWER: Final = "a-z"
_UPPER: Final = "A-Z"
_DIGIT: Final = "0-9"
_PUNCT: Final = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CLASSES: Final = {
    **dict.fromkeys(("lower", "ll", "lowercase"), _LOWER),
    **dict.fromkeys(("upper", "lu", "uppercase"), _UPPER),
    **dict.fromkeys(("alpha", "l", "alphabetic", "letter"), _LOWER + _UPPER),
    **dict.fromkeys(("digit", "n", "nd"), _DIGIT),
    **dict.fromkeys(("alnum", "letterordigit"), _LOWER + _UPPER + _DIGIT),
    "punct": _PUNCT,
    "graph": "!-~",
    "print": " -~",
    "xdigit": "0-9a-fA-F",
    "ascii": r"\x00-\x7f",
}
"""The content of Java's `\\p{…}`, by the name in lower case without `Is` or `java`."""
_SAME: Final = frozenset("AbBdDfnrsStuwWx0123456789")
"""The letters and digits that mean the same behind a backslash."""


def translate(pattern: str) -> re.Pattern[str]:
    """Return Java's expression, compiled for Python. Raise ConfigError, with the place, if that is not possible."""
    translated = _Translation(pattern).result()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, ValueError, OverflowError) as error:  # flags that exclude each other, and huge numbers
        why = getattr(error, "msg", error)
        raise ConfigError(f"subscribePattern={pattern!r} is not a valid expression: {why}") from None


class _Translation:
    """A walk through one expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._in_class = False

    def result(self) -> str:
        found = []
        while self._at < len(self._pattern):
            found.append(self._escaped() if self._sees("\\") else self._plain())
        return "".join(found)

    def _sees(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _taken(self, size: int) -> str:
        self._at += size
        return self._pattern[self._at - size : self._at]

    def _plain(self) -> str:
        if self._in_class:
            if self._sees("[") or self._sees("&&"):
                raise self._unknown("a class inside a class, or the intersection of two (&&)")
            self._in_class = not self._sees("]")
            found = self._taken(1)
            return re.escape(found) if found in "&~|" else found  # doubled, they warn of a future meaning
        if self._sees("["):
            self._in_class = True
            return self._taken(2 if self._sees("[^") else 1)
        if self._sees("(?<") and not (self._sees("(?<=") or self._sees("(?<!")):
            self._taken(3)
            return "(?P<"
        return self._taken(1)

    def _escaped(self) -> str:
        rest = self._pattern[self._at + 1 :]
        if rest.startswith("Q"):
            quoted, _, _ = rest[1:].partition("\\E")
            self._at = min(len(self._pattern), self._at + len(r"\Q") + len(quoted) + len(r"\E"))
            return re.escape(quoted)
        if rest[:1] in ("p", "P"):
            return self._property(rest)
        if rest.startswith("k<"):
            name = self._taken(len(r"\k<") + len(rest[2:].partition(">")[0]) + 1)[3:-1]
            return f"(?P={name})"
        if rest[:1] in ("z", "Z"):  # they differ where a name ends with a newline
            self._taken(2)
            return r"\Z"
        if not rest or (rest[0].isalnum() and rest[0] not in _SAME) or rest.startswith(("x{", "0")):
            raise self._unknown(f"\\{rest[:1]}")
        return self._taken(2)

    def _property(self, rest: str) -> str:
        found = re.match(r"[pP](?:\{(\w+)\}|(\w))", rest)
        given = "" if found is None else found[1] or found[2]
        content = _CLASSES.get(re.sub(r"^(?i:is|java)", "", given).lower())
        if found is None or content is None:
            raise self._unknown(f"\\{rest.partition('}')[0]}}}")
        if rest[0] == "P" and self._in_class:
            raise self._unknown(f"\\P{{{given}}} inside a class")
        self._taken(1 + found.end())
        return content if self._in_class else f"[{'^' if rest[0] == 'P' else ''}{content}]"

    def _unknown(self, what: str) -> ConfigError:
        return ConfigError(
            f"subscribePattern={self._pattern!r}: {what} at position {self._at} is Java's, and this source cannot "
            "translate it to Python. Write it otherwise, or name the topics with subscribe"
        )
