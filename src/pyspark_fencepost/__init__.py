"""PySpark imports top-level modules named `pyspark_…` and registers their `DefaultSource`: so `format("fencepost")` is
known to every session of PySpark 4, also over Spark Connect, without `fencepost.spark.register`."""

from fencepost.spark.source import FencepostSource as DefaultSource

__all__ = ["DefaultSource"]
