"""Batches of records as the broker reads, checks and rewrites them, and the state of their producers."""
