"""`fencepost demo`: the guarantees, shown in about a minute and then checked by a third-party client.

story.py       the order of events, and the result
orders.py      a producer writes a million orders; the server is killed and restarted meanwhile
pipeline.py    a Spark job enriches them; its driver is killed half-way, and a standby resumes
takeover.py    a paused writer is replaced, and wakes up
proof.py       a third-party client reads everything back; found and expected records are compared
picture.py     the events with their times, drawn
narrator.py    the output, at a terminal and elsewhere
children.py    child processes that end with their parent
"""
