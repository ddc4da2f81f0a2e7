"""Deleting a whole log: a rename, which is quick and atomic, and the removal afterwards, which may take its time.

A log under its deleted name is nobody's any more: a server that finds some at its start removes them.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

from fencepost.log.files import Files

DELETED_SUFFIX: Final = ".deleted"


def mark_deleted(directory: Path, files: Files) -> Path | None:
    """Takes the log out of use: durable when this returns. The new name is for `remove_deleted`; None if there was no
    such directory. The log must have been closed."""
    if not files.exists(str(directory)):
        return None
    # Unique, because a topic of the same name may be made and deleted again before the removal is through.
    deleted = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}{DELETED_SUFFIX}")
    files.rename(str(directory), str(deleted))
    files.sync_directory(str(directory.parent))
    return deleted


def remove_deleted(deleted: Path, files: Files) -> None:
    """Removes the files of a log that was marked. Takes as long as the file system needs: not for the loop."""
    if not deleted.name.endswith(DELETED_SUFFIX):
        raise ValueError(f"{deleted} was not marked as deleted")
    for name in files.listdir(str(deleted)):
        files.remove(os.path.join(deleted, name))
    files.rmdir(str(deleted))


def find_deleted(parent: Path, files: Files) -> list[Path]:
    """Logs in this directory whose removal did not come to its end."""
    return [parent / name for name in sorted(files.listdir(str(parent))) if name.endswith(DELETED_SUFFIX)]
