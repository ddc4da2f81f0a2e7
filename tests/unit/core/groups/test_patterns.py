"""Patterns over topic names: they match what `re` says they match, and no pattern takes long."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from fencepost.core.groups import patterns as module
from fencepost.core.groups.patterns import BadPattern, TopicPattern, matching

pytestmark = pytest.mark.unit

ATOMS = ["a", "b", "ab", ".", "[ab]", "[^a]", "[a-c_-]", r"\d", r"\w", r"\W", r"\.", "-"]
EDGES = ["", "^", "$", r"\A"]
QUANTIFIERS = ["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,}", "{0,2}", "{1,3}?"]


def any_pattern(chance: random.Random, depth: int = 3, *, repeats: bool = True) -> str:
    """A pattern as both `re` and RE2 know it. No repetitions within repetitions, or `re` would not come to an end."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        quantifier = chance.choice(QUANTIFIERS) if repeats else ""
        if depth and chance.random() < 0.4:
            inside = any_pattern(chance, depth - 1, repeats=repeats and not quantifier)
            name = f"x{chance.randrange(10**9)}"
            parts.append(chance.choice([f"({inside})", f"(?:{inside})", f"(?P<{name}>{inside})"]) + quantifier)
        elif repeats and chance.random() < 0.2:
            parts.append(chance.choice(EDGES))
        else:
            parts.append(chance.choice(ATOMS) + quantifier)
    return chance.choice(["", "|"]).join(parts)


@pytest.mark.parametrize("seed", range(10))
def test_patterns_match_what_re_says_they_match(seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(100):
        pattern = chance.choice(["", "", "(?i)"]) + any_pattern(chance)
        ours = TopicPattern(pattern)
        for _ in range(20):
            name = "".join(chance.choices("abcA1._-", k=chance.randint(0, 7)))
            assert ours.matches(name) == (re.fullmatch(pattern, name) is not None), (pattern, name)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|ab?)*b", "((a*)+b?){2}", "(a?b){1,3}(b|$)+", "(^a*|b){2,}", "(|a)+b$"]
)
def test_repetitions_within_repetitions_match_what_re_says_they_match(pattern: str) -> None:
    ours = TopicPattern(pattern)
    for size in range(6):
        for name in map("".join, product("ab", repeat=size)):
            assert ours.matches(name) == (re.fullmatch(pattern, name) is not None), name


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(a*)*(a*)*b", "a*a*a*a*a*a*a*a*a*a*b", "(.*.*.*)*b", "(a?){100}a{100}b"],
)
def test_no_pattern_has_more_to_do_than_its_steps_at_every_character(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`re` would need years for some of these."""
    moves = 0
    move = TopicPattern._move

    def counted(self: TopicPattern, places: frozenset[int], character: str) -> frozenset[int]:
        nonlocal moves
        moves += 1
        return move(self, places, character)

    monkeypatch.setattr(TopicPattern, "_move", counted)
    found = TopicPattern(pattern)
    assert not found.matches("a" * 249)
    assert moves <= 249
    assert found.matches("a" * 200 + "b")


@pytest.mark.parametrize(
    "pattern",
    [
        "a(",
        "a)",
        "[a",
        "[]",
        "[b-a]",
        "*a",
        "a**",
        "a*+",
        "a{3,2}",
        "a{1001}",
        "a{1001,}",
        "a{999}b{999}",
        "((a{10}){10}){20}",
        "(" * 60 + ")" * 60,
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        "(?=a)a",
        "(?!a)b",
        "(?<=a)b",
        "(?s)a",
        "a(?i)b",
        r"\ba",
        r"\p{L}",
        "[[:alpha:]]",
        "a\\",
        "^*",
    ],
)
def test_what_is_broken_or_not_known_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        TopicPattern(pattern)
    assert matching(pattern, ["a", "b"]) == frozenset()


def test_a_repetition_of_nothing_costs_nothing() -> None:
    nothing = "()"
    for _ in range(40):
        nothing = f"({nothing}{{1000}})"
    assert TopicPattern(nothing + "a").matches("a")


def test_what_is_remembered_of_a_patterns_moves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PLACES_KEPT", 50)
    found = TopicPattern("(.*a.{5})|x{3}")
    chance = random.Random(1)
    for _ in range(200):
        name = "".join(chance.choices("abx", k=12))
        assert found.matches(name) == (re.fullmatch("(.*a.{5})|x{3}", name) is not None)
        assert sum(len(after) for after in found._moves.values()) <= 100
