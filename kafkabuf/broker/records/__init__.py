"""Batches of records: reading, checking, rewriting."""
