"""What tests start must end with them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent.parent.parent
PARENT = """
import sys, time
from pathlib import Path
from tests.support.process import Child
child = Child([sys.executable, "-c", "import time; time.sleep(600)"], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie has ended; nobody has asked how


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked to kill a child with its parent")
def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < deadline, f"process {child} is still running"
        time.sleep(0.01)
