"""What `make dist` builds, installed where there is nothing else: it works, and says so where it is slow. `make smoke`
runs this alone, with all Pythons that are found.

pip fetches the dependencies as it does for `make setup`.
"""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
"""It compiles, and installs from a package index."""

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "tests" / "workers" / "smoke.py"
OTHERS = [version for version in ("3.11", "3.12", "3.13", "3.14") if version != f"3.{sys.version_info.minor}"]
VENDOR = "src/fencepost/server/http/console/vendor"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Its output; fails with everything it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FENCEPOST"))}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is under version control, so that no left-over of the checkout gets into it."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "checkout"
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if (ROOT / VENDOR).exists():  # fetched by `make setup`, where there is npm
        shutil.copytree(ROOT / VENDOR, copy / VENDOR)
    program = f"from setuptools import build_meta as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", program, cwd=copy)
    (built,) = folder.glob("*.tar.gz")
    return built


def wheel_of(sdist: Path, folder: Path, **environment: str) -> Path:
    how = ("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "-w", str(folder))
    run(sys.executable, *PIP, "wheel", *how, str(sdist), cwd=folder, **environment)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(sdist, tmp_path_factory.mktemp("wheel"))


def environment_with(python: str, what: Path, folder: Path) -> Path:
    """An empty virtual environment with it, and with what it needs; its Python."""
    run(python, "-m", "venv", str(folder / "venv"), cwd=folder)
    inside = folder / "venv" / "bin" / "python"
    run(inside, *PIP, "install", str(what), cwd=folder)
    return inside


def smoke(python: Path, folder: Path, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(python, str(SMOKE), cwd=folder, **environment))
    print(found)
    assert found["numbers"]
    assert (found["offset"], found["values"]) == (0, ["key=value"])
    assert found["token"] > 0
    assert not Path(found["where"]).is_relative_to(ROOT), "it must be the installed one"
    return found


def test_the_archives_hold_what_they_should(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "src/fencepost/kernel/_batch.pyx"} <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {"fencepost/py.typed", "fencepost/kernel/_batch.pyi", "fencepost/demo/story.py"} <= names
    assert [name for name in names if name.startswith("fencepost/kernel/_batch.") and name.endswith(".so")]
    console = {name.removeprefix("fencepost/server/http/console/") for name in names if "/console/" in name}
    assert {"static/console.css", "templates/layout.html"} <= console
    if (ROOT / VENDOR).exists():
        assert {
            "vendor/htmx.min.js",
            "vendor/htmx.org.LICENSE",
            "vendor/uplot.min.js",
            "vendor/uplot.LICENSE",
        } <= console
    ours = ("fencepost", "pyspark_fencepost", names_dist_info(names))
    assert not [name for name in names if name.split("/")[0] not in ours]
    header = email.message_from_string(metadata)
    assert header["License-Expression"] == "Apache-2.0"
    assert header["Requires-Python"] == ">=3.11"
    assert set(header.get_all("Provides-Extra") or ()) == {"arrow", "avro", "spark", "demo", "oauth", "all"}
    assert "Typing :: Typed" in (header.get_all("Classifier") or ())


def names_dist_info(names: set[str]) -> str:
    return next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))


def test_a_wheel_works_in_an_empty_environment_and_so_does_one_without_a_compiler(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    """In one test, because the second borrows the first one's dependencies: it comes before them on the path."""
    python = environment_with(sys.executable, wheel, tmp_path)
    found = smoke(python, tmp_path)
    assert found["kernel"] == "cython"
    assert found["warnings"] == []
    (tmp_path / "twin").mkdir()
    twin = wheel_of(sdist, tmp_path / "twin", CC="false", CXX="false")
    run(python, *PIP, "install", "--no-deps", "--target", str(tmp_path / "site"), str(twin), cwd=tmp_path)
    found = smoke(python, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert found["where"].startswith(str(tmp_path / "site"))
    assert found["kernel"] == "python"
    (said,) = found["warnings"]
    assert "compiled kernel is missing" in said
    assert "Reinstall fencepost where a C compiler is available" in said


@pytest.mark.soak
@pytest.mark.parametrize("version", OTHERS)
def test_it_works_with_other_pythons(version: str, sdist: Path, tmp_path: Path) -> None:
    """Where they are installed; built by pip as a user's would be, in isolation."""
    python = find(version)
    if python is None:
        pytest.skip(f"not tried: there is no Python {version} here")
    found = smoke(environment_with(python, sdist, tmp_path), tmp_path)
    assert found["kernel"] == "cython"
    assert found["python"].startswith(version)


def find(version: str) -> str | None:
    """On the path, or among pyenv's, whose stand-ins on the path answer only for the chosen version."""
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(
        map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    )
    for python in candidates:
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None
