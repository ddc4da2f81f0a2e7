"""The embedded server beside Apache Kafka, under the same clients: one module per question."""
