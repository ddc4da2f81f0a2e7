"""`fencepost demo`: what the package promises, shown in about a minute and then counted by a client that is not ours.

story.py       the order of events, and the verdict
broker.py      the server of the story, which can be killed and comes back
orders.py      a million orders are written; the server is killed meanwhile
pipeline.py    a Spark job enriches them; its driver is killed half-way,
               and a standby goes on                              (spark_job.py: the job, a process)
takeover.py    a paused writer is replaced, and wakes up                  (ledger_writer.py: the writer, a process)
stranger.py    somebody else's client reads everything back
proof.py       what was found against what should be there
timeline.py    what happened when; picture.py draws it
narrator.py    how it is told, at a terminal and elsewhere
children.py    processes that end with their parent
"""
