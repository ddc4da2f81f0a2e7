"""What security costs: TLS beside plaintext, and the check of ACLs.

    python -m bench.secured [--quick]

*TLS*: one server with two listeners. librdkafka and Java's tools write and read the same number of records through
each, in turns; MB/s and the CPU seconds of the server and of the client. Both share the cores, so a client that
encrypts slowly bounds the rate as much as the server does.

*Authorization*: two servers, one of which checks ACLs, for a client that logged in and has the permissions beside a
thousand other ACLs. It writes and reads 100,000 records a second in batches of 1,000; the servers take turns, and the
one without comes twice. Measured are the server's CPU seconds per 100,000 records. The ratio of the two without is the
control: what it spreads is noise, and a cost that is smaller is not to be seen. So the check is also timed by itself,
and its share is what it takes of the CPU time that the server needs for the requests.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import click
import psutil

import fencepost
from bench import jobs, payload, run, topics
from bench.jobs import Fetch, Produce
from bench.results import Results
from fencepost.core.security.access import Need
from fencepost.core.security.acls import Acl, AclTable, Operation, ResourceType
from fencepost.core.security.principal import USER, Principal
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.security.authorizer import Authorizer
from tests.support.batches import batch
from tests.support.certificates import make
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener
from tests.support.raw import PRODUCE

TLS_PRODUCE: Final = "TLS: produce"
TLS_FETCH: Final = "TLS: fetch"
TLS, PLAINTEXT = "TLS", "plaintext"
CPU: Final = "authorization: server CPU s per 100,000 records"
WITH, WITHOUT, CONTROL = "with ACLs", "without", "without, again"
SHARE: Final = "authorization: share of the checks in the server's CPU time"
CHECK: Final = "authorization: one check"
CLIENTS: Final = ("confluent", "java")
BATCH_RECORDS: Final = 1000
RECORDS_PER_SECOND: Final = 100_000
SIZE: Final = 100
OTHER_ACLS: Final = 1000
CHECKS_PER_BATCH: Final = 3
"""Two in its Produce and one in its Fetch."""
_USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}
_LABELS: Final = ("100,000 records/s", "batches of 1,000")

Say = Callable[[str], None]


class Plan(NamedTuple):
    reps: int
    records: int
    seconds: float
    """Of load per server and repetition."""


FULL: Final = Plan(reps=5, records=500_000, seconds=10.0)
QUICK: Final = Plan(reps=2, records=150_000, seconds=5.0)


class Server(NamedTuple):
    """A server process; `topics` and `jobs` need no more of it."""

    name: str
    address: str
    pid: int

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


# -- TLS --------------------------------------------------------------------------------------------------------------


def measure_tls(folder: Path, clients: tuple[str, ...], plan: Plan, results: Results, say: Say) -> None:
    certificates = make(folder)
    listeners = (
        ListenerConfig(name="plain", address="127.0.0.1:0"),
        ListenerConfig(name="tls", address="127.0.0.1:0", protocol="ssl", certificate=certificates.server),
    )
    with fencepost.Server(folder / "data", listeners=listeners, sync="os", process=True) as running:
        server = Server("fencepost os", running.addresses["plain"], running.pid)
        ways = {PLAINTEXT: (running.addresses["plain"], None), TLS: (running.addresses["tls"], certificates.authority)}
        for rep in range(-1, plan.reps):  # the first round warms up
            for client in clients:
                for way in (PLAINTEXT, TLS) if rep % 2 else (TLS, PLAINTEXT):
                    address, authority = ways[way]
                    for section, mb_per_second, cpu, client_cpu in _write_and_read(
                        server, plan, client, address, authority
                    ):
                        said = f"{mb_per_second:.1f} MB/s, CPU s: server {cpu:.2f}, client {client_cpu:.2f}"
                        say(f"{rep + 1}/{plan.reps} {client} {section} {way}: {said}")
                        if rep >= 0:
                            cpus = {"server_cpu": cpu, "client_cpu": client_cpu}
                            results.add(section, (client, "1024 B"), way, "MB/s", mb_per_second, **cpus)


def _write_and_read(
    server: Server, plan: Plan, client: str, address: str, authority: Path | None
) -> Iterator[tuple[str, float, float, float]]:
    """Yield the section, MB/s, and the CPU seconds of the server and of the client."""
    size, count = 1024, plan.records
    trusted = None if authority is None else str(authority)
    with topics.topic(server) as topic:  # type: ignore[arg-type]
        for section, job in (
            (TLS_PRODUCE, Produce(address=address, topic=topic, records=count, size=size, authority=trusted)),
            (TLS_FETCH, Fetch(address=address, topic=topic, records=count, size=size, authority=trusted)),
        ):
            before = server.cpu_seconds()
            outcome = jobs.run(client, job)
            rate = outcome.records_per_second * size / 1e6
            yield section, rate, server.cpu_seconds() - before, outcome.client_cpu


# -- authorization ----------------------------------------------------------------------------------------------------


def measure_authorization(folder: Path, plan: Plan, results: Results, say: Say) -> None:
    micros = _one_check()
    results.add(CHECK, _LABELS, WITH, "µs", micros)
    say(f"one check: {micros:.2f} µs")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(_secured(folder / name.replace(" ", "-"), enabled=name == WITH))
            for name in (WITH, WITHOUT)
        }
        servers[CONTROL] = servers[WITHOUT]
        order = [WITH, WITHOUT, CONTROL]
        for rep in range(-1, plan.reps):
            for name in order[rep % 3 :] + order[: rep % 3]:
                cpu, requests = _load(servers[name], plan.seconds if rep >= 0 else 1.0)
                say(f"{rep + 1}/{plan.reps} {name}: {cpu:.3f} CPU s per 100,000 records, {requests:.0f} requests/s")
                if rep < 0:
                    continue
                results.add(CPU, _LABELS, name, "CPU s", cpu)
                if name == WITH:
                    checks = CHECKS_PER_BATCH * RECORDS_PER_SECOND / BATCH_RECORDS
                    results.add(SHARE, _LABELS, WITH, "of 1", checks * micros / 1e6 / cpu)


@contextmanager
def _secured(folder: Path, *, enabled: bool) -> Iterator[Server]:
    add_users(folder / "data", _USERS)
    with fencepost.Server(
        folder / "data",
        listeners=login_listener("PLAIN"),
        sync="os",
        process=True,
        authorization_enabled=enabled,
        authorization_super_users=("User:admin",),
    ) as running:
        with log_in(running.address, "admin", _USERS["admin"]) as admin:
            admin.create_topic("load")
            wanted = [grant("alice", ResourceType.TOPIC, "load", each) for each in (Operation.READ, Operation.WRITE)]
            if enabled:
                create_acls(admin, [*wanted, *_others()])
        yield Server(WITH if enabled else WITHOUT, running.address, running.pid)


def _others() -> list[Acl]:
    return [grant(f"user-{n}", ResourceType.TOPIC, f"topic-{n}", Operation.READ) for n in range(OTHER_ACLS)]


def _load(server: Server, seconds: float) -> tuple[float, float]:
    """Return the server's CPU seconds per 100,000 records that were written and read, and the requests per second."""
    written = batch(payload.values(SIZE, BATCH_RECORDS))
    every = BATCH_RECORDS / RECORDS_PER_SECOND
    with log_in(server.address, "alice", _USERS["alice"]) as client:
        before, began, rounds = server.cpu_seconds(), time.perf_counter(), 0
        while (now := time.perf_counter() - began) < seconds:
            if now < rounds * every:
                time.sleep(rounds * every - now)
            produced = client.produce("load", written)
            fetched = client.fetch("load", produced.base_offset)
            if produced.error or fetched.error or not fetched.data:
                raise RuntimeError(f"the load failed: {produced}, {fetched.error}")
            rounds += 1
        used, lasted = server.cpu_seconds() - before, time.perf_counter() - began
    return used / (rounds * BATCH_RECORDS) * RECORDS_PER_SECOND, 2 * rounds / lasted


def _one_check() -> float:
    """Microseconds of a check as a handler makes it."""
    acls = [grant("alice", ResourceType.TOPIC, "load", Operation.WRITE), *_others()]
    store: Any = SimpleNamespace(query=lambda sql: [])
    authorizer = Authorizer(store, enabled=True, super_users=(), allow_everyone_if_no_acl=False)
    authorizer.table = AclTable(acls)
    session: Any = SimpleNamespace(
        principal=Principal(USER, "alice"), client_host="127.0.0.1", decisions={}, decided_by=-1
    )
    need = Need(ResourceType.TOPIC, Operation.WRITE)
    assert authorizer.allows(PRODUCE, session, need, "load")
    number = 100_000
    return min(timeit.repeat(lambda: authorizer.allows(PRODUCE, session, need, "load"), number=number)) / number * 1e6


@click.command()
@run.quick
@click.option("--only", type=click.Choice(["tls", "authorization"]), help="Only this section.")
@click.option("--client", "clients", type=click.Choice(CLIENTS), multiple=True, help="Measure TLS with these [all].")
@run.reps
@run.name
def main(quick: bool, only: str | None, clients: tuple[str, ...], reps: int | None, name: str | None) -> None:
    """What TLS and ACLs cost. Needs java, mvn and openssl."""
    plan = QUICK if quick else FULL
    plan = plan._replace(reps=reps or plan.reps)
    with run.running("secured", quick=quick, how=f"{plan.reps} repetitions", name=name) as (results, scratch, say):
        if only != "authorization":
            (scratch / "tls").mkdir()
            measure_tls(scratch / "tls", clients or CLIENTS, plan, results, say)
        if only != "tls":
            measure_authorization(scratch, plan, results, say)


if __name__ == "__main__":
    main()
