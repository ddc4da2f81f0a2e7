"""A cluster in memory whose answers a test can script: no sockets, no threads, no waiting.

    clock = HandWoundClock()
    cluster = ScriptedCluster(clock, topics={"orders": 2})
    sender = Sender(settings, options, cluster.network(), clock)
    cluster.next(Api.PRODUCE, Fate.CUT)        # appended, then the line goes dead
    …
    cluster.values("orders", 0)                # what is in the log

Left alone it behaves as a Kafka broker does: the same rule for sequences (`core/producers/dedup.py`), the same error
codes. A fate for the next request of an API, or a function that chooses one for every request, makes it misbehave.
Time passes only in `poll`, and only as far as the next thing that happens.

cluster, network, log, state, answers   the cluster, its connections, its partitions, its transactions, its answers
fates                                   what a test can have happen to a request
"""

from __future__ import annotations

from fencepost.testing.scripted.cluster import ScriptedCluster
from fencepost.testing.scripted.fates import Api, DelayedAnswer, ErrorAnswer, Fate, Late, Script, ScriptedRequest

Delayed, Refused, Request = DelayedAnswer, ErrorAnswer, ScriptedRequest
"""The old names, for tests that use them."""

__all__ = ["Api", "DelayedAnswer", "ErrorAnswer", "Fate", "Late", "Script", "ScriptedCluster", "ScriptedRequest"]
