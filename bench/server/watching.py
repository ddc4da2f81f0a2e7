"""The cost of the console: the first page, and the server's CPU while browsers watch it, and while none does.

The server has as many partitions and groups as for the scrapes. A client writes to one partition five times a second,
so that the watched page changes. Phases with ten watchers and without any take turns.
"""

from __future__ import annotations

import http.client
import re
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import fencepost
from bench.brokers import Fencepost
from bench.results import Results
from bench.server.plan import Plan, Say
from bench.server.scrape import TOPIC, Work, percent
from bench.web_pages import PageClient

FIRST_PAGE = "first page of the console"
SIZE = "size of the console"
WATCHED = "one watched page"

_WATCHERS = 10
_VISITS = 20


def measure(plan: Plan, results: Results, say: Say) -> None:
    for _ in range(plan.scrape_reps):
        broker = Fencepost(plan.folder / "console", "os")
        try:
            broker.start()
            _first_page(broker, results, say)
            with fencepost.Admin(broker.address) as admin, fencepost.Producer(broker.address) as producer:
                Work(admin, producer, plan.scraped_partitions, plan.scraped_groups).create()
                with _writing(producer):
                    _watch(plan, broker, results, say)
        finally:
            broker.remove()


def _first_page(broker: Fencepost, results: Results, say: Say) -> None:
    """Load the page and its files one after the other; a browser loads several at a time."""
    times, size = [], 0
    for _ in range(_VISITS):
        with closing(PageClient(broker.http)) as client:
            began = time.perf_counter()
            page = client.get("/")
            files = [client.get(address) for address in re.findall(r'"(/assets/[^"]+)"', page.decode())]
            times.append((time.perf_counter() - began) * 1000)
            size = len(page) + sum(map(len, files))
    results.add(FIRST_PAGE, ("the first visit",), broker.name, "ms", times[0])
    results.add(FIRST_PAGE, ("later",), broker.name, "ms", statistics.median(times[1:]))
    results.add(SIZE, (f"page and {len(files)} files",), broker.name, "KB", size / 1000)
    say(f"first page: {times[0]:.0f} ms, then {statistics.median(times[1:]):.0f} ms, {size / 1000:.0f} KB")


def _watch(plan: Plan, broker: Fencepost, results: Results, say: Say) -> None:
    alone = percent(broker, plan.scrape_seconds)
    with ExitStack() as stack:
        for _ in range(_WATCHERS):
            stack.enter_context(_watcher(broker.http))
        watched = percent(broker, plan.scrape_seconds)
    cost = (watched - alone) / _WATCHERS
    labels = (f"{plan.scraped_partitions:,} partitions, {plan.scraped_groups} groups",)
    results.add(WATCHED, labels, broker.name, "% of a core", cost)
    say(f"one watched page: {cost:.2f} % of a core ({watched:.2f} with {_WATCHERS}, {alone:.2f} without)")


@contextmanager
def _watcher(url: str) -> Iterator[None]:
    """Read the stream of the first page in a thread."""
    line = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    line.connect()
    connection = line.sock
    line.request("GET", "/live/")
    answer = line.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"/live/: {answer.status}")

    def read() -> None:
        while answer.readline():
            pass

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        reading.join()
        line.close()


@contextmanager
def _writing(producer: fencepost.Producer) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.2):
            producer.send(TOPIC, b"x" * 100, partition=0)
            producer.flush()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        ended.set()
        writing.join()
