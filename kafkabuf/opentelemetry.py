"""The import path that the documentation names for OpenTelemetry's metrics and spans."""

from kafkabuf.metrics.opentelemetry import TracingInterceptor, observe

__all__ = ["TracingInterceptor", "observe"]
