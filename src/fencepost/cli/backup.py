"""`fencepost backup`, `restore` and `check`: the data directory of a server, kept, brought back and looked through."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fencepost.cli.options import data_option
from fencepost.cli.output import is_terminal, show_json, when
from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from fencepost.server.backup.folder import BackupReport

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ARCHIVES: Final = frozenset({".tar", ".tgz", ".gz", ".zst", ".zip"})

_NICENESS: Final = 10
"""A tenth of the weight of others. With the highest, 19, a backup on a busy machine would hardly ever end."""
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""Numbers of the system call, for which the C library has no function."""
_THIS_PROCESS: Final = 1
_IDLE: Final = 3 << 13
"""The class of requests that the disk gets when it has no others; not every I/O scheduler knows it."""

_json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _seconds(text: str) -> float:
    """Return the seconds of a text like 15m."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if not found or not int(found[1]):
        raise ConfigError(f"--every must be a number with s, m, h or d, like 15m, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _let_others_go_first() -> None:
    """Lower the priority of this process for the CPU and for the disk, until it ends."""
    with suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform == "linux" and number is not None and sys.maxsize > 2**32:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, _THIS_PROCESS, 0, _IDLE)


def _end(number: int, _frame: object) -> None:
    """Exit on SIGTERM, so that what is half done is removed: it takes space."""
    raise SystemExit(128 + number)


@contextmanager
def _bar(verb: str, *, quiet: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Yield functions to call with the bytes to do, and with the bytes done. The bar is drawn at a terminal only."""
    if quiet or not is_terminal(sys.stderr):
        yield (lambda _total: None), (lambda _more: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(verb), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield (lambda total: bar.update(task, total=total)), (lambda more: bar.update(task, advance=more))


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@data_option
@click.option("--every", metavar="TIME", help="Go on, with a backup every TIME (30s, 15m, 6h, 1d).")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Remove all but the newest N backups in DEST.")
@_json_option
def backup(dest: Path, data: Path, every: str | None, keep: int | None, as_json: bool) -> None:
    """Back up a running server to the folder DEST.

    Run it on the server's machine, as the server's user. The backup is the server at one moment: logs, groups,
    transactions, users, ACLs. DEST gets one folder per backup, each of them whole; files that have not changed are
    linked to those of the backup before and take no space. Every copy is verified by its checksum. A stopped server can
    be backed up too.

    \b
    Examples:
      fencepost backup /backups/orders
      fencepost backup /backups/orders --data /var/lib/fencepost --every 15m --keep 7
    """
    seconds = _seconds(every) if every is not None else None
    if dest.resolve().is_relative_to(data.resolve()):
        raise ConfigError(f"{dest} lies in the data directory {data}, and would be lost with it: back up elsewhere")
    if dest.suffix in _ARCHIVES and not dest.is_dir():
        raise ConfigError(f"{dest} must be a folder, in which each backup is a folder: pack one with tar afterwards")
    _let_others_go_first()
    signal.signal(signal.SIGTERM, _end)
    while True:
        began = time.monotonic()
        try:
            _show_backup(_back_up(data, dest, keep, quiet=as_json), as_json=as_json)
        except (FencepostError, OSError) as error:
            if seconds is None:
                raise
            # The job goes on: the next backup may succeed, and the older ones are still there.
            click.echo(f"fencepost: no backup this time: {error}", err=True)
        if seconds is None:
            return
        time.sleep(max(0.0, began + seconds - time.monotonic()))


def _back_up(data: Path, dest: Path, keep: int | None, *, quiet: bool) -> BackupReport:
    from fencepost.server.backup import folder, point

    dest.mkdir(0o700, parents=True, exist_ok=True)
    with point.taken(data) as files, _bar("backing up", quiet=quiet) as (total, advance):
        total(files.point.size)
        return folder.back_up(files, dest, advance=advance, keep=keep)


def _show_backup(report: BackupReport, *, as_json: bool) -> None:
    if as_json:
        show_json(report)
        return
    click.echo(
        f"backed up {report.files} files, {_size(report.bytes)}, to {report.backup}; "
        f"copied {report.copied_files} of them, {_size(report.copied_bytes)}"
    )
    if report.removed:
        click.echo(f"removed {', '.join(report.removed)}")


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, metavar="NEWDIR", help="New data directory to make."
)
@_json_option
def restore(dest: Path, data: Path, as_json: bool) -> None:
    """Make a data directory from a backup.

    DEST is a folder of backups, of which the newest is taken, or one of the folders in it. Every file is verified by
    its checksum. Pids, epochs, tokens and generations of groups jump ahead, so that the restored server hands out
    nothing again that the old one handed out after the backup: producers with a name and members of groups of before
    are refused, and begin anew. Transactions that were open are aborted. What is ahead of the log is named.

    \b
    Examples:
      fencepost restore /backups/orders --data /var/lib/fencepost-new
      fencepost restore /backups/orders/20261117T081500.123Z --data ./restored
    """
    from fencepost.server.backup.restoring import restore as make

    signal.signal(signal.SIGTERM, _end)
    with _bar("restoring", quiet=as_json) as (total, advance):
        report = make(dest, data, advance=advance, total=total)
    if as_json:
        show_json(report)
        return
    click.echo(f"restored {report.files} files, {_size(report.bytes)}, from {report.backup} to {report.data}")
    click.echo(f"it is the server at {when(report.taken_ms)}; what came later is lost")
    jumped = report.jumped
    click.echo(f"next pid {jumped.next_pid}, last token {jumped.last_token}")
    click.echo(f"fenced the producers of {jumped.transactional_ids} transactional ids; emptied {jumped.groups} groups")
    for name in jumped.aborted:
        click.echo(f"transaction {name} was open and is aborted at the next start")
    for group in report.groups_ahead:
        click.echo(
            f"group {group.group} is ahead in {group.partition}: it committed {group.committed}, the log ends at "
            f"{group.end}; `fencepost group reset` moves it"
        )
    if report.sinks:
        click.echo(
            f"sinks: {', '.join(report.sinks)}; `fencepost sink list` tells their last batches once the server runs: a "
            "checkpoint beyond that is ahead of the log"
        )


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.1f} {unit}" if unit != "B" else f"{count} B"
        count /= 1024  # type: ignore[assignment]
    return ""


@click.command()
@data_option
@click.option("--repair", is_flag=True, help="Cut off the torn ends of logs, as the next start of the server would.")
@_json_option
def check(data: Path, repair: bool, as_json: bool) -> None:
    """Check every file of a stopped server.

    Reads batches, indexes, snapshots and the metadata store. A start trusts what was once synced; this does not. It
    exits with 1 if something is damaged. A torn end is no damage: a crash leaves it, nobody was told that it is stored,
    and the next start cuts it off. Damage is never repaired here: restore a backup.

    \b
    Examples:
      fencepost check --data /var/lib/fencepost
      fencepost check --data ./restored --repair --json
    """
    from fencepost.server.backup.checking import check as look

    with _bar("checking", quiet=as_json) as (total, advance):
        report = look(data, repair=repair, advance=advance, total=total)
    if as_json:
        findings = [{**each._asdict(), "kind": each.kind.value} for each in report.findings]
        show_json({**report._asdict(), "findings": findings})
    else:
        for finding in report.findings:
            click.echo(f"{finding.kind.value}: {finding.file}: {finding.text}")
        for log in report.repaired:
            click.echo(f"cut off the torn end of {log}")
        verdict = "damaged" if report.is_damaged else "whole"
        click.echo(
            f"{report.data} is {verdict}: {report.partitions} partitions, {report.batches} batches, "
            f"{_size(report.bytes)}"
        )
    if report.is_damaged:
        raise SystemExit(1)
