"""The rules of `own`: who holds a resource, on fencepost's server and on Apache Kafka.

request.py         what a client asks for and what it is told, on both
rule.py            fencepost's server: compare-and-set on a generation
kafka_steps.py     Apache Kafka: the steps of a claim
kafka_records.py   Apache Kafka: the judgement of a claim from the records of a compacted topic
kafka_line.py      Apache Kafka: the line of waiting claims
"""
