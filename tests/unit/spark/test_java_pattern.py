"""Java's regular expressions in `subscribePattern`: translated, or rejected with the place, never misread."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigError
from fencepost.spark.java_pattern import translate

pytestmark = pytest.mark.unit

TOPICS = ("orders", "orders-eu", "orders.v1", "ORDERS", "a+b", "x3", "_tmp", "9")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", "orders orders-eu orders.v1"),  # Java's find, not matches
        ("^orders$", "orders"),
        (r"\Aorders\z", "orders"),
        (r"\Qorders.v\E\d", "orders.v1"),
        (r"^\Qa+b", "a+b"),
        (r"^\p{Lower}+$", "orders"),
        (r"^\p{javaLowerCase}+$", "orders"),
        (r"^\p{IsUppercase}+$", "ORDERS"),
        (r"^\pL\p{Nd}$", "x3"),
        (r"^\P{Alpha}", "_tmp 9"),
        (r"^[\p{Lower}\p{Digit}]+$", "orders x3 9"),
        (r"^[^\p{Alnum}]", "_tmp"),
        (r"\p{Punct}\p{XDigit}", "a+b orders-eu"),
        ("(?i)^orders$", "orders ORDERS"),
        (r"^(?<letter>[a-z])\+", "a+b"),
        (r"(?<first>r)de\k<first>", "orders orders-eu orders.v1"),
        (r"(?<=orders)[-&|~.]", "orders-eu orders.v1"),
        (r"^(?!orders)[a-z]++", "a+b x3"),
    ],
)
def test_common_expressions_match_what_java_finds(pattern: str, found: str) -> None:
    """PIPE-1."""
    assert sorted(topic for topic in TOPICS if translate(pattern).search(topic)) == sorted(found.split())


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("[a-z&&[^x]]3", r"&&.* at position 4"),
        ("[a-d[m-p]]", "a class inside a class.* at position 4"),
        (r"\p{IsGreek}", r"\\p\{IsGreek\} at position 0"),
        (r"a\p{Lower", "at position 1"),
        (r"[\P{Lower}]", "inside a class"),
        (r"\R", r"\\R at position 0"),
        (r"\x{61}", r"\\x at position 0"),
        ("a\\", "at position 1"),
        ("orders(", "is not a valid expression: missing \\)"),
        ("(?u)orders", "is not a valid expression: ASCII and UNICODE flags are incompatible"),
        ("ord(?i)ers", "is not a valid expression: global flags not at the start"),
    ],
)
def test_what_cannot_be_translated_is_rejected_with_its_place(pattern: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        translate(pattern)
