"""Spark: our source, sink and copy beside Spark's own Kafka connector, in one session, interleaved.

    python -m bench spark [--quick]

Ours runs against Apache Kafka and against fencepost's server, the connector against the same Kafka. Ours writes exactly
once, the connector at least once. The connector has nothing that copies whole batches: our copy is held against its way
from topic to topic.

    plan.py       how much                          works.py       what is done, ours and the connector's
    session.py    the Spark session                 small.py       the cost of a small micro-batch
    measure.py    the interleaved run               processes.py   where the time goes: CPU seconds by process
    names.py      sections and targets              alone.py       … and what our own code takes of it
"""
