"""`format("fencepost")` under speculation: two attempts of a task with different rows, at the same time (PIPE-5)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fencepost import Admin
from tests.support.committed import committed_values
from tests.support.spark import ROOT

# Six JVMs. `make test` has a killed executor and a failing task instead (test_writer_crashes.py, test_writer_jobs.py).
pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["inline", "staged"])
def test_two_attempts_of_a_task_at_the_same_time_write_its_rows_once(
    servers: str, name: str, tmp_path: Path, inline_bytes: int
) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    command = [sys.executable, "-m", "tests.workers.writer_speculation", servers, name, tmp_path, inline_bytes]
    words = list(map(str, command))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[:6000]
    assert {"3-0", "3-1", "both"} <= set(json.loads(done.stdout.strip().splitlines()[-1]))
    rows = [value.split() for value in committed_values(servers, name)]
    assert Counter(int(number) for number, _ in rows) == Counter(range(2_000))
    assert len({word for _, word in rows}) == 2_000
