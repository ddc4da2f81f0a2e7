"""Many producers, connections or group members in one process, for curves (`bench/growth`).

Everything that is sent is encoded by little code of our own, the same for each broker, so that the server is the
narrower part as far as one process can arrange that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import PARTITIONS, Crowd, Members, Outcome, Swarm
from fencepost.errors import ErrorCode
from fencepost.kernel import encode_batch, read_header, stamp_producer
from tests.support.group_client import HEARTBEAT, NOT_READY, GroupMember, await_coordinator, subscription
from tests.support.raw import API_VERSIONS, RawClient

RECORDS = 100
"""In a batch: 11 kB."""
_SIZE = 100
_IN_FLIGHT = 5
"""Of one producer …"""
_ALL_IN_FLIGHT = 250
"""… and of all of them."""
_WARM_UP = 50
_PATIENCE = 120.0
_A_MOMENT = 0.02
"""Seconds between looks at a group that is being formed."""


def swarm(job: Swarm) -> Outcome:
    batch = _batch(RECORDS)
    header = read_header(batch)
    with _connected(job.address, job.producers) as clients:
        pids = [client.new_pid() for client in clients]
        sequences = [0] * job.producers
        in_flight: deque[RawClient] = deque()
        most = min(_ALL_IN_FLIGHT, _IN_FLIGHT * job.producers)
        server = _ServerWatch(job.server_pid)
        watch = Stopwatch()
        for number in range(job.batches):
            who = number % job.producers
            if len(in_flight) == most:
                _settle(in_flight.popleft())
            stamp_producer(batch, header, pids[who], 0, sequences[who])
            sequences[who] += RECORDS
            clients[who].send_produce(job.topic, bytes(batch), partition=who % PARTITIONS)
            in_flight.append(clients[who])
        while in_flight:
            _settle(in_flight.popleft())
        seconds, cpu = watch.read()
        memory, server_cpu = server.read()
    return Outcome(
        records=job.batches * RECORDS, seconds=seconds, client_cpu=cpu, server_mib=memory, server_cpu=server_cpu
    )


def crowd(job: Crowd) -> Outcome:
    batch, one = bytes(_batch(RECORDS)), bytes(_batch(1))
    taken = []
    with _connected(job.address, job.connections) as clients:
        client = clients[0]
        for number in range(_WARM_UP + job.records):
            began = time.perf_counter()
            _check(client.produce(job.topic, one).error)
            if number >= _WARM_UP:
                taken.append((time.perf_counter() - began) * 1000)
        server = _ServerWatch(job.server_pid)
        watch = Stopwatch()
        for number in range(job.batches):
            client.send_produce(job.topic, batch, partition=number % PARTITIONS)
            if number >= _IN_FLIGHT - 1:
                _settle(client)
        for _ in range(min(_IN_FLIGHT - 1, job.batches)):
            _settle(client)
        seconds, cpu = watch.read()
        memory, server_cpu = server.read()
    return Outcome(
        records=job.batches * RECORDS,
        seconds=seconds,
        client_cpu=cpu,
        latencies_ms=taken,
        server_mib=memory,
        server_cpu=server_cpu,
    )


def members(job: Members) -> Outcome:
    """`latencies_ms` are those of the rebalances, `records` are heartbeats."""
    with _connected(job.address, job.members) as clients:
        await_coordinator(clients[0], job.group)
        group = [GroupMember(client, job.group, job.topic) for client in clients]
        while True:  # Kafka makes its offsets topic first
            group[0].send_join()
            error = ErrorCode.of(group[0].receive_join().error_code)
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                break
            if error not in NOT_READY:
                _check(error)
        for member in group[1:]:
            member.ask_for_id()
        _form(group)
        taken = []
        for number in range(job.rounds):
            began = time.perf_counter()
            _rebalance(group, number)
            taken.append((time.perf_counter() - began) * 1000)
        server = _ServerWatch(job.server_pid)
        watch = Stopwatch()
        waiting: deque[GroupMember] = deque()
        for number in range(job.heartbeats):
            member = group[number % job.members]
            if len(waiting) == min(_ALL_IN_FLIGHT, job.members):
                _check(waiting.popleft().client.receive()[1].error_code)
            _send_heartbeat(member)
            waiting.append(member)
        while waiting:
            _check(waiting.popleft().client.receive()[1].error_code)
        seconds, cpu = watch.read()
        memory, server_cpu = server.read()
        for member in group:
            member.leave()
    return Outcome(
        records=job.heartbeats,
        seconds=seconds,
        client_cpu=cpu,
        latencies_ms=taken,
        server_mib=memory,
        server_cpu=server_cpu,
    )


def _form(group: list[GroupMember]) -> None:
    """Have all members join for the first time. A coordinator that does not wait for stragglers answers the first ones
    with a generation that lacks the others: they join again. Nobody else does, since a member that joins again in a
    complete generation is answered at once, over and over."""
    waiting, complete = set(group), False
    for member in group:
        member.send_join()
    while waiting or not complete:
        answered = [member for member in waiting if member.client.has_answer()]
        for member in answered:
            answer = member.receive_join()
            _check(answer.error_code)
            waiting.discard(member)
            complete |= len(answer.members) == len(group)  # the leader is told who is in
        if answered:
            continue
        if not complete:
            for member in set(group) - waiting:
                member.send_join()
                waiting.add(member)
        time.sleep(_A_MOMENT)


def _rebalance(group: list[GroupMember], number: int) -> None:
    """Have all members join again, and take their assignments. Their subscriptions change each time: members that come
    back with the same one are told the assignment that they have."""
    changed = [{"name": "range", "metadata": subscription(f"bench-{number}")}]
    for member in group:
        member.send_join(protocols=changed)
    for member in group:
        _check(member.receive_join().error_code)
    [leader] = [member for member in group if member.member_id == member.leader]
    leader.send_sync({member.member_id: b"its partitions" for member in group})
    for member in group:
        if member is not leader:
            member.send_sync()
    for member in group:
        _check(member.client.receive()[1].error_code)


def _send_heartbeat(member: GroupMember) -> None:
    member.client.send(
        HEARTBEAT,
        4,
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=None,
    )


@contextmanager
def _connected(address: str, count: int) -> Iterator[list[RawClient]]:
    """So many connections, each of which the server has answered."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(address, timeout=_PATIENCE)) for _ in range(count)]
        for client in clients:
            client.send(API_VERSIONS, 3, client_software_name="bench", client_software_version="1")
        for client in clients:
            client.receive()
        yield clients


def _batch(records: int) -> bytearray:
    now = int(time.time() * 1000)
    return bytearray(encode_batch((None, value, now, None) for value in payload.values(_SIZE, records)))


def _settle(client: RawClient) -> None:
    _check(client.receive_produced().error)


def _check(error: int) -> None:
    if error:
        raise SystemExit(f"refused: {ErrorCode.of(error).name}")


class _ServerWatch:
    """Resident memory of a server, and its CPU seconds since this was made."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._used()

    def read(self) -> tuple[float, float]:
        return self._process.memory_info().rss / (1 << 20), self._used() - self._before

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
