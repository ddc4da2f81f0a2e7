"""Random and mutated bytes before the login, on every kind of listener: nobody gets in, and nobody else feels it."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.support.login_fuzz import Gate, besiege, open_gate
from tests.support.raw import RawClient

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with open_gate(tmp_path_factory.mktemp("gate")) as opened:
        yield opened


@pytest.mark.parametrize("seed", [20, random.SystemRandom().getrandbits(32)], ids=["known seed", "new seed"])
def test_no_sequence_of_bytes_lets_a_stranger_in(gate: Gate, seed: int) -> None:
    besiege(gate, seed, count=600, most_mib=100)


def test_a_client_does_not_renegotiate(gate: Gate) -> None:
    """`openssl s_client` renegotiates at an R; the server must refuse."""
    host, port = gate.addresses["outside"]
    trusted = str(gate.certificates.authority)
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-CAfile", trusted]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None and client.stdout is not None
        stuck = threading.Timer(60, client.kill)
        stuck.start()
        client.stdin.write(b"R\n")
        client.stdin.flush()
        said = client.stdout.read()  # to the end: the client gives up when the server refuses
        stuck.cancel()
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said.lower()
    assert gate.let_in == []
    with RawClient("{}:{}".format(*gate.addresses["open"])) as bystander:
        assert bystander.call(18, 0).error_code == 0
