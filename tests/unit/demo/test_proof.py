"""The demo's count would notice a loss, a double and a late write of a fenced writer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fencepost.demo.orders import number_of, order
from fencepost.demo.proof import count, judge_takeover

pytestmark = pytest.mark.unit

WHOLE = [(number % 3, number) for number in range(30)]


@pytest.mark.parametrize(
    ("found", "lost", "doubled", "disordered"),
    [
        (WHOLE[:-1], 1, 0, 0),
        ([*WHOLE, WHOLE[-1]], 0, 1, 0),
        ([WHOLE[3], WHOLE[0], *WHOLE[1:3], *WHOLE[4:]], 0, 0, 1),
        ([*WHOLE, (0, 30)], 0, 0, 1),
        ([*WHOLE[:-1], WHOLE[0]], 1, 1, 1),
        ([], 30, 0, 0),
    ],
    ids=["lost", "doubled", "out of order", "never sent", "doubled instead of lost", "nothing there"],
)
def test_the_count_notices_what_is_wrong(
    found: list[tuple[int, int]], lost: int, doubled: int, disordered: int
) -> None:
    counted = count("orders", 30, found)
    assert (counted.found, counted.lost, counted.doubled, counted.disordered) == (len(found), lost, doubled, disordered)
    assert not counted.holds


def test_the_count_is_content_with_every_number_once() -> None:
    assert count("orders", 30, WHOLE).holds


def test_an_orders_number_is_found_in_what_was_written_and_in_sparks_output() -> None:
    assert [number_of(order(number)[1]) for number in (0, 7, 999_999)] == [0, 7, 999_999]
    assert number_of(b'{"seen":"2026","order":42}') == 42


LEDGER = [("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 1)]
TOLD = {"acknowledged": 2, "unknown": 1, "refused": 5, "successor": 2}


@pytest.mark.parametrize("lines", [LEDGER, [*LEDGER[:2], *LEDGER[3:]]], ids=["in doubt: there", "in doubt: not there"])
def test_a_take_over_holds_whatever_became_of_what_was_in_doubt(lines: list[tuple[str, int]]) -> None:
    """OWN-9"""
    assert judge_takeover(lines, **TOLD).holds


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([*LEDGER[:4], ("A", 3), LEDGER[4]], {}),
        (LEDGER[1:], {}),
        ([LEDGER[0], *LEDGER], {}),
        (LEDGER[:4], {}),
        ([*LEDGER, ("B", 1)], {}),
        (LEDGER, {"refused": 0}),
        (LEDGER, {"unknown": 0}),
    ],
    ids=[
        "late",
        "the first one's is lost",
        "the first one's is doubled",
        "the successor's is lost",
        "the successor's is doubled",
        "nothing was refused",
        "one more than was acknowledged",
    ],
)
def test_a_take_over_does_not_hold_when_something_is_wrong(lines: list[tuple[str, int]], told: dict[str, int]) -> None:
    """OWN-9"""
    judged = judge_takeover(lines, **{**TOLD, **told})
    assert not judged.holds, dataclasses.asdict(judged)


def test_what_was_told_is_kept_in_the_verdict() -> None:
    judged: dict[str, Any] = dataclasses.asdict(judge_takeover(LEDGER, **TOLD))
    assert TOLD.items() <= judged.items()
