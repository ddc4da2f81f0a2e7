"""Forked workers: gunicorn --preload, Celery's prefork pool, multiprocessing.

    python examples/fork_workers.py 127.0.0.1:9092 events 4

A producer may be created before the fork, for example at the top of a module. In each child it starts afresh, with its
own send thread, connections and pid, and without the records in the parent's queue, which the parent sends. Nothing
hangs, and nothing is sent twice. A worker must close the producer before it ends, because forked workers end by
`os._exit`, which runs no clean-up.

    gunicorn   def worker_exit(server, worker): producer.close()              in gunicorn.conf.py
    Celery     @worker_process_shutdown.connect … producer.close()            from celery.signals

A producer with a *name* belongs to the process that created it, since two of the same name would fence each other: in a
child it raises an error. Create it after the fork, with a name per worker (gunicorn: `post_fork`, Celery:
`worker_process_init`).
"""

from __future__ import annotations

import os
import sys

import fencepost

PER_WORKER = 1000


def work(producer: fencepost.Producer, topic: str, worker: int) -> None:
    for number in range(PER_WORKER):
        producer.send(topic, f"worker {worker}: {number}", key=f"{worker}")
    producer.close()


def main(servers: str, topic: str, workers: int) -> int:
    producer = fencepost.Producer(servers)
    producer.send(topic, "parent: before the fork")  # its send thread runs: the worst case for a fork
    children = []
    for worker in range(workers):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(producer, topic, worker)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    producer.send(topic, "parent: after the fork")
    producer.close()
    print(f"{workers - failed} of {workers} workers sent {PER_WORKER} records each")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
