"""The metrics and labels that a PromQL query names. No parser of the language: it knows the forms that our queries
have, and refuses anything else."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_:$][\w:$.]*)|(\d+(?:\.\d+)?[smhd]?)|(=~|!~|!=|==|>=|<=|.))')
_FUNCTIONS = {"rate", "increase", "delta", "min_over_time", "histogram_quantile", "time", "sum", "topk", "label_values"}
_WORDS = {"and", "or", "unless", "by"}


class Selector(NamedTuple):
    metric: str
    labels: frozenset[str]


class Query(NamedTuple):
    selectors: list[Selector]
    grouped: set[str]
    """Labels after `by`."""


def read_query(text: str) -> Query:
    tokens = [next(part for part in match.groups() if part is not None) for match in _TOKEN.finditer(text.strip())]
    selectors: list[Selector] = []
    grouped: set[str] = set()
    at = 0

    def until(end: str) -> list[str]:
        nonlocal at
        start = at
        while tokens[at] != end:
            at += 1
        at += 1
        return tokens[start : at - 1]

    while at < len(tokens):
        token = tokens[at]
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token == "by":
            assert following == "(", text
            at += 1
            grouped.update(name for name in until(")") if name != ",")
        elif token == "[":
            until("]")
        elif token == "label_values":
            at += 1
            *_, label = until(")")
            grouped.add(label)
            match = re.search(r"label_values\((\w+)", text)
            assert match is not None
            selectors.append(Selector(match[1], frozenset(re.findall(r"[{,](\w+)=", text))))
        elif re.fullmatch(r"[A-Za-z_:][\w:]*", token):
            if token in _WORDS:
                continue
            if following in ("(", "by"):
                assert token in _FUNCTIONS, f"{token} in {text}: a function that this test does not know"
                continue
            labels: list[str] = []
            if following == "{":
                at += 1
                within = until("}")
                labels = [name for name, sign in pairwise(within) if sign in ("=", "=~", "!=", "!~")]
                assert labels, text
            selectors.append(Selector(token, frozenset(labels)))
        else:
            assert re.fullmatch(r"[-+*/(),<>]|==|>=|<=|!=|\d[\w.]*", token), f"{token!r} in {text}"
    assert selectors, text
    return Query(selectors, grouped)
