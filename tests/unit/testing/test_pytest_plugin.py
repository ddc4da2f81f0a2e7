"""The fixtures that fencepost gives to pytest."""

from __future__ import annotations

import pytest

import fencepost

pytestmark = pytest.mark.unit

_seen: list[str] = []


@pytest.mark.parametrize("time", [1, 2])
def test_a_topic_is_fresh_for_each_test(fencepost_server: fencepost.Server, fencepost_topic: str, time: int) -> None:
    assert fencepost_topic not in _seen
    _seen.append(fencepost_topic)
    with fencepost.Admin(fencepost_server.address) as admin:
        topics = {topic.name for topic in admin.topics()}
        assert fencepost_topic in topics
        assert not set(_seen[:-1]) & topics, "the topic of the test before was not deleted"
        assert admin.latest(fencepost_topic) == {0: 0}
