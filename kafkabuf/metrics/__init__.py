"""A producer's counts under Java's names, and who gets them: Prometheus, OpenTelemetry, the cluster's operator."""
