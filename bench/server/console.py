"""The cost of the console: the first page, and the server's CPU while browsers watch pages, and while none does.

    python -m bench.server.console [--partitions 1000] [--groups 100] [--seconds 20] [--page /]

The server has that many partitions in use, and each group has committed offsets of ten of them; a producer writes
meanwhile, so that the watched page changes every second. Printed are the bytes and the time of the first page with all
its files, and the CPU that one watched page costs (phases without and with ten watchers take turns).
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

import fencepost
from bench.server.scrape import _cpu, _fill, _get, _percents

_ROUNDS = 3
_WATCHERS = 10
_VISITS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20, help="of each phase; there are three of each kind")
    parser.add_argument("--page", default="/", help="the page that is watched")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        command = [sys.executable, "-m", "fencepost", "serve", "--data", folder, "--listen", "127.0.0.1:0"]
        command += ["--http", "127.0.0.1:0", "--sync", "os", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                ready = json.loads(server.stdout.readline())
                _first_page(ready["http"])
                _fill(ready["address"], wanted.partitions, wanted.groups)
                with _writing(ready["address"]):
                    _watch(ready["http"], psutil.Process(server.pid), wanted)
            finally:
                server.terminate()


def _first_page(url: str) -> None:
    times, size = [], 0
    for _ in range(_VISITS):
        began = time.perf_counter()
        page = _get(url + "/")
        files = [_get(url + address) for address in re.findall(r'"(/assets/[^"]+)"', page.decode())]
        times.append((time.perf_counter() - began) * 1000)
        size = len(page) + sum(map(len, files))
    print(f"first page with {len(files)} files: {size:,} bytes; the first visit {times[0]:.0f} ms, then "
          f"{statistics.median(times[1:]):.0f} ms, at most {max(times[1:]):.0f} ms")  # fmt: skip


def _watch(url: str, server: psutil.Process, wanted: argparse.Namespace) -> None:
    alone, watched = [], []
    for _ in range(_ROUNDS):
        alone.append(_cpu(server, wanted.seconds, lambda: None))
        with ExitStack() as stack:
            for _ in range(_WATCHERS):
                stack.enter_context(_watcher(url, wanted.page))
            watched.append(_cpu(server, wanted.seconds, lambda: None))
    print(f"CPU of the server without watchers: {_percents(alone)} % of a core")
    print(f"CPU with {_WATCHERS} watchers of {wanted.page}: {_percents(watched)} % of a core")
    print(f"cost of one: {(statistics.median(watched) - statistics.median(alone)) / _WATCHERS:.2f} % of a core")


@contextmanager
def _watcher(url: str, page: str) -> Iterator[None]:
    """Read the stream of a page in a thread."""
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    line.request("GET", "/live" + page)
    answer = line.getresponse()
    assert answer.status == 200, answer.status

    def read() -> None:
        try:
            while answer.readline():
                pass
        except (OSError, ValueError):
            pass  # closed below

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        assert line.sock is not None
        line.sock.shutdown(2)
        reading.join()
        line.close()


@contextmanager
def _writing(address: str) -> Iterator[None]:
    """Write a few records each second, so that figures change."""
    ended = threading.Event()

    def write() -> None:
        with fencepost.Producer(address) as producer:
            while not ended.wait(0.2):
                producer.send("watched", b"x" * 100)
                producer.flush()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        ended.set()
        writing.join()


if __name__ == "__main__":
    main()
