"""What fencepost reaches, measured beside its peers on the same machine in one interleaved run.

    python -m bench server [--quick]        the embedded server beside Apache Kafka, under the same clients
    python -m bench clients [--quick]       Python's producers and consumers side by side
    python -m bench spark [--quick]         Spark: our source, sink and copy beside Spark's own Kafka connector
    python -m bench growth [--quick]        how cost grows with partitions, producers, connections, sizes, members, log
    python -m bench.secured [--quick]       TLS beside plaintext, and what the check of ACLs takes
    python -m bench.cold [--quick]          a burst to a new topic from a new process, beside confluent-kafka
    python -m bench report FILE             the table and the picture of a run that was saved

How it works. A *section* (`bench/server/`) asks one question. It runs *jobs* (`bench/jobs.py`), each in a process of
its own, by *clients* (`bench/clients/`), against *brokers* (`bench/brokers.py`), and notes every figure in `Results`.
The repetitions are the outermost loop and the brokers the innermost one, so that whatever the machine does meanwhile
hits all of them alike; figures are compared pair by pair, within one repetition. `bench/goals.py` holds what has to be
reached.
"""
