"""The scripted cluster: the interface for tests."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from fencepost.core.own.ownership import ClaimedResource, Granted
from fencepost.kernel import decode_batch
from fencepost.types import Generation
from fencepost.wire.frame import read_request_head, response_head
from tests.support.clock import HandWoundClock
from tests.support.scripted.answers import ScriptedBrokers, decode
from tests.support.scripted.fates import Api, Fate, Late, Script, ScriptedRequest
from tests.support.scripted.network import NO_ANSWER, ScriptedLink, ScriptedNetwork
from tests.support.scripted.state import ScriptedState


class ScriptedCluster(ScriptedState):
    def __init__(
        self,
        clock: HandWoundClock,
        *,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        latency: float = 0.001,
        knows_own: bool = False,
    ) -> None:
        """`knows_own`: offer `own`, as fencepost's server does."""
        super().__init__(clock, nodes=nodes, latency=latency, knows_own=knows_own)
        self.choose: Callable[[ScriptedRequest], Script] = lambda request: Fate.ANSWER
        self.seen: list[ScriptedRequest] = []
        """Every request that arrived, in order."""
        self._scripts: defaultdict[int, deque[Script]] = defaultdict(deque)
        self._brokers = ScriptedBrokers(self)
        self._networks: list[ScriptedNetwork] = []
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def network(self) -> ScriptedNetwork:
        network = ScriptedNetwork(self, self._receive)
        self._networks.append(network)
        return network

    def next(self, api: Api, *scripts: Script) -> None:
        """Set the fates of the next requests of this API, one each."""
        self._scripts[api].extend(scripts)

    def deal(self, fate: Script, *apis: Api) -> None:
        """Set the fate of all further requests of these APIs; others are answered."""
        self.choose = lambda request: fate if request.key in apis else Fate.ANSWER

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        log = self.logs[topic][partition]
        log.leader = node
        log.leader_epoch += 1

    def kill(self, node: int) -> None:
        """Stop the broker: close its connections, and refuse new ones."""
        self.down.add(node)
        for network in self._networks:
            network.cut(self.addresses[node])

    def revive(self, node: int) -> None:
        self.down.discard(node)

    def take_over(self, group: str, *names: str, generation: int = 2**30) -> None:
        """Let another client claim these resources; the connections of their owners are severed."""
        judged = self.ownership.claim(
            "somebody else", group, [ClaimedResource(name, Generation(generation)) for name in names]
        )
        assert isinstance(judged, Granted), judged
        self.sever(judged.severed)

    def records(self, topic: str, partition: int) -> list[Any]:
        return [record for batch in self.logs[topic][partition].batches for record in decode_batch(batch)]

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        return [record.value for record in self.records(topic, partition)]

    def requests(self, api: Api) -> list[ScriptedRequest]:
        return [request for request in self.seen if request.key == api]

    def _receive(self, node: int, frame: bytes, link: ScriptedLink) -> tuple[bytes | None, Script]:
        """Return the response to a request (None if it is lost), and the request's fate."""
        head = read_request_head(frame)
        message = decode(head.key, head.version, frame, head.body_at)
        request = ScriptedRequest(node, head.key, head.version, message, link.number)
        self.seen.append(request)
        scripts = self._scripts[head.key]
        script = scripts.popleft() if scripts else self.choose(request)
        if script in (Fate.LOSE, Fate.IGNORE):
            return None, script
        if isinstance(script, Late) and link.lags_until is None:
            link.lags_until = self.clock.monotonic() + script.seconds
        if link.lags_until is not None:
            link.lag(lambda: self._brokers.carry_out(request, Fate.ANSWER, link))
            return None, script
        if script is Fate.DUPLICATE:
            self._brokers.carry_out(request, script, link)
        body = self._brokers.carry_out(request, script, link)
        if head.key == Api.PRODUCE and request.message.acks == 0:
            return NO_ANSWER, script
        return response_head(head.key, head.version, head.correlation_id) + body, script
