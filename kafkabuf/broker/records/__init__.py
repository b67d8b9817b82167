"""Batches of records as the broker reads, checks and rewrites them, and their producers."""
