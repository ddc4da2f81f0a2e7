"""Regular expressions over names, matched in a time that grows with the name and the pattern, and never explodes.

A member of a group sends a pattern, and the server matches it on its loop. Python's `re` tries one way after the other:
for (a+)+b there are more of them than anybody can wait for. Kafka uses RE2, which goes all ways at once; so does this,
for the part of RE2's syntax that makes sense over names of topics and of transactional ids:

    x  .  [a-z]  [^a-z]  \\d  \\w  \\s  \\D  \\W  \\S  \\. and the like
    (…)  (?:…)  (?P<name>…)  |  *  +  ?  {2}  {2,}  {2,5}  ^  $  \\A  \\z  and (?i) in front of everything

References, assertions, word boundaries and named character classes are refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

_OTHER: Final = "\N{REPLACEMENT CHARACTER}"
_ALPHABET: Final = frozenset(map(chr, range(0x20, 0x7F))) | {_OTHER}
"""What a name is made of: a set of characters is a set of these. `_OTHER` stands for all that is not ASCII."""
_MOST_STEPS: Final = 500
"""Of a pattern, with its repetitions written out."""
_MOST_REPETITIONS: Final = 1000
_DEEPEST: Final = 50
_MOST_PLACES_KEPT: Final = 20_000
"""In what a pattern remembers of its moves: a megabyte or two, whatever the pattern."""
_QUANTIFIER: Final = re.compile(r"[*+?]|\{(\d{1,4})(,(\d{1,4})?)?\}")
_GROUP_HEAD: Final = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>")
_CLASSES: Final = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(" "),
}


class BadPattern(Exception):
    """There is no such pattern; the message says why."""


# --- what a pattern is made of ---


@dataclass(frozen=True, slots=True)
class _One:
    """One character out of these."""

    of: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Edge:
    """Nothing, at the beginning or the end of the name."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node: TypeAlias = _One | _Edge | _Row | _Either | _Repeat


class _Parser:
    def __init__(self, text: str) -> None:
        self._ignores_case = text.startswith("(?i)")
        self._text = text.removeprefix("(?i)")
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        found = self._either()
        if self._at < len(self._text):
            raise BadPattern("a ')' without its '('")
        return found

    def _next(self) -> str:
        """The next character, which is taken; empty at the end."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _sees(self, character: str) -> bool:
        return self._text.startswith(character, self._at)

    def _either(self) -> _Node:
        parts = [self._row()]
        while self._sees("|"):
            self._at += 1
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def _row(self) -> _Node:
        parts = []
        while self._at < len(self._text) and not self._sees("|") and not self._sees(")"):
            parts.append(self._repeated(self._atom()))
        return _Row(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
        quantifier = self._quantifier()
        if quantifier is None:
            return part
        if isinstance(part, _Edge):
            raise BadPattern("a repetition of nothing")
        if self._sees("?"):
            self._at += 1  # how much is taken first makes no difference to whether the whole matches
        if self._quantifier() is not None:
            raise BadPattern("a repetition of a repetition needs brackets")
        least, most = quantifier
        if not least <= (least if most is None else most) <= _MOST_REPETITIONS:
            raise BadPattern(f"a repetition is from few to many, and at most {_MOST_REPETITIONS} times")
        return _Repeat(part, least, most)

    def _quantifier(self) -> tuple[int, int | None] | None:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        sign, (least, comma, most) = found[0], found.groups()
        if sign in "*+?":
            return int(sign == "+"), 1 if sign == "?" else None
        return int(least), int(most) if most else None if comma else int(least)

    def _atom(self) -> _Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set()
            case ".":
                return _One(_ALPHABET)
            case "^" | "$":
                return _Edge(at_end=character == "$")
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat before {character!r}")
            case "\\" if self._sees("A") or self._sees("z"):
                return _Edge(at_end=self._next() == "z")
            case "\\":
                return _One(self._folded(self._escaped()))
        return _One(self._folded({character}))

    def _group(self) -> _Node:
        head = _GROUP_HEAD.match(self._text, self._at)
        if head is not None:
            self._at = head.end()
        elif self._sees("?"):
            raise BadPattern("only (…), (?:…) and (?P<name>…) are known, and (?i) in front of everything")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadPattern(f"more than {_DEEPEST} brackets inside each other")
        found = self._either()
        if self._next() != ")":
            raise BadPattern("a '(' without its ')'")
        self._depth -= 1
        return found

    def _escaped(self) -> frozenset[str]:
        """What a backslash makes of the character behind it."""
        character = self._next()
        if (known := _CLASSES.get(character)) is not None:
            return known
        if (known := _CLASSES.get(character.lower())) is not None:
            return _ALPHABET - known
        if not character or character.isalnum():
            raise BadPattern(f"'\\{character}' is not known")
        return frozenset(character)

    def _set(self) -> _Node:
        negated = self._sees("^")
        self._at += negated
        found: set[str] = set()
        first = True
        while first or not self._sees("]"):
            first = False
            found |= self._set_item()
        self._at += 1
        folded = self._folded(found)
        return _One(_ALPHABET - folded if negated else folded)

    def _set_item(self) -> frozenset[str]:
        if self._sees("[:"):
            raise BadPattern("named classes of characters are not known")
        low = self._set_member()
        if len(low) != 1 or not self._sees("-") or self._text.startswith("]", self._at + 1):
            return low
        self._at += 1
        high = self._set_member()
        if len(high) != 1 or max(low) > max(high):
            raise BadPattern("a range goes from one character to a later one")
        return frozenset(character for character in _ALPHABET if max(low) <= character <= max(high))

    def _set_member(self) -> frozenset[str]:
        character = self._next()
        if not character:
            raise BadPattern("a '[' without its ']'")
        return self._escaped() if character == "\\" else frozenset(character)

    def _folded(self, characters: Iterable[str]) -> frozenset[str]:
        if not self._ignores_case:
            return frozenset(characters)
        return frozenset(form for character in characters for form in (character.lower(), character.upper()))


# --- matching ---

_DONE: Final = -1


@dataclass(slots=True)
class _Step:
    """A place in the pattern, and where to go from here: over one character, over an edge, or just so."""

    over: _One | _Edge | None
    then: tuple[int, ...]


_Places: TypeAlias = frozenset[int]


class TopicPattern:
    """A pattern that is matched by going all ways at once: where one can be after each character is a set of places."""

    def __init__(self, pattern: str) -> None:
        self._steps: list[_Step] = []
        self._moves: dict[tuple[_Places, str], _Places] = {}
        """Where each character leads from each set of places, as far as names have asked: most ask the same."""
        self._kept = 0
        begin = self._add(_Parser(pattern).parse(), _DONE)
        self._begin = self._reach({begin}, _Edge(at_end=False))

    def matches(self, name: str) -> bool:
        """Does the pattern match all of the name?"""
        places = self._begin
        for character in name:
            if not places:
                return False
            after = self._moves.get((places, character))
            if after is None:
                after = self._move(places, character)
            places = after
        at_edges = (_Edge(at_end=True),) if name else (_Edge(at_end=True), _Edge(at_end=False))
        return _DONE in self._reach(places, *at_edges)

    def _add(self, node: _Node, then: int) -> int:
        """Lays out `node` in front of the place `then`; the place where it begins."""
        match node:
            case _One() | _Edge():
                return self._place(_Step(node, (then,)))
            case _Row(parts):
                for part in reversed(parts):
                    then = self._add(part, then)
                return then
            case _Either(parts):
                return self._place(_Step(None, tuple(self._add(part, then) for part in parts)))
            case _Repeat(part, least, most):
                if most is None:
                    again = _Step(None, ())
                    place = self._place(again)
                    again.then = (self._add(part, place), then)
                    then = place
                for _ in range((most or least) - least):
                    then = self._place(_Step(None, (self._add(part, then), then)))
                for _ in range(least):
                    before, then = then, self._add(part, then)
                    if then == before:
                        break  # nothing, however often
        return then

    def _place(self, step: _Step) -> int:
        if len(self._steps) >= _MOST_STEPS:
            raise BadPattern(f"longer than {_MOST_STEPS} steps, with its repetitions written out")
        self._steps.append(step)
        return len(self._steps) - 1

    def _move(self, places: _Places, character: str) -> _Places:
        entered: set[int] = set()
        is_other = character not in _ALPHABET
        for place in places:
            if place != _DONE:
                step = self._steps[place]
                if isinstance(step.over, _One) and (character in step.over.of or (is_other and _OTHER in step.over.of)):
                    entered.update(step.then)
        after = self._reach(entered)
        self._kept += len(after)
        if self._kept > _MOST_PLACES_KEPT:
            self._moves.clear()
            self._kept = len(after)
        self._moves[places, character] = after
        return after

    def _reach(self, places: Iterable[int], *at_edges: _Edge) -> _Places:
        """These places and all that can be reached from them without a character."""
        reached = set(places)
        todo = list(reached)
        while todo:
            place = todo.pop()
            if place == _DONE:
                continue
            step = self._steps[place]
            if step.over is None or step.over in at_edges:
                new = set(step.then) - reached
                reached |= new
                todo += new
        return frozenset(reached)


@lru_cache(maxsize=64)
def topic_pattern(pattern: str) -> TopicPattern:
    """BadPattern if it is none."""
    return TopicPattern(pattern)


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the pattern matches. One that is refused matches none: an earlier version may have taken it."""
    try:
        found = topic_pattern(pattern)
    except BadPattern:
        return frozenset()
    return frozenset(name for name in names if found.matches(name))
