"""`fencepost doctor`: the things that are most often wrong, looked at one after the other."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from fencepost.cli.options import Target, client_command
from fencepost.cli.output import Column
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.client.settings import ClientSettings


class Finding(NamedTuple):
    what: str
    state: Literal["ok", "slow", "failed"]
    detail: str


@click.command()
@client_command
def doctor(target: Target) -> None:
    """Look at the installation, the server, and the way to it.

    Among the checks is the classic trap of Kafka's listeners: clients connect to the addresses that the server
    advertises, not to the one they dialled. Exits with 1 if something is wrong.
    """
    findings = [*_installation(), *_connection(target.settings())]
    rows = ((finding.what, finding.state, finding.detail) for finding in findings)
    target.show(findings, [Column("check"), Column("state"), Column("detail")], rows, empty="nothing to check")
    failed = [finding.what for finding in findings if finding.state == "failed"]
    if failed:
        raise FencepostError(f"wrong: {', '.join(failed)}")


def _installation() -> Iterator[Finding]:
    import importlib.metadata

    from fencepost import kernel
    from fencepost._version import __version__

    yield Finding(
        "fencepost", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    if kernel.IMPLEMENTATION == "cython":
        yield Finding("kernel", "ok", "compiled")
    else:
        yield Finding("kernel", "slow", "the Python twin runs; reinstall with a C compiler for the compiled one")
    for package in ("kio", "uvloop", "pyarrow"):
        try:
            yield Finding(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "ok" if package == "pyarrow" else "slow", "not installed")


def _connection(settings: ClientSettings) -> Iterator[Finding]:
    from fencepost.client.admin import Admin
    from fencepost.client.settings import Address

    with Admin(settings) as admin:
        try:
            pong = admin.ping()
            cluster = admin.cluster()
        except FencepostError as error:
            yield Finding("server", "failed", str(error))
            return
    yield Finding("server", "ok", f"{pong.address} answers in {pong.milliseconds:.2f} ms, cluster {cluster.cluster_id}")
    for broker in cluster.brokers:
        address = Address(broker.host, broker.port)
        with Admin(address) as admin:
            try:
                admin.ping()
            except FencepostError as error:
                detail = f"advertised as {address}, which cannot be reached from here: {error}"
                yield Finding(f"broker {broker.id}", "failed", detail)
            else:
                yield Finding(f"broker {broker.id}", "ok", f"advertised as {address}, reached")
