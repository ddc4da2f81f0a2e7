"""The code blocks of README.md and docs/ that are about Spark do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost
from tests.support.pages import PAGES, ROOT, Run, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ABOUT_SPARK = [page for page in PAGES if any(each.is_executed and each.needs_spark for each in blocks(page))]


@pytest.mark.every_run("README.md", "docs/moving-a-spark-job.md", "docs/spark-format.md", "docs/spark.md")
@pytest.mark.parametrize("page", ABOUT_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_spark_code_of_the_page_runs(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        fencepost.Server() as server,
        fencepost.Server() as second,
        Run(server.address, second.address, spark=spark, path=str(tmp_path / "checkpoint")) as run,
    ):
        try:
            for block in blocks(page):
                if block.is_executed and block.needs_spark:
                    run.execute(block)
        finally:
            for query in spark.streams.active:
                query.stop()
