"""Options of every client command: the cluster's address, further settings, and JSON."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fencepost.cli.output import Column, is_terminal, show_json, show_table
from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from fencepost.client.admin_client import Admin
    from fencepost.client.cluster.settings import ClientSettings

F = TypeVar("F", bound=Callable[..., Any])

_CONTINUED: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster that a command talks to, and the form of its output."""

    servers: str | None
    config: Path | None
    options: tuple[str, ...]
    as_json: bool

    def settings(self) -> ClientSettings:
        """Merge the settings. Precedence: `--servers`, `-X`, `--config`, FENCEPOST_SERVERS, the default."""
        from fencepost.client.cluster.settings import ClientSettings

        return ClientSettings.from_config(self._named(), default_servers=_default_servers())

    def producer_settings(self) -> tuple[ClientSettings, dict[str, Any]]:
        """Return `settings` and the producer's options as keywords."""
        from fencepost.client.cluster.config_names import producer_fields
        from fencepost.client.cluster.settings import ClientSettings

        fields, keywords = producer_fields(self._named(), default_servers=_default_servers())
        return ClientSettings(**fields), keywords

    def _named(self) -> dict[str, object]:
        from fencepost.client.cluster.config_names import override

        named = override(read_config(self.config) if self.config else {}, pairs(self.options, "-X"))
        return named if self.servers is None else override(named, {"bootstrap.servers": self.servers})

    def admin(self) -> Admin:
        from fencepost.client.admin_client import Admin

        return Admin(self.settings())

    def show(self, value: Any, columns: list[Column], rows: Iterable[Iterable[object]], *, empty: str) -> None:
        """Print `value` as JSON, or the rows as a table."""
        if self.as_json:
            show_json(value)
        else:
            show_table(columns, [tuple(row) for row in rows], empty=empty)

    def done(self, sentence: str, value: Any) -> None:
        """Print the result: `value` as JSON, or the sentence."""
        if self.as_json:
            show_json(value)
        else:
            click.echo(sentence)


def _default_servers() -> str:
    from fencepost.client.cluster.addresses import DEFAULT_SERVERS

    return os.environ.get("FENCEPOST_SERVERS") or DEFAULT_SERVERS


def client_command(function: F) -> F:
    """Add the common options to a command, which gets a ClusterTarget as its first argument."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return client_command_without_json(as_json(function))


def client_command_without_json(function: F) -> F:
    """Do the same for a command without output of its own."""

    @click.option(
        "--servers", metavar="HOST:PORT,…", help="Bootstrap servers [default: FENCEPOST_SERVERS or 127.0.0.1:9092]."
    )
    @click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File of NAME=VALUE lines, as for Kafka's own tools.",
    )
    @click.option("-X", "options", multiple=True, metavar="NAME=VALUE", help="A setting by its Kafka name; repeatable.")
    @functools.wraps(function)
    def command(
        servers: str | None, config: Path | None, options: tuple[str, ...], as_json: bool = False, **rest: Any
    ) -> Any:
        return function(ClusterTarget(servers, config, options, as_json), **rest)

    return command  # type: ignore[return-value]


def confirm(question: str, yes: bool) -> None:
    """Ask before something irreversible; only at a terminal, and not with `--yes`."""
    if not yes and is_terminal(sys.stdin) and not click.confirm(question, err=True):
        raise FencepostError("nothing was changed")


data_option: Final = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FENCEPOST_DATA",
    default=Path("fencepost-data"),
    metavar="DIR",
    help="Data directory, on the server's machine [default: FENCEPOST_DATA or ./fencepost-data].",
)
yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
partitions_option: Final = click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True,
                                        help="Only this partition; repeatable.")  # fmt: skip


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` texts into a dictionary."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option} takes NAME=VALUE, not {text!r}")
        found[name.strip()] = value.strip()
    return found


def read_config(path: Path) -> dict[str, str]:
    """Read a Java properties file: NAME=VALUE lines and comments that begin with # or !. A backslash at the end of a
    line continues the line; elsewhere it escapes the next character."""
    whole: list[str] = []
    begun = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not begun and (not text or text[0] in "#!"):
            continue
        if _CONTINUED.search(text):
            begun += text[:-1]
        else:
            whole.append(begun + text)
            begun = ""
    return {
        name: _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)
        for name, value in pairs([*whole, begun] if begun else whole, str(path)).items()
    }
