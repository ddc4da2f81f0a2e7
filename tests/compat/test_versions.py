"""Our ranges of versions beside those of a real Apache Kafka."""

from __future__ import annotations

import pytest

from tests.conftest import Kafka
from tests.support.raw import API_VERSIONS, RawClient
from tools.wire_table import KAFKA

pytestmark = [pytest.mark.compat, pytest.mark.kafka]


def test_kafka_advertises_what_our_tables_say_of_it(kafka: Kafka) -> None:
    with RawClient(kafka.address) as client:
        answer = client.call(API_VERSIONS, 3, client_software_name="tests", client_software_version="1")
    assert {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys} == KAFKA
