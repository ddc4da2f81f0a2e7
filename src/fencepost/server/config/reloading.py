"""Reloading the configuration of a running server (SIGHUP, `fencepost config reload`).

The new configuration is checked as a whole before anything changes: if it has a mistake, or a new listener cannot be
opened, the server keeps the old one. No connection is closed; connections keep the settings of their listener.

`fencepost config reload` asks for it on the control socket (`process/control.py`), and hears of the outcome. Only the
server's user can send the signal and use the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
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

_OF_LISTENERS: Final = ("listeners", "listen", "advertise")


@dataclass(frozen=True)
class ReloadOutcome:
    applied: list[str] = field(default_factory=list)
    """Names of settings, and `listeners.NAME`."""
    needs_restart: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    """Why nothing was applied."""


class Reloader:
    def __init__(self, load: Callable[[], ServerConfig], systemd: Systemd | None = None) -> None:
        self._load = load
        self._systemd = systemd or Systemd()
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def want(self) -> None:
        """Ask for a reload; called by the signal's handler."""
        self._wanted.set()

    async def run(self, broker: Broker, listener: Listener) -> None:
        """Reload whenever it is wanted."""
        broker.reload = partial(self._reload, broker, listener)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._reload(broker, listener)

    async def _reload(self, broker: Broker, listener: Listener) -> ReloadOutcome:
        async with self._one_at_a_time:
            self._systemd.reloading()
            outcome = await reload(broker, listener, self._load)
            _log(outcome)
            self._systemd.ready(_status(outcome))
            broker.audit.record(Event.CONFIG_RELOADED, failed=bool(outcome.mistakes), **asdict(outcome))
        return outcome


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
