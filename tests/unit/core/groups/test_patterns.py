"""Patterns over names: they match what `re` says they match, accept what RE2 accepts, and never take long."""

from __future__ import annotations

import random
import re
import sys
from itertools import product

import pytest

from fencepost.core.groups.patterns import BadPattern, matching, name_matcher

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
        ours = name_matcher(pattern)
        for _ in range(20):
            name = "".join(chance.choices("abcA1._-", k=chance.randint(0, 7)))
            assert ours(name) == (re.fullmatch(pattern, name) is not None), (pattern, name)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|ab?)*b", "((a*)+b?){2}", "(a?b){1,3}(b|$)+", "(^a*|b){2,}", "(|a)+b$"]
)
def test_repetitions_within_repetitions_match_what_re_says_they_match(pattern: str) -> None:
    ours = name_matcher(pattern)
    for size in range(6):
        for name in map("".join, product("ab", repeat=size)):
            assert ours(name) == (re.fullmatch(pattern, name) is not None), name


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(a*)*(a*)*b", "a*a*a*a*a*a*a*a*a*a*b", "(.*.*.*)*b", "(a?){100}a{100}b"],
)
def test_a_pattern_that_backtracks_elsewhere_is_matched_at_once(pattern: str) -> None:
    """Python's `re` would need years for some of these: the suite's time limit would end it."""
    matches = name_matcher(pattern)
    assert not matches("a" * 249)
    assert matches("a" * 200 + "b")


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
        "((a{10}){10}){20}",
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        "(?=a)a",
        "(?!a)b",
        "(?<=a)b",
        "a\\",
        "a" * 100_000,
        r"\p{L}{500}",
    ],
)
def test_a_broken_unsupported_or_too_large_pattern_is_rejected(pattern: str) -> None:
    with pytest.raises(BadPattern):
        name_matcher(pattern)
    assert matching(pattern, ["a", "b"]) == frozenset()


def test_a_rejected_pattern_is_told_what_is_wrong_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadPattern, match=r"^missing \): a\($"):
        name_matcher("a(")
    assert capfd.readouterr() == ("", ""), "RE2 logs nothing of its own"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(?s)a", "a"),
        ("a(?i)b", "aB"),
        (r"\ba\b", "a"),
        (r"\p{L}+", "aé"),
        ("[[:alpha:]]+", "ab"),
        ("^*a", "a"),
        ("(?<x>a)", "a"),
        (r"\Qa.b\E", "a.b"),
        ("a{999}b{999}", "a" * 999 + "b" * 999),
        ("(" * 60 + ")" * 60, ""),
        ("", ""),
        ("|".join(f"topic-{number}" for number in range(1000)), "topic-999"),
    ],
)
def test_what_kafkas_re2_accepts_is_accepted(pattern: str, name: str) -> None:
    assert matching(pattern, [name, "--"]) == {name}


def test_a_pattern_matches_whole_names_only() -> None:
    assert matching("b", ["b", "ab", "bc", "b\n", ""]) == {"b"}
    assert matching("b$", ["b", "b\n"]) == {"b"}


def test_a_repetition_of_nothing_costs_nothing() -> None:
    nothing = "()"
    for _ in range(40):
        nothing = f"({nothing}{{2}})"
    with pytest.raises(BadPattern):
        name_matcher(nothing + "a")  # RE2 counts the repetitions before it sees that they repeat nothing
    assert name_matcher("(((){10}){10}){10}a")("a")


def test_without_google_re2_a_pattern_is_rejected_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(BadPattern, match="google-re2"):
        name_matcher("a-pattern-that-no-other-test-uses")
