"""A cluster in memory with scripted responses: no sockets, no threads, no waiting.

    clock = HandWoundClock()
    cluster = ScriptedCluster(clock, topics={"orders": 2})
    sender = Sender(settings, options, cluster.network(), clock)
    cluster.next(Api.PRODUCE, Fate.CUT)        # appended, then the connection closes
    …
    cluster.values("orders", 0)                # the values in the log

By default it behaves as a Kafka broker does: the same rule for sequences (`core/producers/dedup.py`), the same error
codes. A fate for the next request of an API, or a function that chooses a fate for every request, makes it misbehave.
Time passes only in `poll`, and only up to the next event.

cluster, network, log, state, answers   the cluster, its connections, its partitions, its state, its responses
fates                                   the fates that a test can choose for a request
"""

from __future__ import annotations

from tests.support.scripted.cluster import ScriptedCluster
from tests.support.scripted.fates import Api, DelayedAnswer, ErrorAnswer, Fate, Late, Script, ScriptedRequest

__all__ = ["Api", "DelayedAnswer", "ErrorAnswer", "Fate", "Late", "Script", "ScriptedCluster", "ScriptedRequest"]
