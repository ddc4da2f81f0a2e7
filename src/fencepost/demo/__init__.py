"""`fencepost demo`: the guarantees, shown in about a minute and then checked by a third-party client.

story.py       the order of events, and the result
broker.py      the server, which is killed and restarted
orders.py      a producer writes a million orders; the server is killed meanwhile
pipeline.py    a Spark job enriches them; its driver is killed half-way,
               and a standby resumes                              (spark_job.py: the job, a process)
takeover.py    a paused writer is replaced, and wakes up          (ledger_writer.py: the writer, a process)
stranger.py    a third-party client reads everything back
proof.py       the comparison of found and expected records
timeline.py    the events with their times; picture.py draws them
narrator.py    the output, at a terminal and elsewhere
children.py    child processes that end with their parent
"""
