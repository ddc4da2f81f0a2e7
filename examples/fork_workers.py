"""Workers that are forked: gunicorn --preload, Celery's prefork pool, multiprocessing.

    python examples/fork_workers.py 127.0.0.1:9092 events 4

A producer may be made before the fork, at the top of a module as here: in each child it starts anew, with a send
thread, connections and a pid of its own, and without the records that the parent had queued, which the parent sends.
Nothing hangs, and nothing is sent twice. What a worker has to do itself is to wait for its records before it ends:
`os._exit`, by which forked workers end, runs no clean-up.

    gunicorn   def worker_exit(server, worker): producer.close()              in gunicorn.conf.py
    Celery     @worker_process_shutdown.connect … producer.close()            from celery.signals

A producer with a *name* belongs to the process that made it, since two of the same name would fence each other: in a
child it refuses to send. Make it after the fork, with a name per worker (gunicorn: `post_fork`, Celery:
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
