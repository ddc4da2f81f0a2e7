"""The command `fencepost-python`: a Python for Spark, whose processes connect to Spark before they import anything.

Spark starts a Python process for each stream with a source in Python, and gives it ten seconds to connect. That time is
fixed in Spark. The process first imports PySpark, from an archive without compiled modules: about a second of CPU time,
and on a driver with a load of 25 more than the ten seconds. So the stream fails with "Python worker failed to connect
back". This command connects at once, and imports afterwards, when Spark waits as long as it takes.

For everything else it is the Python that it was installed with: it replaces itself by it.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Final

NAME: Final = "fencepost-python"

_PORT: Final = "PYTHON_WORKER_FACTORY_PORT"
_PATH: Final = "PYTHON_WORKER_FACTORY_SOCK_PATH"
_SECRET: Final = "PYTHON_WORKER_FACTORY_SECRET"  # noqa: S105 - the name of a variable


def is_started_by_spark() -> bool:
    """Return whether Spark started this process to run Python code for it."""
    return any(variable in os.environ for variable in (_PORT, _PATH, _SECRET))


def main() -> None:
    """Run `fencepost-python -m MODULE` for Spark, which waits for a connection; or run Python with these arguments."""
    arguments = sys.argv[1:]
    if len(arguments) != 2 or arguments[0] != "-m" or not (_PORT in os.environ or _PATH in os.environ):
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - no shell
    import runpy

    early = [_connect()]
    sys.path[0] = os.getcwd()  # as `python -m` does; it was the folder of this command
    from pyspark import util

    connect = util.local_connect_and_auth

    def connect_unless_connected(where: Any, secret: Any) -> Any:
        is_ours = str(where) in (os.environ.get(_PORT), os.environ.get(_PATH))
        return early.pop() if is_ours and early else connect(where, secret)

    util.local_connect_and_auth = connect_unless_connected  # the module that runs now imports it by this name
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def _connect() -> tuple[Any, socket.socket]:
    """Connect and log in, as `pyspark.util.local_connect_and_auth` does."""
    timeout = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    secret = os.environ.get(_SECRET)
    if secret is None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        sock.connect(os.environ[_PATH])
    else:
        host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
        sock = socket.create_connection((host, int(os.environ[_PORT])), timeout)
    file = sock.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    if secret is not None:
        content = secret.encode()
        file.write(len(content).to_bytes(4, "big") + content)
        file.flush()
        answer = file.read(int.from_bytes(file.read(4), "big"))
        if answer != b"ok":
            raise ConnectionError(f"Spark answered {answer!r} to the secret that it had given to this process")
    return file, sock
