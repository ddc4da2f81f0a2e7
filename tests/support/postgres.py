"""A PostgreSQL server of a test's own, from the machine's installation (Debian: postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.process import Child, free_port


def binaries() -> Path | None:
    """Where initdb and postgres are; Debian keeps them outside the path, by version."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name))


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its address, while it runs on a free port of 127.0.0.1. Its output is in `folder`."""
    tools = binaries()
    assert tools is not None
    # PostgreSQL refuses to run as root, and another user cannot enter pytest's folders: each pytest that starts closes
    # them to others.
    with tempfile.TemporaryDirectory(prefix="fencepost-postgres-") as data:
        as_user: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(data, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        command = [*as_user, str(tools / "initdb"), "--auth=trust", "--username=test", "--no-sync", "-D", data]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        server = Child([*as_user, tools / "postgres", "-D", data, "-p", str(port), *options], log=folder / "pg.log")
        try:
            address = f"postgresql://test@127.0.0.1:{port}/postgres"
            _await(address, server)
            yield address
        finally:
            os.kill(server.pid, signal.SIGINT)  # PostgreSQL's word for: do not wait for those who are connected
            server.wait()


def _await(address: str, server: Child) -> None:
    import time

    import psycopg

    while True:
        try:
            psycopg.connect(address, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert server.exit_code is None, server.output()
            time.sleep(0.05)  # a server of somebody else's: it tells nobody when it is ready
