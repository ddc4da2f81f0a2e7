"""A flood of wrong passwords: it costs the server little, tells nothing, and keeps nobody else from logging in."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from struct import Struct

import pytest

import fencepost
from fencepost.server.config.listener import ListenerConfig
from fencepost.wire import frame, messages
from tests.support.attacks import MIB, Siege, besieged, peak_memory
from tests.support.logins import add_users, log_in

pytestmark = pytest.mark.hostile

AT_ONCE = 50
PATIENCE_SECONDS = 0.05
"""The attacker hangs up on those connections of a wave that have no answer by then."""
UNLIMITED = 2**31 - 1
MOST_LATE = 0.01
"""Share of the bystander's records that may take longer than 10 ms; demanded in the long form only."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencepost.Server]:
    """Logins alone have to withstand the flood, so connections may come as fast as they can."""
    data = tmp_path_factory.mktemp("logins")
    add_users(data, {"alice": "alice-secret"})
    plain = ListenerConfig(name="plain", address="127.0.0.1:0")
    inside = ListenerConfig(name="inside", address="127.0.0.1:0", protocol="sasl_plaintext", mechanisms=("PLAIN",))
    with fencepost.Server(
        data,
        sync="always",
        process=True,
        listeners=(plain, inside),
        max_connection_rate_per_address=UNLIMITED,
    ) as started:
        yield started


@pytest.fixture
def siege(request: pytest.FixtureRequest, server: fencepost.Server) -> Iterator[Siege]:
    with besieged(server, request) as siege:
        yield siege


def login(user: str, password: str) -> bytes:
    """The two requests of a login with PLAIN, for one write."""
    shake = frame.request_head(17, 1, 1, "attacker") + messages.encode_request(17, 1, {"mechanism": "PLAIN"})
    fields = {"auth_bytes": f"\0{user}\0{password}".encode()}
    prove = frame.request_head(36, 1, 2, "attacker") + messages.encode_request(36, 1, fields)
    return b"".join(Struct(">i").pack(len(each)) + each for each in (shake, prove))


def wave(address: str, attempts: list[bytes]) -> None:
    """Send every attempt on a connection of its own, look briefly for answers, and hang up on the rest."""
    host, port = address.rsplit(":", 1)
    waiting = []
    for attempt in attempts:
        wire = socket.create_connection((host, int(port)), 30)
        wire.sendall(attempt)
        waiting.append(wire)
    open_ones = list(waiting)
    while open_ones:
        ready, _, _ = select.select(open_ones, [], [], PATIENCE_SECONDS)
        if not ready:
            break
        for wire in ready:
            try:
                has_ended = not wire.recv(65536)
            except ConnectionResetError:
                has_ended = True
            if has_ended:
                open_ones.remove(wire)
    for wire in waiting:
        wire.close()


@pytest.mark.timeout(1800)  # the long form has a hundred thousand logins
@pytest.mark.parametrize("users", ["one user", "many users"])
def test_failed_logins_cost_little_and_keep_nobody_out(server: fencepost.Server, siege: Siege, users: str) -> None:
    inside = server.addresses["inside"]
    log_in(inside, "alice", "alice-secret").close()
    number = 0

    def flood(count: int) -> None:
        nonlocal number
        for _ in range(count // AT_ONCE):
            names = ["alice" if users == "one user" else f"user{number + each}" for each in range(AT_ONCE)]
            wave(inside, [login(name, f"guess{number}") for name in names])
            number += AT_ONCE

    with siege.attack("nobody, for comparison"):
        siege.linger(siege.size(5, 500))
    calm = siege.late_share
    flood(siege.size(200, 10_000))
    before = peak_memory(siege.server.pid)
    with siege.attack(f"failed logins of {users}"):
        flood(siege.size(400, 100_000))
        siege.linger(5)
    grown = peak_memory(siege.server.pid) - before
    assert grown < 32 * MIB, f"the server grew by {grown / MIB:.0f} MiB"
    print(
        f"{users}: {number} attempts, grown by {grown / MIB:.1f} MiB, {siege.late_share:.2%} of the bystander's "
        f"records took longer than 10 ms (before the attack {calm:.2%})"
    )
    if siege.long:
        assert siege.late_share <= MOST_LATE
    if users == "many users":  # one whose password is being guessed has to wait, others from this address do not
        log_in(inside, "alice", "alice-secret").close()
