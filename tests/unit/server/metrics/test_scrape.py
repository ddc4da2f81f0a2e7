"""What a scrape reads of the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fencepost.server.metrics.scrape import _process_collector

pytestmark = pytest.mark.unit


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has /proc")
def test_the_process_has_metrics_where_systemd_hides_the_rest_of_proc(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(f"/proc/{os.getpid()}")  # ProcSubset=pid: no /proc/stat
    found = _process_collector()(proc=str(tmp_path), registry=CollectorRegistry()).collect()
    assert {metric.name for metric in found} == {
        "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds",
        "process_cpu_seconds", "process_open_fds", "process_max_fds",
    }  # fmt: skip
    [started] = [sample.value for metric in found for sample in metric.samples if "start_time" in sample.name]
    assert abs(started - Path(f"/proc/{os.getpid()}").stat().st_ctime) < 60
