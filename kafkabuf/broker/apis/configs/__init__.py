"""Settings, and the metrics that clients push."""
