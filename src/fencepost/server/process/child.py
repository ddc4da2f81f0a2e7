"""A server as a child process. It reads its settings as one line from standard input and writes "ready" and
its addresses and data directory, as JSON, to standard output.

It ends with its parent: when standard input closes, it drains and stops.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import signal
import sys
import threading

from fencepost.errors import FencepostError
from fencepost.server.process.reporting import report_to_stderr
from fencepost.server.server import Ready, ServerConfig, run


def main() -> int:
    config: ServerConfig = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301 - from our parent

    def end_with_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    def on_ready(where: Ready) -> None:
        said = {"addresses": dict(where.addresses), "data": str(where.data), "http": where.http}
        print("ready", json.dumps(said), flush=True)
        threading.Thread(target=end_with_parent, daemon=True).start()

    report_to_stderr(getattr(logging, config.log_level.upper()), as_json=config.log_format == "json")
    try:
        run(config, on_ready=on_ready)
    except FencepostError as error:
        print("error", error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
