"""Owners of the Apache Kafka backend, on Kafka or, since it speaks transactions too, on fencepost's server."""

from __future__ import annotations

from typing import Any

import fencepost
from fencepost.client.own.kafka import KafkaProducerBackend, KafkaReaderBackend


class KafkaOwner(fencepost.Producer):
    """A producer that uses Kafka's backend whatever the server offers."""

    @property
    def backend(self) -> KafkaProducerBackend:
        if self._owns_by is None:
            self._owns_by = self._kafka_backend()
        assert isinstance(self._owns_by, KafkaProducerBackend)
        return self._owns_by

    def own(self, *what: Any, **how: Any) -> fencepost.Claim:
        assert self.backend
        return super().own(*what, **how)


class KafkaOwningReader(fencepost.Reader):
    @property
    def backend(self) -> KafkaReaderBackend:
        if self._owns_by is None:
            self._owns_by = self._kafka_backend()
        assert isinstance(self._owns_by, KafkaReaderBackend)
        return self._owns_by

    def own(self, *what: Any, **how: Any) -> fencepost.Claim:
        assert self.backend
        return super().own(*what, **how)
