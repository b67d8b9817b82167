"""Benchmarks: a command here measures every number in our documents, and measures the peers in the same run."""
