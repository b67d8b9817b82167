"""Bytes that only the broker reads and writes: its half of Produce and Fetch, its CRC."""
