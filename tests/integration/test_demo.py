"""`make demo` proves what it says: it runs through, and its count would notice a loss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import PARTITIONS, judge

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.compat]

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
WHOLE = [(number % PARTITIONS, number) for number in range(30)]


def test_the_demo_runs_without_a_terminal_and_ends_in_a_clear_line() -> None:
    """IDEM-2, IDEM-7"""
    command = [sys.executable, str(DEMO), "--records", "20000", "--kills", "2", "--no-spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, counts, _, verdict = done.stdout.splitlines()
    assert counts.strip() == "expected 20,000, found 20,000: lost 0, doubled 0, out of order 0"
    assert verdict == "Exactly once, through 2 kills."
    assert done.stdout.count("kill -9") == 2


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (WHOLE[:-1], "found 29: lost 1, doubled 0, out of order 0"),
        ([*WHOLE, WHOLE[-1]], "found 31: lost 0, doubled 1, out of order 0"),
        ([WHOLE[3], WHOLE[0], *WHOLE[1:3], *WHOLE[4:]], "found 30: lost 0, doubled 0, out of order 1"),
        ([*WHOLE, (0, 30)], "found 31: lost 0, doubled 0, out of order 1"),
        ([(1, 0), *WHOLE[1:]], "found 30: lost 1, doubled 0, out of order 1"),
    ],
    ids=["lost", "doubled", "out of order", "never sent", "in the wrong partition"],
)
def test_the_count_notices_what_is_wrong(
    found: list[tuple[int, int]], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not judge(30, iter(found))
    assert said in capsys.readouterr().out


def test_the_count_is_content_with_every_number_once() -> None:
    assert judge(30, iter(WHOLE))
