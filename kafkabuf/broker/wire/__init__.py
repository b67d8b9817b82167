"""Bytes that only the broker reads and writes."""
