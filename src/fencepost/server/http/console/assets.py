"""The files that pages load: our style sheet and script, and the libraries that the build fetched.

They are read once. Their addresses contain a digest of their content, so browsers keep them until they change.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_HERE: Final = Path(__file__).parent
_OWN: Final = ("console.css", "console.js", "records.js", "icon.svg")
_FETCHED: Final = ("htmx.min.js", "sse.min.js", "idiomorph.min.js", "uplot.min.js", "uplot.min.css")
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    address: str
    content: bytes
    packed: bytes
    """The content, compressed with gzip."""
    media_type: str


def are_installed() -> bool:
    """Tell if the libraries are there. A package that was built offline has none."""
    return all((_HERE / "vendor" / name).is_file() for name in _FETCHED)


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files by their names. Blocks: it reads and compresses them."""
    return {path.name: _read(path) for path in _paths()}


def _paths() -> list[Path]:
    return [_HERE / "static" / name for name in _OWN] + [_HERE / "vendor" / name for name in _FETCHED]


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(f"/assets/{digest}/{path.name}", content, gzip.compress(content, mtime=0), _TYPES[path.suffix])
