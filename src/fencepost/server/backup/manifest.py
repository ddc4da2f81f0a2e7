"""The parts of a point in time and of a backup: files, their sizes and their checksums.

`point.json` lies beside the files that a backup copies, `manifest.json` beside the copies:

    {"checksum": CRC-32C of the manifest, "manifest": {"format": 2, "fencepost": VERSION, "taken_ms": …,
     "cluster_id": …, "files": [{"path": …, "size": …, "crc32c": …, "source": [INODE, MTIME]}, …]}}

The source says which file was copied. A file of a log never changes its bytes, so if the next backup finds the same
one, of the same size, it need not copy it again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from fencepost.errors import FencepostError

STORE: Final = "meta.sqlite"
POINT: Final = "point.json"
MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""2: a file may be longer than its manifest says, because a later backup has appended to it. A fencepost that knows
only format 1 would call that damaged."""
_PATH: Final = re.compile(r"meta\.sqlite|logs/[a-zA-Z0-9._-]{1,200}\.[a-zA-Z0-9_-]{22}/[0-9]+/[a-zA-Z0-9._-]+")


class DamagedBackup(FencepostError):
    """A backup that is not whole: a file is missing, or its content is not what was backed up."""

    fatal = True


class PointFile(NamedTuple):
    path: str
    """Below the data directory, with slashes."""
    size: int


class Point(NamedTuple):
    """A moment of a data directory."""

    fencepost: str
    taken_ms: int
    cluster_id: str
    files: tuple[PointFile, ...]

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "files": [list(file) for file in self.files]}

    @classmethod
    def read(cls, path: Path) -> Point:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**fields, "files": tuple(PointFile(*each) for each in fields["files"])})

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class SourceFile(NamedTuple):
    """The identity of a file of the server."""

    inode: int
    mtime_ns: int


class BackedUpFile(NamedTuple):
    path: str
    size: int
    crc32c: int
    source: SourceFile


class BackupManifest(NamedTuple):
    fencepost: str
    taken_ms: int
    cluster_id: str
    files: tuple[BackedUpFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        content = {"format": FORMAT, **self._asdict(), "files": [each._asdict() for each in self.files]}
        return json.dumps({"checksum": _checksum(content), "manifest": content}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: Path) -> BackupManifest:
        """Return the manifest; raise DamagedBackup, which names the place."""
        try:
            whole = json.loads(data)
            content = whole["manifest"]
            if whole["checksum"] != _checksum(content):
                raise DamagedBackup(f"{where} is damaged: its checksum is wrong; restore another backup")
            version = content.pop("format")
            if version > FORMAT:
                raise DamagedBackup(f"{where} was written by a newer fencepost (format {version}): upgrade this one")
            files = tuple(
                BackedUpFile(each["path"], each["size"], each["crc32c"], SourceFile(*each["source"]))
                for each in content.pop("files")
            )
            found = cls(**content, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedBackup(f"{where} is damaged: it is not a manifest; restore another backup") from error
        for file in found.files:
            check_path(file.path, where)
        return found

    @classmethod
    def read(cls, folder: Path) -> BackupManifest:
        path = folder / MANIFEST
        try:
            return cls.decode(path.read_bytes(), path)
        except FileNotFoundError:
            raise DamagedBackup(f"{folder} has no {MANIFEST}: it is not a backup, or one that did not end") from None


def check_path(path: str, where: Path) -> None:
    """Raise DamagedBackup if a file of a backup would not lie in a data directory."""
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise DamagedBackup(f"{where} names {path!r}, which is no file of a data directory")


def _checksum(content: dict[str, Any]) -> int:
    return int(crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()))
