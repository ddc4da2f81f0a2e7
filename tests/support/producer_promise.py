"""What a producer promises, held against the log of a scripted cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fencepost.client.produce.ticket import Ticket
from fencepost.errors import SendFailed
from tests.support.scripted import ScriptedCluster


def check(cluster: ScriptedCluster, topic: str, partition: int, sent: Sequence[tuple[bytes, Ticket]]) -> Counter[str]:
    """Of the records sent to one partition, in order; answers how often each word about them was said."""
    log = [value for value in cluster.values(topic, partition) if value is not None]
    place = {value: offset for offset, value in enumerate(log)}
    order = {value: number for number, (value, _) in enumerate(sent)}
    assert max(Counter(log).values(), default=1) == 1, "each record at most once"
    assert [order[value] for value in log] == sorted(order[value] for value in log), "in the order of the sends"
    said: Counter[str] = Counter()
    for value, ticket in sent:
        error = ticket.exception(timeout=0)
        if error is None:
            assert ticket.result().offset == place[value], "delivered is there, and where the ticket says"
            said["yes"] += 1
        else:
            assert isinstance(error, SendFailed)
            assert error.persisted != "yes"
            assert (value in place) <= (error.persisted != "no"), "what is said not to be there is not there"
            said[error.persisted] += 1
    return said
