"""A server as a child process. It reads its settings as one line of JSON from standard input and writes "ready ADDRESS
DATA" to standard output.

It ends with its parent: when standard input closes, it drains and stops.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from fencepost.errors import FencepostError
from fencepost.server.reporting import report_to_stderr
from fencepost.server.server import ServerConfig, run


def main() -> int:
    settings = json.loads(sys.stdin.readline())
    if settings.get("data") is not None:
        settings["data"] = Path(settings["data"])

    def end_with_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    def on_ready(address: str, data: Path) -> None:
        print("ready", address, data, flush=True)
        threading.Thread(target=end_with_parent, daemon=True).start()

    report_to_stderr(logging.WARNING)
    try:
        run(ServerConfig(**settings), on_ready=on_ready)
    except FencepostError as error:
        print("error", error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
