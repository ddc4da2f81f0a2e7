"""A check of a stopped server's data directory: every log, and the store."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from fencepost.core.producers.dedup import IssuedPids
from fencepost.errors import FencepostError
from fencepost.log.checking import Flaw, FlawKind, check_log
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.recovery import recover
from fencepost.log.segment import LOG_SUFFIX
from fencepost.server.backup.manifest import STORE
from fencepost.server.backup.pins import partitions_in
from fencepost.server.backup.point import check_data
from fencepost.server.backup.restoring import StoreFile
from fencepost.server.coordinators import group_rows, transaction_rows
from fencepost.server.storage.datadir import DataDirectory, folder_name


class CheckReport(NamedTuple):
    data: Path
    partitions: int
    batches: int
    bytes: int
    findings: list[Flaw]
    repaired: list[str]
    """Logs whose torn end was cut off."""

    @property
    def is_damaged(self) -> bool:
        return any(finding.kind is FlawKind.DAMAGE for finding in self.findings)


def check(
    data: Path, *, repair: bool, advance: Callable[[int], None], total: Callable[[int], None] | None = None
) -> CheckReport:
    """Check the data directory, which no server may use. `repair`: cut off torn ends, as recovery would. `total` is
    called with the number of bytes that `advance` will count."""
    check_data(data)
    with DataDirectory(data) as directory:
        findings, folders = _check_store(directory.store)
        report = CheckReport(directory.path, 0, 0, 0, findings, [])
        if total is not None:
            partitions = (partition for topic in directory.logs.iterdir() for partition in partitions_in(topic))
            total(sum(map(_log_bytes, partitions)))
        for topic in sorted(directory.logs.iterdir()):
            if folders is not None and topic.name not in folders:
                findings.append(Flaw(FlawKind.NOTE, str(topic), "it belongs to no topic"))
            for partition in partitions_in(topic):
                size = _log_bytes(partition)  # before a torn end is cut off
                report = _check_partition(report, partition, repair=repair)
                advance(size)
        return report


def _log_bytes(partition: Path) -> int:
    return sum(path.stat().st_size for path in partition.glob("*.log"))


def _check_partition(report: CheckReport, partition: Path, *, repair: bool) -> CheckReport:
    files = OsFiles()
    checked = check_log(files, str(partition))
    in_log = {finding.kind for finding in checked.findings if LOG_SUFFIX in Path(finding.file).name}
    if repair and in_log == {FlawKind.TORN}:
        with closing(Handles(files)) as handles:
            recover(str(partition), LogConfig(), handles, int(time.time() * 1000), issued=IssuedPids())
        checked = check_log(files, str(partition))
        report.repaired.append(str(partition))
    report.findings.extend(checked.findings)
    return report._replace(
        partitions=report.partitions + 1, batches=report.batches + checked.batches, bytes=report.bytes + checked.bytes
    )


def _check_store(path: Path) -> tuple[list[Flaw], set[str] | None]:
    """Return the findings, and the folders that the store knows; None if it cannot be read."""
    try:
        with StoreFile(path) as store:
            problems = [str(row[0]) for row in store.query("PRAGMA integrity_check(10)")]
            findings = [Flaw(FlawKind.DAMAGE, str(path), problem) for problem in problems if problem != "ok"]
            group_rows.load_groups(store)
            group_rows.load_offsets(store)
            transaction_rows.load(store)
            topics = store.query("SELECT name, id FROM topics")
            folders = {folder_name(str(name), UUID(bytes=key)) for name, key in topics}
            return findings, folders | {str(name) for (name,) in store.query("SELECT folder FROM deleted_folders")}
    except (sqlite3.Error, FencepostError, ValueError, KeyError, TypeError) as error:
        return [Flaw(FlawKind.DAMAGE, str(path), f"{STORE} cannot be read: {error}")], None
