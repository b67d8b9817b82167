"""APIs about settings, and about the metrics that clients push."""
