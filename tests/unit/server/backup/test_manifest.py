"""The manifest of a backup: what it says is what was written, or it says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.server.backup.manifest import BackedUpFile, BackupManifest, DamagedBackup, SourceFile

pytestmark = pytest.mark.unit

LOG = "logs/orders.AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000.log"
HERE = Path("backup/manifest.json")


def manifest(path: str = LOG) -> BackupManifest:
    return BackupManifest("0.1.0", 1, "cluster", (BackedUpFile(path, 10, 99, SourceFile(1, 2)),))


def _means_the_same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_it_reads_back_as_it_was_written() -> None:
    assert BackupManifest.decode(manifest().encode(), HERE) == manifest()


def test_any_changed_byte_is_noticed() -> None:
    whole = manifest().encode()
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        if _means_the_same(changed, whole):
            continue  # white space between the fields
        with pytest.raises(DamagedBackup, match=str(HERE)):
            BackupManifest.decode(changed, HERE)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../meta.sqlite",
        "logs/../../x",
        "logs/orders/0/x",
        LOG + "/../../x",
        "logs/..AAAAAAAAAAAAAAAAAAAAAA/0/..",
    ],
)
def test_a_file_outside_of_the_data_directory_is_refused(path: str) -> None:
    with pytest.raises(DamagedBackup, match="no file of a data directory"):
        BackupManifest.decode(manifest(path).encode(), HERE)


def test_a_newer_format_is_named() -> None:
    whole = json.loads(manifest().encode())
    whole["manifest"]["format"] = 3
    with pytest.raises(DamagedBackup, match="checksum"):
        BackupManifest.decode(json.dumps(whole).encode(), HERE)
