"""A server whose event loop hangs as soon as a line comes on standard input. It prints its addresses."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path

from fencepost.server.config.settings import ServerConfig
from fencepost.server.server import Ready, run


def hang_for_ever() -> None:
    print("hangs", flush=True)
    time.sleep(3600)


def main() -> None:
    def on_ready(where: Ready) -> None:
        loop = asyncio.get_running_loop()

        def await_order() -> None:
            sys.stdin.readline()
            loop.call_soon_threadsafe(hang_for_ever)

        threading.Thread(target=await_order, daemon=True).start()
        print(json.dumps({"http": where.http, "address": where.addresses["default"]}), flush=True)

    config = ServerConfig(data=Path(sys.argv[1]), listen="127.0.0.1:0", http_address="127.0.0.1:0", sync="os")
    run(config, on_ready=on_ready)


if __name__ == "__main__":
    main()
