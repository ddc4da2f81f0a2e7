"""The cost of being watched: the server's CPU with a scrape of /metrics every second, and without.

    python -m bench.server.scrape [--partitions 1000] [--groups 100] [--seconds 30]

The server has that many partitions in use, and each group has committed offsets of ten of them. Printed are the time
from the start to the first answer of the HTTP port, the memory before any record, the CPU of each phase in percent of a
core (phases take turns), and the time and size of a scrape. Nothing else uses the server meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil

import fencepost

_PER_GROUP = 10
_ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=30, help="of each phase; there are three of each kind")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        command = [sys.executable, "-m", "fencepost", "serve", "--data", folder, "--listen", "127.0.0.1:0"]
        command += ["--http", "127.0.0.1:0", "--sync", "os", "--json"]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                ready = json.loads(server.stdout.readline())
                _get(ready["http"] + "/readyz")
                print(f"start to the first answer: {time.perf_counter() - began:.2f} s")
                _measure(ready, psutil.Process(server.pid), wanted)
            finally:
                server.terminate()


def _measure(ready: dict[str, Any], server: psutil.Process, wanted: argparse.Namespace) -> None:
    time.sleep(3)
    print(f"memory, idle, before any record: {server.memory_info().rss / (1 << 20):.1f} MiB")
    _fill(ready["address"], wanted.partitions, wanted.groups)
    times: list[float] = []
    sizes: list[int] = []

    def scrape() -> None:
        asked = time.perf_counter()
        sizes.append(len(_get(ready["http"] + "/metrics")))
        times.append(time.perf_counter() - asked)

    scrape()  # counts the records of groups for the first time
    idle, scraped = [], []
    for _ in range(_ROUNDS):
        idle.append(_cpu(server, wanted.seconds, lambda: None))
        scraped.append(_cpu(server, wanted.seconds, scrape))
    print(f"{wanted.partitions} partitions, {wanted.groups} groups of {_PER_GROUP} partitions each")
    print(f"CPU without scrapes: {_percents(idle)} % of a core")
    print(f"CPU with one per second: {_percents(scraped)} % of a core")
    print(f"cost: {statistics.median(scraped) - statistics.median(idle):.2f} % of a core")
    print(f"a scrape: {statistics.median(times) * 1000:.1f} ms, at most {max(times) * 1000:.1f} ms, {sizes[-1]} bytes")
    print(f"memory at the end: {server.memory_info().rss / (1 << 20):.1f} MiB")


def _fill(address: str, partitions: int, groups: int) -> None:
    with fencepost.Admin(address) as admin, fencepost.Producer(address) as producer:
        admin.create_topic("watched", partitions)
        for index in range(partitions):
            for _ in range(10):
                producer.send("watched", b"x" * 100, partition=index)
        producer.flush()
        for number in range(groups):
            committed = {(number * _PER_GROUP + at) % partitions: 5 for at in range(_PER_GROUP)}
            admin.commit_group_offsets(f"group-{number}", "watched", committed)


def _cpu(server: psutil.Process, seconds: int, each_second: Callable[[], None]) -> float:
    """Return the server's CPU in percent of a core while `each_second` is called every second."""
    before, began = _spent(server), time.perf_counter()
    for number in range(seconds):
        each_second()
        time.sleep(max(0.0, began + number + 1 - time.perf_counter()))
    return 100 * (_spent(server) - before) / (time.perf_counter() - began)


def _spent(server: psutil.Process) -> float:
    spent = server.cpu_times()
    return float(spent.user + spent.system)


def _percents(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main()
