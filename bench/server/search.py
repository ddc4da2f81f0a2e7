"""The record browser's search: records/s alone and beside a producer, and what the producer loses by it.

A topic is filled, and searched for a text that no record has, over the HTTP port as a browser does. Then a producer
writes to another topic, in turns with a search beside it that begins anew whenever it ends, and without.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from typing import Final

from bench import jobs, topics
from bench.brokers import Fencepost, cpu_seconds
from bench.jobs import Produce
from bench.results import Results
from bench.server.plan import Plan, Say
from tests.support.process import free_port

SPEED = "search"
BESIDE = "produce beside a search"
UNIT = "records/s"
ALONE, WITH_PRODUCER = "search alone", "search beside a producer"
WITH, WITHOUT = "with search", "without"
_SIZE: Final = 100
_WRITTEN: Final = 4
"""Times as many records are written as are searched: a run must last a few seconds."""
_CLIENTS: Final = ("fencepost", "confluent")
_SEARCHED: Final = re.compile(r"([\d,]+) records searched")


def measure(plan: Plan, results: Results, say: Say) -> None:
    port = free_port()
    broker = Fencepost(plan.folder / "fencepost-search", "os", arguments=("--http", f"127.0.0.1:{port}"))
    try:
        broker.start()
        for codec in plan.codecs:
            with topics.topic(broker) as topic:
                filling = Produce(broker.address, topic, plan.records[_SIZE], _SIZE, codec)
                jobs.run("fencepost_arrow", filling)
                search = _Search(f"http://127.0.0.1:{port}", topic, plan.records[_SIZE])
                for rep in range(max(plan.reps, 3)):
                    before, began = cpu_seconds(broker), time.perf_counter()
                    records = search.once()
                    rate = records / (time.perf_counter() - began)
                    used = cpu_seconds(broker) - before
                    results.add(SPEED, (codec, f"{_SIZE} B"), ALONE, UNIT, rate, server_cpu=used)
                    say(f"search alone, {codec}: {rate:,.0f} records/s, server {used:.2f} CPU s")
                    for client in _CLIENTS:
                        for target in (WITH, WITHOUT) if rep % 2 else (WITHOUT, WITH):
                            _beside(plan, broker, results, say, search, (client, codec), target)
    finally:
        broker.remove()


def _beside(
    plan: Plan, broker: Fencepost, results: Results, say: Say, search: _Search, labels: tuple[str, str], target: str
) -> None:
    client, codec = labels
    with topics.topic(broker) as written:
        job = Produce(broker.address, written, plan.records[_SIZE] * _WRITTEN, _SIZE, codec)
        if target == WITH:
            with search:
                outcome = jobs.run(client, job)
            searched = search.rate
            results.add(SPEED, (codec, f"{_SIZE} B", client), WITH_PRODUCER, UNIT, searched)
            said = f", {searched:,.0f} records/s searched meanwhile"
        else:
            outcome, said = jobs.run(client, job), ""
    rate = outcome.records_per_second
    results.add(BESIDE, (client, codec, f"{_SIZE} B"), target, UNIT, rate)
    say(f"{client} {codec} {target}: {rate:,.0f} records/s{said}")


class _Search:
    """Searches again and again inside a `with` block."""

    def __init__(self, url: str, topic: str, records: int) -> None:
        self._address = f"{url}/live/topics/{topic}/records?from=earliest&value=no+such+text"
        self._records = records
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.rate = 0.0

    def once(self) -> int:
        """Search to the end, and return the number of records."""
        searched = self._run()
        assert searched == self._records, f"{searched} of {self._records} records were searched"
        return searched

    def _run(self) -> int:
        searched = 0
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self._address, timeout=60) as answer:
            for line in answer:
                found = _SEARCHED.search(line.decode())
                if found is not None:
                    searched = int(found[1].replace(",", ""))
                if self._stop.is_set():
                    break
        return searched

    def _again_and_again(self) -> None:
        records, began = 0, time.perf_counter()
        while not self._stop.is_set():
            records += self._run()
        self.rate = records / (time.perf_counter() - began)

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._again_and_again)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        self._stop.clear()
