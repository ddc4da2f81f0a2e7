"""A PostgreSQL server of a test's own, from the machine's installation (Debian: postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
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
    """Its address, while it runs on a free port of 127.0.0.1 and keeps its data under `folder`."""
    tools = binaries()
    assert tools is not None
    data = folder / "postgres"
    data.mkdir()
    # PostgreSQL refuses to run as root; whoever owns the data has to be somebody else then.
    as_user: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        for path in (data, *data.parents):
            if path.stat().st_uid == 0 and path != Path(path.anchor) and not path.stat().st_mode & 0o001:
                path.chmod(path.stat().st_mode | 0o011)
        os.chown(data, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    command = [*as_user, str(tools / "initdb"), "--auth=trust", "--username=test", "--no-sync", "-D", str(data)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    port = free_port()
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    server = Child([*as_user, tools / "postgres", "-D", str(data), "-p", str(port), *options], log=folder / "pg.log")
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
