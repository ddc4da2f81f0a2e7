"""The rules of `own`: who owns a resource, on fencepost's server and on Apache Kafka.

claim_request.py   a client's claim: checked arguments, the request, the answer
lease.py           the end of an owner with a session: both sides of the rule
ownership.py       the table of owners and waiting claims: compare-and-set on a generation
kafka_steps.py     Apache Kafka: the steps of a claim
kafka_records.py   Apache Kafka: owners and waiting claims as records of a compacted topic, and the judgement of a claim
"""
