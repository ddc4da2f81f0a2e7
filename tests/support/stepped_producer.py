"""A producer whose send thread is the test itself: stepped turn by turn, with a clock wound by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.sender import Sender
from fencepost.client.produce.ticket import Ticket
from fencepost.client.producer import ProducerKeywords
from fencepost.client.transactions.coordinator import Steps
from tests.support.clock import HandWoundClock
from tests.support.scripted import ScriptedCluster


def cluster(nodes: int = 1, *, knows_own: bool = False, **topics: int) -> ScriptedCluster:
    """Return a scripted cluster with a hand-wound clock. `topics` gives the number of partitions of each."""
    return ScriptedCluster(HandWoundClock(), nodes=nodes, topics=topics, knows_own=knows_own)


class SteppedProducer:
    def __init__(
        self,
        cluster: ScriptedCluster,
        *,
        steps: Steps | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """`steps`: the coordinator of one with a name."""
        self.cluster = cluster
        self.clock: HandWoundClock = cluster.clock
        self.options = ProducerOptions(**options)
        self.network = cluster.network()
        settings = ClientSettings(
            tuple(cluster.addresses.values()),
            request_timeout=self.options.request_timeout,
            retry_backoff=self.options.retry_backoff,
        )
        self.sender = Sender(settings, self.options, self.network, self.clock, steps=steps)

    def send(self, topic: str, value: Any, **more: Any) -> Ticket:
        more.setdefault("timestamp", self.clock.now_ms())
        ticket: Ticket = self.sender.queues.intake.send(topic, value, **more)
        return ticket

    def send_alone(self, topic: str, value: Any, **more: Any) -> Ticket:
        """As a batch of its own, which is under way afterwards: it does not wait for the next record."""
        ticket = self.send(topic, value, **more)
        self.sender.queues.flushing += 1
        self.sender.run_once(0.0)
        self.sender.queues.flushing -= 1
        return ticket

    def step(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.sender.run_once()

    def step_until(self, condition: Callable[[], bool], turns: int = 10_000) -> None:
        for _ in range(turns):
            if condition():
                return
            self.sender.run_once()
        raise AssertionError(f"not within {turns} turns, at {self.clock.monotonic():.3f} s")

    def settle(self) -> None:
        """Steps until everything that was sent is settled, as `flush` would wait for it."""
        self.sender.queues.flushing += 1
        self.step_until(lambda: self.sender.queues.is_empty)
        self.sender.queues.flushing -= 1

    def run_for(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.sender.run_once(end - self.clock.monotonic())
