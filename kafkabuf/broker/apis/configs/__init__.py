"""Configs, and the metrics that clients push."""
