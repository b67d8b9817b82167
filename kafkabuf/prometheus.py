"""The import path that the documentation names for the collector of Prometheus."""

from kafkabuf.metrics.prometheus import ProducerCollector

__all__ = ["ProducerCollector"]
