"""Frozen batches in files: what is put there comes back, and what is gone is noticed (PIPE-5)."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.kernel import decode_batch
from fencepost.spark import spool
from fencepost.spark.freeze import MANIFEST_COLUMNS, freeze_rows, manifest_of
from fencepost.spark.spool import Spool, SpoolPlace, SpoolReader, SpoolWriter
from tests.unit.spark.test_freeze import encoding, rows

pytestmark = pytest.mark.unit


def test_batches_come_back_from_their_places_in_any_order(tmp_path: Path) -> None:
    contents = [bytes([number]) * (number * 1_000 + 1) for number in range(20)]
    with SpoolWriter(str(tmp_path)) as one, SpoolWriter(str(tmp_path)) as other:
        places = [(one if number % 3 else other).put(content) for number, content in enumerate(contents)]
    assert len(list(tmp_path.iterdir())) == 2
    with SpoolReader() as reader:
        for place, content in reversed(list(zip(places, contents, strict=True))):
            assert reader.read(place, len(content)) == content


@pytest.mark.parametrize(
    ("master", "encrypted", "is_possible"),
    [
        ("local", False, True),
        ("local[2,3]", False, True),
        ("local[*]", True, False),
        ("local-cluster[2,1,1024]", False, False),
        ("spark://localhost:7077", False, False),
    ],
)
def test_files_are_for_tasks_on_this_machine_that_need_no_encryption(
    master: str, encrypted: bool, is_possible: bool
) -> None:
    context = SimpleNamespace(master=master, _encryption_enabled=encrypted)
    session: Any = SimpleNamespace(sparkContext=context)
    assert Spool.is_possible(session) == is_possible


def test_a_temporary_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """A query may run for weeks, and systems clean /tmp."""
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_temp_dir=str(tmp_path / "spark-1" / "pyspark-2")))
    folder = Spool(session)
    with SpoolWriter(folder.folder) as writer:
        place = writer.put(b"123")
    if os.name == "posix":  # nobody else may read it
        assert [path.stat().st_mode & 0o077 for path in (Path(folder.folder), Path(place.file))] == [0, 0]
    folder.remove()
    assert not Path(folder.folder).exists()


def test_a_task_without_batches_makes_no_file(tmp_path: Path) -> None:
    with SpoolWriter(str(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_or_too_short_is_an_error_of_the_system(tmp_path: Path) -> None:
    """So the task fails, and the micro-batch is frozen again."""
    with SpoolWriter(str(tmp_path)) as writer:
        place = writer.put(b"123")
    with SpoolReader() as reader, pytest.raises(OSError, match="too early"):
        reader.read(place, 4)
    Path(place.file).unlink()
    with SpoolReader() as reader, pytest.raises(FileNotFoundError):
        reader.read(place, 3)


def test_a_reader_of_many_files_keeps_few_of_them_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand tasks froze, and the process may open a thousand files."""
    places = []
    for number in range(200):
        with SpoolWriter(str(tmp_path)) as writer:
            places.append(writer.put(b"%03d" % number))
    opened: list[FileIO] = []

    def open_file(name: str, mode: str) -> FileIO:
        opened.append(FileIO(name, mode))
        assert sum(not file.closed for file in opened) < 100
        return opened[-1]

    monkeypatch.setattr(spool, "FileIO", open_file)
    with SpoolReader() as reader:
        for _ in range(2):  # for two target partitions
            assert [reader.read(place, 3) for place in places] == [b"%03d" % number for number in range(200)]
    assert all(file.closed for file in opened)


def test_the_manifest_of_a_task_says_where_its_batches_are(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(300)]
    given = rows([b"k"] * 300, values)
    (found,) = freeze_rows(encoding(), str(tmp_path))(iter([given]))
    assert tuple(found.schema.names) == (*MANIFEST_COLUMNS, "file", "at")
    manifest = manifest_of([SimpleNamespace(**row) for row in found.to_pylist()])
    (batches,) = manifest.batches.values()
    with SpoolReader() as reader:
        read = [reader.read(place, entry.size) for _, entry, place in batches if isinstance(place, SpoolPlace)]
    assert len(read) == len(batches) > 1
    assert [record.value for batch in read for record in decode_batch(batch)] == values
    assert manifest.published_by == "tasks"
