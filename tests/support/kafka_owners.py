"""Owners by Apache Kafka's road, on Kafka or, since it speaks transactions too, on fencepost's server."""

from __future__ import annotations

from typing import Any

import fencepost
from fencepost.client.own.kafka import KafkaProducerRoad, KafkaReaderRoad


class KafkaOwner(fencepost.Producer):
    """A producer that takes Kafka's road whatever the server offers."""

    @property
    def road(self) -> KafkaProducerRoad:
        if self._owns_by is None:
            self._owns_by = self._kafka_road()
        assert isinstance(self._owns_by, KafkaProducerRoad)
        return self._owns_by

    def own(self, *what: Any, **how: Any) -> fencepost.Claim:
        assert self.road
        return super().own(*what, **how)


class KafkaOwningReader(fencepost.Reader):
    @property
    def road(self) -> KafkaReaderRoad:
        if self._owns_by is None:
            self._owns_by = self._kafka_road()
        assert isinstance(self._owns_by, KafkaReaderRoad)
        return self._owns_by

    def own(self, *what: Any, **how: Any) -> fencepost.Claim:
        assert self.road
        return super().own(*what, **how)
