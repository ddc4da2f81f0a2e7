"""Reloading the configuration of a running server (SIGHUP, `fencepost config reload`).

The new configuration is checked as a whole before anything changes: if it has a mistake, or a new listener cannot be
opened, the server keeps the old one. No connection is closed; connections keep the settings of their listener.

A server that can reload says so in `reload.json` of its data directory, where it also writes the outcome of each
reload, for `fencepost config reload`. Only the server's user can send the signal and read the directory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from fencepost.core.security.audit_events import Event
from fencepost.errors import FencepostError
from fencepost.server.broker import Broker, make_tokens
from fencepost.server.config.loading import WrongConfiguration
from fencepost.server.config.settings import ServerConfig, file_name
from fencepost.server.net.listener import Listener
from fencepost.server.process.systemd import Systemd
from fencepost.server.security.audit_places import audit_places
from fencepost.setting import is_live

logger = logging.getLogger(__name__)

FILE: Final = "reload.json"
_OF_LISTENERS: Final = ("listeners", "listen", "advertise")


@dataclass(frozen=True)
class ReloadOutcome:
    applied: list[str] = field(default_factory=list)
    """Names of settings, and `listeners.NAME`."""
    needs_restart: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """Why nothing was applied."""


@dataclass(frozen=True)
class ReloadReport:
    """The content of `reload.json`."""

    pid: int
    number: int
    """The number of reloads so far."""
    outcome: ReloadOutcome

    def write(self, folder: Path) -> None:
        new = folder / f"{FILE}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> ReloadReport | None:
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(found["pid"], found["number"], ReloadOutcome(**found["outcome"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Reloader:
    def __init__(self, load: Callable[[], ServerConfig], systemd: Systemd | None = None) -> None:
        self._load = load
        self._systemd = systemd or Systemd()
        self._wanted = asyncio.Event()

    def want(self) -> None:
        """Ask for a reload; called by the signal's handler."""
        self._wanted.set()

    async def run(self, broker: Broker, listener: Listener) -> None:
        """Reload whenever it is wanted."""
        number = 0
        outcome = ReloadOutcome()
        in_thread = asyncio.get_running_loop().run_in_executor
        while True:
            await in_thread(broker.threads, ReloadReport(os.getpid(), number, outcome).write, broker.directory.path)
            await self._wanted.wait()
            self._wanted.clear()
            self._systemd.reloading()
            outcome = await reload(broker, listener, self._load)
            number += 1
            _log(outcome)
            self._systemd.ready(_status(outcome))
            broker.audit.record(Event.CONFIG_RELOADED, failed=bool(outcome.mistakes), **asdict(outcome))


async def reload(broker: Broker, listener: Listener, load: Callable[[], ServerConfig]) -> ReloadOutcome:
    """Apply the current configuration, or nothing of it."""
    try:
        new = await asyncio.get_running_loop().run_in_executor(broker.threads, load)
        old = broker.config
        changed = [each for each in fields(ServerConfig) if getattr(old, each.name) != getattr(new, each.name)]
        live = [each.name for each in changed if is_live(each)]
        config = replace(old, **{name: getattr(new, name) for name in live})
        tokens = broker.logins.tokens
        if tokens is None:
            tokens = await asyncio.get_running_loop().run_in_executor(broker.threads, make_tokens, config)
        in_thread = asyncio.get_running_loop().run_in_executor
        audit = any(name.startswith("audit_") for name in live)
        places = audit_places(broker, config) if audit else []
        try:
            listeners = await listener.change_ports(config.endpoints)
        except BaseException:
            for place in places:
                place.close()
            raise
    except WrongConfiguration as error:
        return ReloadOutcome(mistakes=[str(mistake) for mistake in error.mistakes])
    except FencepostError as error:
        return ReloadOutcome(mistakes=[str(error)])
    broker.config = config
    if audit:
        await in_thread(broker.threads, lambda: broker.audit.use(*places))
    broker.logins.tokens = tokens
    if "log_level" in live:
        logging.getLogger().setLevel(config.log_level.upper())
    await listener.reload_changed_certificates()
    return ReloadOutcome(
        applied=[file_name(name) for name in live if name not in _OF_LISTENERS]
        + [f"listeners.{name}" for name in listeners],
        needs_restart=[file_name(each.name) for each in changed if not is_live(each)],
    )


def _status(outcome: ReloadOutcome) -> str:
    """Return one line for `systemctl status`."""
    if outcome.mistakes:
        return "the new configuration is wrong, the old one stays: " + outcome.mistakes[0].replace("\n", " ")
    return f"configuration reloaded: {', '.join(outcome.applied) or 'nothing has changed'}"


def _log(outcome: ReloadOutcome) -> None:
    if outcome.mistakes:
        logger.error("the new configuration is wrong, the old one stays: %s", "; ".join(outcome.mistakes))
        return
    logger.warning("configuration reloaded: %s", ", ".join(outcome.applied) or "nothing has changed")
    if outcome.needs_restart:
        logger.warning("these settings need a restart: %s", ", ".join(outcome.needs_restart))
