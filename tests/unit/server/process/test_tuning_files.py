"""The process's limit on open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fencepost.server.process.tuning import most_segment_files

pytestmark = pytest.mark.unit

resource = pytest.importorskip("resource")

_PROGRAM = """
import resource
from fencepost.server.process.tuning import allow_many_files, most_segment_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
before = most_segment_files(10_000)
allow_many_files()
print(before, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 200 or hard == 200, most_segment_files(3))
"""


def test_segment_files_get_half_of_what_a_process_may_open_and_a_server_raises_it() -> None:
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["100", "True", "3"]


def test_a_process_without_a_limit_keeps_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most_segment_files(123_456) == 123_456
