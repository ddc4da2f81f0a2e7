"""Fetch the console's JavaScript libraries: `python -m tools.console`, which `make setup` runs.

npm checks what it downloads against the hashes of packaging/console/package-lock.json. The files go into the package's
folder `vendor` with their licences, from where the wheel takes them; git ignores it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
LOCKED: Final = ROOT / "packaging" / "console"
VENDOR: Final = ROOT / "src" / "fencepost" / "server" / "http" / "console" / "vendor"
FILES: Final = {
    "htmx.min.js": ("htmx.org", "dist/htmx.min.js"),
    "sse.min.js": ("htmx-ext-sse", "dist/sse.min.js"),
    "idiomorph.min.js": ("idiomorph", "dist/idiomorph-ext.min.js"),
    "uplot.min.js": ("uplot", "dist/uPlot.iife.min.js"),
    "uplot.min.css": ("uplot", "dist/uPlot.min.css"),
}
"""The name in `vendor`, the package of npm, and the path in it."""


def main() -> None:
    if shutil.which("npm") is None:
        line = "npm is not here, so the server will have no console; all else works (Debian: npm)"
        if os.environ.get("CI") == "true":
            sys.exit(f"make: {line}")
        print(f"make: {line}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="fencepost-console-") as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCKED / name, folder)
        # No script of a package runs here: these are files to copy, nothing else.
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        ran = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"make: npm cannot fetch the console's libraries: {ran.stderr.strip() or ran.stdout.strip()}")
        _copy(Path(folder, "node_modules"))


def _copy(modules: Path) -> None:
    """Put everything into a folder beside `vendor`, and swap them: a half-filled folder would look like a whole one."""
    with tempfile.TemporaryDirectory(prefix=".vendor-", dir=VENDOR.parent) as folder:
        new = Path(folder, "vendor")
        new.mkdir()
        for name, (package, path) in FILES.items():
            shutil.copy(modules / package / path, new / name)
            shutil.copy(modules / package / "LICENSE", new / f"{package}.LICENSE")
        shutil.rmtree(VENDOR, ignore_errors=True)
        new.rename(VENDOR)


if __name__ == "__main__":
    main()
