"""The guess whether a micro-batch has a few rows."""

from __future__ import annotations

import pytest

from fencepost.spark.few import FewRowsGuess, limits_of

pytestmark = pytest.mark.unit


def test_a_few_rows_are_expected_after_a_few() -> None:
    guess = FewRowsGuess()
    likely = [guess.is_likely]
    for few in (True, False, True):
        guess.saw(few=few)
        likely.append(guess.is_likely)
    assert likely == [False, True, False, True]


@pytest.mark.parametrize("tasks", [None, 1, 8, 9, 256, 257, 1_024, 1_025])
def test_all_tasks_together_send_at_most_64_mib(tasks: int | None) -> None:
    """PIPE-5: the driver must not run out of memory if the guess is wrong."""
    few = limits_of(tasks)
    assert (few is None) == (tasks == 1_025)
    if few is not None:
        assert few.rows * few.row_bytes * (tasks or 256) <= 64 << 20


def test_each_wrong_guess_in_a_row_doubles_the_wait_and_a_right_one_ends_it() -> None:
    guess = FewRowsGuess()
    waits = []
    for _ in range(10):
        guess.saw(few=True)
        wait = 0
        while not guess.is_likely:
            guess.saw(few=True)
            wait += 1
        waits.append(wait)
        guess.was_wrong()
    assert waits == [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]
    for _ in range(256):
        guess.saw(few=True)
    guess.was_right()
    guess.was_wrong()
    guess.saw(few=True)
    guess.saw(few=True)
    assert guess.is_likely
