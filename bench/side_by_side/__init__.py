"""Clients side by side: all to the same Apache Kafka, ours to our server as well. See docs/benchmarks.md."""
