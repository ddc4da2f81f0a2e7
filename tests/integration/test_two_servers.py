"""Two servers in one process: neither sees anything of the other's requests."""

from __future__ import annotations

from collections import Counter

import confluent_kafka
import pytest

import fencepost

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECORDS = 3_000


def test_each_server_gets_the_records_that_were_sent_to_it() -> None:
    """librdkafka sends from threads of its own, so both servers receive at the same moments."""
    with fencepost.Server() as first, fencepost.Server() as second:
        servers = {b"first": first, b"second": second}
        producers = {
            name: confluent_kafka.Producer(
                {
                    "bootstrap.servers": server.address,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "enable.idempotence": True,
                    "log_level": 0,
                }
            )
            for name, server in servers.items()
        }
        for number in range(RECORDS):
            for name, producer in producers.items():
                while True:
                    try:
                        producer.produce("t", b"%s %d" % (name, number))
                        break
                    except BufferError:
                        producer.poll(0.01)
        for producer in producers.values():
            assert producer.flush(120) == 0
        for name, server in servers.items():
            with fencepost.Reader(server.address, "t", start="earliest", stop="latest") as reader:
                found = Counter(record.value for record in reader)
            assert found == Counter(b"%s %d" % (name, number) for number in range(RECORDS))
