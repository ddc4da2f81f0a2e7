"""The rules of `own`: who holds a resource, on fencepost's server and on Apache Kafka."""
