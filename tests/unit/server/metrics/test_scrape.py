"""What a scrape reads of the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fencepost.server.metrics.scrape import of_process

pytestmark = pytest.mark.unit


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has /proc")
def test_the_process_has_metrics_where_systemd_hides_the_rest_of_proc(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(f"/proc/{os.getpid()}")  # ProcSubset=pid: no /proc/stat
    found = {
        family.name: family.samples for family in text_string_to_metric_families(of_process(str(tmp_path)).decode())
    }
    assert set(found) == {
        "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds",
        "process_cpu_seconds", "process_open_fds", "process_max_fds",
    }  # fmt: skip
    [started] = found["process_start_time_seconds"]
    assert abs(started.value - Path(f"/proc/{os.getpid()}").stat().st_ctime) < 60
