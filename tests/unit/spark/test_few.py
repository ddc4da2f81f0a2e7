"""The guess whether a micro-batch has a few rows."""

from __future__ import annotations

import pytest

from fencepost.spark.few import ROWS, FewRowsGuess

pytestmark = pytest.mark.unit


def test_a_few_rows_are_expected_after_a_few_that_the_driver_published() -> None:
    guess = FewRowsGuess()
    likely = [guess.is_likely]
    for rows, by_driver in ((ROWS - 1, True), (ROWS, True), (0, True), (1, False)):
        guess.saw(rows, by_driver=by_driver)
        likely.append(guess.is_likely)
    assert likely == [False, True, False, True, False]


def test_each_wrong_guess_in_a_row_doubles_the_wait_and_a_right_one_ends_it() -> None:
    guess = FewRowsGuess()
    waits = []
    for _ in range(10):
        guess.saw(1, by_driver=True)
        wait = 0
        while not guess.is_likely:
            guess.saw(1, by_driver=True)
            wait += 1
        waits.append(wait)
        guess.was_wrong()
    assert waits == [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]
    for _ in range(256):
        guess.saw(1, by_driver=True)
    guess.was_right()
    guess.was_wrong()
    guess.saw(1, by_driver=True)
    guess.saw(1, by_driver=True)
    assert guess.is_likely
