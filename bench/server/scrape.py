"""The cost of being watched: the server's CPU with a scrape of /metrics every second, and without.

The server has that many partitions in use, and each group has committed offsets of ten of them. Phases with and without
scrapes take turns. In one kind of round nothing else happens; in the other kind a client writes to every partition and
commits an offset in every group once a second, so that every scrape finds everything changed. The cost is the
difference of two phases in CPU seconds, in percent of a core.

Then a client asks the server for its versions again and again, on one connection: what does it notice of ten
scrapes per second?
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import fencepost
from bench.brokers import Fencepost
from bench.results import Results
from bench.server.plan import Plan, Say
from bench.web_pages import PageClient
from tests.support.raw import RawClient

SECTION = "scrape every second"
TIME = "time and size of a scrape"
OTHERS = "another client's answers"
WITHOUT = "without scrapes"
WHILE_SCRAPED = "ten scrapes per second"
QUIET = "nothing changes"
BUSY = "everything changes"

TOPIC = "watched"
_PER_GROUP = 10
_API_VERSIONS = 18


def measure(plan: Plan, results: Results, say: Say) -> None:
    broker = Fencepost(plan.folder / "scrape", "os")
    try:
        broker.start()
        with (
            fencepost.Admin(broker.address) as admin,
            fencepost.Producer(broker.address) as producer,
        ):
            work = Work(admin, producer, plan.scraped_partitions, plan.scraped_groups)
            work.create()
            with closing(PageClient(broker.http)) as http:
                http.get("/metrics")  # loads what only scrapes need
            for _ in range(plan.scrape_reps):
                _cost(plan, broker, QUIET, lambda: None, results, say)
                _cost(plan, broker, BUSY, work.change, results, say)
            for _ in range(plan.scrape_reps):
                _answers(plan, broker, results, say)
    finally:
        broker.remove()


class Work:
    """What the server has, and what changes between two scrapes."""

    def __init__(self, admin: fencepost.Admin, producer: fencepost.Producer, partitions: int, groups: int) -> None:
        self._admin = admin
        self._producer = producer
        self._partitions = partitions
        self._groups = groups
        self._committed = 0

    def create(self) -> None:
        self._admin.create_topic(TOPIC, self._partitions)
        for _ in range(10):
            self.change()

    def change(self) -> None:
        for index in range(self._partitions):
            self._producer.send(TOPIC, b"x" * 100, partition=index)
        self._producer.flush()
        self._committed += 1
        for number in range(self._groups):
            where = [(number * _PER_GROUP + at) % self._partitions for at in range(_PER_GROUP)]
            self._admin.commit_group_offsets(f"group-{number}", TOPIC, dict.fromkeys(where, self._committed))


def _cost(plan: Plan, broker: Fencepost, what: str, work: Callable[[], None], results: Results, say: Say) -> None:
    times: list[float] = []
    sizes: list[int] = []

    without = percent(broker, plan.scrape_seconds, work)
    with closing(PageClient(broker.http)) as http:

        def scrape() -> None:
            asked = time.perf_counter()
            sizes.append(len(http.get("/metrics")))
            times.append(time.perf_counter() - asked)

        scraped = percent(broker, plan.scrape_seconds, work, scrape)
    labels = (f"{plan.scraped_partitions:,} partitions, {plan.scraped_groups} groups", what)
    results.add(SECTION, labels, broker.name, "% of a core", scraped - without)
    results.add(TIME, (*labels, "median"), broker.name, "ms", statistics.median(times) * 1000)
    results.add(TIME, (*labels, "size"), broker.name, "KiB", sizes[-1] / 1024)
    say(
        f"{what}: {scraped - without:.2f} % of a core ({scraped:.2f} - {without:.2f}), "
        f"a scrape {statistics.median(times) * 1000:.1f} ms, {sizes[-1] / 1024:.0f} KiB"
    )


def percent(broker: Fencepost, seconds: int, *each_second: Callable[[], None]) -> float:
    """Return the server's CPU in percent of a core."""
    before, began = _cpu_seconds(broker), time.perf_counter()
    for number in range(seconds):
        for work in each_second:
            work()
        time.sleep(max(0.0, began + number + 1 - time.perf_counter()))
    return 100 * (_cpu_seconds(broker) - before) / (time.perf_counter() - began)


def _cpu_seconds(broker: Fencepost) -> float:
    """Return the CPU time of the server's threads, to the nanosecond: a scrape takes less than the system's clock tick.
    None of the threads ends meanwhile."""
    tasks = Path(f"/proc/{broker.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _answers(plan: Plan, broker: Fencepost, results: Results, say: Say) -> None:
    stop = threading.Event()

    def scrape() -> None:
        with closing(PageClient(broker.http)) as http:
            while not stop.wait(0.1):
                http.get("/metrics")

    for target in (WITHOUT, WHILE_SCRAPED):
        scraping = threading.Thread(target=scrape)
        if target == WHILE_SCRAPED:
            stop.clear()
            scraping.start()
        taken = _ping(broker, plan.scrape_seconds)
        if target == WHILE_SCRAPED:
            stop.set()
            scraping.join()
        cuts = statistics.quantiles(taken, n=1000)
        for label, value in (("p50", cuts[499]), ("p99", cuts[989]), ("p99.9", cuts[998]), ("longest", max(taken))):
            results.add(OTHERS, (label,), target, "ms", value)
        say(f"{target}: p50 {cuts[499]:.3f} ms, p99 {cuts[989]:.3f} ms, longest {max(taken):.2f} ms")


def _ping(broker: Fencepost, seconds: int) -> Sequence[float]:
    """Return the milliseconds that each answer took."""
    taken = []
    with RawClient(broker.address) as client:
        until = time.perf_counter() + seconds
        while (asked := time.perf_counter()) < until:
            client.call(_API_VERSIONS, 3, client_software_name="bench", client_software_version="1")
            taken.append((time.perf_counter() - asked) * 1000)
            time.sleep(0.001)
    return taken
