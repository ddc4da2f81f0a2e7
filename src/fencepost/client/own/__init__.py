"""`own` on the client: claims on fencepost's server and on Apache Kafka, and holding a resource alone."""
