"""Backups and restores as tests make them, and what is in a restored server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import fencepost
from fencepost.server.backup import folder, point, restoring
from fencepost.server.backup.folder import BackupReport
from fencepost.server.backup.restoring import RestoreReport


def ignore(_bytes: int) -> None:
    """Show no progress."""


def back_up(data: Path, dest: Path, *, keep: int | None = None) -> BackupReport:
    """Back up to a folder, as the command does."""
    with point.taken(data) as files:
        dest.mkdir(exist_ok=True)
        return folder.back_up(files, dest, advance=ignore, keep=keep)


def restore(dest: Path, data: Path) -> RestoreReport:
    return restoring.restore(dest, data, advance=ignore)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def create(address: str, topic: str, partitions: int = 1, **configs: str) -> None:
    with fencepost.Admin(address) as admin:
        admin.create_topic(
            topic, partitions, configs={name.replace("_", "."): value for name, value in configs.items()}
        )


def write(address: str, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    with fencepost.Producer(address) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def read(address: str, topic: str) -> list[bytes]:
    with fencepost.Reader(address, topic, stop="latest") as reader:
        return [record.value or b"" for record in reader]


def files_below(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file())
