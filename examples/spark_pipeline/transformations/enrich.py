"""An exactly-once sink of a Declarative Pipelines project: kill it at any time, and run it again.

Adapt servers, topics and storage in spark-pipeline.yml, then: cd examples/spark_pipeline && spark-pipelines run

It needs `pip install "fencepost[spark]" "pyspark[pipelines]"`, and PYSPARK_PYTHON set to a Python that has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()
servers = spark.conf.get("enrich.servers")

dp.create_sink(
    "enriched",
    format="fencepost",
    options={
        "kafka.bootstrap.servers": servers,
        "topic": spark.conf.get("enrich.target"),
        "name": "enrich-pipeline",  # the sink's identity across runs: one flow, one name
        "create": "3",
    },
)


@dp.append_flow(target="enriched", name="enrich")  # type: ignore[untyped-decorator]
def enrich() -> DataFrame:
    orders = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", spark.conf.get("enrich.source"))
        .option("startingOffsets", "earliest")
        .load()
    )
    return orders.selectExpr("key", "concat(cast(value as string), ' seen at ', current_timestamp()) as value")
