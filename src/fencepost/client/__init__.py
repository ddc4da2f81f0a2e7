"""The client side: what talks to a fencepost server or an Apache Kafka cluster."""
