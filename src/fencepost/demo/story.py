"""The order of events, and the result.

Everything happens in a temporary folder and on free ports of 127.0.0.1, so each run starts from scratch.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost._version import __version__
from fencepost.demo import orders, picture, pipeline, takeover
from fencepost.demo.narrator import Narrator
from fencepost.demo.orders import DemoBroker
from fencepost.demo.picture import Timeline
from fencepost.demo.proof import Count, Stranger, Takeover, choose_stranger, count, judge_takeover

NEXT: Final = (
    ("fencepost serve", "a server of your own, for any Kafka client"),
    ("seq 1000 | fencepost produce numbers", "in a second terminal; then: fencepost consume numbers"),
    ("fencepost own jobs nightly -- ./nightly.sh", "one at a time, on all machines, fenced"),
)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo."""

    counted_by: str
    counts: tuple[Count, ...]
    takeover: Takeover
    spark: str
    """`done`, or what to install."""
    kills: int
    seconds: float
    picture: str

    @property
    def holds(self) -> bool:
        return all(found.holds for found in self.counts) and self.takeover.holds

    @property
    def sentence(self) -> str:
        if not self.holds:
            return "NOT exactly once: see the counts above."
        kills = f"{self.kills} kill{'s' if self.kills != 1 else ''}"
        refused = f"{self.takeover.refused:,} fenced writes refused"
        return f"Exactly once, through {kills} and a take-over: lost 0, doubled 0, {refused}."


def tell(records: int, narrator: Narrator, *, with_spark: bool, picture_at: Path) -> DemoResult:
    """Run the demo."""
    began, timeline, kills = time.monotonic(), Timeline(), 1
    missing = pipeline.what_is_missing() if with_spark else "left out (--no-spark)"
    with tempfile.TemporaryDirectory(prefix="fencepost-demo-") as name, DemoBroker(Path(name) / "data") as broker:
        folder = Path(name)
        narrator.say("server", f"fencepost {__version__} on {broker.address}, every acknowledged record on the disk")
        job = (broker.address, orders.TOPIC, records, folder)
        # The driver starts while the orders are written.
        with pipeline.driver(*job) if missing is None else nullcontext() as driver:
            seconds = orders.write(broker, records, narrator, timeline)
            narrator.say("written", f"{records:,} orders in {seconds:.1f} s, the restart included")
            if driver is not None:
                narrator.say("spark", f"a streaming job: {orders.TOPIC}, tax and time added, to {pipeline.TARGET}")
                seconds = pipeline.run(driver, *job, narrator, timeline)
                narrator.say("standby", f"went on from the checkpoint, and finished: {seconds:.1f} s in all")
                kills += 1
            else:
                narrator.blow("no spark", f"that part is left out: {missing}" if with_spark else str(missing))
        owned = takeover.run(broker.address, folder, narrator, timeline)
        reader = choose_stranger()
        narrator.say("counting", f"by {reader.name}, isolation.level=read_committed")
        if reader.advice is not None:
            narrator.blow("stranger", reader.advice)
        found = [_count(broker, reader, orders.TOPIC, records)]
        if missing is None:
            found.append(_count(broker, reader, pipeline.TARGET, records))
        ledger = judge_takeover(
            takeover.lines(reader.read(broker.address, takeover.TOPIC, 1)),
            acknowledged=owned.acknowledged,
            unknown=owned.unknown,
            refused=owned.refused,
            successor=owned.successor,
        )
    verdict = DemoResult(
        reader.name,
        tuple(found),
        ledger,
        missing or "done",
        kills,
        round(time.monotonic() - began, 1),
        str(picture_at),
    )
    picture_at.write_text(picture.draw(timeline, "fencepost demo: throughput over time", verdict.sentence))
    return verdict


def _count(broker: DemoBroker, reader: Stranger, topic: str, records: int) -> Count:
    return count(topic, records, orders.numbers(reader.read(broker.address, topic, orders.PARTITIONS)))
