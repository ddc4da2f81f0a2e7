"""Entry points to a server: in the foreground (`fencepost serve`), in a thread, or as a child process.

with fencepost.Server() as server:
    ... server.address ...
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, Unpack

from fencepost._version import __version__
from fencepost.clock import Clock
from fencepost.errors import DataDirectoryError, FencepostError
from fencepost.log.files import OsFiles
from fencepost.server.broker import Broker
from fencepost.server.config.settings import ServerConfig, ServerKeywords, Sync, check_names
from fencepost.server.health import Health, Trouble
from fencepost.server.net.listener import Listener
from fencepost.server.process.stacks import stacks_on_signal
from fencepost.server.process.tuning import (
    allow_many_files,
    keep_collections_short,
    keep_freed_memory,
    open_standard_files,
    switch_threads_soon,
)
from fencepost.setting import settings_doc

if TYPE_CHECKING:
    from fencepost.server.config.reloading import Reloader
    from fencepost.server.http.port import HttpPort
    from fencepost.server.process.systemd import Systemd

logger = logging.getLogger(__name__)
life = logging.getLogger(f"{__name__}.life")
"""When the server starts, listens and stops. JSON lines have these events whatever the level (`reporting.py`)."""

__all__ = ["Server", "ServerConfig", "run"]

_START_SECONDS = 60.0


class Ready(NamedTuple):
    """The addresses of a server that is ready."""

    addresses: Mapping[str, str]
    """By the listeners' names."""
    data: Path
    http: str | None = None
    """http://HOST:PORT, if that port is on."""


OnReady: TypeAlias = Callable[[Ready], None]


def _run_loop(main: Any) -> None:
    """Run `main` on uvloop if it is installed, otherwise on asyncio's own loop."""
    open_standard_files()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


async def _serve(
    config: ServerConfig,
    on_ready: OnReady,
    stop: asyncio.Event,
    *,
    clock: Clock | None = None,
    files: OsFiles | None = None,
    on_broker: Callable[[Broker], None] | None = None,
    reloader: Reloader | None = None,
    may_go_without_http: bool = False,
) -> None:
    broker = Broker(config, clock=clock, files=files)
    if on_broker is not None:
        on_broker(broker)
    listens = False
    try:
        await broker.start()
        listener = Listener(broker)
        addresses = await listener.start()
        listens = True
        if reloader is not None:
            broker.spawn(reloader.run(broker, listener), "reload the configuration")
        http: HttpPort | None = None
        try:
            http = await _open_http(broker, listener, may_go_without=may_go_without_http)
            on_ready(Ready(addresses, broker.directory.path, http.url if http is not None else None))
            await stop.wait()
        finally:
            if http is not None:
                await http.stop()
            await listener.stop()
    finally:
        await broker.close(served=listens)


async def _open_http(broker: Broker, listener: Listener, *, may_go_without: bool) -> HttpPort | None:
    if broker.config.http_address is None:
        return None
    from fencepost.server.http.port import HttpPort  # starlette and uvicorn weigh more than all of an embedded server

    port = HttpPort(broker, listener)
    try:
        await port.start()
    except FencepostError as error:
        if not may_go_without:
            raise
        logger.warning("%s: health and metrics are off; --http HOST:PORT chooses another port, --no-http none", error)
        return None
    return port


def run(
    config: ServerConfig,
    *,
    on_ready: OnReady,
    load: Callable[[], ServerConfig] | None = None,
    may_go_without_http: bool = False,
    systemd: Systemd | None = None,
) -> None:
    """Serve in the foreground until SIGTERM or SIGINT, then drain and stop cleanly.

    `load` reads the configuration again, for SIGHUP. Without it SIGHUP ends the process, as when a terminal closes.
    `may_go_without_http`: start also if the HTTP port cannot be opened. `systemd` is told when the server is ready,
    reloads and stops.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            if systemd is not None and not stop.is_set():
                systemd.stopping()
            stop.set()

        def tell(where: Ready) -> None:
            within.enter_context(stacks_on_signal(where.data))
            life.info("fencepost %s has started: process %d, data in %s", __version__, os.getpid(), where.data)
            for name, address in {**where.addresses, **({"http": where.http} if where.http else {})}.items():
                life.info("listening on %s (%s)", address, name)
            on_ready(where)
            if systemd is not None:
                systemd.ready(f"listening on {', '.join(where.addresses.values())}")

        for name in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):  # Windows has no signal handlers on the loop
                loop.add_signal_handler(name, end)
        reloader = None
        if load is not None and hasattr(signal, "SIGHUP"):
            from fencepost.server.config.reloading import Reloader  # embedded servers need no configuration file

            reloader = Reloader(load, systemd)
            loop.add_signal_handler(signal.SIGHUP, reloader.want)
        with contextlib.ExitStack() as within:
            if systemd is not None:
                within.callback(systemd.close)
            await _serve(config, tell, stop, reloader=reloader, may_go_without_http=may_go_without_http)
            life.info("the server has stopped")

    keep_freed_memory()
    keep_collections_short()
    switch_threads_soon()
    allow_many_files()
    _run_loop(main())


class Server:
    __doc__ = settings_doc(
        ServerConfig,
        """
        An embedded server. By default it runs in this process, on a free port of 127.0.0.1, with a temporary data
        directory.

        >>> with Server() as server:
        ...     print(server.address)

        `process=True` starts it as a child process: it then does not share this interpreter's lock, and a test can
        kill it. Defaults that differ from those below: listen="127.0.0.1:0", sync="os".
        """,
    )

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        sync: Sync = "os",
        process: bool = False,
        clock: Clock | None = None,
        files: OsFiles | None = None,
        **settings: Unpack[ServerKeywords],
    ) -> None:
        check_names(settings)
        self.config = ServerConfig(data=Path(data) if data is not None else None, listen=listen, sync=sync, **settings)
        if process and (clock is not None or files is not None):
            raise ValueError("clock and files work only for a server in this process; leave out process=True")
        self._as_process = process
        self._clock = clock
        self._files = files
        self._addresses: dict[str, str] = {}
        self._data: Path | None = None
        self._http: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[str] | None = None
        self._failure: BaseException | None = None
        self._health: Health | None = None

    def __repr__(self) -> str:
        if not self._addresses:
            return "<Server, not running>"
        return f"<Server on {', '.join(self._addresses.values())}, data in {self._data}>"

    @property
    def address(self) -> str:
        """HOST:PORT that clients connect to; with named listeners, that of the first."""
        return next(iter(self.addresses.values()))

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of every listener, by its name."""
        if not self._addresses:
            raise RuntimeError("the server is not running; use it in a `with` block, or call start()")
        return dict(self._addresses)

    @property
    def data(self) -> Path:
        """The data directory."""
        if self._data is None:
            raise RuntimeError("the server is not running; use it in a `with` block, or call start()")
        return self._data

    @property
    def http(self) -> str:
        """http://HOST:PORT of health and metrics; only with the setting `http_address`."""
        if self._http is None or not self._addresses:
            raise RuntimeError("the HTTP port is off: start the server with http_address='127.0.0.1:0'")
        return self._http

    @property
    def pid(self) -> int:
        """The id of the process that serves."""
        return self._child.pid if self._child is not None else os.getpid()

    @property
    def health(self) -> tuple[Trouble, ...]:
        """The background tasks that currently fail, oldest first; empty if all is well."""
        if self._health is None:
            raise RuntimeError("health is known only after start(), for a server without process=True")
        return self._health.troubles

    def start(self) -> Self:
        if self._addresses:
            raise RuntimeError("the server is already running")
        if self._as_process:
            self._start_process()
        else:
            self._start_thread()
        return self

    def stop(self) -> None:
        """Drain and stop the server. A second call does nothing."""
        if self._thread is not None:
            if self._loop is not None and self._stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has already ended
                    self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None
        if self._child is not None:
            self._child.terminate()
            self._reap()
        self._addresses = {}

    def kill(self) -> None:
        """Send SIGKILL, to test recovery after a crash; only with `process=True`."""
        if self._child is None:
            raise RuntimeError("only a server started with process=True can be killed")
        self._child.kill()
        self._reap()
        self._addresses = {}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- in a thread ------------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        ready = threading.Event()

        def on_ready(where: Ready) -> None:
            self._addresses, self._data, self._http = dict(where.addresses), where.data, where.http
            ready.set()

        def on_broker(broker: Broker) -> None:
            self._health = broker.health

        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await _serve(self.config, on_ready, self._stop, clock=self._clock, files=self._files, on_broker=on_broker)

        def target() -> None:
            try:
                _run_loop(main())
            except BaseException as error:
                self._failure = error
                if ready.is_set():
                    logger.exception("the embedded server has stopped because of an error")
            finally:
                ready.set()

        self._failure = None
        self._thread = threading.Thread(target=target, name="fencepost-server", daemon=True)
        self._thread.start()
        ready.wait()
        failure: BaseException | None = self._failure
        if failure is not None:
            self._thread.join()
            self._thread = None
            raise failure

    # -- as a process -----------------------------------------------------------------------------------------

    def _start_process(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "fencepost.server.process.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(base64.b64encode(pickle.dumps(self.config)).decode() + "\n")
        self._child.stdin.flush()
        answer = _read_line(self._child.stdout, _START_SECONDS)
        word, _, rest = answer.partition(" ")
        if word != "ready":
            self._child.kill()
            self._reap()
            if word == "error":
                raise DataDirectoryError(rest.strip())
            raise FencepostError("the server did not start; see its messages on stderr")
        ready = json.loads(rest)
        self._addresses, self._data, self._http = ready["addresses"], Path(ready["data"]), ready["http"]

    def _reap(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
            child.wait()


def _read_line(stream: IO[str], seconds: float) -> str:
    """Return the next line, or "" if the child ended or wrote nothing for `seconds`."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return lines[0] if lines else ""
